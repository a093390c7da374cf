"""Dual encoders: towers, projections, the lift onto the manifold, and files of them."""

from hyvlm.models.dual_encoder import DualEncoder, build_manifold, build_model
from hyvlm.models.fine_tune import fine_tuned_from, start_model
from hyvlm.models.long_text import stretch_positions
from hyvlm.models.presets import PRESETS, ModelConfig, resolve_model
from hyvlm.models.pretrained import convert, fingerprint, load, load_state, save_model
from hyvlm.models.publish import model_card, push_to_hub
from hyvlm.models.tokenizer import Tokenizer

__all__ = [
    "PRESETS",
    "DualEncoder",
    "ModelConfig",
    "Tokenizer",
    "build_manifold",
    "build_model",
    "convert",
    "fine_tuned_from",
    "fingerprint",
    "load",
    "load_state",
    "model_card",
    "push_to_hub",
    "resolve_model",
    "save_model",
    "start_model",
    "stretch_positions",
]
