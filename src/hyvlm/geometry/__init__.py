"""Manifolds: Lorentz, Euclidean, sphere and the product of Lorentz factors."""

from hyvlm.geometry.euclidean import Euclidean
from hyvlm.geometry.lorentz import Lorentz
from hyvlm.geometry.manifold import MANIFOLDS, Manifold
from hyvlm.geometry.product import ProductLorentz
from hyvlm.geometry.sphere import Sphere

__all__ = ["MANIFOLDS", "Euclidean", "Lorentz", "Manifold", "ProductLorentz", "Sphere"]
