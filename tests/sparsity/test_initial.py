"""The topology that a run starts from."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from tests.sparsity.models import three
from uneven.errors import MethodError
from uneven.sparsity import Layers
from uneven.sparsity.initial import initial_mask
from uneven.submodels import State

NAMES = ("0.weight", "2.weight", "4.weight")
DENSITY = 90 / 250  # 88 links: 55, 25 and 8 under ERK; 71, 14 and 3 uniform


def chosen(scores: State, layers: Layers | Literal["global"] = "erk", seed: int = 0) -> State:
    return initial_mask(three(), DENSITY, layers, scores, torch.Generator().manual_seed(seed))


def sizes() -> State:
    return {name: three().initial[name].abs() for name in NAMES}


def test_the_highest_scores_of_each_layer() -> None:
    for layers, counts in (("erk", (55, 25, 8)), ("uniform", (71, 14, 3))):
        mask = chosen(sizes(), layers)  # type: ignore[arg-type]
        for name, k in zip(NAMES, counts, strict=True):
            flat = sizes()[name].flatten()
            expected = torch.zeros_like(flat, dtype=torch.bool)
            expected[flat.topk(k).indices] = True
            assert torch.equal(mask[name].flatten(), expected)
            assert mask[name].shape == three().initial[name].shape


def test_the_highest_of_the_whole_model() -> None:
    mask = chosen(sizes(), "global")
    together = torch.cat([sizes()[name].flatten() for name in NAMES])
    expected = torch.zeros_like(together, dtype=torch.bool)
    expected[together.topk(88).indices] = True
    assert torch.equal(torch.cat([mask[name].flatten() for name in NAMES]), expected)


def test_a_layer_that_the_whole_model_leaves_empty() -> None:
    low: dict[str, Tensor] = sizes() | {"4.weight": torch.zeros(2, 4)}
    with pytest.raises(MethodError, match=r"method.density = 0.36: 4.weight would have no link among the largest"):
        chosen(low, "global")


def test_a_global_choice_needs_no_even_share() -> None:
    """One link in each layer, where equal densities would give the last .1 of one."""
    scores = {name: torch.zeros_like(size) for name, size in sizes().items()}
    for score in scores.values():
        score.view(-1)[3] = 1.0
    mask = initial_mask(three(), 5 / 250, "global", scores, torch.Generator())
    assert all(torch.equal(mask[name], scores[name] > 0) for name in NAMES)
    with pytest.raises(MethodError, match=r"4.weight would have no link"):
        initial_mask(three(), 5 / 250, "uniform", scores, torch.Generator())


def test_equal_scores_go_by_the_draw() -> None:
    same = {name: torch.ones_like(size) for name, size in sizes().items()}
    for layers in ("erk", "global"):
        one, again, other = (chosen(same, layers, seed) for seed in (1, 1, 2))  # type: ignore[arg-type]
        assert all(torch.equal(one[name], again[name]) for name in NAMES)
        assert not torch.equal(one["0.weight"], other["0.weight"])
        assert sum(int(mask.sum()) for mask in one.values()) == 88
