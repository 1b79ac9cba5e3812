"""The gradient of all places, against autograd over all examples at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.laws.world import supernet
from tests.sparsity.models import three
from uneven.data import Examples
from uneven.data.federation import NOTHING
from uneven.sparsity.gradients import mean_gradient
from uneven.submodels import State, Supernet
from uneven.submodels.masks import masked
from uneven.training.losses import cross_entropy


def examples(n: int, net: Supernet, classes: int) -> Examples:
    draws = torch.Generator().manual_seed(n)
    shape = (n, *net.example.shape)
    return Examples(torch.randn(shape, generator=draws), torch.randint(classes, (n,), generator=draws))


def expected(net: Supernet, state: State, data: Examples) -> State:
    """By one backward pass over all examples, in evaluation mode."""
    network = net.prefix(1.0).network().load(state).eval()
    loss = nn.functional.cross_entropy(network(data.x), data.y)
    weights = network.weights()
    return dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))


def half(net: Supernet) -> State:
    draws = torch.Generator().manual_seed(1)
    return {name: torch.rand(net.initial[name].shape, generator=draws) < 0.5 for name in net.maskable}


@pytest.mark.parametrize("batch", [1, 3, 7, 50])
def test_is_that_of_all_examples_also_where_no_links_are(batch: int) -> None:
    net, data = three(), examples(7, three(), 2)
    mask = half(net)
    inside = {name: t * mask[name] if name in mask else t for name, t in net.initial.items()}
    part = masked(net, mask)
    network = part.network().load(part.gather(inside))
    found = mean_gradient(network, data, batch, cross_entropy)
    for name, gradient in expected(net, inside, data).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-7)
        if name in mask:
            assert found[name][~mask[name]].abs().min() > 0
        assert found[name].shape == net.initial[name].shape


def test_takes_running_statistics_and_leaves_the_network_as_it_was() -> None:
    """Not those of the batch: a batch of one example gives what all of them give."""
    net = supernet("cnn-batch")
    data = examples(5, net, 3)
    network = net.prefix(1.0).network().load(net.initial)
    before = network.values()
    found = mean_gradient(network, data, 1, cross_entropy)
    for name, gradient in expected(net, net.initial, data).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)
    after = network.values()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(weight.grad is None for weight in network.weights().values())


class Idle(nn.Module):
    """With a parameter that the output does not need."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(3, 2), nn.Parameter(torch.ones(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        _ = self.idle.sum()
        return self.used(x)  # type: ignore[no-any-return]


def test_what_is_not_used_has_none() -> None:
    net = Supernet(Idle(), torch.zeros(3))
    found = mean_gradient(net.prefix(1.0).network().load(net.initial), examples(4, net, 2), 2, cross_entropy)
    assert not found["idle"].any()
    assert found["used.weight"].any()


class NextToken(nn.Module):
    """Of four tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(4, 3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x))  # type: ignore[no-any-return]


def test_every_target_of_texts_counts_the_same() -> None:
    """Texts of 4, 1 and no targets in batches of one: the gradient is that of the mean over all five."""
    torch.manual_seed(0)
    net = Supernet(NextToken(), torch.tensor([0, 1, 2, 3]))
    x = torch.tensor([[0, 1, 2, 3], [1, 0, 0, 0], [2, 0, 0, 0]])
    y = torch.tensor([[1, 2, 3, 0], [3, NOTHING, NOTHING, NOTHING], [NOTHING] * 4])
    found = mean_gradient(net.prefix(1.0).network().load(net.initial), Examples(x, y), 1, cross_entropy)
    network = net.prefix(1.0).network().load(net.initial)
    weights = network.weights()
    logits, wanted = network(x), y != NOTHING
    loss = nn.functional.cross_entropy(logits[wanted], y[wanted])
    for name, gradient in zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True):
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_texts_without_a_target_have_no_gradient(batch: int) -> None:
    net = Supernet(NextToken(), torch.tensor([0, 1, 2, 3]))
    texts = Examples(torch.tensor([[0, 1, 2, 3]] * 3), torch.full((3, 4), NOTHING))
    found = mean_gradient(net.prefix(1.0).network().load(net.initial), texts, batch, cross_entropy)
    assert found.keys() == net.initial.keys()
    assert all(torch.equal(gradient, torch.zeros_like(net.initial[name])) for name, gradient in found.items())
