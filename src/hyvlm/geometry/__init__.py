from hyvlm.geometry.manifold import MANIFOLDS, Manifold

__all__ = ["MANIFOLDS", "Manifold"]
