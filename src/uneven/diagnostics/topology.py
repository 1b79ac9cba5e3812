"""What becomes of a topology that all clients share: measured where it is adjusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from uneven.data import Examples, Federation
from uneven.methods import Assignment, Update
from uneven.methods.dynamic import DynamicMethod
from uneven.rng import generator
from uneven.sparsity import Mask, strongest
from uneven.sparsity.gradients import mean_gradient
from uneven.submodels import MaskSubmodel, State, Submodel
from uneven.tracking import Line
from uneven.training.losses import cross_entropy

BATCH = 250
QUANTILES = (0.05, 0.5, 0.95)


class Topology:
    """Follows the topology of a run from one adjustment to the next.

    Args:
        examples: the mean gradient is taken on so many of a client's examples at most.

    Attributes:
        grown: prunable tensor -> bool: the links that came at the last adjustment.
    """

    def __init__(self, examples: int | None, method: DynamicMethod, federation: Federation) -> None:
        self._examples, self._method, self._federation = examples, method, federation
        self.grown: State = {name: torch.zeros_like(mask) for name, mask in method.mask.items()}
        self._votes: Votes | None = None  # of a round that ends with an adjustment

    def heard(self, assignment: Assignment, update: Update) -> None:
        """Count the places that an accepted client speaks for."""
        if self._method.options.due(assignment.round):
            self._votes = self._votes or Votes(self._method.mask)
            self._votes.add(assignment, update)

    def merged(self, t: int) -> None:
        """Note the topology, the weights and what is scheduled, between the merge and the adjustment."""
        self._mask, self._state, self._swaps = self._method.mask, self._method.state, self._method.swaps(t)

    def after(self, t: int, trained: Sequence[tuple[Assignment, Submodel]], measured: bool) -> Line | None:
        """What the adjustment after round t did; None where none is due, or it is not ``measured``."""
        line = None
        if self._method.options.due(t):
            new = self._method.mask
            if measured:
                line = self._line(t, new, trained)
            self.grown = {name: mask & ~self._mask[name] for name, mask in new.items()}
            self._votes = None
        return line

    def _line(self, t: int, new: Mask, trained: Sequence[tuple[Assignment, Submodel]]) -> Line:
        old, first = self._mask, self._method.first
        gone = {name: mask & ~new[name] for name, mask in old.items()}
        come = {name: mask & ~old[name] for name, mask in new.items()}
        swaps, links = self._swaps, _sizes(old)
        every = [self._federation.clients[a.client].train[: self._examples] for a, _ in trained]
        gradient = self._gradient(every)
        return {
            "dropped": _share(_sizes(gone), links),
            "grown": _share(_sizes(come), links),
            "scheduled": _share(swaps, links),
            "first_kept": _share(_sizes(_both(first, new)), _sizes(first)),
            "grown_kept": _share(_sizes(_both(self.grown, new)), _sizes(self.grown)),
            "dropped_smallest": self._overlap(t, gone, {n: -self._state[n].abs() for n in old}, old),
            "grown_largest": self._overlap(t, come, {n: gradient[n].abs() for n in old}, _not(old)),
            "votes": None if self._votes is None else self._votes.summary(),
            "belief": {"links": self._quantiles(new), "free": self._quantiles(_not(new))},
            "layers": {
                name: {
                    "density": int(new[name].sum()) / new[name].numel(),
                    "dropped": int(gone[name].sum()) / links[name],
                    "grown": int(come[name].sum()) / links[name],
                    "scheduled": swaps[name] / links[name],
                }
                for name in new
            },
            "macs": 3 * self._method.supernet.prefix(1.0).macs * sum(map(len, every)),
        }

    def _overlap(self, t: int, chosen: Mask, scores: State, among: Mask) -> float | None:
        """The share of the places chosen that is among as many of the highest scores of their layer."""
        draws = generator(self._method.context.seed, "diagnostics", "ties", t)
        best = {n: strongest(scores[n], among[n], int(mask.sum()), draws) for n, mask in chosen.items()}
        return _share(_sizes(_both(chosen, best)), _sizes(chosen))

    def _gradient(self, every: Sequence[Examples]) -> State:
        """sum p_n g_n, g_n of a client's mean loss at the merged weights, in evaluation mode."""
        network = self._method.supernet.prefix(1.0).network().load(self._state)
        total = {name: torch.zeros_like(weight) for name, weight in network.weights().items()}
        for data in every:
            found = mean_gradient(network, data, BATCH, cross_entropy)
            share = len(data) / sum(map(len, every))
            total = {name: old + share * found[name] for name, old in total.items()}
        return total

    def _quantiles(self, mask: Mask) -> list[float] | None:
        """Of what the server expects of these places; None where it keeps no count of that, or there are none."""
        values = [expected[mask[name]] for name, expected in self._method.beliefs().items()]
        flat = torch.cat(values).double().numpy() if values else np.empty(0)
        return [float(q) for q in np.quantile(flat, QUANTILES)] if len(flat) else None


class Votes:
    """How much clients agree on the places that are to have a link.

    A client speaks for the places without a link that it names, or where it takes one itself.
    """

    def __init__(self, mask: Mask) -> None:
        self._mask, self._clients = mask, 0
        self._counts = {name: torch.zeros(links.numel(), dtype=torch.int64) for name, links in mask.items()}

    def add(self, assignment: Assignment, update: Update) -> None:
        """Take up one client; not one that tells its whole gradient, and names nothing."""
        if assignment.growth is not None and not assignment.growth.everywhere:
            self._clients += 1
            for name, found in update.candidates.items():
                self._counts[name][found.places] += 1
        elif assignment.exchange is not None and isinstance(update.submodel, MaskSubmodel):
            self._clients += 1
            for name, links in self._mask.items():
                self._counts[name] += (update.submodel.holds(name) & ~links).reshape(-1)

    def summary(self) -> dict[str, float] | None:
        """The mean overlap |A and B| / m of two clients' sets of m places each, and what it would be of random
        ones; None where there are no two clients, or they name nothing."""
        n, named = self._clients, sum(int(count.sum()) for count in self._counts.values())
        if n < 2 or not named:
            return None
        pairs = sum(int((count * (count - 1)).sum()) for count in self._counts.values()) / (n * (n - 1))
        sizes = {name: int(count.sum()) / n for name, count in self._counts.items()}
        free = {name: int((~links).sum()) for name, links in self._mask.items()}
        chance = sum(size**2 / free[name] for name, size in sizes.items() if size)
        return {"overlap": pairs / (named / n), "by_chance": chance / (named / n)}


def _sizes(mask: Mask) -> dict[str, int]:
    return {name: int(places.sum()) for name, places in mask.items()}


def _both(a: Mask, b: Mask) -> dict[str, Tensor]:
    return {name: places & b[name] for name, places in a.items()}


def _not(mask: Mask) -> dict[str, Tensor]:
    return {name: ~places for name, places in mask.items()}


def _share(part: Mapping[str, int], whole: Mapping[str, int]) -> float | None:
    """Over all layers; None of nothing."""
    total = sum(whole.values())
    return sum(part.values()) / total if total else None
