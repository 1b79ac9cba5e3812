"""The client of a method with one topology."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from uneven.data import Examples
from uneven.methods.base import Assignment, Candidates, Client, Growth, Update
from uneven.rng import generator
from uneven.sparsity import strongest
from uneven.sparsity.gradients import mean_gradient
from uneven.sparsity.kernel import SparseNetwork
from uneven.sparsity.opening import Opening
from uneven.submodels import MaskSubmodel, Network, State


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


def part_of(assignment: Assignment, update: Update | None = None) -> MaskSubmodel:
    """What a client was given; what it sends, with its update. Under a topology these are masks."""
    part = assignment.submodel if update is None else assignment.trained(update)
    assert isinstance(part, MaskSubmodel)
    return part


def _candidates(gradient: Tensor, growth: Growth, name: str, draws: torch.Generator) -> Candidates:
    if growth.everywhere:
        return Candidates(torch.arange(gradient.numel()), gradient.reshape(-1))
    best = strongest(gradient.abs(), ~growth.masks[name], growth.counts[name], draws)
    places = best.reshape(-1).nonzero().squeeze(1)
    return Candidates(places, gradient.reshape(-1)[places] if growth.values else None)
