"""How hyperbolic a model is: what its points, its losses and its read-outs make of the curvature."""
