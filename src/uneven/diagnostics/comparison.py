"""The masks of a round's clients compared, at the weights that the round started from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from uneven.data import Examples, Federation
from uneven.diagnostics.masks import (
    RULES,
    fisher_facts,
    fisher_of_first,
    flat,
    held,
    mask,
    masking_errors,
    overlap,
)
from uneven.errors import MethodError
from uneven.methods import Assignment, Context
from uneven.rng import generator
from uneven.scores import couples
from uneven.submodels import State, Submodel, Supernet
from uneven.tracking import Line

EXAMPLES = (32, 128, 512)
MEASURED = (*RULES, "own")
"""The masks whose error is measured: one by each rule, and the method's own submodel."""

Trained = Sequence[tuple[Assignment, Submodel]]
"""The assignments of a round's accepted updates, and the parts that were trained."""


class Comparison:
    """Compares masks of each client's size.

    Args:
        parts: ``masking``, ``fisher``, or both.
        examples: gradients are taken on so many of a client's examples at most.

    Attributes:
        sums: (5,) float64, the sum over the measured rounds of max_n e_n, for each mask of `MEASURED`.

    Raises:
        MethodError: the model, or a client's capacity, has no masks to compare.
    """

    def __init__(
        self, parts: Collection[str], examples: int | None, context: Context, federation: Federation
    ) -> None:
        self._parts, self._examples, self._context, self._federation = parts, examples, context, federation
        self._supernet = context.supernet
        self._full = self._supernet.prefix(1.0, self._supernet.exits or None)
        self.sums = torch.zeros(len(MEASURED), dtype=torch.float64)
        norm = couples(self._full.network())
        if norm is not None:
            raise MethodError(
                f"masks are compared by the gradient of each example, and the batch norm {norm} couples them; use "
                "group norm"
            )
        for size in sorted({client.size for client in context.clients}):
            mask("magnitude", self._supernet, self._supernet.initial, {}, size)

    def round(self, t: int, trained: Trained) -> Line:
        """A row for each client, the means over them, what they add to the bound, and the work that it took."""
        x = dict(trained[0][0].payload["model"])
        cohort = CohortMask(self._supernet, x)
        rows = [self._row(t, x, assignment, part, cohort) for assignment, part in trained]
        if "fisher" in self._parts:
            cohort.compare()
        good = [row for row in rows if "problem" not in row]
        line: Line = {"clients": rows, "mean": mean([{p: row[p] for p in sorted(self._parts)} for row in good])}
        if "masking" in self._parts and good:
            line["bound"] = self._bound(x, [row["masking"]["error"] for row in good])
        return line | {"macs": self._macs(trained)}

    def _row(self, t: int, x: State, assignment: Assignment, part: Submodel, cohort: CohortMask) -> Line:
        size = self._context.clients[assignment.client].size
        row = {"client": assignment.client, "size": size, "own_size": part.size}
        try:
            return row | self._measured(t, x, assignment, part, cohort)
        except MethodError as error:  # its scores are not numbers: a fact about this client, no end of the run
            return row | {"problem": str(error)}

    def _measured(self, t: int, x: State, assignment: Assignment, part: Submodel, cohort: CohortMask) -> Line:
        supernet, client = self._supernet, assignment.client
        size, data = self._context.clients[client].size, self._data(client)
        network = self._full.network().load(x).eval()
        raws: dict[int, State] = {}
        for examples, fisher in fisher_of_first(network, data, EXAMPLES if "fisher" in self._parts else ()):
            raws[examples] = mask("raw", supernet, x, fisher, size)
        draws = generator(self._context.seed, "diagnostics", t, client)
        masks = {"raw": raws.pop(len(data))}
        masks |= {rule: mask(rule, supernet, x, fisher, size, draws) for rule in RULES if rule != "raw"}
        row: Line = {}
        if "masking" in self._parts:
            row["masking"] = masking_errors(network, x, data, masks | {"own": held(supernet, part)})
        if "fisher" in self._parts:
            row["fisher"] = fisher_facts(supernet, x, fisher, masks, raws)
            cohort.add(row["fisher"], size, masks["raw"], fisher)
        return row

    def _data(self, client: int) -> Examples:
        return self._federation.clients[client].train[: self._examples]

    def _bound(self, x: State, errors: Sequence[Mapping[str, float]]) -> Line:
        """delta_t^2 = max_n e_n / ||x_t||^2, and the sum so far of delta_t^2 ||x_t||^2, that is of max_n e_n."""
        norm = sum(float(x[name].double().square().sum()) for name in self._supernet.parameters)
        worst = torch.tensor([[error[rule] for rule in MEASURED] for error in errors], dtype=torch.float64).amax(0)
        self.sums = self.sums + worst
        delta = [error / norm if norm else None for error in worst.tolist()]
        named = {"delta2": delta, "measured_sum": self.sums.tolist()}
        return {"norm2": norm} | {key: dict(zip(MEASURED, values, strict=True)) for key, values in named.items()}

    def _macs(self, trained: Trained) -> int:
        """Forward and back over the examples: once for Fisher information, once at x, once at each x * M."""
        passes = 1 + ("masking" in self._parts) * (1 + len(MEASURED))
        return 3 * self._full.macs * passes * sum(len(self._data(assignment.client)) for assignment, _ in trained)


class CohortMask:
    """The raw mask by the mean Fisher information of a round's clients, against each client's own."""

    def __init__(self, supernet: Supernet, x: State) -> None:
        self._supernet, self._x = supernet, x
        self._total: State = {name: torch.zeros_like(x[name]) for name in supernet.parameters}
        self._own: list[tuple[Line, int, Tensor]] = []

    def add(self, row: Line, size: int, raw: State, fisher: State) -> None:
        """Take up one client: what is found goes to its ``row``, as ``cohort``."""
        self._total = {name: total + fisher[name] for name, total in self._total.items()}
        self._own.append((row, size, flat(self._supernet, raw)))

    def compare(self) -> None:
        """Once all clients are there."""
        mean_fisher = {name: total / len(self._own) for name, total in self._total.items() if self._own}
        for size in {size for _, size, _ in self._own}:
            cohort = flat(self._supernet, mask("raw", self._supernet, self._x, mean_fisher, size))
            for row, _, raw in (own for own in self._own if own[1] == size):
                row["cohort"] = overlap(cohort, raw)


def mean(rows: Sequence[Any]) -> Any:
    """The mean of numbers, or of each key of nested tables, over those that have it; None where none does.

    >>> mean([{"a": 1, "b": {"c": True}}, {"a": 2, "b": {"c": False, "d": 5}}, {"a": None, "b": {}}])
    {'a': 1.5, 'b': {'c': 0.5, 'd': 5.0}}
    """
    if any(isinstance(row, dict) for row in rows):
        keys = dict.fromkeys(key for row in rows for key in row)
        return {key: mean([row[key] for row in rows if key in row]) for key in keys}
    numbers = [row for row in rows if row is not None]
    return sum(numbers) / len(numbers) if numbers else None
