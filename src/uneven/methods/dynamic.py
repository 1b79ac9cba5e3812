"""What the methods share that adjust their topology.

Every ``every`` rounds (Delta T), up to round ``end`` (T_end), the server exchanges some links of it; a link that
comes starts at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from uneven.errors import MethodError
from uneven.methods.base import Assignment, ClientCard, Context, Growth
from uneven.methods.topology import SparseMethod, SparseOptions
from uneven.rng import generator
from uneven.sparsity import Schedule
from uneven.submodels import Submodel


class DynamicOptions(SparseOptions):
    """A sparse topology that is adjusted."""

    every: int = Field(default=10, ge=1)
    """Delta T, rounds from one adjustment to the next."""
    end: int | None = Field(default=None, ge=1)
    """T_end, the round after which there is none. Default: three fifths of the rounds."""
    change: float = Field(default=0.4, gt=0, le=1)
    """a, the share of a layer's links that is exchanged at first."""
    decay: Literal["cosine", "constant"] = "cosine"
    """How that share falls until T_end."""

    @property
    def schedule(self) -> Schedule:
        """When how many links are exchanged, once T_end is decided."""
        if self.end is None:
            raise TypeError("method.end is not decided yet")
        return Schedule(self.every, self.end, self.change, self.decay)

    @property
    def first_due(self) -> int:
        """The round that the first adjustment is after."""
        return 2 if self.opens and self.every == 1 else self.every  # round 1 opens

    def due(self, t: int) -> bool:
        """Whether the topology is adjusted after round t; not where it only opens then."""
        return self.schedule.due(t) and not (self.opens and t == 1)


class DynamicMethod(SparseMethod):
    """A method that adjusts the topology. The least that it defines is `adjusted`; `growth` and `observe` where
    clients tell it something."""

    Options = DynamicOptions

    def resolve(self, context: Context, options: Any) -> Any:
        options = super().resolve(context, options)
        end = max(1, context.rounds * 3 // 5) if options.end is None else options.end
        first = options.first_due
        last = min(end - 1 if options.decay == "cosine" else end, context.rounds)
        if last < first and options.density < 1:
            given = f"method.end = {end}" if options.end else f"rounds = {context.rounds}, so T_end = {end}"
            raise MethodError(
                f"{given}: with decay '{options.decay}' the last exchange can be after round {last}, before the "
                f"first adjustment, after round {first}; use a smaller method.every"
            )
        return options.model_copy(update={"end": end})

    def __init__(self, context: Context, options: Any) -> None:
        super().__init__(context, options)
        if self.options.density < 1 and not any(self.swaps(self.options.first_due).values()):
            raise MethodError(
                f"method.change = {self.options.change:g}: of {max(self.links.values()):,} links, the most that a "
                "layer has, it exchanges none; use a larger share"
            )

    def swaps(self, t: int) -> dict[str, int]:
        """How many links of each layer are exchanged after round t."""
        return {n: self.options.schedule.swap(t, k, self.mask[n].numel()) for n, k in self.links.items()}

    def growth(self, t: int) -> Growth | None:
        """What clients are asked in a round that ends with an adjustment by which links are exchanged."""
        return None

    def assignment(self, t: int, client: ClientCard, submodel: Submodel) -> Assignment:
        growth = self.growth(t) if self.options.due(t) and any(self.swaps(t).values()) else None
        return replace(super().assignment(t, client, submodel), growth=growth)

    def adjust(self, t: int) -> None:
        super().adjust(t)
        if self.options.due(t):
            self.change_to(self.adjusted(t))

    def adjusted(self, t: int) -> Mapping[str, Tensor]:
        """The topology after round t, where an adjustment is due. Must be defined."""
        raise TypeError(f"{type(self).__name__} must define adjusted(t)")

    def beliefs(self) -> Mapping[str, Tensor]:
        """By tensor, how much the server expects of a link at each place, in [0, 1]; of nothing if it keeps no
        count of that."""
        return {}

    def draws(self, purpose: str, t: int) -> torch.Generator:
        """For a decision of the server in round t."""
        return generator(self.context.seed, purpose, t)
