"""ScaleFL: its loss by hand, when it distils, how a capacity is spent on width and depth, and its refusals."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

import uneven
from tests.laws.world import MODELS, World, same_bits
from uneven.errors import MethodError, SpecError
from uneven.evaluation import evaluate
from uneven.experiment import Experiment
from uneven.methods import METHODS
from uneven.methods.scalefl import exit_loss
from uneven.spec import parse
from uneven.training import TrainingOptions

EXITS = "resnet_tiny-exits"
TINY: dict[str, Any] = {
    "rounds": 1,
    "cohort": 3,
    "data": {"train_limit": 60, "test_limit": 30},
    "model": {"name": "resnet_tiny", "exits": True},
    "training": {"steps": 1},
    "method": {"name": "scalefl"},
}


def world(options: dict[str, Any] | None = None, widths: list[float] | None = None, model: str = EXITS) -> World:
    return World(METHODS["scalefl"], model, widths or [1.0, 0.5, 0.25], options)


def levels(made: World) -> list[tuple[int, float]]:
    """The exit and the width of the last group up to it, for each client."""
    parts = [made.method.submodel(1, card) for card in made.cards]
    groups = made.method.supernet.groups
    return [
        (part.exit, max(part.kept[g.atom] / g.size for g in groups))  # type: ignore[attr-defined]
        for part in parts
    ]


def odds(*ratios: float) -> Tensor:
    """(1, exits, 2) logits at which the second class is so many times as likely as the first."""
    return torch.tensor([[[0.0, log(ratio)] for ratio in ratios]])


def test_the_weights_of_three_exits() -> None:
    """1/6, 2/6 and 3/6 of cross-entropies of ln 4, ln 2 and ln 4/3: of the second class at 1/4, 1/2 and 3/4."""
    loss = exit_loss(odds(1 / 3, 1, 3), torch.tensor([1]), 0.0, 1.0)
    assert float(loss) == pytest.approx(log(4) / 6 + log(2) * 2 / 6 + log(4 / 3) * 3 / 6, abs=1e-6)
    assert float(exit_loss(odds(3), torch.tensor([1]), 0.0, 1.0)) == pytest.approx(log(4 / 3), abs=1e-6)


def test_the_mean_over_examples() -> None:
    """Two examples of two exits, one of each class."""
    logits = torch.cat([odds(1, 3), odds(1 / 3, 1)])
    loss = exit_loss(logits, torch.tensor([1, 0]), 0.0, 1.0)
    first, last = (log(2) + log(4 / 3)) / 2, (log(4 / 3) + log(2)) / 2
    assert float(loss) == pytest.approx(first / 3 + last * 2 / 3, abs=1e-6)


def test_distillation_by_hand() -> None:
    """At tau = 2 odds of 1 : 9 are 1 : 3. KL((1/4, 3/4) || (1/2, 1/2)) times gamma tau^2 goes to the first of two
    exits, which has a third of the loss."""
    plain, distilled = (exit_loss(odds(1, 9), torch.tensor([0]), gamma, 2.0) for gamma in (0.0, 0.7))
    apart = 0.25 * log(0.25 / 0.5) + 0.75 * log(0.75 / 0.5)
    assert float(distilled - plain) == pytest.approx(0.7 * 4 * apart / 3, abs=1e-6)


def test_the_teacher_gets_no_gradient_of_it() -> None:
    """The last exit's gradient is that of its cross-entropy alone; the earlier one's has tau (q_1 - p_1) more."""
    gradients = []
    for gamma in (0.0, 0.5):
        logits = odds(1, 9).requires_grad_()
        exit_loss(logits, torch.tensor([1]), gamma, 2.0).backward()
        gradients.append(logits.grad[0])  # type: ignore[index]
    assert torch.equal(gradients[0][1], gradients[1][1])
    student, teacher = torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75])
    more = 0.5 * 2 * (student - teacher) / 3
    torch.testing.assert_close(gradients[1][0] - gradients[0][0], more)


@pytest.mark.parametrize(("after", "first"), [(None, 2), (0.4, 3), (0.0, 1), (1.0, None)])
def test_distillation_starts_after_a_share_of_the_rounds(after: float | None, first: int | None) -> None:
    """Of five rounds: a quarter is 1.25, so from the second on; .4 are two whole ones, so from the third on."""
    plain, distilled = world({"distillation": 0}), world({"distill_after": after})
    for t in (1, 2, 3):
        updates = [made.train(made.plan(t)[:1])[0][1].payload["model"] for made in (plain, distilled)]
        assert same_bits(dict(updates[0]), dict(updates[1])) == (first is None or t < first)


def test_one_step_by_hand() -> None:
    """SGD on the weighted sum of the cross-entropies of the model itself, all three exits at capacity 1."""
    training = TrainingOptions(lr=0.1, batch_size=100, steps=1, schedule="constant")
    made = World(METHODS["scalefl"], EXITS, [1.0] * 3, {"distillation": 0}, training=training)
    ((assignment, update), *_) = made.train(made.plan())
    data = made.federation.clients[assignment.client].train
    network = made.method.supernet.prefix(1.0).network().load(made.method.state).train()
    logits = network(data.x)
    losses = [torch.nn.functional.cross_entropy(logits[:, j], data.y) for j in range(3)]
    (losses[0] / 6 + losses[1] * 2 / 6 + losses[2] * 3 / 6).backward()
    for name, weight in network.weights().items():
        assert weight.grad is not None
        torch.testing.assert_close(update.payload["model"][name], weight.detach() - 0.1 * weight.grad)


def test_width_and_depth_shrink_alike() -> None:
    """ResNet-18 at 1, 1/4, 1/16 and 1/64 of the parameters. Up to its exits it has about 1/64, 1/16, 1/4 and all
    of them, and w^2 of that at width w. So 1/4 goes to exit 3 at width 1 (1/4 off 3/4; exit 4 at 1/2 is 1/2
    off), 1/16 to exit 3 at 1/2 (exit 2 at 1 is 1/2 off), 1/64 to exit 2 at 1/2, exactly alike."""
    MODELS.setdefault("resnet18-exits", ("resnet18", {"exits": True}))
    made = world(widths=[1.0, 0.5, 0.25, 0.125], model="resnet18-exits")
    assert [exit for exit, _ in levels(made)] == [4, 3, 3, 2]
    assert [width for _, width in levels(made)] == pytest.approx([1, 1, 0.5, 0.5], abs=0.02)
    for card in made.cards:
        assert 0.95 * card.size < made.method.submodel(1, card).size <= card.size


def test_exits_may_be_named() -> None:
    """The largest capacity first, whatever the clients' order; each with the widest that it can have."""
    made = world({"exits": [3, 2, 1]}, widths=[0.25, 1.0, 0.5])
    net = made.method.supernet
    assert [exit for exit, _ in levels(made)] == [1, 3, 2]
    for card, (exit, width) in zip(made.cards, levels(made), strict=True):
        assert net.prefix(width, exit).size <= card.size
        assert width == 1 or net.prefix(width + 1 / 64, exit).size > card.size


