"""Linear layers computed from their links: as a masked network to float tolerance, in every form of a layer."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from tests.submodels.helpers import randomised
from uneven.data import Examples
from uneven.sparsity.gradients import mean_gradient
from uneven.sparsity.kernel import Layout, SparseNetwork, linear, linear_layers
from uneven.submodels import MaskSubmodel, Network, State, Supernet
from uneven.submodels.masks import masked
from uneven.training import TrainingOptions, train_locally
from uneven.training.losses import cross_entropy


class Forms(nn.Module):
    """Layers with a bias and without, over one axis and two, and one that keeps its weight turned."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 9), nn.Linear(9, 6, bias=False)
        self.turned, self.bias = nn.Parameter(torch.randn(6, 7)), nn.Parameter(torch.randn(7))
        self.head = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.outer(torch.tanh(self.inner(x)))
        flat = torch.addmm(self.bias, hidden.reshape(-1, 6), self.turned)
        return self.head(torch.tanh(flat).view(x.shape[0], 4, 7).mean(1))  # type: ignore[no-any-return]


WEIGHTS = ("inner.weight", "outer.weight", "turned", "head.weight")


@cache
def net() -> Supernet:
    return Supernet(randomised(Forms()), torch.zeros(4, 6))


@cache
def part() -> MaskSubmodel:
    draws = torch.Generator().manual_seed(0)
    return masked(net(), {name: torch.rand(net().initial[name].shape, generator=draws) < 0.3 for name in WEIGHTS})


def data() -> Examples:
    draws = torch.Generator().manual_seed(1)
    return Examples(torch.randn(10, 4, 6, generator=draws), torch.arange(10) % 3)


def trained(network: Network) -> State:
    network.load(part().gather(net().initial))
    options = TrainingOptions(lr=0.1, batch_size=4, epochs=2, momentum=0.9, weight_decay=0.01)
    train_locally(
        network, data(), options, 0.1, torch.Generator().manual_seed(2), correct=lambda w: network.confine()
    )
    return network.values()


@pytest.mark.parametrize("flipped", [False, True])
def test_values_and_gradients_of_a_layer(flipped: bool) -> None:
    """Against the dense formula; an output without a link, and a link less input, are among them."""
    draws = torch.Generator().manual_seed(0)
    mask = torch.rand(5, 4, generator=draws) < 0.5
    mask[2], mask[:, 1] = False, False
    full = torch.randn(5, 4, generator=draws) * mask
    weight = (full.t().contiguous() if flipped else full).requires_grad_()
    layout = Layout(mask.t() if flipped else mask, flipped)
    x, bias = torch.randn(3, 2, 4, generator=draws, requires_grad=True), torch.randn(5, requires_grad=True)
    out = torch.randn(3, 2, 5, generator=draws)
    y = linear(x, weight, bias, layout)
    found = torch.autograd.grad(y, [x, weight, bias], out)
    dense = nn.functional.linear(x, weight.t() if flipped else weight, bias)
    expected = torch.autograd.grad(dense, [x, weight, bias], out)
    torch.testing.assert_close(y, dense)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1] * (mask.t() if flipped else mask))
    torch.testing.assert_close(found[2], expected[2])


def test_every_form_of_a_linear_layer_is_found() -> None:
    network = net().prefix(1.0).network()
    found = {call.weight: call.flipped for call in linear_layers(network.graphs[0], network)}
    assert found == {"inner.weight": False, "outer.weight": False, "turned": True, "head.weight": False}


def test_training_is_the_masked_networks_to_float_tolerance() -> None:
    dense = trained(part().network())
    sparse = trained(SparseNetwork(part(), WEIGHTS))
    for name, values in dense.items():
        torch.testing.assert_close(sparse[name], values, rtol=1e-4, atol=1e-5)
        assert not torch.equal(values, part().select(name, net().initial[name]))


def test_only_the_layers_named_are_replaced() -> None:
    network = SparseNetwork(part(), ["turned"])
    left = {call.weight for call in linear_layers(network._graphs[True], network)}  # type: ignore[arg-type]
    assert left == set(WEIGHTS) - {"turned"}
    assert {call.weight for call in linear_layers(network.graphs[0], network)} == set(WEIGHTS)


def test_the_gradient_of_all_places_is_whole() -> None:
    """Where a link could grow too."""
    values = part().gather(net().initial)
    expected = mean_gradient(part().network().load(values), data(), 5, cross_entropy)
    found = mean_gradient(SparseNetwork(part(), WEIGHTS).load(values), data(), 5, cross_entropy)
    for name in WEIGHTS:
        assert torch.equal(found[name], expected[name])
        assert found[name][~part().masks[name]].any()
