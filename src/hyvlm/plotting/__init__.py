"""Figures of what evaluation and training measured."""

from hyvlm.plotting.figures import Placed, loss_curves, pair_distances, part_gallery, radius_distribution

__all__ = ["Placed", "loss_curves", "pair_distances", "part_gallery", "radius_distribution"]
