"""One layer of 10 places, 6 of them links, and 2 clients of 1 and 3 examples: small enough to work out by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from uneven.aggregation import ServerOptions
from uneven.data import Examples
from uneven.methods import METHODS, Assignment, ClientCard, Context, Update
from uneven.methods.base import Candidates
from uneven.methods.dynamic import DynamicMethod
from uneven.methods.topology import SparseMethod
from uneven.submodels import Supernet
from uneven.submodels.masks import masked
from uneven.training import TrainingOptions

NET = Supernet(nn.Linear(5, 2, bias=False), torch.zeros(5))
LINKS = torch.tensor([[True, True, True, True, True], [True, False, False, False, False]])
EXAMPLES = (1, 3)

# What the clients have at the links after training, and the mean of the two.
ONE, OTHER = [6.0, 5.0, 4.0, -3.0, 2.0, 1.0], [-1.0, -2.0, 4.0, 5.0, 6.5, -8.0]
MEAN = [2.5, 1.5, 4.0, 1.0, 4.25, -3.5]
NAMED = ([6, 7], [7, 9])
"""The free places that each would have."""


def made(
    name: str,
    sizes: Sequence[int] = (10, 10),
    seed: int = 3,
    rounds: int = 10,
    server: ServerOptions | None = None,
    **options: Any,
) -> Any:
    """A method with a third of 6 links, 2, to be exchanged after every second round up to round 6."""
    cards = [
        ClientCard(n, examples, torch.ones(2), size / 10, 1.0, size)
        for n, (examples, size) in enumerate(zip(EXAMPLES, sizes, strict=True))
    ]
    dates = {"every": 2, "change": 1 / 3, "decay": "constant", "end": 6}
    dynamic = issubclass(METHODS[name], DynamicMethod)
    given = METHODS[name].Options(**({"density": 0.6} | (dates if dynamic else {}) | options))
    method = METHODS[name](Context(NET, cards, rounds, seed, server=server or ServerOptions()), given)
    assert isinstance(method, SparseMethod)
    method.change_to({"weight": LINKS})
    return method


def update(
    assignment: Assignment,
    values: Sequence[float],
    found: tuple[Sequence[int], Sequence[float] | None] | None = None,
    answers: Mapping[str, Tensor] | None = None,
) -> Update:
    """What a client sends: its values at the links, and places that it names, with gradients or without."""
    candidates = {}
    if found is not None:
        named, slopes = found
        candidates["weight"] = Candidates(torch.tensor(named), None if slopes is None else torch.tensor(slopes))
    n = EXAMPLES[assignment.client]
    payload = {"model": {"weight": torch.tensor(values)}}
    return Update(
        assignment.round, assignment.client, payload, n, n, 1.0, candidates=candidates, answers=dict(answers or {})
    )


def plan(method: SparseMethod, t: int) -> list[Assignment]:
    """The assignments of round t, by client."""
    return sorted(method.plan(t, method.context.clients), key=lambda assignment: assignment.client)


def mask_of(links: Iterable[int]) -> Tensor:
    """Where these places are."""
    mask = torch.zeros(10, dtype=torch.bool)
    mask[list(links)] = True
    return mask.view(2, 5)


def holding(assignment: Assignment, values: Mapping[int, float]) -> Update:
    """The update of a client that ends with these weights at these places."""
    held = update(assignment, [values[i] for i in sorted(values)])
    return replace(held, submodel=masked(NET, {"weight": mask_of(values)}))


def answers(
    method: SparseMethod, t: int, named: Sequence[Sequence[int]] = NAMED
) -> list[tuple[Assignment, Update]]:
    """What both send in round t: `ONE` and `OTHER`, and where they are asked the places that they name."""
    return [
        (a, update(a, (ONE, OTHER)[a.client], None if a.growth is None else (named[a.client], None)))
        for a in plan(method, t)
    ]


def places(method: SparseMethod) -> set[int]:
    """Where links are."""
    return set(method.mask["weight"].flatten().nonzero().flatten().tolist())


def weights(method: SparseMethod) -> list[float]:
    values: list[float] = method.state["weight"].flatten().tolist()
    return values


def client(method: SparseMethod, training: TrainingOptions) -> Any:
    """The client's half of a method."""
    return type(method).Client(
        method.supernet, training, method.options, method.context.rounds, method.context.seed
    )


def data(n: int = 4, seed: int = 0) -> Examples:
    """Random examples of two classes."""
    draws = torch.Generator().manual_seed(seed)
    return Examples(torch.randn(n, 5, generator=draws), torch.randint(2, (n,), generator=draws))


def gradient(weight: Tensor, examples: Examples) -> Tensor:
    """Of the mean cross-entropy of a linear layer, in closed form: (softmax(x W^T) - onehot(y))^T x / n."""
    p = (examples.x @ weight.T).softmax(1)
    p[torch.arange(len(examples)), examples.y] -= 1
    return p.T @ examples.x / len(examples)
