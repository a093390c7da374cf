import numpy as np
import pytest
import torch
from PIL import Image

from hyvlm.data.transforms import eval_transform, train_transform


def checkerboard(side: int) -> Image.Image:
    grid = (np.indices((side, side)).sum(0) % 2 * 255).astype(np.uint8)
    return Image.fromarray(np.stack([grid] * 3, -1))


@pytest.mark.parametrize("resize", ["squash", "crop"])
@pytest.mark.parametrize("size", [(1, 1), (1, 300), (5000, 3), (64, 48), (48, 64), (500, 20)])
def test_evaluation_pixels_have_the_size_of_the_model(resize, size):
    pixels = eval_transform(32, resize)(Image.new("RGB", size, (255, 128, 0)))
    assert pixels.shape == (3, 32, 32)
    assert pixels.dtype == torch.uint8
    assert (pixels == torch.tensor([255, 128, 0], dtype=torch.uint8)[:, None, None]).all()


def test_resizing_has_antialiasing():
    pixels = eval_transform(32)(checkerboard(640)).float()
    assert (pixels - 127.5).abs().max() <= 2.5  # without it, a resized checkerboard is black, white or a moire


def test_squash_keeps_the_border_and_crop_the_centre():
    image = Image.new("RGB", (96, 32), "black")
    image.paste((255, 0, 0), (0, 0, 32, 32))
    image.paste((0, 255, 0), (32, 0, 64, 32))
    squashed, cropped = eval_transform(32, "squash")(image), eval_transform(32, "crop")(image)
    assert squashed[0, 16, 2] == 255
    assert squashed[1, 16, 16] == 255
    assert cropped[1].min() == 255
    assert cropped[0].max() == 0


def test_unknown_resize_is_an_error():
    with pytest.raises(ValueError, match="'squash' or 'crop', got 'crpo'"):
        eval_transform(32, "crpo")


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        ({"name": "corp"}, "unknown augmentation 'corp'. Did you mean 'crop'"),
        ({"scale": [0.5, 1]}, "needs a name"),
        ({"name": "crop", "scales": [0.5, 1]}, "'crop' does not take these settings: scales"),
        ({"name": "crop", "scale": [0.0, 1]}, "low <= high <= 1"),
        ({"name": "crop", "scale": "x"}, "data.augment.scale must be a list of 2, got 'x'"),
        ({"name": "crop", "scale": 0.5}, "data.augment.scale must be a list of 2, got 0.5"),
        ({"name": "crop_jitter_gray", "scale": [0.9, 0.8]}, "low <= high <= 1"),
    ],
)
def test_wrong_augmentations_are_named(augment, message):
    with pytest.raises(ValueError, match=message):
        train_transform(augment, 32)


def areas(augment: dict, n: int = 200) -> np.ndarray:
    """Share of the image in each of ``n`` crops, read off pixels that hold their own coordinates."""
    side = 256
    y, x = np.indices((side, side))
    image = Image.fromarray(np.stack([x, y, np.zeros_like(x)], -1).astype(np.uint8))
    transform = train_transform(augment, 64)
    pixels = torch.stack([transform(image) for _ in range(n)]).float()
    spans = pixels[:, :2].amax((2, 3)) - pixels[:, :2].amin((2, 3))
    return (spans.prod(1) / side**2).numpy()


@pytest.mark.parametrize("scale", [[0.5, 1.0], [0.8, 1.0]])
def test_crop_takes_the_asked_share_of_the_area(scale):
    torch.manual_seed(0)
    shares = areas({"name": "crop", "scale": scale})
    assert scale[0] - 0.04 < shares.min() < scale[0] + 0.06
    assert 0.9 < shares.max() <= 1.02


def test_jitter_and_grey_happen_as_often_as_asked():
    image = Image.new("RGB", (32, 32), (200, 100, 50))
    torch.manual_seed(0)
    transform = train_transform({"name": "crop_jitter_gray"}, 8)
    colours = np.array([transform(image)[:, 4, 4].tolist() for _ in range(500)])
    grey = (colours.max(1) - colours.min(1) <= 1).mean()
    unchanged = (np.abs(colours - [200, 100, 50]).max(1) <= 1).mean()
    assert 0.14 < grey < 0.26
    assert 0.1 < unchanged < 0.23  # 0.2 without jitter, of which 0.8 keep their colour


def test_none_is_a_plain_resize():
    image = checkerboard(50)
    assert torch.equal(train_transform({"name": "none"}, 32)(image), eval_transform(32)(image))
