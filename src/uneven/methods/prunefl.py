"""PruneFL: the topology that lowers the loss the most for the time that it takes."""

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
from uneven.sparsity import strongest
from uneven.sparsity.times import time_per_link


class PruneFLOptions(DynamicOptions):
    """Options of `PruneFL`."""

    fixed: bool = False
    """Keep as many links in all as there are, instead of as many as pay."""
    time_constant: float | None = Field(default=None, ge=0)
    """T_const, what a round takes whatever the topology is, as a share of the time of all places together. The
    larger it is, the less a link costs beside it, and the more links there will be. Default 0.1."""


class PruneFL(GradientGrowth):
    """The server keeps the largest links, and adds the places whose squared gradient pays for their time.

    Paper: Jiang et al. 2019, Model Pruning Enables Efficient Federated Learning on Edge Devices (arXiv
    1909.12326), section IV, algorithm 2.

    Rule: in a round that ends with an adjustment each client sends its whole gradient g_n, after local training on
    all its data; g = sum p_n g_n. In each layer the K_l - swap_l links of the largest |x| stay. All other places,
    what is left of the links among them, are gone through by g_j^2 / c_l, the largest first, and each is a link
    while its g_j^2 / c_l is above sum g^2 / (T_const + sum c) of those that are links by then, norms and biases
    aside. c_l is the time that a link of layer l takes. What comes starts at 0.

    Deviations: c_l is from a model of the device, not measured on it: the multiply-accumulates of one example that
    a link takes part in. T_const is a choice of ours (the paper measures it), and so is that a layer without free
    places stays as it is. With ``fixed`` as many are added as make up the number of links before. The clients'
    gradient is the one after training, with norms as in evaluation, not the sum of those in it. Where the number
    of links changes, ``bytes.reference`` of a result stays that of the configured density.
    """

    Options = PruneFLOptions

    def __init__(self, context: Context, options: Any) -> None:
        super().__init__(context, options)
        self._times = {name: time or 1.0 for name, time in time_per_link(self.supernet).items()}

    def resolve(self, context: Context, options: Any) -> Any:
        if options.fixed and options.time_constant is not None:
            raise MethodError(
                f"method.time_constant = {options.time_constant:g}: has no effect with fixed = True, which "
                "adds as many links as went"
            )
        options = super().resolve(context, options)
        default = {} if options.fixed or options.time_constant is not None else {"time_constant": 0.1}
        return options.model_copy(update=default)

    def growth(self, t: int) -> Growth | None:
        return Growth(self.mask, {}, everywhere=True)

    def adjusted(self, t: int) -> Mapping[str, Tensor]:
        swaps, draws = self.swaps(t), self.draws("ties", t)
        if not any(swaps.values()):
            return self.mask
        links = self.links
        stay = {
            name: strongest(self.state[name].abs(), mask, max(1, links[name] - swaps[name]), draws)
            for name, mask in self.mask.items()
        }
        squares = torch.cat([g.reshape(-1) for g in self.gradient.values()]).double().square()
        times = torch.cat([torch.full((m.numel(),), self._times[n]) for n, m in self.mask.items()]).double()
        chosen = torch.cat([mask.reshape(-1) for mask in stay.values()])
        rest = (~chosen).nonzero().squeeze(1)
        rest = rest[torch.randperm(len(rest), generator=draws)]  # equal ones go by this draw
        rest = rest[(squares[rest] / times[rest]).argsort(descending=True, stable=True)]
        if self.options.fixed:
            count = sum(self.links.values()) - int(chosen.sum())
        else:
            count = self._paying(squares[rest], times[rest], squares[chosen].sum(), times[chosen].sum())
        chosen[rest[:count]] = True
        parts = chosen.split([mask.numel() for mask in self.mask.values()])  # type: ignore[no-untyped-call]
        return {name: part.view_as(mask) for (name, mask), part in zip(self.mask.items(), parts, strict=True)}

    def _paying(self, squares: Tensor, times: Tensor, gain: Tensor, time: Tensor) -> int:
        """How many of the rest, in order of what they pay, are worth their time beside those before them."""
        constant = self.options.time_constant * sum(
            self._times[name] * mask.numel() for name, mask in self.mask.items()
        )
        gains, so_far = gain + squares.cumsum(0) - squares, constant + time + times.cumsum(0) - times
        worth = squares / times > gains / so_far
        return int(worth.long().cumprod(0).sum())

    @property
    def shifts(self) -> bool:
        return True

    def check_links(self, links: Mapping[str, int]) -> None:
        if self.options.fixed:  # else there can be any number
            super().check_links(links)
