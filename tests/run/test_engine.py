"""Engines: an update that cannot be one is a failure with a reason, and failures are data."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.run.test_result import sections
from uneven.engines import SerialEngine, inspect
from uneven.experiment import Experiment
from uneven.methods import Assignment, Client, Failure, Update
from uneven.spec import parse

NAME = "1.weight"


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return Experiment(parse(sections(method={"name": "scaffold", "fit": "smallest"}, cohort=4)))


@pytest.fixture(scope="module")
def good(experiment: Experiment) -> tuple[Assignment, Update]:
    """A real assignment, and the update that it led to."""
    assignment, update = next(experiment.engine.train(experiment.method.plan(3, experiment.cohort(3))))
    assert isinstance(update, Update)
    return assignment, update


def test_a_good_update_passes(good: tuple[Assignment, Update]) -> None:
    assignment, update = good
    assert inspect(assignment, update) is update


def test_a_failure_stays_one(good: tuple[Assignment, Update]) -> None:
    failure = Failure(good[0].client, "battery empty")
    assert inspect(good[0], failure) is failure


def payload(update: Update, kind: str, name: str, change: Callable[[Any], Any]) -> Update:
    """The update with one tensor changed; removed where the change is to None."""
    values = {n: change(t) if n == name else t for n, t in update.payload[kind].items()}
    values = {n: t for n, t in values.items() if t is not None}
    return replace(update, payload={**update.payload, kind: values})


def set_to(number: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: t.index_fill(0, torch.tensor([1]), number)


BAD: dict[str, tuple[Callable[[Update], Any], str]] = {
    "NaN": (lambda u: payload(u, "model", NAME, set_to(float("nan"))), "model 1.weight is not finite"),
    "infinity": (lambda u: payload(u, "model", NAME, set_to(float("inf"))), "model 1.weight is not finite"),
    "NaN elsewhere": (
        lambda u: payload(u, "variate", NAME, set_to(float("nan"))),
        "variate 1.weight is not finite",
    ),
    "shape": (lambda u: payload(u, "model", NAME, lambda t: t[:1]), "1.weight has shape (1, 5), not (2, 5)"),
    "broadcast": (lambda u: payload(u, "model", "1.bias", lambda t: t[None]), "1.bias has shape (1, 2), not (2,)"),
    "missing": (lambda u: payload(u, "model", NAME, lambda t: None), "model has other tensors"),
    "extra": (
        lambda u: replace(u, payload={**u.payload, "model": {**u.payload["model"], "x": torch.zeros(1)}}),
        "model has other tensors",
    ),
    "list": (lambda u: payload(u, "model", NAME, torch.Tensor.tolist), "1.weight is a list, not a tensor"),
    "kind": (lambda u: replace(u, payload={"model": u.payload["model"]}), "a payload of ['model'] where"),
    "round": (lambda u: replace(u, round=2), "round 2, where client"),
    "client": (lambda u: replace(u, client=u.client + 1), "an update of client"),
    "no examples": (lambda u: replace(u, examples=0), "a weight of 0 examples"),
    "negative examples": (lambda u: replace(u, examples=-3), "a weight of -3 examples"),
    "NaN examples": (lambda u: replace(u, examples=float("nan")), "a weight of nan examples"),
    "loss": (lambda u: replace(u, loss=float("nan")), "a loss of nan"),
    "nothing": (lambda u: None, "NoneType where an Update was asked"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_update_is_a_failure(case: str, good: tuple[Assignment, Update]) -> None:
    assignment, update = good
    change, says = BAD[case]
    failure = inspect(assignment, change(update))
    assert isinstance(failure, Failure)
    assert failure.client == assignment.client
    assert says in failure.reason


class Scripted(Client):
    """Fails where the round's script says so; remembers how often it trained."""

    def train(self, assignment: Assignment, data: Any, memory: Any) -> Any:
        update, _ = super().train(assignment, data, memory)
        if assignment.client == 1:
            raise ZeroDivisionError("no gradient")
        if assignment.client == 2:
            return None
        if assignment.client == 3:
            return {"model": 1}, {}
        return update, {"count": memory.get("count", torch.zeros(1)) + 1}


@pytest.fixture
def engine(experiment: Experiment) -> SerialEngine:
    half = Scripted(experiment.supernet, experiment.spec.training, experiment.method.options, 3, 0)
    return SerialEngine(half, experiment.federation)


def test_results_come_in_order(engine: SerialEngine, experiment: Experiment) -> None:
    assignments = experiment.method.plan(1, experiment.cohort(1))
    assert [a for a, _ in engine.train(assignments)] == assignments


def test_what_a_client_does_wrong_is_a_failure(engine: SerialEngine, experiment: Experiment) -> None:
    assignments = experiment.method.plan(1, experiment.cohort(1))
    results = {a.client: inspect(a, result) for a, result in engine.train(assignments)}
    assert isinstance(results[0], Failure), "its payload has no variate"
    reasons = {client: result.reason for client, result in results.items() if isinstance(result, Failure)}
    assert reasons[1].startswith("ZeroDivisionError: no gradient (test_engine.py, line ")
    assert reasons[2].startswith("TypeError: ")
    assert "dict where an Update was asked" in reasons[3]


def test_memories_are_kept_on_commit_only(engine: SerialEngine, experiment: Experiment) -> None:
    def train(t: int) -> None:
        assert list(engine.train(experiment.method.plan(t, experiment.cohort(t))))

    train(1)
    assert engine.memories == {}
    engine.commit([])
    train(2)
    engine.commit([0, 1])
    assert {client: memory["count"].item() for client, memory in engine.memories.items()} == {0: 1}
    train(3)
    engine.commit([1])
    assert engine.memories[0]["count"].item() == 1, "not accepted: its memory is that of before"


def test_training_is_pure(experiment: Experiment) -> None:
    """The same assignment, data and memory give the same bits, whatever was trained in between."""
    first = [u for _, u in experiment.engine.train(experiment.method.plan(1, experiment.cohort(1)))]
    list(experiment.engine.train(experiment.method.plan(2, experiment.cohort(2))))
    again = [u for _, u in experiment.engine.train(experiment.method.plan(1, experiment.cohort(1)))]
    for a, b in zip(first, again, strict=True):
        assert isinstance(a, Update)
        assert isinstance(b, Update)
        assert all(torch.equal(t, b.payload[k][n]) for k, s in a.payload.items() for n, t in s.items())
