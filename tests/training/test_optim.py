"""Which parameters decay, and the rate at every step."""

import math

import pytest
import torch
from torch import nn

from hyvlm.config import TrainConfig
from hyvlm.training.optim import build_optimizer, learning_rate


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.LayerNorm(2)
        self.log_scale = nn.ParameterDict({"global": nn.Parameter(torch.tensor(1.0))})
        self.log_c = nn.Parameter(torch.zeros(4))
        self.frozen = nn.Parameter(torch.zeros(2, 2), requires_grad=False)


def names_that_decay(**settings):
    module = Small()
    optimizer = build_optimizer(module.named_parameters(), TrainConfig(steps=1, batch_size=1, **settings))
    names = {id(p): n for n, p in module.named_parameters()}
    covered = {names[id(p)] for group in optimizer.param_groups for p in group["params"]}
    assert covered == set(names.values()) - {"frozen"}
    return {names[id(p)] for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}


def test_only_matrices_decay_by_default():
    assert names_that_decay() == {"linear.weight"}


def test_released_runs_decayed_gains_and_biases_but_no_learnable_scalar():
    assert names_that_decay(decay_gains_and_biases=True) == {
        "linear.weight",
        "linear.bias",
        "norm.weight",
        "norm.bias",
    }


def test_published_phyclip_decays_curvatures_and_scales_but_no_temperature():
    assert names_that_decay(decay_scalars=True) == {"linear.weight", "log_c"}


def test_learning_rate_rises_then_falls_to_zero():
    config = TrainConfig(steps=110, batch_size=1, lr=2.0, warmup_steps=10)
    assert learning_rate(0, config) == pytest.approx(0.2)
    assert learning_rate(9, config) == pytest.approx(2.0)
    assert learning_rate(10, config) == pytest.approx(2.0)
    assert learning_rate(60, config) == pytest.approx(1.0)
    assert learning_rate(35, config) == pytest.approx(1 + math.cos(math.pi / 4))
    assert learning_rate(110, config) == 0.0
    rates = [learning_rate(step, config) for step in range(10, 111)]
    assert rates == sorted(rates, reverse=True)


def test_a_run_shorter_than_its_warm_up_never_passes_the_peak():
    config = TrainConfig(steps=5, batch_size=1, lr=1.0, warmup_steps=100)
    assert [learning_rate(step, config) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
