"""FedBRB: windows that visit every pair of blocks, and a blend for the blocks that a round left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import permutations
from typing import Any, ClassVar

from pydantic import Field

from uneven.errors import MethodError
from uneven.methods.base import Assignment, ClientCard, Context, Method, MethodOptions, Update
from uneven.methods.blocks import Blocks
from uneven.methods.channelwise import window
from uneven.submodels import ChannelSubmodel, Supernet

COLOURS = 3


class FedBRBOptions(MethodOptions):
    blend: float | None = Field(default=None, ge=0, le=1)
    """lambda of the first rounds, falling linearly to 0 at the last; 0: leave untrained blocks as they are.
    Default 0.1, where some client cannot hold all blocks."""


class FedBRB(Method):
    """A client trains one block of every axis; in R^2 rounds every pair of blocks of two axes has its turn.

    Paper: Liao et al. 2024, FedBRB: An Effective Solution to the Small-to-Large Scenario in Device-Heterogeneity
    Federated Learning (arXiv 2402.17202).

    Rule: with R = ceil(1/r) and rounds t = 1, 2, ..., u = (t - 1) mod R and v = floor((t - 1) / R) mod R; of a
    group of C channels a client of width r holds ceil(r C) from floor(o C / R) on, wrapping, with o = u, v or
    u + v mod R by the group's colour. Groups that meet in a tensor differ in colour, so that any two offsets meet.
    After the round each block of which nothing was trained: W_b <- (1 - lambda) W_b + lambda (mean of the trained
    blocks), with lambda = 0.1 (1 - t / T).

    Deviations: a reconstruction; the order of the blocks, lambda and its course are choices of ours. Blocks are
    those of the narrowest client: channels floor(b C / R) to floor((b + 1) C / R) - 1; where they differ in size,
    an entry's mean is over those blocks that have it. Colours are given greedily, first to the group that sees
    most of them: where three do not suffice, or a group is on both axes of a tensor (recurrent weights), some
    pairs of blocks are never trained, which `uneven.coverage` measures. A width is evaluated on the window of the
    last round.
    """

    Options = FedBRBOptions
    NEUTRAL: ClassVar[Mapping[str, Any]] = {"blend": 0.0}

    def __init__(self, context: Context, options: Any) -> None:
        super().__init__(context, options)
        self.colours = colours(self.supernet)
        self._trained: set[float] = set()

    def resolve(self, context: Context, options: Any) -> Any:
        full = all(client.width == 1 for client in context.clients)
        if full and options.blend:
            raise MethodError(f"method.blend = {options.blend:g}: has no effect, every client trains every block")
        default = 0.0 if full else 0.1
        return options.model_copy(update={"blend": default if options.blend is None else options.blend})

    @cached_property
    def blocks(self) -> Blocks:
        return Blocks(self.supernet, blocks_of(min(client.width for client in self.context.clients)))

    def submodel(self, t: int, client: ClientCard) -> ChannelSubmodel:
        return self._windows(t, client.width)

    def evaluation_submodel(self, client: ClientCard, t: int) -> ChannelSubmodel:
        return self._windows(max(t, 1), client.width)

    def _windows(self, t: int, width: float) -> ChannelSubmodel:
        r = blocks_of(width)
        u, v = (t - 1) % r, (t - 1) // r % r
        offsets = (u, v, (u + v) % r)
        keep = {}
        for group, k in self.supernet.channels(width).items():
            size = self.supernet.groups[group].size
            keep[group] = window(offsets[self.colours[group]] * size // r, k, size)
        return self.supernet.submodel(keep)

    def merge(self, t: int, results: Iterable[tuple[Assignment, Update]]) -> None:
        trained = set()

        def noted() -> Iterator[tuple[Assignment, Update]]:
            for assignment, update in results:
                trained.add(self.context.clients[assignment.client].width)
                yield assignment, update

        super().merge(t, noted())
        self._trained = trained

    def adjust(self, t: int) -> None:
        share = self.options.blend * (1 - t / self.context.rounds)
        if share > 0:
            self.state = self.blocks.blended(self.state, [self._windows(t, w) for w in self._trained], share)


def blocks_of(width: float) -> int:
    """R = ceil(1 / r); rounding noise does not count."""
    return math.ceil(round(1 / width, 9))


def colours(supernet: Supernet) -> dict[int, int]:
    """A colour for each group, 0, 1 or 2, that the groups which it meets in a tensor have as little as can be.

    The next is always the group that sees most colours (Brelaz 1979, DSATUR): exact where two suffice.
    """
    along: dict[str, list[tuple[int, int]]] = {}
    for group in supernet.groups:
        for name, dim in group.members:
            along.setdefault(name, []).append((group.index, dim))
    meets: dict[int, set[int]] = {group.index: set() for group in supernet.groups}
    for found in along.values():
        for (one, its), (other, another) in permutations(found, 2):
            if its != another and one != other:
                meets[one].add(other)
    chosen: dict[int, int] = {}
    while len(chosen) < len(meets):
        seen = {g: [chosen[h] for h in others if h in chosen] for g, others in meets.items() if g not in chosen}
        next_one = max(seen, key=lambda g: (len(set(seen[g])), len(meets[g]), -g))
        chosen[next_one] = min(range(COLOURS), key=seen[next_one].count)
    return chosen