@pytest.mark.parametrize("match", ["params", "macs"])
def test_budgets_are_kept_in_the_unit_that_methods_are_matched_by(match: str) -> None:
    """And used: what is left is less than what one more step of the width costs."""
    clients = {"count": 3, "capacities": {"values": [1, 0.25, 1 / 16], "unit": "params"}}
    experiment = Experiment(parse({**TINY, "match": match, "clients": clients}))
    for card in experiment.cards:
        part = experiment.method.submodel(1, card)
        used = {"params": part.size, "macs": part.macs}[match]
        assert card.budget is not None
        assert 0.85 * card.budget < used <= card.budget


def test_capacities_in_multiply_accumulates() -> None:
    clients = {"count": 3, "capacities": {"values": [1, 0.25, 1 / 16], "unit": "macs"}}
    experiment = Experiment(parse({**TINY, "clients": clients}))
    full = experiment.supernet.prefix(1.0).macs
    for card in experiment.cards:
        assert 0.8 * card.capacity * full < experiment.method.submodel(1, card).macs <= card.capacity * full


def test_a_capacity_is_evaluated_at_its_last_exit() -> None:
    """With batch norm, whose statistics are filled only up to there."""
    made = world({"exits": [3, 2, 1]})
    made.round()
    scores = evaluate(made.method, made.federation, made.cards, 1).by_capacity
    test = made.federation.test
    for card in made.cards:
        part = made.method.evaluation_submodel(card, 1)
        network = part.network()  # as evaluation left it
        whole = made.method.supernet.prefix(levels(made)[card.id][1]).network()
        names = {n for n, t in network.tensors.items() if t.numel()}
        whole.load({n: network.tensors[n] if n in names else t for n, t in whole.values().items()})
        logits = whole.eval()(test.x)[:, levels(made)[card.id][0] - 1]
        loss = torch.nn.functional.cross_entropy(logits.detach(), test.y)
        assert scores[card.capacity].loss == pytest.approx(float(loss), rel=1e-5)


