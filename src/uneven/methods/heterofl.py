"""HeteroFL: nested widths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from uneven.data import Examples
from uneven.data.federation import NOTHING
from uneven.errors import MethodError
from uneven.methods.base import Assignment, Client, ClientCard, Context, Method, MethodOptions
from uneven.submodels import Network, Submodel
from uneven.training import Loss
from uneven.training.losses import cross_entropy

Switch = bool | Literal["auto"]


class HeteroFLClient(Client):
    """Trains with scaled activations, and with the logits of classes that the client has not set to 0."""

    def network(self, assignment: Assignment) -> Network:
        return assignment.submodel.network(scaler=self.options.scaler)

    def loss(self, data: Examples) -> Loss:
        if not self.options.masked_loss:
            return super().loss(data)
        has = torch.zeros(self.supernet.structure.output[-1].size).index_fill_(0, data.y[data.y != NOTHING], 1.0)
        return lambda logits, y: cross_entropy(logits * has, y)


class HeteroFL(Method):
    """A client of width r holds the first ceil(r C) channels of every group of C.

    Paper: Diao, Ding, Tarokh 2021, HeteroFL: Computation and Communication Efficient Federated Learning for
    Heterogeneous Clients (arXiv 2010.01264), Algorithm 1; levels {1, 1/2, 1/4, 1/8, 1/16}.

    Rule: channels 0..k-1; every coordinate is averaged over the clients that hold it. In training activations
    are divided by r (Scaler), norms use batch statistics that the server fills in afterwards (static batch
    norm), the logits of classes that a client has not are set to 0 (masked cross-entropy), and an output row
    is averaged only over the clients that have its label.

    Deviations: the Scaler divides by the share of channels that is kept, k / C, which is r but for rounding, and
    is left out where a norm follows, which would undo it. Static batch norm is filled in from the clients that
    can hold the evaluated width (from all where none can), not from all data on the server.
    """

    class Options(MethodOptions):
        scaler: Switch = "auto"
        """Divide activations by r in training. ``auto``: where some layer's output meets no norm."""
        static_batch_norm: Switch = "auto"
        """Keep no running statistics in training; fill them before evaluation. ``auto``: with batch norm."""
        masked_loss: Switch = "auto"
        """Set the logits of classes that the client has not to 0. ``auto``: where a client lacks a class."""
        label_rows: Switch = "auto"
        """Average an output row over clients that have its label. ``auto``: where a client lacks a class."""

    Client = HeteroFLClient
    NEUTRAL: ClassVar[Mapping[str, Any]] = {
        "scaler": False,
        "static_batch_norm": False,
        "masked_loss": False,
        "label_rows": False,
    }

    def resolve(self, context: Context, options: Any) -> Any:
        lacks = any(bool((client.label_counts == 0).any()) for client in context.clients)
        useful = {
            "scaler": (bool(context.supernet.scaled()), "every layer's output meets a norm"),
            "static_batch_norm": (bool(context.supernet.running), "the model has no batch norm"),
            "masked_loss": (lacks, "every client has every class"),
            "label_rows": (lacks, "every client has every class"),
        }
        for name, (acts, why) in useful.items():
            if getattr(options, name) is True and not acts:
                raise MethodError(f"method.{name} = true: has no effect, {why}; use 'auto'")
        chosen = {name: acts and getattr(options, name) is not False for name, (acts, _) in useful.items()}
        return options.model_copy(update=chosen)

    def submodel(self, t: int, client: ClientCard) -> Submodel:
        return self.supernet.prefix(client.width)

    def counted(self, assignment: Assignment) -> Mapping[str, Tensor]:
        if not self.options.label_rows:
            return {}
        has = (self.context.clients[assignment.client].label_counts > 0).float()
        rows = self.supernet.classes.items()
        dims = {name: self.supernet.initial[name].dim() for name, _ in rows}
        return {name: has.view(-1, *[1] * (dims[name] - dim - 1)) for name, dim in rows}

    @property
    def recalibrates(self) -> bool:
        return bool(self.options.static_batch_norm)
