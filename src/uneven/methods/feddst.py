"""FedDST: clients exchange links themselves, and the server brings what they hold back to one topology."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from uneven.data import Examples
from uneven.errors import MethodError
from uneven.methods.base import Assignment, Choice, ClientCard, Context, Exchange, Update
from uneven.methods.dynamic import DynamicMethod, DynamicOptions
from uneven.methods.topology_client import SparseClient, part_of
from uneven.rng import generator
from uneven.sparsity import held, strongest
from uneven.sparsity.gradients import mean_gradient
from uneven.submodels import Network, State, Submodel
from uneven.submodels.masks import masked
from uneven.training import Report


class FedDSTOptions(DynamicOptions):
    """Options of `FedDST`."""

    before: float = Field(default=0.5, gt=0, lt=1)
    """The share of its steps that a client does before it exchanges links, rounded up."""


@dataclass(frozen=True)
class Layer:
    """A prunable tensor as a client has it when it exchanges links; all of the tensor's shape.

    ``held``, ``free``: bool, the client's links, and the places where the topology has none. ``weight``,
    ``gradient``: of the loss on all its data. ``start``: the weight before its training. ``direction``: as
    `Exchange` has it, or 0.
    """

    held: Tensor
    free: Tensor
    weight: Tensor
    gradient: Tensor
    start: Tensor
    direction: Tensor


class FedDSTClient(SparseClient):
    """Trains, exchanges links where it is told to, and trains on."""

    def train(self, assignment: Assignment, data: Examples, memory: State) -> tuple[Update, State]:
        if assignment.exchange is None:
            return super().train(assignment, data, memory)
        network = self.network(assignment).load(assignment.payload["model"])
        steps = self.training.steps_for(len(data))
        early = math.ceil(round(self.options.before * steps, 9))
        report = self.fit(network, assignment, data, None, (0, early))
        part = masked(self.supernet, self.exchanged(network, assignment, assignment.exchange, data))
        values = part.gather({name: t.detach() for name, t in network.tensors.items()})
        network = self.network(replace(assignment, submodel=part)).load(values)
        if early < steps:
            report = _together(report, self.fit(network, assignment, data, None, (1, steps - early)))
        update = self.update(assignment, data, report, {"model": network.values()})
        return replace(update, submodel=part, scored=len(data)), memory

    def exchanged(self, network: Network, assignment: Assignment, exchange: Exchange, data: Examples) -> State:
        """Where the client's links are after the exchange, by tensor."""
        gradient = mean_gradient(network, data, self.training.batch_size, self.loss(data))
        given, weights, masks = part_of(assignment), network.weights(), {}
        draws = generator(self.seed, "exchange", assignment.round, assignment.client)
        for name, links in exchange.masks.items():
            start = given.spread(name, assignment.payload["model"][name])
            weight, direction = weights[name].detach(), exchange.directions.get(name, torch.zeros(()))
            layer = Layer(given.holds(name), ~links, weight, gradient[name], start, direction)
            dropped = self.dropped(layer, exchange.counts[name], draws)
            masks[name] = layer.held & ~dropped | self.grown(layer, exchange.counts[name], draws)
        return masks

    def dropped(self, layer: Layer, count: int, draws: torch.Generator) -> Tensor:
        """Which links go: the smallest."""
        return strongest(-layer.weight.abs(), layer.held, count, draws)

    def grown(self, layer: Layer, count: int, draws: torch.Generator) -> Tensor:
        """Which places get a link: those of the largest gradient."""
        return strongest(layer.gradient.abs(), layer.free, count, draws)


def _together(first: Report, second: Report) -> Report:
    """Of two parts of a training."""
    steps = first.steps + second.steps
    loss = (first.loss * first.steps + second.loss * second.steps) / steps
    return replace(first, loss=loss, steps=steps, seen=first.seen + second.seen)


class FedDST(DynamicMethod):
    """A client drops its smallest links and grows those of its largest gradient, within its local training.

    Paper: Bibikar et al. 2022, Federated Dynamic Sparse Training (arXiv 2112.09824), algorithm 1.

    Rule: in a round that ends with an adjustment a client trains for a share of its steps (``before``), drops in
    each layer the swap_l links of the lowest |w|, grows the swap_l places without a link where |g| is largest, at
    weight 0, and trains on; it uploads weights and mask. The server averages each weight over the clients that
    hold it (over all, by rule ``fill``), and keeps the K_l of the largest |x| in each layer. In other rounds all
    clients hold the topology.

    Deviations: g is the gradient on all local data, before the drop, with norms as in evaluation. The optimizer
    starts afresh after the exchange, so that it remembers nothing of what was dropped. A link that all who had it
    dropped goes before any other. A client that holds a share of the links exchanges that share of swap_l, for
    places where the topology has no link. With a single local step nothing is left to train what was grown.
    """

    Options = FedDSTOptions
    Client = FedDSTClient

    def __init__(self, context: Context, options: Any) -> None:
        super().__init__(context, options)
        largest = max((self._part(client) for client in context.clients), key=lambda part: part.size)
        if self.options.density < 1 and not any(self.counts(self.options.first_due, largest).values()):
            raise MethodError(
                f"method.change = {self.options.change:g}: the largest client holds {largest.size:,} parameters, "
                "so few links of each layer that it exchanges none; use a larger share"
            )

    def alike(self, context: Context) -> bool:
        return False  # each grows links of its own

    def assignment(self, t: int, client: ClientCard, submodel: Submodel) -> Assignment:
        assignment, exchange = super().assignment(t, client, submodel), None
        if self.options.due(t):
            exchange = self.exchange(t, submodel)
        if exchange is None:
            return assignment
        return replace(assignment, exchange=exchange, choice=Choice(client.width, submodel.size))

    def exchange(self, t: int, submodel: Submodel) -> Exchange | None:
        """What the holder of a submodel is to exchange; None where that is nothing."""
        counts = self.counts(t, submodel)
        return Exchange(self.mask, counts) if any(counts.values()) else None

    def counts(self, t: int, submodel: Submodel) -> dict[str, int]:
        """How many links of each layer the holder of a submodel exchanges: its share of swap_l."""
        own, links = held(submodel, self.mask), self.links
        return {name: int(round(own[name] / links[name] * swap, 9)) for name, swap in self.swaps(t).items()}

    def begin(self, t: int) -> None:
        self._had, self._held = ({name: torch.zeros_like(m) for name, m in self.mask.items()} for _ in range(2))

    def observe(self, assignment: Assignment, update: Update) -> None:
        """Which links clients had, and which they hold now."""
        had, has = part_of(assignment), part_of(assignment, update)
        for name in self.mask:
            self._had[name] |= had.holds(name)
            self._held[name] |= has.holds(name)

    def adjusted(self, t: int) -> Mapping[str, Tensor]:
        masks, draws, links = {}, self.draws("ties", t), self.links
        for name, mask in self.mask.items():
            given_up = self._had[name] & ~self._held[name]
            size = self.state[name].abs().masked_fill(given_up, -1.0)
            masks[name] = strongest(size, mask | self._held[name], links[name], draws)
        return masks
