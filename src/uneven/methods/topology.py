"""What the methods share whose clients all hold one sparse topology.

Layer l keeps K_l links. Every ``every`` rounds (Delta T), up to round ``end`` (T_end), the server exchanges some
of them; a link that comes starts at 0. A client of capacity less than 1 holds the same share of the topology's
links, those of the largest |x| of each layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from uneven.apportion import apportion
from uneven.data import Examples
from uneven.errors import MethodError
from uneven.methods.base import (
    Assignment,
    Candidates,
    Client,
    ClientCard,
    Context,
    Grain,
    Growth,
    Method,
    MethodOptions,
    Update,
)
from uneven.rng import generator
from uneven.sparsity import Layers, Mask, Schedule, strongest
from uneven.sparsity.coding import changes_bytes, subset_bytes
from uneven.sparsity.gradients import mean_gradient
from uneven.sparsity.initial import Initial, initial_mask
from uneven.submodels import MaskSubmodel, Network, State, Submodel
from uneven.submodels.masks import masked


class SparseOptions(MethodOptions):
    """A sparse topology."""

    density: float = Field(default=0.2, gt=0, le=1)
    """The share of all parameters that are active; norms and biases always are, and count."""
    layers: Layers | Literal["global"] = "erk"
    """How links are spread over layers: Erdos-Renyi kernel, the same density in all, or the largest initial |x|
    of the whole model (``global``)."""
    initial: Initial = "random"
    """The links at the start: drawn at random, or those of the largest initial |x|."""


class SparseMethod(Method):
    """A method whose clients share one topology. As it stands here, it never changes.

    Attributes:
        mask: prunable tensor -> bool, of its shape: where links are. Replaced by an adjustment, never changed in
            place. What the server keeps is zero elsewhere.
    """

    Options = SparseOptions
    NEUTRAL: ClassVar[Mapping[str, Any]] = {"density": 1.0}

    def __init__(self, context: Context, options: Any) -> None:
        super().__init__(context, options)
        self.mask: State = self._initial_mask()
        self.first = self.mask
        self.state = self._confined(self.state)
        self._parts: tuple[State, dict[int, MaskSubmodel]] = (self.state, {})
        self._news = torch.zeros((), dtype=torch.float64)  # bytes that tell of all adjustments so far
        self._told = torch.zeros(len(context.clients), dtype=torch.float64)  # how much of it each client has
        for client in context.clients:
            self._part(client)  # a capacity that is too small is an error now, not in some round

    @classmethod
    def grain(cls, options: Any) -> Grain:
        return "parameter"

    def resolve(self, context: Context, options: Any) -> Any:
        if options.layers == "global" and options.initial == "random":
            raise MethodError(
                "method.layers = 'global': compares |x| over the whole model, so method.initial = 'random' has no "
                "effect with it; use 'magnitude'"
            )
        return options

    def _initial_mask(self) -> State:
        draws = generator(self.context.seed, "topology")
        weights = {name: self.state[name] for name in self.supernet.maskable}
        if self.options.initial == "random":
            scores = {name: torch.rand(weight.shape, generator=draws) for name, weight in weights.items()}
        else:
            scores = {name: weight.abs() for name, weight in weights.items()}
        return initial_mask(self.supernet, self.options.density, self.options.layers, scores, draws)

    @property
    def links(self) -> dict[str, int]:
        """K_l, the links of each prunable tensor."""
        return {name: int(mask.sum()) for name, mask in self.mask.items()}

    def submodel(self, t: int, client: ClientCard) -> Submodel:
        return self._part(client)

    def evaluation_submodel(self, client: ClientCard, t: int) -> Submodel:
        return self._part(client)

    def _part(self, client: ClientCard) -> MaskSubmodel:
        """The client's share of the topology, worked out once for every state and size."""
        if self._parts[0] is not self.state:
            self._parts = (self.state, {})
        if client.size not in self._parts[1]:
            self._parts[1][client.size] = self._share(client.size)
        return self._parts[1][client.size]

    def _share(self, size: int) -> MaskSubmodel:
        """Of the links such a share as ``size``, less what is never pruned, is of the prunable parameters."""
        if size >= self.supernet.size:
            return masked(self.supernet, self.mask)
        counts, prunable = self.links, sum(mask.numel() for mask in self.mask.values())
        free = max(size - (self.supernet.size - prunable), 0)
        kept = apportion(list(counts.values()), free * sum(counts.values()) // prunable)
        if not all(kept):
            raise MethodError(
                f"a capacity of {size:,} of {self.supernet.size:,} parameters is too small: it leaves a layer of "
                "the topology without a link"
            )
        draws = generator(self.context.seed, "share", size)
        parts = zip(self.mask.items(), kept, strict=True)
        return masked(
            self.supernet, {name: strongest(self.state[name].abs(), mask, k, draws) for (name, mask), k in parts}
        )

    def assignment(self, t: int, client: ClientCard, submodel: Submodel) -> Assignment:
        """The client's share, and what tells it which links these are (an estimate, at the entropy): each
        adjustment that it has not seen, and its own choice among the links. The links at the start follow from
        the run's seed."""
        news = float(self._news - self._told[client.id])
        self._told = self._told.index_fill(0, torch.tensor([client.id]), float(self._news))
        for name, mask in self.mask.items():
            held = int(submodel.select(name, mask).sum())
            news += subset_bytes(int(mask.sum()), held)
        return replace(super().assignment(t, client, submodel), index_bytes=math.ceil(round(news, 6)))

    def change_to(self, mask: Mask) -> None:
        """Take another topology. What goes is lost, with what the server's optimizer knows of it."""
        for name, old in self.mask.items():
            gone, come = (int((a & ~b).sum()) for a, b in ((old, mask[name]), (mask[name], old)))
            self._news = self._news + changes_bytes(old.numel(), int(old.sum()), gone, come)
        self.mask = dict(mask)
        self.state = self._confined(self.state)
        moments = self.optimizer.moments
        self.optimizer.moments = {
            key: tensor * self.mask[name] if (name := key.partition("/")[2]) in self.mask else tensor
            for key, tensor in moments.items()
        }

    def _confined(self, state: State) -> State:
        return {name: t * self.mask[name] if name in self.mask else t for name, t in state.items()}

    def saved(self) -> State:
        masks = {f"topology/{name}": mask for name, mask in self.mask.items()}
        return super().saved() | masks | {"news": self._news, "told": self._told}

    def restore(self, tensors: State) -> None:
        super().restore(tensors)
        mask = {name: tensors[f"topology/{name}"] for name in self.mask}
        self.check_links({name: int(links.sum()) for name, links in mask.items()})
        self.mask = mask
        self._news, self._told = tensors["news"], tensors["told"]

    def check_links(self, links: Mapping[str, int]) -> None:
        """Whether a checkpoint can have so many links of each tensor; here, as many as there are.

        Raises:
            MethodError: it cannot.
        """
        for name, k in self.links.items():
            if links[name] != k:
                raise MethodError(
                    f"method.density = {self.options.density:g}: gives {name} {k:,} links, and the checkpoint has "
                    f"{links[name]:,}: it is of another density"
                )


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


class GrowingClient(Client):
    """Trains its share of the topology; where the server asks for it, names the places of the largest gradient."""

    def train(self, assignment: Assignment, data: Examples, memory: State) -> tuple[Update, State]:
        network = self.network(assignment).load(assignment.payload["model"])
        report = self.fit(network, assignment, data, self.correction(network, assignment, memory))
        update = self.update(assignment, data, report, {"model": network.values()})
        return self.answered(assignment, update, network, data), memory

    def answered(self, assignment: Assignment, update: Update, network: Network, data: Examples) -> Update:
        """The update with the candidates for growth: of the mean gradient on all local data, after training."""
        growth = assignment.growth
        if growth is None:
            return update
        gradient = mean_gradient(network, data, self.training.batch_size, self.loss(data))
        draws = generator(self.seed, "candidates", assignment.round, assignment.client)
        found = {name: _candidates(gradient[name], growth, name, draws) for name in growth.masks}
        return replace(update, candidates=found, scored=update.scored + len(data))


def _candidates(gradient: Tensor, growth: Growth, name: str, draws: torch.Generator) -> Candidates:
    if growth.everywhere:
        return Candidates(torch.arange(gradient.numel()), gradient.reshape(-1))
    best = strongest(gradient.abs(), ~growth.masks[name], growth.counts[name], draws)
    places = best.reshape(-1).nonzero().squeeze(1)
    return Candidates(places, gradient.reshape(-1)[places] if growth.values else None)


class DynamicMethod(SparseMethod):
    """A method that adjusts the topology. The least that it defines is `adjusted`; `growth` and `observe` where
    clients tell it something."""

    Options = DynamicOptions
    Client = GrowingClient

    def resolve(self, context: Context, options: Any) -> Any:
        options = super().resolve(context, options)
        end = max(1, context.rounds * 3 // 5) if options.end is None else options.end
        if options.end is not None and options.end < options.every:
            raise MethodError(
                f"method.end = {options.end}: is before the first adjustment, after round {options.every} "
                "(method.every); there would be none"
            )
        return options.model_copy(update={"end": end})

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.options.every, self.options.end, self.options.change, self.options.decay)

    def swaps(self, t: int) -> dict[str, int]:
        """How many links of each layer are exchanged after round t."""
        return {n: self.schedule.swap(t, k, self.mask[n].numel()) for n, k in self.links.items()}

    def growth(self, t: int) -> Growth | None:
        """What clients are asked in a round that ends with an adjustment."""
        return None

    def assignment(self, t: int, client: ClientCard, submodel: Submodel) -> Assignment:
        growth = self.growth(t) if self.schedule.due(t) else None
        return replace(super().assignment(t, client, submodel), growth=growth)

    def begin(self, t: int) -> None:
        """Before the first update of a round is seen."""

    def observe(self, assignment: Assignment, update: Update) -> None:
        """What an accepted update tells of links."""

    def merge(self, t: int, results: Iterable[tuple[Assignment, Update]]) -> None:
        self.begin(t)

        def seen() -> Iterator[tuple[Assignment, Update]]:
            for assignment, update in results:
                self.observe(assignment, update)
                yield assignment, update

        super().merge(t, seen())

    def adjust(self, t: int) -> None:
        if self.schedule.due(t):
            self.change_to(self.adjusted(t))

    def adjusted(self, t: int) -> Mapping[str, Tensor]:
        """The topology after round t, where an adjustment is due. Must be defined."""
        raise TypeError(f"{type(self).__name__} must define adjusted(t)")

    def draws(self, purpose: str, t: int) -> torch.Generator:
        """For a decision of the server in round t."""
        return generator(self.context.seed, purpose, t)
