"""Dual encoders: towers, projections, the lift onto the manifold, and files of them."""

from hyvlm.models.dual_encoder import DualEncoder, build_manifold, build_model
from hyvlm.models.presets import PRESETS, ModelConfig, resolve_model

__all__ = ["PRESETS", "DualEncoder", "ModelConfig", "build_manifold", "build_model", "resolve_model"]
