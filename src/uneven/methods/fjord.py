"""FjORD: ordered dropout, a fresh width for every batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from uneven.data.federation import NOTHING
from uneven.errors import MethodError
from uneven.methods.base import Context
from uneven.methods.heterofl import Switch
from uneven.methods.nested import NestedClient, NestedMethod, NestedOptions, Steps
from uneven.rng import generator


class FjORDOptions(NestedOptions):
    draw: Switch = "auto"
    """Draw a width for every batch; without, a client trains its own. ``auto``: where there are several."""
    distillation: bool = False
    """In every batch train the client's own width too, and the one drawn by its predictions."""

    def steps(self, widths: Sequence[float], count: int, key: tuple[int, ...]) -> Steps:
        own = widths[-1]
        if not self.draw:
            return [[own]] * count
        seed, *purpose = key
        draws = torch.randint(len(widths), (count,), generator=generator(seed, "width", *purpose))
        drawn = [widths[i] for i in draws.tolist()]
        return [[own, p] if self.distillation and p < own else [p] for p in drawn]


class FjORDClient(NestedClient):
    """Trains the width drawn, by labels or by the predictions of the own width."""

    def goal(self, logits: Tensor, y: Tensor) -> Tensor:
        """The predictions; none where there is nothing to predict."""
        return logits.softmax(-1) * (y != NOTHING).unsqueeze(-1)


class FjORD(NestedMethod):
    """A client of width r holds the first ceil(r C) channels of every group of C, and trains part of them at once.

    Paper: Horváth et al. 2021, FjORD: Fair and Accurate Federated Learning under heterogeneous targets with
    Ordered Dropout (arXiv 2102.13451), Algorithm 1; its self-distillation is off by default, as it is there.

    Rule: for every batch draw p uniformly from the widths of the ladder up to r, the distinct widths of the
    clients, and step along the gradient of CE(F_p, y); with self-distillation, of
    CE(F_r, y) + CE(F_p, softmax(F_r)), where the teacher F_r gets no gradient from the second term. Norms keep
    running statistics for each width, averaged over the clients that trained at it.

    Deviations: none in the rule. The second term has no gradient at p = r and is left out there. Momentum, AdamW
    and weight decay move what a batch's width leaves out as well.
    """

    Options = FjORDOptions
    Client = FjORDClient
    NEUTRAL: ClassVar[Mapping[str, Any]] = {"draw": False}

    def resolve(self, context: Context, options: Any) -> Any:
        chosen = super().resolve(context, options)
        several, own = len(chosen.ladder) > 1, {client.width for client in context.clients}
        if options.draw is True and not several:
            raise MethodError(
                "method.draw = true: has no effect, all clients have one width; give method.ladder narrower ones"
            )
        if options.draw is False and not own.issuperset(chosen.ladder):
            raise MethodError(f"method.ladder = {list(options.ladder)}: has no effect with method.draw = false")
        draw = several and options.draw is not False
        if options.distillation and not draw:
            raise MethodError("method.distillation = true: has no effect, clients train no width but their own")
        return chosen.model_copy(update={"draw": draw})