def test_a_run() -> None:
    """On grey images. A stage of resnet_tiny has four convolutions with norms, the first from the channels before,
    and a skip with a norm where these are fewer. Capacity 1/2 is worth two stages of width 1."""
    clients = {"count": 4, "capacities": {"values": [1, 0.5, 0.5, 0.25]}}
    model = {"name": "resnet_tiny", "exits": True, "norm": "batch"}
    result = uneven.run(**{**TINY, "rounds": 2, "clients": clients, "model": model})
    assert result["failures"] == 0
    one = (9 * 16 + 32) + 4 * (9 * 16 * 16 + 32) + 170
    two = (9 * 16 * 32 + 64) + 3 * (9 * 32 * 32 + 64) + (16 * 32 + 64) + 330
    three = (9 * 32 * 64 + 128) + 3 * (9 * 64 * 64 + 128) + (32 * 64 + 128) + 650
    sizes = [row["parameters"] for row in result["per_capacity"]]
    assert sizes[:2] == [one + two + three, one + two]


@pytest.mark.parametrize(
    ("options", "model", "message"),
    [
        ({}, "mlp", r"method.exits = true: the model has no early exits; use one that has, as resnet18"),
        ({"exits": [1, 1, 1]}, "mlp", r"method.exits = \[1, 1, 1\]: the model has no early exits"),
        ({"exits": False}, EXITS, r"method.exits = false: the model has 3 exits; leave model.exits out"),
        ({"exits": [3, 2]}, EXITS, r"method.exits = \[3, 2\]: must be one of 1..3 for each of the 3 capacities"),
        ({"exits": [4, 2, 1]}, EXITS, r"method.exits = \[4, 2, 1\]: must be one of 1..3"),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], model: str, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        world(options, model=model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exits": False, "distillation": 0.5}, "distillation = 0.5: has no effect with exits = false"),
        ({"exits": False, "temperature": 1.0}, "temperature = 1: has no effect with exits = false"),
        ({"distillation": 0, "temperature": 2.0}, "temperature = 2: has no effect with distillation = 0"),
        ({"distillation": 0, "distill_after": 0.5}, "distill_after = 0.5: has no effect with distillation = 0"),
        ({"exits": []}, "at least 1"),
        ({"exits": [0]}, "greater than or equal to 1"),
        ({"distillation": -1}, "greater than or equal to 0"),
        ({"distill_after": 2}, "less than or equal to 1"),
    ],
)
def test_options_that_do_nothing(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        METHODS["scalefl"].Options(**options)
    with pytest.raises(SpecError, match=message):
        parse({**TINY, "method": {"name": "scalefl", **options}})


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"scalefl"}))
def test_other_methods_refuse_a_model_with_exits(name: str) -> None:
    with pytest.raises(MethodError, match=r"has 3 early exits, and this method trains one output: use .*scalefl"):
        World(METHODS[name], EXITS, [1.0] * 3)
