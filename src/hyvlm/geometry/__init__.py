"""Manifolds: Lorentz, Euclidean, sphere, and products of Lorentz or Euclidean factors."""

from hyvlm.geometry.angles import HasAngles, Modality, angle_similarity
from hyvlm.geometry.euclidean import Euclidean
from hyvlm.geometry.lorentz import Lorentz
from hyvlm.geometry.manifold import MANIFOLDS, Manifold
from hyvlm.geometry.product import Product, ProductEuclidean, ProductLorentz
from hyvlm.geometry.sphere import Sphere

__all__ = [
    "MANIFOLDS",
    "Euclidean",
    "HasAngles",
    "Lorentz",
    "Manifold",
    "Modality",
    "Product",
    "ProductEuclidean",
    "ProductLorentz",
    "Sphere",
    "angle_similarity",
]
