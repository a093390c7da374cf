import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from hyvlm.data.jitter import FastColorJitter
from hyvlm.data.transforms import random_box

KNOBS = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}


def pixels() -> torch.Tensor:
    """Random colours, and those where a hue's sector is ambiguous: greys, primaries, two equal channels."""
    random = np.random.default_rng(0).integers(0, 256, (60, 3))
    corners = np.stack(np.meshgrid(*[[0, 1, 128, 254, 255]] * 3), -1).reshape(-1, 3)
    colours = np.concatenate([random, corners, corners[:15]]).astype(np.uint8)
    return torch.from_numpy(colours.T.reshape(3, 10, -1).copy())


def by_torchvision(image: torch.Tensor, params: dict) -> torch.Tensor:
    steps = (
        (functional.adjust_brightness, "brightness_factor"),
        (functional.adjust_contrast, "contrast_factor"),
        (functional.adjust_saturation, "saturation_factor"),
        (functional.adjust_hue, "hue_factor"),
    )
    image = image.double() / 255
    for number in params["fn_idx"].tolist():
        adjust, factor = steps[number]
        if params[factor] is not None:
            image = adjust(image, params[factor])
    return image * 255


@given(st.integers(0, 2**31))
@settings(derandomize=True, max_examples=60, deadline=None)
def test_colours_are_torchvisions_to_rounding(seed):
    jitter, reference = FastColorJitter(**KNOBS), v2.ColorJitter(**KNOBS)
    torch.manual_seed(seed)
    found = jitter(pixels())
    torch.manual_seed(seed)
    expected = by_torchvision(pixels(), reference.make_params([]))
    assert found.dtype == torch.uint8
    assert (found - expected).abs().max() <= 0.51


@pytest.mark.parametrize("knob", list(KNOBS))
def test_one_knob_alone(knob):
    jitter = FastColorJitter(**{knob: KNOBS[knob]})
    torch.manual_seed(3)
    found = jitter(pixels())
    torch.manual_seed(3)
    assert (found - by_torchvision(pixels(), jitter.make_params([]))).abs().max() <= 0.51
    assert not torch.equal(found, pixels())


def test_hue_goes_round_the_circle():
    jitter = FastColorJitter(hue=0.5)
    order = {"fn_idx": torch.tensor([3]), "hue_factor": 0.0}
    for factor in (-0.5, -1 / 3, 0.0, 1 / 3, 0.5):
        turned = jitter.transform(pixels(), {**order, "hue_factor": factor})
        assert (turned - by_torchvision(pixels(), {**order, "hue_factor": factor})).abs().max() <= 0.51
    red = torch.tensor([255, 0, 0], dtype=torch.uint8)[:, None, None]
    assert jitter.transform(red, {**order, "hue_factor": 1 / 3}).flatten().tolist() == [0, 255, 0]


def test_what_is_given_stays_as_it_is():
    image = pixels()
    FastColorJitter(**KNOBS)(image)
    assert torch.equal(image, pixels())


@pytest.mark.parametrize("size", [(300, 200), (100, 400), (500, 60), (1, 1), (3, 2)])
def test_boxes_have_the_distribution_of_torchvision(size):
    scale = (0.5, 1.0)
    reference = v2.RandomResizedCrop(8, scale)
    image = torch.empty(3, size[1], size[0])
    torch.manual_seed(0)
    found = np.array([random_box(*size, scale) for _ in range(3000)], dtype=float)
    drawn = [reference.make_params([image]) for _ in range(3000)]
    expected = np.array([(d["left"], d["top"], d["left"] + d["width"], d["top"] + d["height"]) for d in drawn], float)
    assert found.min() >= 0
    assert (found.max(0) <= [*size, *size]).all()
    for quantile in (0.1, 0.5, 0.9):
        away = np.quantile(found, quantile, axis=0) - np.quantile(expected, quantile, axis=0)
        assert (np.abs(away) <= 0.02 * np.array([*size, *size]) + 0.5).all()
    assert np.abs(found.mean(0) - expected.mean(0)).max() <= 0.015 * max(size) + 0.05
