"""FedTiny: the weakest links go, those of the largest mean gradient come; the best of some topologies is first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from uneven.errors import MethodError
from uneven.methods.base import Context, Growth
from uneven.methods.dynamic import DynamicOptions
from uneven.methods.gradient_growth import GradientGrowth
from uneven.sparsity import drop_and_grow
from uneven.sparsity.opening import Opening, Selection, varied
from uneven.submodels import Supernet


class FedTinyOptions(DynamicOptions):
    """Options of `FedTiny`."""

    candidates: int | None = Field(default=None, ge=1)
    """How many topologies the first round's clients choose from; 1: no choice. Default 5, and 1 at density 1 or
    with initial ``snip``."""

    @property
    def opens(self) -> bool:
        return super().opens or (self.candidates or 1) > 1

    def opening(self, supernet: Supernet, seed: int) -> Opening:
        if self.initial == "snip":
            return super().opening(supernet, seed)

        def scores(name: str, draws: torch.Generator) -> Tensor:
            weight = supernet.initial[name]
            return torch.rand(weight.shape, generator=draws) if self.initial == "random" else weight.abs()

        return Selection(supernet, varied(self.first(supernet, seed), scores, self.candidates or 1, seed))


class FedTiny(GradientGrowth):
    """The server drops the links of the lowest |x| and grows those of the largest mean gradient.

    Paper: Huang et al. 2022, FedTiny, Distributed Pruning Towards Tiny Neural Networks in Federated Learning
    (arXiv 2212.01977).

    Rule: in a round that ends with an adjustment each client tells, of every layer, the swap_l places without a
    link where |g_n| is largest, and g_n there, its gradient after local training on all its data. In each layer
    the swap_l links of the lowest |x| of the aggregate go, and the swap_l places of the largest |sum p_n g_n|
    among those that were free come, at weight 0; what a client did not name counts as 0. Adaptive batch-norm
    selection: the first round's clients tell the loss of each of ``candidates`` topologies, at the initial weights
    and with norms that take the statistics of their own data; after the round the server goes on with the one of
    the lowest mean, weighted by examples. A model without batch norm is judged by its loss alone.

    Deviations: all layers are adjusted at once (the paper goes block by block, from the output, to save memory).
    Candidates are drawn at the start of the run: as many links in all, in each layer times a factor drawn from
    [1/2, 3/2], the first with the configured K_l; the first round trains the first of them, and links that come
    with the choice start at their initial values. g_n is taken with norms as in evaluation. The paper prunes a
    pretrained model; here weights are as the model starts.
    """

    Options = FedTinyOptions

    def resolve(self, context: Context, options: Any) -> Any:
        chooses, given = options.density < 1 and options.initial != "snip", options.candidates
        if (given or 1) > 1 and not chooses:
            why = (
                "SNIP chooses the first topology" if options.initial == "snip" else "at density 1 there is but one"
            )
            raise MethodError(f"method.candidates = {given}: has no effect, {why}; use 1, or leave it out")
        default = 5 if chooses else 1
        return super().resolve(context, options.model_copy(update={"candidates": given or default}))

    def growth(self, t: int) -> Growth | None:
        return Growth(self.mask, self.swaps(t), values=True)

    def adjusted(self, t: int) -> Mapping[str, Tensor]:
        draws, gradient = self.draws("ties", t), self.gradient
        return {
            name: drop_and_grow(self.mask[name], swap, self.state[name].abs(), gradient[name].abs(), draws)
            for name, swap in self.swaps(t).items()
        }
