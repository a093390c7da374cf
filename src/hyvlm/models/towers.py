"""The two encoders: timm's vision transformer and open_clip's text transformer, cut to what a dual encoder needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from open_clip.transformer import QuickGELU, TextTransformer
from timm.layers import GroupNorm1, HybridEmbed, build_sincos2d_pos_embed
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import ConvStem
from torch import Tensor, nn
from torch.nn.functional import pad

from hyvlm.models.lengths import group_by_length

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

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 0:  # len() would fix the batch size of an exported graph
            return self.forward(x.new_zeros(1, *x.shape[1:]))[:0]
        if self.global_pool == "avg":
            return self.forward_head(self.forward_features(x))
        x = self.norm_pre(self._pos_embed(self.patch_embed(x)))
        *blocks, last = self.blocks
        for block in blocks:
            x = block(x)
        # The last block's MLP, two thirds of its cost, is needed at the class token alone.
        x = (x + last.attn(last.norm1(x)))[:, 0]
        x = x + last.mlp(last.norm2(x))
        return self.norm(x)

    def tokens(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What :meth:`forward` gives, ``(B, width)``, and every patch's output after the final norm.

        Returns:
            The second is ``(B, rows * columns, width)``, row by row, without the class token.
        """
        if not len(x):
            pooled, patches = self.tokens(x.new_zeros(1, *x.shape[1:]))
            return pooled[:0], patches[:0]
        x = self.forward_features(x)
        return self.forward_head(x), self.fc_norm(x[:, 1:])


class TextTower(TextTransformer):
    """CLIP's causal text transformer, run only as far as texts reach.

    Causal attention never looks ahead, so positions after a text's end cannot change its feature; open_clip's own
    forward needs all ``context_length`` positions. Where lengths differ much, the batch runs in up to four groups of
    like length (:func:`hyvlm.models.lengths.group_by_length`), so that short texts do not pay for long ones.

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

    def forward(self, tokens: Tensor) -> Tensor:
        if not len(tokens):
            return self.forward(tokens.new_zeros(1, 1))[:0]
        return self._by_length(tokens, tokens.argmax(-1), self.pooled)

    def tokens(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What :meth:`forward` gives, ``(B, width)``, and every token's output after the final norm.

        Returns:
            The second is ``(B, T, width)``, T the length of the longest text (1 if there is none); column j belongs to
            column j of the ids. What stands behind a text's end is meaningless.
        """
        if not len(tokens):
            pooled, words = self.tokens(tokens.new_zeros(1, 1))
            return pooled[:0], words[:0]
        end = tokens.argmax(-1)
        longest = int(end.max()) + 1
        words = self._by_length(tokens, end, lambda ids, _: pad(self._all(ids), (0, 0, 0, longest - ids.shape[1])))
        return words[torch.arange(len(words), device=words.device), end], words

    def _by_length(self, tokens: Tensor, end: Tensor, run: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """``run(ids, end)`` on groups of texts of like length, cut to the longest of the group; rows in their order."""
        lengths = end.cpu().numpy() + 1
        groups = group_by_length(lengths)
        if len(groups) == 1:
            return run(tokens[:, : lengths.max()], end)
        rows = [torch.from_numpy(group).to(tokens.device) for group in groups]
        parts = [run(tokens[at, : lengths[group].max()], end[at]) for at, group in zip(rows, groups, strict=True)]
        return torch.cat(parts)[torch.cat(rows).argsort()]

    def _embed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Input of the blocks and the causal mask."""
        length = tokens.shape[1]
        x = self.token_embedding(tokens) + self.positional_embedding[:length]
        return x, self.attn_mask[:length, :length]

    def pooled(self, tokens: Tensor, end: Tensor) -> Tensor:
        """What :meth:`forward` gives, ``(B, width)``, of texts that end at ``end`` ``(B,)``, in one pass over all L."""
        x, mask = self._embed(tokens)
        *blocks, last = self.transformer.resblocks
        for block in blocks:
            x = block(x, attn_mask=mask)
        # As in the image tower: beyond attention, the last block is needed at one position a text.
        x = x + last.attention(last.ln_1(x), attn_mask=mask)
        x = x[torch.arange(x.shape[0], device=x.device), end]
        x = x + last.mlp(last.ln_2(x))
        return self.ln_final(x)

    def _all(self, tokens: Tensor) -> Tensor:
        x, mask = self._embed(tokens)
        return self.ln_final(self.transformer(x, attn_mask=mask))
