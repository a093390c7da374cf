import copy
import math

import pytest
import torch
from open_clip.transformer import TextTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from hyvlm.models.towers import ImageTower, TextTower, sincos_positions

END = 49407


@pytest.fixture(scope="module")
def image_tower() -> ImageTower:
    torch.manual_seed(0)
    return ImageTower(image_size=32, patch=8, width=32, depth=2, heads=2).double()


@pytest.fixture(scope="module")
def stem_tower() -> ImageTower:
    torch.manual_seed(0)
    return ImageTower(image_size=32, patch=8, width=32, depth=2, heads=2, stem=True).double()


@pytest.fixture(scope="module")
def text_tower() -> TextTower:
    torch.manual_seed(0)
    return TextTower(context_length=77, vocab_size=49408, width=32, depth=3, heads=2).double()


def texts(*lengths: int, seed: int = 0) -> Tensor:
    """Random texts of the given lengths, start and end included, padded to 77."""
    tokens = torch.zeros(len(lengths), 77, dtype=torch.long)
    generator = torch.Generator().manual_seed(seed)
    for row, length in zip(tokens, lengths, strict=True):
        row[:length] = torch.randint(1, 49406, (length,), generator=generator)
        row[0], row[length - 1] = 49406, END
    return tokens


def test_positions_encode_row_then_column_as_mocov3_does() -> None:
    rows, columns, width = 3, 5, 16
    table = sincos_positions((rows, columns), width)
    assert table.shape == (1, 1 + rows * columns, width)
    assert not table[0, 0].any()
    frequencies = [10000 ** (-i / 4) for i in range(4)]
    for row in range(rows):
        for column in range(columns):
            expected = [f(at * w) for at in (row, column) for f in (math.sin, math.cos) for w in frequencies]
            torch.testing.assert_close(table[0, 1 + row * columns + column], torch.tensor(expected))


def test_positions_are_stored_and_not_learned(image_tower: ImageTower) -> None:
    assert "pos_embed" in image_tower.state_dict()
    assert "pos_embed" not in dict(image_tower.named_parameters())


