"""How many links each layer keeps, against values worked out by hand."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.laws.world import supernet
from tests.sparsity.models import three
from uneven.errors import MethodError
from uneven.sparsity import Layers, links
from uneven.sparsity.densities import links_in_all
from uneven.submodels import Supernet


def counted(links_in_all: int, layers: Layers = "erk") -> list[int]:
    """K_l where so many links are asked in all."""
    return list(links(three(), (links_in_all + 2) / 250, layers).values())


def test_erk_with_largest_remainders() -> None:
    """16 links: 16 / 50 of 30, 14 and 6 is 9.6, 4.48 and 1.92."""
    assert counted(16) == [10, 4, 2]


def test_erk_makes_a_tensor_dense_and_solves_again() -> None:
    """88 links: 88 / 50 of 30, 14 and 6 is 52.8, 24.64 and 10.56 > 8. Then 80 / 44 of 30 and 14: 54.55, 25.45."""
    assert counted(88) == [55, 25, 8]


def test_erk_once_more_where_the_second_solution_is_too_dense_too() -> None:
    """140 links: 84, 39.2 and 16.8 > 8. Then 132 / 44 of 30 and 14: 90 and 42 > 40. What is left is 92."""
    assert counted(140) == [92, 40, 8]


def test_uniform() -> None:
    """88 / 248 of 200, 40 and 8 is 70.97, 14.19 and 2.84."""
    assert counted(88, "uniform") == [71, 14, 3]


@pytest.mark.parametrize("layers", get_args(Layers))
@pytest.mark.parametrize("model", ["mlp", "cnn-group", "resnet_tiny-batch"])
@given(density=st.floats(0.3, 1))
def test_the_sum_is_exact_and_no_layer_overflows(layers: Layers, model: str, density: float) -> None:
    net = supernet(model)
    found, sizes = links(net, density, layers), {n: net.initial[n].numel() for n in net.maskable}
    never = net.size - sum(sizes.values())
    assert sum(found.values()) == links_in_all(net, density) == round(density * net.size) - never
    assert list(found) == list(sizes)
    assert all(1 <= k <= sizes[name] for name, k in found.items())


@pytest.mark.parametrize("layers", get_args(Layers))
@given(density=st.floats(0.1, 1))
def test_shares_are_what_the_rule_says(layers: Layers, density: float) -> None:
    """Between any two layers that are not dense the densities relate as p_l, but for what whole numbers take."""
    net = three()
    exact = [k / net.initial[name].numel() for name, k in links(net, density, layers).items()]
    weights = [30 / 200, 14 / 40, 6 / 8] if layers == "erk" else [1.0] * 3
    sizes = [200, 40, 8]
    for i in range(3):
        for j in range(3):
            if exact[i] < 1 and exact[j] < 1:
                slack = 1 / sizes[i] / weights[i] + 1 / sizes[j] / weights[j]
                assert abs(exact[i] / weights[i] - exact[j] / weights[j]) <= slack + 1e-9


@pytest.mark.parametrize("layers", get_args(Layers))
def test_density_1_is_everything(layers: Layers) -> None:
    assert counted(248, layers) == [200, 40, 8]


def test_less_than_what_is_never_pruned() -> None:
    with pytest.raises(MethodError, match=r"density = 0.005: norms and biases, .* already 0.008 of the model"):
        links(three(), 0.005)


def test_a_layer_without_a_link() -> None:
    """3 links: 1.8, .84 and .36."""
    with pytest.raises(MethodError, match=r"method.density = 0.02: 4.weight would have no link"):
        links(three(), 5 / 250)
    with pytest.raises(MethodError, match=r"0.weight would have no link"):
        links(three(), 2 / 250)


class Scaled(nn.Module):
    """A factor for each input, and nothing to prune."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def test_nothing_to_prune() -> None:
    with pytest.raises(MethodError, match="nothing to mask"):
        links(Supernet(Scaled(), torch.zeros(3)), 0.5)
