"""The two encoders: timm's vision transformer and open_clip's text transformer, cut to what a dual encoder needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

import torch
from open_clip.transformer import QuickGELU, TextTransformer
from timm.layers import GroupNorm1, HybridEmbed, build_sincos2d_pos_embed
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import ConvStem
from torch import Tensor, nn
from torch.nn.functional import embedding

from hyvlm.models.attention import attention_of_one, self_attention
from hyvlm.models.linear import linear, speed_up_linears
from hyvlm.models.packing import Packing

ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "quick_gelu": QuickGELU}


def sincos_positions(grid: tuple[int, int], width: int) -> Tensor:
    """Fixed 2-D sine-cosine positions ``(1, 1 + rows * columns, width)``; the class token's is zero.

    The first half of the channels encodes the row and the second the column, each as all sines, then all cosines: what
    MoCo-v3 and MERU store, whose variable names say the opposite (their ``meshgrid`` puts "w" on the slow axis).
    """
    table = build_sincos2d_pos_embed(list(grid), dim=width, interleave_sin_cos=True)
    return torch.cat([torch.zeros(1, width), table])[None]


class ImageTower(VisionTransformer):
    """Pre-norm vision transformer with class token.

    Positions are made for ``image_size``. Images of another size (crops, other aspect ratios) pass through the same
    tower; timm then interpolates the table, so that positions are relative to the image's edges. A loaded table is
    therefore used as it is at its own size.

    Args:
        image_size: Side in pixels of the square images that positions are stored for.
        patch: Side of a patch in pixels. With ``stem`` it must equal the stem's stride, 8.
        width, depth, heads: Of the transformer. ViT-S/16 has 12 heads in the MERU lineage, not the usual 6.
        stem: Replace the linear patch projection by three 3x3 convolutions of stride 2. It trains faster from little
            data (Xiao et al. 2021); normalised per image, not per batch, so a sample's features depend on it alone.
        positions: "sincos", fixed (a buffer, as in the MERU lineage), or "learned" (a parameter, as in CLIP).
        pre_norm: A norm between embedding and blocks, and patches projected without bias, as in CLIP.
        activation: "gelu", or the sigmoid approximation "quick_gelu" that OpenAI's CLIP was trained with.
        mlp_ratio: Width of the blocks' MLPs in units of ``width``.
        pooling: "class" takes the class token after the final norm, "mean" the mean over the patches, normed after it.
        norm_eps: Of every LayerNorm.
    Shape:
        ``(B, 3, H, W)`` -> ``(B, width)``, H and W divisible by ``patch``. An empty batch gives an empty result that is
        still connected to the parameters (with zero gradients), as data-parallel training needs.
    """

    def __init__(
        self,
        *,
        image_size: int,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        stem: bool = False,
        positions: str = "sincos",
        pre_norm: bool = False,
        activation: str = "gelu",
        mlp_ratio: float = 4.0,
        pooling: str = "class",
        norm_eps: float = 1e-5,
    ) -> None:
        conv_stem = {}
        if stem:
            channels = (width // 4, width // 2, width)
            backbone = ConvStem(channels=channels, norm_layer=GroupNorm1, act_layer=nn.GELU)
            conv_stem = {"embed_layer": partial(HybridEmbed, backbone=backbone, proj=False)}
        super().__init__(
            img_size=image_size,
            patch_size=1 if stem else patch,
            embed_dim=width,
            depth=depth,
            num_heads=heads,
            mlp_ratio=mlp_ratio,
            num_classes=0,
            global_pool="avg" if pooling == "mean" else "token",
            pre_norm=pre_norm,
            norm_layer=partial(nn.LayerNorm, eps=norm_eps),
            act_layer=ACTIVATIONS[activation],
            dynamic_img_size=True,
            **conv_stem,
        )
        self.image_size, self.patch = image_size, patch
        if positions == "sincos":
            del self.pos_embed  # timm's is a parameter
            self.register_buffer("pos_embed", sincos_positions(self.patch_embed.grid_size, width))

        speed_up_linears(self)
        self.compiled = False

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 0:  # len() would fix the batch size of an exported graph
            return self.forward(x.new_zeros(1, *x.shape[1:]))[:0]
        if self.global_pool == "avg":
            return self.forward_head(self._all(x))
        x = self._blocks(x, len(self.blocks) - 1)
        return self.norm(_run(self, _last_image_block)(self.blocks[-1], x))

    def _blocks(self, x: Tensor, count: int) -> Tensor:
        """Embedding and the first ``count`` blocks."""
        x = self.norm_pre(self._pos_embed(self.patch_embed(x)))
        run = _run(self, _image_block)
        for block in self.blocks[:count]:
            x = run(block, x)
        return x

    def _all(self, x: Tensor) -> Tensor:
        return self.norm(self._blocks(x, len(self.blocks)))

    def tokens(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What :meth:`forward` gives, ``(B, width)``, and every patch's output after the final norm.

        Returns:
            The second is ``(B, rows * columns, width)``, row by row, without the class token.
        """
        if not len(x):
            pooled, patches = self.tokens(x.new_zeros(1, *x.shape[1:]))
            return pooled[:0], patches[:0]
        x = self._all(x)
        return self.forward_head(x), self.fc_norm(x[:, 1:])


