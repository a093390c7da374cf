"""Figures of what evaluation and training measured."""

from hyvlm.errors import MissingExtra

try:
    from hyvlm.plotting.figures import Placed, loss_curves, pair_distances, part_gallery, radius_distribution
except ModuleNotFoundError as error:
    if error.name != "matplotlib":
        raise
    raise MissingExtra("drawing figures", "matplotlib", "plots") from error

__all__ = ["Placed", "loss_curves", "pair_distances", "part_gallery", "radius_distribution"]
