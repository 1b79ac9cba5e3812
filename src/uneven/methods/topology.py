"""What the methods share whose clients all hold one sparse topology.

Layer l keeps K_l links. Every ``every`` rounds (Delta T), up to round ``end`` (T_end), the server exchanges some
of them; a link that comes starts at 0. A client of capacity less than 1 holds the same share of the topology's
links, those of the largest |x| of each layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
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
from uneven.options import Many
from uneven.rng import generator
from uneven.sparsity import Layers, Mask, Schedule, strongest
from uneven.sparsity.coding import changes_bytes, subset_bytes
from uneven.sparsity.gradients import mean_gradient
from uneven.sparsity.initial import Initial, first_mask, initial_mask
from uneven.sparsity.kernel import SparseNetwork, linear_layers
from uneven.sparsity.opening import MeanAnswers, Opening, Snip
from uneven.sparsity.probe import faster
from uneven.submodels import MaskSubmodel, Network, State, Submodel, Supernet
from uneven.submodels.masks import masked


class SparseOptions(MethodOptions):
    """A sparse topology."""

    density: float = Field(default=0.2, gt=0, le=1)
    """The share of all parameters that are active; norms and biases always are, and count."""
    layers: Layers | Literal["global"] = "erk"
    """How links are spread over layers: Erdos-Renyi kernel, the same density in all, or the largest initial |x|
    of the whole model (``global``)."""
    initial: Initial = "random"
    """The links at the start: drawn at random, those of the largest initial |x|, or those of the largest |g x|, g
    the gradient at the initial weights, which the first round's clients tell (``snip``: the first round itself
    trains random links)."""

    sparse_layers: Many[str] | None = None
    """The weights of linear layers that training computes from their links alone. Default: those that measure
    faster so on this machine, of layers with at most one link in ten places; [] is none."""

    @property
    def opens(self) -> bool:
        """Whether the first round's clients have a say in the topology that the run goes on with."""
        return self.initial == "snip"

    def first(self, supernet: Supernet, seed: int) -> State:
        """The topology of the first round."""
        return first_mask(supernet, self.density, self.layers, self.initial, seed)

    def opening(self, supernet: Supernet, seed: int) -> Opening:
        """What the first round's clients are asked, where it `opens`."""
        draws = generator(seed, "snip")
        return Snip(supernet, lambda scores: initial_mask(supernet, self.density, self.layers, scores, draws))


class SparseClient(Client):
    """Trains its share of the topology, and answers what the server asks beside it."""

    def network(self, assignment: Assignment) -> Network:
        submodel, names = assignment.submodel, self.options.sparse_layers
        return (
            SparseNetwork(submodel, names) if names and isinstance(submodel, MaskSubmodel) else submodel.network()
        )

    def train(self, assignment: Assignment, data: Examples, memory: State) -> tuple[Update, State]:
        network = self.network(assignment).load(assignment.payload["model"])
        report = self.fit(network, assignment, data, self.correction(network, assignment, memory))
        update = self.update(assignment, data, report, {"model": network.values()})
        return self.answered(assignment, update, network, data), memory

    def answered(self, assignment: Assignment, update: Update, network: Network, data: Examples) -> Update:
        """The update with what was asked: candidates for growth, of the mean gradient on all local data after
        training, or the answers of an opening."""
        if assignment.growth is not None:
            gradient = mean_gradient(network, data, self.training.batch_size, self.loss(data))
            draws = generator(self.seed, "candidates", assignment.round, assignment.client)
            masks = assignment.growth.masks
            found = {name: _candidates(gradient[name], assignment.growth, name, draws) for name in masks}
            update = replace(update, candidates=found, scored=update.scored + len(data))
        if assignment.asks:
            answers, scored = self._opening.answers(data, self.training, self.loss(data))
            update = replace(update, answers=answers, scored=update.scored + scored)
        return update

    @cached_property
    def _opening(self) -> Opening:
        opening: Opening = self.options.opening(self.supernet, self.seed)
        return opening


def _candidates(gradient: Tensor, growth: Growth, name: str, draws: torch.Generator) -> Candidates:
    if growth.everywhere:
        return Candidates(torch.arange(gradient.numel()), gradient.reshape(-1))
    best = strongest(gradient.abs(), ~growth.masks[name], growth.counts[name], draws)
    places = best.reshape(-1).nonzero().squeeze(1)
    return Candidates(places, gradient.reshape(-1)[places] if growth.values else None)


