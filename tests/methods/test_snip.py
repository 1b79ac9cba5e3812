"""The topology that the first round's clients speak for: SNIP."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.methods.sparse import LINKS, NET, client, data, gradient, made, plan, update
from uneven.data import Examples
from uneven.engines import inspect
from uneven.errors import MethodError
from uneven.methods import METHODS, ClientCard, Context, Failure
from uneven.sparsity.opening import Snip
from uneven.submodels import Supernet
from uneven.training import TrainingOptions
from uneven.training.losses import cross_entropy

TRAINING = TrainingOptions(lr=0.1, batch_size=3, epochs=1)


def test_a_client_tells_gradient_times_weight_of_the_whole_initial_network() -> None:
    """g x, signed, at the initial weights, not at those that the first round's topology has or that it trained."""
    method, examples = made("set", initial="snip"), data(5)
    assignment = plan(method, 1)[1]
    assert assignment.asks == {"snip/weight": 10}
    found, _ = client(method, TRAINING).train(assignment.gathered(), examples, {})
    assert inspect(assignment, found) is found
    initial = NET.initial["weight"]
    expected = (gradient(initial, examples) * initial).flatten()
    assert (expected < 0).any()
    torch.testing.assert_close(found.answers["snip/weight"], expected)
    assert found.scored == len(examples)
    assert all(not later.asks for later in plan(method, 2))


def test_the_largest_of_the_mean_are_gone_on_with() -> None:
    """Of 1 and 3 examples: (8, 0, ...) / 4 and 3 (0, -1, ...) / 4 are 2 and -3/4; the six largest of |mean|. At 2
    and 3 the two speak against each other, of which nothing is left."""
    method = made("set", initial="snip")
    one, other = plan(method, 1)
    scores = [8.0, 0, 9, -9, 0, -1, 0.4, 0, 2, 0], [0.0, -1, -3, 3, 0.5, 0, 1, 0, 0.1, 0.01]
    # The means are 2, -.75, 0, 0, .375, -.25, .85, 0, .575 and .0075.
    largest = [0, 1, 4, 5, 6, 8]
    values = [5.0] * 6
    answers = [{"snip/weight": torch.tensor(score)} for score in scores]
    trained = method.mask["weight"]
    method.merge(
        1, [(one, update(one, values, None, answers[0])), (other, update(other, values, None, answers[1]))]
    )
    method.adjust(1)
    assert method.mask["weight"].flatten().nonzero().flatten().tolist() == largest
    assert torch.equal(method.first["weight"], method.mask["weight"])
    now = torch.where(trained, torch.tensor(5.0), NET.initial["weight"]) * method.mask["weight"]
    torch.testing.assert_close(method.state["weight"], now)


def test_links_of_all_layers_together_or_of_each() -> None:
    """With ``global`` the best of the model; else the layer's own K_l."""
    net = Supernet(
        nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False)), torch.zeros(4)
    )
    cards = [ClientCard(0, 5, torch.ones(2), 1.0, 1.0, 24)]
    for layers, counts in (("global", (3, 7)), ("uniform", (7, 3))):
        options = METHODS["static"].Options(density=10 / 24, layers=layers, initial="snip")
        method = METHODS["static"](Context(net, cards, 3, 0), options)
        assert sum(method.links.values()) == 10  # type: ignore[attr-defined]
        (assignment,) = method.plan(1, cards)
        first = torch.arange(16.0)
        first[[3, 5, 9]] = 1000.0
        answers = {"snip/0.weight": first, "snip/2.weight": torch.tensor([500.0] * 7 + [0.0])}
        examples = Examples(data(5).x[:, :4], data(5).y)
        found, _ = method.Client(net, TRAINING, options, 3, 0).train(assignment.gathered(), examples, {})
        method.merge(1, [(assignment, replace(found, answers=answers))])
        method.adjust(1)
        assert tuple(method.links.values()) == counts  # type: ignore[attr-defined]
        assert method.mask["0.weight"].flatten()[[3, 5, 9]].all()  # type: ignore[attr-defined]


def test_norms_take_the_statistics_of_the_clients_own_data() -> None:
    """g x of a model with batch norm at its data's statistics, which count as constants, whatever the running
    ones are."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2))
    net = Supernet(model, torch.zeros(5))
    examples = data(9)
    net.initial["1.running_mean"] = torch.full((4,), 7.0)
    answers, scored = Snip(net, lambda scores: scores).answers(examples, TRAINING, cross_entropy)
    first, last = (net.initial[name].clone().requires_grad_() for name in ("0.weight", "2.weight"))
    hidden = examples.x @ first.T
    fixed = hidden.detach()
    hidden = (hidden - fixed.mean(0)) / (fixed.var(0) + 1e-5).sqrt()
    loss = nn.functional.cross_entropy(hidden @ last.T + net.initial["2.bias"], examples.y)
    loss.backward()
    for name, weight in (("0.weight", first), ("2.weight", last)):
        expected = (weight.grad * weight).flatten()  # type: ignore[operator]
        torch.testing.assert_close(answers[f"snip/{name}"], expected.detach(), rtol=1e-4, atol=1e-6)
    assert scored == 9 + math.ceil(9 / 3)


def test_answers_that_were_not_asked_are_refused() -> None:
    method = made("set", initial="snip")
    asked, later = plan(method, 1)[0], plan(method, 2)[0]
    for assignment, answers in (
        (asked, {}),
        (asked, {"snip/weight": torch.ones(9)}),
        (asked, {"snip/weight": torch.tensor([float("nan")] * 10)}),
        (later, {"snip/weight": torch.ones(10)}),
    ):
        assert isinstance(inspect(assignment, update(assignment, [1.0] * 6, None, answers)), Failure)


def test_bytes_of_what_the_first_round_chose() -> None:
    """A topology that is told link by link costs what changed; one of a list costs which one it is."""
    snip, tiny = made("set", initial="snip"), made("fedtiny", candidates=4, every=1)
    assert snip.opening.told is None
    assert tiny.opening.told == 2 / 8
    for method, told in ((snip, None), (tiny, 2 / 8)):
        plan(method, 1)  # both clients are told of all that was before
        method.change_to({"weight": ~LINKS}, told)
        assert [assignment.index_bytes for assignment in plan(method, 2)] == [math.ceil(told or 0.0)] * 2


def test_bad_input() -> None:
    with pytest.raises(MethodError, match="initial = 'snip': has no effect at density 1"):
        made("set", initial="snip", density=1.0)
    with pytest.raises(MethodError, match="use 'magnitude' or 'snip'"):
        made("set", layers="global")
