"""FedTiny by hand: its adjustment, and its choice among topologies."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.methods.sparse import LINKS, MEAN, NET, ONE, OTHER, client, data, made, places, plan, update, weights
from tests.sparsity.models import three
from uneven.data import Examples
from uneven.engines import inspect
from uneven.errors import MethodError
from uneven.methods import Failure
from uneven.methods.fedtiny import FedTiny
from uneven.sparsity.initial import first_mask
from uneven.sparsity.opening import Selection, varied
from uneven.submodels import Supernet
from uneven.training import TrainingOptions
from uneven.training.losses import cross_entropy

TRAINING = TrainingOptions(lr=0.1, batch_size=10, epochs=1, schedule="constant")
FOUND = (([6, 7], [4.0, -3.0]), ([7, 9], [0.5, -2.0]))
"""p is (1/4, 3/4), so the mean gradient is 1 at place 6, -.75 + .375 at 7, 0 at 8, -1.5 at 9."""


def one_adjustment(found: tuple[tuple[list[int], list[float]], ...] = FOUND) -> FedTiny:
    method: FedTiny = made("fedtiny", candidates=1)
    one, other = plan(method, 2)
    method.merge(2, [(one, update(one, ONE, found[0])), (other, update(other, OTHER, found[1]))])
    method.adjust(2)
    return method


def test_the_lowest_mean_goes_and_the_highest_mean_gradient_comes() -> None:
    """|mean| is lowest at 3 and 1; 9 and 6 have the largest mean gradients. Without the weights of the examples 6
    and 7 would come, without signs 9 and 7."""
    method = one_adjustment()
    assert places(method) == {0, 2, 4, 5, 6, 9}
    stayed = {i: MEAN[i] for i in (0, 2, 4, 5)}
    assert weights(method) == pytest.approx([stayed.get(i, 0.0) for i in range(10)])


def test_clients_are_asked_for_gradients_where_an_adjustment_is_due() -> None:
    method = made("fedtiny", candidates=1)
    for t, due in ((1, False), (2, True), (3, False), (6, True), (8, False)):
        for assignment in plan(method, t):
            growth = assignment.growth
            assert (growth is not None) == due
            if growth is not None:
                assert growth.counts == {"weight": 2}
                assert growth.values
                assert growth.nbytes("weight") == pytest.approx(math.log2(math.comb(4, 2)) / 8 + 2 * 4)


def test_a_client_tells_its_largest_gradients_after_training() -> None:
    method = made("fedtiny", candidates=1)
    assignment, examples = plan(method, 2)[1].gathered(), data()
    found, _ = client(method, TRAINING).train(assignment, examples, {})
    assert inspect(plan(method, 2)[1], found) is found
    start = torch.zeros(2, 5)
    start[LINKS] = assignment.payload["model"]["weight"]
    end = start - 0.1 * _gradient(start, examples) * LINKS
    torch.testing.assert_close(found.payload["model"]["weight"], end[LINKS])
    whole = _gradient(end, examples).flatten()
    largest = sorted(range(6, 10), key=lambda i: -abs(whole[i]))[:2]
    assert found.candidates["weight"].places.tolist() == sorted(largest)
    torch.testing.assert_close(found.candidates["weight"].gradient, whole[sorted(largest)])
    assert found.scored == len(examples)


def _gradient(weight: torch.Tensor, examples: Examples) -> torch.Tensor:
    """(softmax(x W^T) - onehot(y))^T x / n, in numpy."""
    x, w = examples.x.double().numpy(), weight.double().numpy()
    p = np.exp(x @ w.T)
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(x)), examples.y.numpy()] -= 1
    return torch.from_numpy(p.T @ x / len(x)).float()


# --- the choice among topologies ---------------------------------------------------------------------------


def test_the_lowest_mean_loss_is_gone_on_with() -> None:
    """Losses (3, 1, 2) and (1, 2, 1.5) of 1 and 3 examples: the means are 1.5, 1.75 and 1.625; with equal weights
    the second would be best. The links that were trained keep their values, the others start as the model does."""
    method = made("fedtiny", candidates=3, every=1)
    masks = method.options.opening(NET, 3).masks
    method.change_to(masks[1])  # so that the first is another than what was trained
    method.state = {"weight": torch.full((2, 5), 9.0) * masks[1]["weight"]}
    trained, chosen = masks[1]["weight"], masks[0]["weight"]
    assert (chosen & ~trained).any()
    assert (chosen & trained).any()
    one, other = plan(method, 1)
    assert one.asks == {"losses": 3}
    assert one.growth is None
    values = [9.0] * int(trained.sum())
    losses = {"losses": torch.tensor([3.0, 1.0, 2.0])}, {"losses": torch.tensor([1.0, 2.0, 1.5])}
    method.merge(1, [(one, update(one, values, None, losses[0])), (other, update(other, values, None, losses[1]))])
    method.adjust(1)
    assert torch.equal(method.mask["weight"], chosen)
    assert torch.equal(method.first["weight"], chosen)
    assert torch.equal(
        method.state["weight"],
        torch.where(chosen, torch.where(trained, torch.tensor(9.0), NET.initial["weight"]), 0.0),
    )
    assert not plan(method, 2)[0].asks


def test_a_client_tells_the_loss_of_each_candidate_at_the_initial_weights() -> None:
    method, examples = made("fedtiny", candidates=4), data(7)
    assignment = plan(method, 1)[1]
    found, _ = client(method, TRAINING).train(assignment.gathered(), examples, {})
    assert inspect(assignment, found) is found
    masks = method.options.opening(NET, 3).masks
    assert torch.equal(masks[0]["weight"], first_mask(NET, 0.6, "erk", "random", 3)["weight"])
    for loss, mask in zip(found.answers["losses"].tolist(), masks, strict=True):
        logits = (examples.x @ (NET.initial["weight"] * mask["weight"]).T).double().numpy()
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        assert loss == pytest.approx(-np.log(p[np.arange(7), examples.y.numpy()]).mean(), rel=1e-5)
    assert found.scored == math.ceil(4 * 7 / 3)  # forward passes alone
    wrong = torch.tensor([1.0, 2.0])
    assert isinstance(inspect(assignment, update(assignment, ONE, None, {"losses": wrong})), Failure)


def test_norms_take_the_statistics_of_the_clients_own_data() -> None:
    """A linear layer, batch norm and a linear layer: by numpy, with the mean and the (biased) variance of the
    data, whatever running statistics there are."""
    torch.manual_seed(0)
    net = Supernet(nn.Sequential(nn.Linear(5, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2)), torch.zeros(5))
    net.initial["1.running_mean"] = torch.full((4,), 7.0)
    examples, masks = data(9), varied(first_mask(net, 0.7, "erk", "random", 0), _draw(net), 3, 0)
    answers, _ = Selection(net, masks).answers(examples, TRAINING, cross_entropy)
    x = examples.x.double().numpy()
    for loss, mask in zip(answers["losses"].tolist(), masks, strict=True):
        first, last = (net.initial[n].double().numpy() * mask[n].numpy() for n in ("0.weight", "2.weight"))
        hidden = x @ first.T
        hidden = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)
        logits = hidden @ last.T + net.initial["2.bias"].numpy()
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        assert loss == pytest.approx(-np.log(p[np.arange(9), examples.y.numpy()]).mean(), rel=1e-4)


def _draw(net: Supernet):  # type: ignore[no-untyped-def]
    return lambda name, draws: torch.rand(net.initial[name].shape, generator=draws)


@settings(max_examples=30, deadline=None)
@given(density=st.floats(0.1, 1.0), count=st.integers(1, 6), seed=st.integers(0, 1000))
def test_candidates_have_as_many_links_in_all(density: float, count: int, seed: int) -> None:
    net = three()
    first = first_mask(net, density, "erk", "random", seed)
    masks = varied(first, _draw(net), count, seed)
    assert len(masks) == count
    assert masks[0] is first
    total = sum(int(links.sum()) for links in first.values())
    for mask in masks:
        counts = {name: int(links.sum()) for name, links in mask.items()}
        assert sum(counts.values()) == total
        assert all(1 <= k <= net.initial[name].numel() for name, k in counts.items())


def test_candidates_differ_in_their_layers() -> None:
    """Factors in [1/2, 3/2] before they are scaled, so at most 3 between two layers."""
    net = three()
    first = first_mask(net, 0.4, "erk", "magnitude", 0)
    masks = varied(first, lambda name, draws: net.initial[name].abs(), 5, 0)
    spreads = [tuple(int(links.sum()) for links in mask.values()) for mask in masks]
    assert len(set(spreads)) == 5
    for counts in spreads:
        ratios = [now / was for now, was in zip(counts, spreads[0], strict=True)]
        assert max(ratios) / min(ratios) < 3.5
    for mask in masks:  # by magnitude each layer has its largest weights
        for name, links in mask.items():
            size = net.initial[name].abs()
            assert links.all() or size[links].min() >= size[~links].max()


def test_who_chooses_is_said_once() -> None:
    """By default 5, and 1 where there is nothing to choose."""
    assert made("fedtiny").options.candidates == 5
    assert made("fedtiny", initial="snip").options.candidates == 1
    assert made("fedtiny", density=1.0).options.candidates == 1
    with pytest.raises(MethodError, match="candidates = 3: has no effect, SNIP chooses"):
        made("fedtiny", initial="snip", candidates=3)
    with pytest.raises(MethodError, match="candidates = 3: has no effect, at density 1"):
        made("fedtiny", density=1.0, candidates=3)


def test_an_adjustment_waits_for_the_choice() -> None:
    with pytest.raises(MethodError, match="before the first adjustment, after round 2"):
        made("fedtiny", every=1, end=1)
    made("fedtiny", every=1, end=2)
    assert made("fedtiny", every=1, end=1, candidates=1).options.due(1)
    assert not made("fedtiny", every=1, end=2).options.due(1)
