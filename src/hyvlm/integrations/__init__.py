"""The library inside other programs: text conditioning of Stable Diffusion XL, and what its images are worth."""
