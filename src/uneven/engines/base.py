"""Where a cohort trains: the contract of an engine, and what every engine does alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from uneven.methods import Assignment, Client, Failure, Update
from uneven.methods.base import Candidates, Exchange, Growth
from uneven.submodels import MaskSubmodel, State, Submodel, Supernet

ClientFactory = Callable[[Supernet], Client]
Memories = dict[int, State]


class Engine(Protocol):
    """Trains the assignments of a round.

    Results come in the order of the assignments, whatever runs where, so that merging is the same everywhere.
    A client's new memory is kept when its update is accepted, by `commit`, and dropped otherwise.
    """

    memories: Memories
    """What each client remembers between rounds, by client id."""

    def train(self, assignments: Sequence[Assignment]) -> Iterator[tuple[Assignment, Update | Failure]]:
        """Train each assignment; a client that fails gives a `Failure` in its place."""

    def commit(self, accepted: Iterable[int]) -> None:
        """Keep the new memories of these clients, drop all other new ones."""


def inspect(assignment: Assignment, result: Update | Failure) -> Update | Failure:
    """The update if it is one that this assignment can have, else a `Failure` that says what is wrong."""
    if isinstance(result, Failure):
        return result
    problem = _problem(assignment, result)
    return result if problem is None else Failure(assignment.client, problem)


def _problem(assignment: Assignment, update: Update) -> str | None:
    if not isinstance(update, Update):  # a user's own client may return anything
        return f"a result of type {type(update).__name__} where an Update was asked"
    if (update.client, update.round) != (assignment.client, assignment.round):
        return (
            f"an update of client {update.client}, round {update.round}, "
            f"where client {assignment.client}, round {assignment.round} was asked"
        )
    if not all(isinstance(n, int | float) for n in (update.examples, update.seen, update.loss)):
        return "examples, seen and loss must be numbers"
    if not 0 < update.examples < math.inf:
        return f"a weight of {update.examples} examples"
    if not math.isfinite(update.loss):
        return f"a loss of {update.loss}; try a smaller training.lr"
    start = update.start_loss
    if assignment.asks_loss and not (isinstance(start, int | float) and 0 <= start < math.inf):
        return f"a loss at the start of {start}, where server.weights needs a number of at least 0"
    problem = _choice_problem(assignment, update) or _answer_problem(assignment, update)
    if problem is not None:
        return problem
    submodel, model = assignment.trained(update), assignment.payload["model"]
    scores = {name: model[name] for name in submodel.supernet.parameters}
    asked = {**assignment.payload, **dict.fromkeys(assignment.extra, scores)}
    if set(update.payload) != set(asked):
        return f"a payload of {sorted(update.payload)} where {sorted(asked)} was asked"
    for kind, full in asked.items():
        values = update.payload[kind]
        if set(values) != set(full):
            return f"{kind} has other tensors than were asked"
        for name, tensor in full.items():
            sent = submodel.select(name, tensor)
            problem = _tensor_problem(values[name], sent)
            if problem is not None:
                return f"{kind} {name} {problem}"
    return None


def _choice_problem(assignment: Assignment, update: Update) -> str | None:
    """What is wrong with the part that the client chose, where the choice was its own."""
    chosen, choice = update.submodel, assignment.choice
    if choice is None:
        return None if chosen is None else "a submodel of the client's own choice, where none was asked"
    if chosen is None or chosen.supernet is not assignment.submodel.supernet:
        return "no submodel of this model, where the client was to choose one"
    if chosen.size > choice.size:
        return f"a submodel of {chosen.size:,} parameters, where it may have {choice.size:,}"
    return None if assignment.exchange is None else _exchange_problem(assignment.exchange, assignment, chosen)


def _exchange_problem(exchange: Exchange, assignment: Assignment, chosen: Submodel) -> str | None:
    """What is wrong with the links that the client gave up and took."""
    given = assignment.submodel
    if not isinstance(given, MaskSubmodel) or not isinstance(chosen, MaskSubmodel):
        return "a submodel of channels, where links were to be exchanged"
    if chosen.masks.keys() - exchange.masks.keys():
        return "a submodel without some entries of a tensor that is never pruned"
    for name, links in exchange.masks.items():
        before, after = given.holds(name), chosen.holds(name)
        gone, come = int((before & ~after).sum()), int((after & ~before).sum())
        if gone != come or gone != exchange.counts[name]:
            return f"{gone} links of {name} given up and {come} taken, where {exchange.counts[name]} were to be"
        if (after & ~before & links).any():
            return f"links of {name} taken that others hold"
    return None


def _answer_problem(assignment: Assignment, update: Update) -> str | None:
    """What is wrong with what was asked beside the values: vectors, and candidates for growth."""
    told = [*update.answers.values(), *(getattr(c, "places", None) for c in update.candidates.values())]
    if not all(isinstance(value, Tensor) for value in told):
        return "an answer that is not a tensor"
    lengths = {name: tuple(value.shape) for name, value in update.answers.items()}
    if lengths != {name: (length,) for name, length in assignment.asks.items()}:
        return f"answers {lengths} where vectors of lengths {dict(assignment.asks)} were asked"
    if not all(torch.isfinite(value).all() for value in update.answers.values()):
        return "an answer that is not finite; try a smaller training.lr"
    growth = assignment.growth
    if growth is None:
        return "candidates for growth, where none were asked" if update.candidates else None
    if update.candidates.keys() != growth.masks.keys():
        return f"candidates of {sorted(update.candidates)} where {sorted(growth.masks)} were asked"
    for name, candidates in update.candidates.items():
        places, mask = candidates.places, growth.masks[name].reshape(-1)
        if places.shape != (growth.count(name),) or places.dtype != torch.int64:
            return f"{tuple(places.shape)} candidates of {name}, where {growth.count(name)} were asked"
        in_order = bool((places[1:] > places[:-1]).all())
        if len(places) and not (in_order and places[0] >= 0 and places[-1] < len(mask)):
            return f"candidates of {name} that are not distinct places of it"
        if not growth.everywhere and mask[places].any():
            return f"candidates of {name} that are links already"
        problem = _gradient_problem(growth, candidates)
        if problem is not None:
            return f"candidates of {name} {problem}"
    return None


def _gradient_problem(growth: Growth, candidates: Candidates) -> str | None:
    gradient = candidates.gradient
    if (gradient is not None) != (growth.values or growth.everywhere):
        return "with gradients, or without, against what was asked"
    if gradient is None:
        return None
    one_each = isinstance(gradient, Tensor) and gradient.shape == candidates.places.shape
    return (
        None if one_each and torch.isfinite(gradient).all() else "whose gradients are not finite, or not one each"
    )


def _tensor_problem(value: object, sent: Tensor) -> str | None:
    if not isinstance(value, Tensor):
        return f"is a {type(value).__name__}, not a tensor"
    if value.shape != sent.shape:
        return f"has shape {tuple(value.shape)}, not {tuple(sent.shape)}"
    if value.dtype != sent.dtype:
        return f"is of {value.dtype}, not {sent.dtype}"
    if not (torch.isfinite(value) | (value == sent)).all():
        return "is not finite: training.lr is too high, or a batch norm saw one example"
    return None
