"""A Stable Diffusion XL pipeline of a few thousand weights, built from configurations, with CLIP's real tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import diffusers
import pytest
import torch
import transformers
from open_clip.tokenizer import SimpleTokenizer

from hyvlm.models import DualEncoder, build_model

CLIP_L, BIG_G = 24, 40


@pytest.fixture(scope="session")
def clip_tokenizer(tmp_path_factory: pytest.TempPathFactory):
    """CLIP's tokenizer in transformers' form, from the vocabulary that open_clip brings along."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    bpe = SimpleTokenizer()
    vocabulary = {token: i for i, token in enumerate(bpe.encoder)}
    start, end = "<|startoftext|>", "<|endoftext|>"
    tokens = [*list(vocabulary)[:-2], start, end]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in bpe.bpe_ranks)]))

    def build(pad_token: str = end):
        return transformers.CLIPTokenizer.from_pretrained(str(folder), model_max_length=77, pad_token=pad_token)

    return build


def text_config(width: int, projection: int):
    return transformers.CLIPTextConfig(
        vocab_size=49408,
        hidden_size=width,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=77,
        projection_dim=projection,
        bos_token_id=49406,
        eos_token_id=49407,
        pad_token_id=1,
    )


@pytest.fixture(scope="session")
def tiny_pipe(clip_tokenizer):
    """Shared: no test may leave a change in it."""
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=1,
        projection_class_embeddings_input_dim=6 * 8 + BIG_G,
        cross_attention_dim=CLIP_L + BIG_G,
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8, 8),
        norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        latent_channels=4,
    )
    pipe = diffusers.StableDiffusionXLPipeline(
        vae=vae,
        unet=unet,
        scheduler=diffusers.EulerDiscreteScheduler(beta_schedule="scaled_linear"),
        text_encoder=transformers.CLIPTextModel(text_config(CLIP_L, CLIP_L)).eval(),
        text_encoder_2=transformers.CLIPTextModelWithProjection(text_config(BIG_G, BIG_G)).eval(),
        tokenizer=clip_tokenizer(),
        tokenizer_2=clip_tokenizer("!"),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., DualEncoder]:
    """A model over CLIP's vocabulary, ``dim`` wide."""

    def build(dim: int = CLIP_L, manifold: str = "lorentz", context: int = 248, vocabulary: int = 49408) -> DualEncoder:
        torch.manual_seed(1)
        image = {"image_size": 16, "patch": 8, "width": 16, "depth": 1, "heads": 2}
        text = {"context_length": context, "vocab_size": vocabulary, "width": 16, "depth": 2, "heads": 2}
        section = {"name": manifold} if manifold != "lorentz" else {"name": "lorentz", "c": 1.0}
        return build_model({"model": {"dim": dim, "image": image, "text": text}, "manifold": section}).eval()

    return build
