"""Fed-HeLLo: each client trains the layers that matter most to it, as many as it can afford."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import nn

from uneven.data import Examples
from uneven.errors import MethodError
from uneven.methods.base import (
    Assignment,
    Choice,
    Client,
    ClientCard,
    Context,
    Grain,
    Method,
    MethodOptions,
    Update,
)
from uneven.scores import coupled, couples, gradients
from uneven.submodels import MaskSubmodel, State, Submodel, Supernet
from uneven.submodels.masks import block_of, masked


class FedHeLLoClient(Client):
    """Scores the layers, trains the best and leaves the others as they are; sends what it trained."""

    def train(self, assignment: Assignment, data: Examples, memory: State) -> tuple[Update, State]:
        model, network = assignment.payload["model"], self.network(assignment)
        found = gradients(network.load(model), data, self.options.examples)
        size = assignment.choice.size if assignment.choice else self.supernet.size
        part = best_layers(self.supernet, found.square, size)

        def freeze(weights: Mapping[str, nn.Parameter]) -> None:
            for name in part.masks:
                weights[name].grad = None  # the optimizer passes over it, weight decay too

        report = self.fit(network.load(model), assignment, data, freeze)
        update = self.update(assignment, data, report, {"model": part.gather(network.values())})
        return replace(update, submodel=part, scored=found.examples), memory


class FedHeLLo(Method):
    """A client trains the layers with the highest Fisher information per parameter on its own data.

    Paper: Zhang et al. 2025, Fed-HeLLo: Efficient Federated Foundation Model Fine-Tuning with Heterogeneous LoRA
    Allocation (arXiv 2506.12213), its allocation by Fisher information. A reconstruction.

    Rule: F_l = (1/d_l) sum over the d_l parameters of layer l of (1/|D|) sum (d log p(y|x; x_t) / d x_j)^2. The
    client trains the layers of the highest F_l that fit k_n, the others stay frozen at x_t; the server averages
    every layer over the clients that trained it. The head is trained by all, and counts in k_n.

    Deviations: the client chooses anew in each round. A layer is a block of the model's trained tensors: with
    ``model.lora`` the low-rank pairs of one layer of the encoder, as in the paper, without it whole layers. One
    that is too large for what is left of k_n is passed over.
    """

    class Options(MethodOptions):
        examples: int = Field(default=512, ge=1)
        """Score on so many of the client's examples at most, the first ones."""

    Client = FedHeLLoClient
    EXEMPT: ClassVar[Mapping[int, str]] = {
        7: "frozen layers are not zero: they keep the values that came, bit for bit, without gradient or state"
    }

    def __init__(self, context: Context, options: Any) -> None:
        super().__init__(context, options)
        for size in {client.size for client in context.clients}:
            best_layers(self.supernet, self.state, size)  # a capacity that is too small is an error now

    @classmethod
    def grain(cls, options: Any) -> Grain:
        return "parameter"

    def resolve(self, context: Context, options: Any) -> Any:
        norm = couples(context.supernet.prefix(1.0).network())
        if norm is not None:
            raise MethodError(f"model: {coupled(norm)}")
        return options

    def submodel(self, t: int, client: ClientCard) -> Submodel:
        return self.supernet.prefix(1.0)

    def choice(self, client: ClientCard) -> Choice:
        return Choice(client.width, client.size)

    def evaluation_submodel(self, client: ClientCard, t: int) -> Submodel:
        return self.supernet.prefix(1.0)  # a client has all layers, and trains some


def best_layers(supernet: Supernet, scores: State, size: int) -> MaskSubmodel:
    """The layers of the highest mean score that fit ``size`` parameters beside the head; of equals the first.

    Raises:
        MethodError: the head alone is larger.
    """
    layers: dict[str, list[str]] = {}
    for name in supernet.parameters:
        layers.setdefault(block_of(name), []).append(name)
    sizes = {layer: sum(supernet.initial[n].numel() for n in names) for layer, names in layers.items()}
    held = {block_of(name) for name in supernet.classes}
    free = size - sum(sizes[layer] for layer in held)
    if free < 0:
        raise MethodError(
            f"a capacity of {size:,} of {supernet.size:,} parameters is too small: the head, which every client "
            f"trains, has {size - free:,}"
        )
    means = {layer: sum(float(scores[n].sum()) for n in names) / sizes[layer] for layer, names in layers.items()}
    for layer in sorted((layer for layer in layers if layer not in held), key=lambda layer: -means[layer]):
        if sizes[layer] <= free:
            held.add(layer)
            free -= sizes[layer]
    left_out = [name for layer, names in layers.items() if layer not in held for name in names]
    return masked(supernet, {n: torch.zeros_like(supernet.initial[n], dtype=torch.bool) for n in left_out})