class SparseMethod(Method):
    """A method whose clients share one topology. As it stands here, it never changes (but after an opening).

    Attributes:
        mask: prunable tensor -> bool, of its shape: where links are. Replaced by an adjustment, never changed in
            place. What the server keeps is zero elsewhere.
        first: the topology that the run started from; with an opening, what that gave.
    """

    Options = SparseOptions
    Client = SparseClient
    NEUTRAL: ClassVar[Mapping[str, Any]] = {"density": 1.0}

    def __init__(self, context: Context, options: Any) -> None:
        super().__init__(context, options)
        self.mask: State = self.options.first(self.supernet, context.seed)
        self.first = self.mask
        self.opening: Opening | None = None
        if self.options.opens:
            self.opening = self.options.opening(self.supernet, context.seed)
        self.options = self.options.model_copy(update={"sparse_layers": self._sparse_layers()})
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
                "effect with it; use 'magnitude' or 'snip'"
            )
        if context.server.rule == "fill" and self.alike(context):
            raise MethodError("server.rule = 'fill': has no effect, all clients of a round hold the same links")
        if options.initial == "snip" and options.density == 1:
            raise MethodError("method.initial = 'snip': has no effect at density 1, where every place has a link")
        return options

    def alike(self, context: Context) -> bool:
        """Whether all clients of a round send the same links."""
        return len({client.size for client in context.clients}) == 1

    def _sparse_layers(self) -> tuple[str, ...]:
        given = self.options.sparse_layers
        if given is None:  # not where links move between layers: what is sparse now may not be later
            return () if self.shifts else faster(self.supernet, self.mask, self.context.training.batch_size)
        network = self.supernet.prefix(1.0).network()
        linear = {call.weight for call in linear_layers(network.graphs[0], network)} & self.mask.keys()
        for name in given:
            if name not in linear:
                raise MethodError(
                    f"method.sparse_layers: {name!r} is no linear layer of the topology, which are "
                    + ", ".join(sorted(linear))
                )
        return tuple(given)

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
        asks = self.opening.asks if self.opening is not None and t == 1 else {}
        index_bytes = math.ceil(round(news, 6))
        return replace(super().assignment(t, client, submodel), index_bytes=index_bytes, asks=asks)

    def begin(self, t: int) -> None:
        """Before the first update of a round is seen."""

    def observe(self, assignment: Assignment, update: Update) -> None:
        """What an accepted update tells of links."""

    def merge(self, t: int, results: Iterable[tuple[Assignment, Update]]) -> None:
        self.begin(t)
        self._answers = MeanAnswers()

        def seen() -> Iterator[tuple[Assignment, Update]]:
            for assignment, update in results:
                self.observe(assignment, update)
                self._answers.add(update.answers, update.examples)
                yield assignment, update

        super().merge(t, seen())

    def adjust(self, t: int) -> None:
        if self.opening is not None and t == 1:
            self._open(self.opening)

    def _open(self, opening: Opening) -> None:
        """Go on with the topology that the first round's clients speak for: the links that they trained keep their
        values, the others start from their initial ones."""
        trained, mask = self.mask, opening.mask(self._answers.mean())
        self.change_to(mask, opening.told)
        self.first = self.mask
        for name, now in self.mask.items():
            self.state[name] = torch.where(now & ~trained[name], self.supernet.initial[name], self.state[name])

    def change_to(self, mask: Mask, told: float | None = None) -> None:
        """Take another topology. What goes is lost, with what the server's optimizer knows of it.

        Args:
            told: the bytes that tell a client of it; by default at the entropy of what changes.
        """
        self._news = self._news + (self._difference(mask) if told is None else told)
        self.mask = dict(mask)
        self.state = self._confined(self.state)
        moments = self.optimizer.moments
        self.optimizer.moments = {
            key: tensor * self.mask[name] if (name := key.partition("/")[2]) in self.mask else tensor
            for key, tensor in moments.items()
        }

    def _difference(self, mask: Mask) -> float:
        """Bytes that tell which links go and which come."""
        pairs = [(old, mask[name]) for name, old in self.mask.items()]
        return math.fsum(
            changes_bytes(a.numel(), int(a.sum()), int((a & ~b).sum()), int((b & ~a).sum())) for a, b in pairs
        )

    def _confined(self, state: State) -> State:
        return {name: t * self.mask[name] if name in self.mask else t for name, t in state.items()}

    def saved(self) -> State:
        masks = {f"topology/{name}": mask for name, mask in self.mask.items()}
        if self.opening is not None:
            masks |= {f"first/{name}": mask for name, mask in self.first.items()}
        return super().saved() | masks | {"news": self._news, "told": self._told}

    def restore(self, tensors: State) -> None:
        super().restore(tensors)
        mask = {name: tensors[f"topology/{name}"] for name in self.mask}
        self.check_links({name: int(links.sum()) for name, links in mask.items()})
        self.mask = mask
        if self.opening is not None:
            self.first = {name: tensors[f"first/{name}"] for name in self.first}
        self._news, self._told = tensors["news"], tensors["told"]

    @property
    def shifts(self) -> bool:
        """Whether links move from tensor to tensor."""
        return self.opening is not None

    def check_links(self, links: Mapping[str, int]) -> None:
        """Whether a checkpoint can have so many links of each tensor; here, as many as there are, or in all
        where they move between tensors.

        Raises:
            MethodError: it cannot.
        """
        own = self.links
        if self.shifts:
            own, links = {"all tensors": sum(own.values())}, {"all tensors": sum(links.values())}
        for name, k in own.items():
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
        if last < first and (options.density < 1 or options.end):
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
        """What clients are asked in a round that ends with an adjustment."""
        return None

    def assignment(self, t: int, client: ClientCard, submodel: Submodel) -> Assignment:
        growth = self.growth(t) if self.options.due(t) else None
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
