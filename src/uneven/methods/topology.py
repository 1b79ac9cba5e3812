"""What the methods share whose clients all hold one sparse topology.

Layer l keeps K_l links. A client of capacity less than 1 holds the same share of the topology's links, those of
the largest |x| of each layer. How links are exchanged is in `uneven.methods.dynamic`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from uneven.apportion import apportion
from uneven.errors import MethodError
from uneven.methods.base import Assignment, ClientCard, Context, Grain, Method, MethodOptions, Update
from uneven.methods.topology_client import SparseClient
from uneven.options import Many
from uneven.rng import generator
from uneven.sparsity import Layers, Mask, held, strongest
from uneven.sparsity.coding import News, difference_bytes, subset_bytes
from uneven.sparsity.initial import Initial, first_mask, initial_mask
from uneven.sparsity.kernel_choice import faster, named
from uneven.sparsity.opening import MeanAnswers, Opening, Snip
from uneven.submodels import MaskSubmodel, State, Submodel, Supernet
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
    faster so on this machine, of layers with at most one link in ten places; none where links move between layers
    (PruneFL's, and FedTiny's with ``candidates``), or where FedMef prunes activations. [] is none."""

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
        self._news = News(len(context.clients))
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
        if given is not None:
            sparse = [name for name, mask in self.mask.items() if self.shifts or not mask.all()]
            return named(given, self.supernet, sparse)
        if self.shifts:  # what is sparse now may not be later
            return ()
        return faster(self.supernet, self.mask, self.context.training.batch_size)

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
        """Of the links such a share as ``size``, less what is never pruned, is of the prunable parameters, and
        one of each layer at least."""
        if size >= self.supernet.size:
            return masked(self.supernet, self.mask)
        counts, prunable = self.links, sum(mask.numel() for mask in self.mask.values())
        free = max(size - (self.supernet.size - prunable), 0)
        if free < len(counts):
            raise MethodError(
                f"a capacity of {size:,} of {self.supernet.size:,} parameters is too small: it leaves a layer of "
                "the topology without a link"
            )
        total = max(free * sum(counts.values()) // prunable, len(counts))
        kept = [1 + k for k in apportion([k - 1 for k in counts.values()], total - len(counts))]
        draws = generator(self.context.seed, "share", size)
        parts = zip(self.mask.items(), kept, strict=True)
        return masked(
            self.supernet, {name: strongest(self.state[name].abs(), mask, k, draws) for (name, mask), k in parts}
        )

    def assignment(self, t: int, client: ClientCard, submodel: Submodel) -> Assignment:
        """The client's share, and what tells it which links these are (an estimate, at the entropy): each
        adjustment that it has not seen, and its own choice among the links. The links at the start follow from
        the run's seed."""
        news = self._news.untold(client.id)
        own = held(submodel, self.mask)
        news += math.fsum(subset_bytes(k, own[name]) for name, k in self.links.items())
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
        self._news.add(difference_bytes(self.mask, mask) if told is None else told)
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
        if self.opening is not None:
            masks |= {f"first/{name}": mask for name, mask in self.first.items()}
        return super().saved() | masks | self._news.saved()

    def restore(self, tensors: State) -> None:
        super().restore(tensors)
        mask = {name: tensors[f"topology/{name}"] for name in self.mask}
        self.check_links({name: int(links.sum()) for name, links in mask.items()})
        self.mask = mask
        if self.opening is not None:
            self.first = {name: tensors[f"first/{name}"] for name in self.first}
        self._news.restore(tensors)

    @property
    def shifts(self) -> bool:
        """Whether links move from tensor to tensor: an opening moves them, but for SNIP of each layer."""
        return self.opening is not None and (self.options.initial != "snip" or self.options.layers == "global")

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
