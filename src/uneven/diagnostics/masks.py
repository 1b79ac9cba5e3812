"""What different rules would let a client hold, and what each of these masks loses.

Of a client at the weights x, with the loss F_n on its data and the diagonal Fisher information F_j there
(FedFIbOS 2026, arXiv 2609.19559):

- the masking error of a mask M is e_n = ||M * (grad F_n(x) - grad F_n(x * M))||^2;
- its surrogate is eps(S) = sum over j not in S of F_j^2 x_j^2, over the coordinates that a mask may drop;
- the Fisher-dominant condition: min over i in S of F_i^2 x_i^2 >= max over j not in S of F_j^2 x_j^2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from uneven.coverage import Coverage
from uneven.data import Examples
from uneven.data.federation import NOTHING
from uneven.scores import Gradients, gradients, score
from uneven.submodels import Network, State, Submodel, Supernet
from uneven.submodels.masks import choose
from uneven.training.losses import summed

FISHER_RULES = {"raw": "fisher", "weighted": "weighted", "magnitude": "magnitude"}
RULES = FISHER_RULES | {"random": "random"}
BATCH = 250


def held(supernet: Supernet, submodel: Submodel) -> State:
    """Where a submodel holds a parameter: bool, of the parameters' shapes."""
    once = Coverage(supernet)
    once.add(submodel)
    return {name: count > 0 for name, count in once.counts.items()}


def mask(
    rule: str, supernet: Supernet, x: State, fisher: State, size: int, draws: torch.Generator | None = None
) -> State:
    """What a rule lets a client of ``size`` parameters hold, as `held` gives it.

    Args:
        rule: one of `RULES`.
        x: the full tensors.
        fisher: F_j of every parameter.
        draws: of the rule ``random``.

    Raises:
        MethodError: the size is too small for what is never dropped, or a score is NaN.
    """
    weights = {name: x[name] for name in supernet.parameters}
    scores = score(RULES[rule], weights, Gradients({}, fisher, 0), draws)
    return held(supernet, choose(supernet, {name: scores[name] for name in supernet.maskable}, size, x))


def flat(supernet: Supernet, state: State) -> Tensor:
    """The coordinates that a mask may drop, as one vector."""
    return torch.cat([state[name].reshape(-1) for name in supernet.maskable])


def overlap(a: Tensor, b: Tensor) -> float | None:
    """|A and B| / |A| of two flat masks; None where A is empty."""
    size = int(a.sum())
    return int((a & b).sum()) / size if size else None


def surrogate(fisher: Tensor, x: Tensor) -> Tensor:
    """F_j^2 x_j^2, in double precision: the squares of small numbers."""
    return (fisher.double() * x.double()).square()


def dominant(terms: Tensor, chosen: Tensor) -> bool:
    """Whether no term outside a flat mask is larger than any inside; so too where either side is empty."""
    if chosen.all() or not chosen.any():
        return True
    return bool(terms[chosen].min() >= terms[~chosen].max())


def fisher_of_first(network: Network, data: Examples, counts: Sequence[int]) -> Iterator[tuple[int, State]]:
    """F from the first so many examples, for each count in ascending order that is less than all; then from all.

    ``network``: the full one, with the weights at which F is asked.
    """
    done, mean = 0, {name: torch.zeros_like(weight) for name, weight in network.weights().items()}
    for count in [*(c for c in counts if c < len(data)), len(data)]:
        more = gradients(network, data[done:count], limit=count - done).square
        mean = {name: old + (more[name] - old) * ((count - done) / count) for name, old in mean.items()}
        done = count
        yield count, mean


def gradient(network: Network, state: State, data: Examples) -> State:
    """The gradient of the mean cross-entropy over all targets, in evaluation mode, at full tensors ``state``."""
    network.load(state).eval()
    targets = max(int((data.y != NOTHING).sum()), 1)
    for index in torch.arange(len(data)).split(BATCH):  # type: ignore[no-untyped-call]
        x, y = data.batch(index)
        loss = summed(network(x), y) / targets
        loss.backward()  # type: ignore[no-untyped-call]
    return {n: torch.zeros_like(w) if w.grad is None else w.grad.clone() for n, w in network.weights().items()}


def masking_errors(
    network: Network, x: State, data: Examples, masks: Mapping[str, State]
) -> dict[str, dict[str, float]]:
    """e_n of each mask (``error``), and e_n without the outer M (``full_error``), both summed in double precision.

    ``network``: the full one; its weights are lost. ``x``: the full tensors. ``masks``: as `held` gives them.
    """
    at_x = gradient(network, x, data)
    errors: dict[str, dict[str, float]] = {"error": {}, "full_error": {}}
    for rule, chosen in masks.items():
        there = gradient(network, x | {name: x[name] * inside for name, inside in chosen.items()}, data)
        squares = {name: (at_x[name].double() - there[name].double()).square() for name in chosen}
        errors["error"][rule] = sum(float((square * chosen[name]).sum()) for name, square in squares.items())
        errors["full_error"][rule] = sum(float(square.sum()) for square in squares.values())
    return errors


def fisher_facts(
    supernet: Supernet, x: State, fisher: State, masks: Mapping[str, State], estimates: Mapping[int, State]
) -> dict[str, Any]:
    """What F says of masks: their ``epsilon``; whether the raw one's is the least for the reason that it is
    ``dominant``; the pairwise ``overlap`` of masks of one size; and that of raw ``estimates`` with the raw mask.

    ``masks``: those of `FISHER_RULES`, as `held` gives them. ``estimates``: raw masks by how many examples.
    """
    terms = surrogate(flat(supernet, fisher), flat(supernet, x))
    chosen = {rule: flat(supernet, masks[rule]) for rule in FISHER_RULES}
    return {
        "epsilon": {rule: float(terms[~inside].sum()) for rule, inside in chosen.items()},
        "dominant": dominant(terms, chosen["raw"]),
        "overlap": {f"{a}_{b}": overlap(chosen[a], chosen[b]) for a, b in combinations(chosen, 2)},
        "examples": {str(n): overlap(flat(supernet, part), chosen["raw"]) for n, part in estimates.items()},
    }