@pytest.mark.parametrize("size", [(32, 32), (16, 16), (24, 48)])
@pytest.mark.parametrize("tower", ["image_tower", "stem_tower"])
def test_image_features_equal_the_full_forward_of_timm(
    tower: str, size: tuple[int, int], request: pytest.FixtureRequest
) -> None:
    tower = request.getfixturevalue(tower)
    images = torch.rand(3, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = VisionTransformer.forward(tower, images)
    torch.testing.assert_close(tower(images), expected, rtol=0, atol=1e-12)


def test_positions_matter_for_crops_too(image_tower: ImageTower) -> None:
    images = torch.rand(1, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert (image_tower(images) - image_tower(images.flip(-1))).abs().max() > 1e-3


def test_an_image_is_encoded_alike_whatever_it_is_batched_with(stem_tower: ImageTower) -> None:
    images = torch.rand(4, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    stem_tower.train()
    together, alone = stem_tower(images), torch.cat([stem_tower(image[None]) for image in images])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


def plain_text_tower(tower: TextTower) -> TextTransformer:
    """open_clip's own module with a copy of the tower's weights."""
    first = tower.transformer.resblocks[0]
    plain = TextTransformer(
        context_length=tower.context_length,
        vocab_size=tower.vocab_size,
        width=tower.width,
        heads=tower.heads,
        layers=len(tower.transformer.resblocks),
        mlp_ratio=first.mlp.c_fc.out_features / tower.width,
        proj_type="none",
    )
    plain.load_state_dict(tower.state_dict())
    return plain.to(tower.positional_embedding.dtype)


def full_length(tower: TextTower, tokens: Tensor) -> Tensor:
    """open_clip's own forward over all 77 positions."""
    return plain_text_tower(tower)(tokens)


def test_text_features_equal_those_of_all_77_positions(text_tower: TextTower) -> None:
    tokens = texts(9, 2, 14, 30)
    torch.testing.assert_close(text_tower(tokens), full_length(text_tower, tokens), rtol=0, atol=1e-12)
    torch.testing.assert_close(text_tower(tokens[:, :30]), text_tower(tokens), rtol=0, atol=1e-12)


def test_text_gradients_equal_those_of_all_77_positions(text_tower: TextTower) -> None:
    trimmed, padded = copy.deepcopy(text_tower), plain_text_tower(text_tower)
    tokens = texts(5, 12, 5, 40)
    trimmed(tokens).square().sum().backward()
    padded(tokens).square().sum().backward()
    for (name, ours), theirs in zip(trimmed.named_parameters(), padded.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("lengths", [(9, 2, 14, 30), (7, 7, 7), (1, 77)])
def test_one_padded_pass_is_the_same(text_tower: TextTower, lengths: tuple[int, ...]) -> None:
    tokens = texts(*lengths)
    torch.testing.assert_close(text_tower.pooled(tokens, tokens.argmax(-1)), text_tower(tokens), rtol=0, atol=1e-12)


def test_linear_layers_see_each_token_once_and_the_last_block_only_ends(text_tower: TextTower) -> None:
    rows = []
    tower = copy.deepcopy(text_tower)
    for block in (tower.transformer.resblocks[0], tower.transformer.resblocks[-1]):
        block.mlp.register_forward_hook(lambda _module, args, _out: rows.append(len(args[0])))
    tower(texts(10, 11, 9))
    tower(texts(77, 12, 10, 3))
    tower.tokens(texts(77, 12, 10))
    assert rows == [30, 3, 102, 4, 99, 99]


def in_one_group(tower: TextTower, monkeypatch: pytest.MonkeyPatch) -> TextTower:
    monkeypatch.setattr("hyvlm.models.packing.group_by_length", lambda lengths: [torch.arange(len(lengths)).numpy()])
    return tower


@pytest.mark.parametrize("path", ["pooled", "tokens"])
def test_groups_change_neither_outputs_nor_gradients(
    text_tower: TextTower, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = texts(30, 3, 77, 4, 9, 29, 2, 70)
    grouped, whole = copy.deepcopy(text_tower), copy.deepcopy(text_tower)

    def run(tower: TextTower) -> Tensor:
        if path == "pooled":
            return tower(batch)
        pooled, words = tower.tokens(batch)
        assert words.shape == (8, 77, 32)
        counted = torch.arange(77) <= batch.argmax(-1, keepdim=True)
        return torch.cat([pooled, words[counted]])

    found = run(grouped)
    found.square().sum().backward()
    in_one_group(whole, monkeypatch)
    expected = run(whole)
    expected.square().sum().backward()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for (name, ours), theirs in zip(grouped.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-12, msg=name)


def test_groups_agree_in_single_precision(text_tower: TextTower, monkeypatch: pytest.MonkeyPatch) -> None:
    tower, batch = copy.deepcopy(text_tower).float(), texts(30, 3, 77, 4, 9, 29, 2, 70)
    found = tower(batch)
    expected = in_one_group(tower, monkeypatch)(batch)
    assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()


@pytest.mark.parametrize("tower", ["learned", "quick_gelu"])
def test_towers_in_the_form_of_clip_equal_the_full_forward(tower: str) -> None:
    torch.manual_seed(0)
    form = {"learned": {"positions": "learned"}, "quick_gelu": {"activation": "quick_gelu", "mlp_ratio": 2.5}}[tower]
    clip = ImageTower(image_size=32, patch=8, width=32, depth=2, heads=2, pre_norm=True, **form).double()
    images = torch.rand(2, 3, 16, 32, dtype=torch.float64)
    torch.testing.assert_close(clip(images), VisionTransformer.forward(clip, images), rtol=0, atol=1e-12)
    torch.testing.assert_close(clip.tokens(images)[0], clip(images), rtol=0, atol=1e-12)
    assert isinstance(clip.pos_embed, torch.nn.Parameter) == (tower == "learned")
    clip(images).square().sum().backward()
    assert all(parameter.grad.any() for parameter in clip.parameters())


def test_a_text_is_encoded_alike_whatever_it_is_batched_with(text_tower: TextTower) -> None:
    tokens = texts(3, 40, 7)
    alone = torch.cat([text_tower(row[None]) for row in tokens])
    torch.testing.assert_close(text_tower(tokens), alone, rtol=0, atol=1e-12)


def test_the_first_end_token_ends_a_text(text_tower: TextTower) -> None:
    tokens = texts(6)
    longer = tokens.clone()
    longer[0, 6:9] = torch.tensor([320, 321, END])
    torch.testing.assert_close(text_tower(longer), text_tower(tokens), rtol=0, atol=1e-12)


@pytest.mark.parametrize("tower", ["image_tower", "stem_tower", "text_tower"])
def test_an_empty_batch_stays_in_the_graph(tower: str, request: pytest.FixtureRequest) -> None:
    tower = copy.deepcopy(request.getfixturevalue(tower))
    empty = torch.zeros(0, 77, dtype=torch.long) if isinstance(tower, TextTower) else torch.zeros(0, 3, 32, 32).double()
    features = tower(empty)
    assert features.shape == (0, 32)
    features.sum().backward()
    for name, parameter in tower.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name