def _image_block(block: Any, x: Tensor) -> Tensor:
    x = x + block.attn.proj(self_attention(block.attn.qkv(block.norm1(x)), block.attn.num_heads))
    return cast(Tensor, x + block.mlp(block.norm2(x)))


def _last_image_block(block: Any, x: Tensor) -> Tensor:
    """The block's output at the class token, ``(B, W)``: of the other tokens only keys and values are needed."""
    x, normed = x[:, 0], block.norm1(x)
    of_query, of_others = _query_apart(block.attn.qkv.weight, block.attn.qkv.bias)
    mixed = attention_of_one(linear(normed[:, 0], *of_query), linear(normed, *of_others), block.attn.num_heads)
    x = x + block.attn.proj(mixed)
    return cast(Tensor, x + block.mlp(block.norm2(x)))


def _query_apart(weight: Tensor, bias: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Weight and bias of the query, then of key and value."""
    sizes = [len(bias) // 3, len(bias) - len(bias) // 3]
    (query, others), (query_bias, others_bias) = weight.split(sizes), bias.split(sizes)
    return (query, query_bias), (others, others_bias)


class TextTower(TextTransformer):
    """CLIP's causal text transformer, run only as far as texts reach.

    Causal attention never looks ahead, so positions after a text's end cannot change its feature; open_clip's own
    forward needs all ``context_length`` positions. Here linear layers and norms see the texts' own tokens, packed one
    after the other, and attention runs in up to four groups of like length (:mod:`hyvlm.models.packing`).

    Args:
        context_length: Most tokens a text can have.
        vocab_size: Of the byte-pair encoding, start and end token included.
        width, depth, heads: Of the transformer.
        activation, mlp_ratio: As in :class:`ImageTower`.
    Shape:
        ``(B, L)`` token ids, ``L <= context_length``, 0-padded -> ``(B, width)``: after the final norm, at the (first)
        position of the row's largest id, which is the end token where there is one. Empty batches as in
        :class:`ImageTower`.
    """

    def __init__(
        self,
        *,
        context_length: int,
        vocab_size: int,
        width: int,
        depth: int,
        heads: int,
        activation: str = "gelu",
        mlp_ratio: float = 4.0,
    ) -> None:
        super().__init__(
            context_length=context_length,
            vocab_size=vocab_size,
            width=width,
            layers=depth,
            heads=heads,
            mlp_ratio=mlp_ratio,
            act_layer=ACTIVATIONS[activation],
            proj_type="none",
        )
        speed_up_linears(self)
        self.compiled = False

    def forward(self, tokens: Tensor) -> Tensor:
        if not len(tokens):
            return self.forward(tokens.new_zeros(1, 1))[:0]
        packing = Packing.of(tokens, tokens.argmax(-1))
        x = self._blocks(packing, len(self.transformer.resblocks) - 1)
        last = self.transformer.resblocks[-1]
        x = _run(self, _last_text_block)(last, x, packing.at_ends, packing.attention_of_ends)
        return self.ln_final(x).index_select(0, packing.order)

    def tokens(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What :meth:`forward` gives, ``(B, width)``, and every token's output after the final norm.

        Returns:
            The second is ``(B, T, width)``, T the length of the longest text (1 if there is none); column j belongs to
            column j of the ids. It is zero behind a text's end.
        """
        if not len(tokens):
            pooled, words = self.tokens(tokens.new_zeros(1, 1))
            return pooled[:0], words[:0]
        packing = Packing.of(tokens, tokens.argmax(-1))
        x = self.ln_final(self._blocks(packing, len(self.transformer.resblocks)))
        return packing.at_ends(x).index_select(0, packing.order), packing.unpacked(x)

    def _blocks(self, packing: Packing, count: int) -> Tensor:
        """Embedding and the first ``count`` blocks, ``(N, width)``."""
        x = self.token_embedding(packing.ids) + embedding(packing.places, self.positional_embedding)
        run = _run(self, _text_block)
        for block in self.transformer.resblocks[:count]:
            x = run(block, x, packing.attention)
        return x

    def pooled(self, tokens: Tensor, end: Tensor) -> Tensor:
        """What :meth:`forward` gives, ``(B, width)``, of texts that end at ``end`` ``(B,)``, in one pass over all L.

        No shape depends on the tokens' values here, so that the pass can be exported.
        """
        x = self.token_embedding(tokens) + self.positional_embedding[: tokens.shape[1]]
        rows, columns = (torch.arange(size, device=x.device) for size in x.shape[:2])
        *blocks, last = self.transformer.resblocks
        for block in blocks:
            x = _text_block(block, x, partial(self_attention, causal=True))
        attention = partial(attention_of_one, mask=columns <= end[:, None])
        return self.ln_final(_last_text_block(last, x, lambda x: x[rows, end], attention))


def _text_block(block: Any, x: Tensor, attention: Callable[[Tensor, int], Tensor]) -> Tensor:
    qkv = linear(block.ln_1(x), block.attn.in_proj_weight, block.attn.in_proj_bias)
    x = x + block.attn.out_proj(attention(qkv, block.attn.num_heads))
    return cast(Tensor, x + block.mlp(block.ln_2(x)))


def _last_text_block(
    block: Any, x: Tensor, at_ends: Callable[[Tensor], Tensor], attention: Callable[[Tensor, Tensor, int], Tensor]
) -> Tensor:
    """The block's output at the texts' ends, ``(B, W)``, which ``at_ends`` picks; as in the image tower."""
    normed = block.ln_1(x)
    of_query, of_others = _query_apart(block.attn.in_proj_weight, block.attn.in_proj_bias)
    mixed = attention(linear(at_ends(normed), *of_query), linear(normed, *of_others), block.attn.num_heads)
    x = at_ends(x) + block.attn.out_proj(mixed)
    return cast(Tensor, x + block.mlp(block.ln_2(x)))


@cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function)


def _run(tower: ImageTower | TextTower, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function``, compiled if the tower is; a graph that is being exported holds what it would compile."""
    return _compiled(function) if tower.compiled and not torch.compiler.is_compiling() else function


def compile_blocks(module: nn.Module) -> None:
    """Compile the blocks of every tower inside ``module`` (torch.compile), in place; parameters and names stay.

    One compiled block serves all of a tower. It multiplies by torch's default on the CPU, not by
    :mod:`hyvlm.models.linear`, so that it pays on GPUs.
    """
    for tower in module.modules():
        if isinstance(tower, ImageTower | TextTower):
            tower.compiled = True
