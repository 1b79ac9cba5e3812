"""Federated Dropout: random channels, drawn afresh."""

from __future__ import annotations

import torch
from torch import Tensor

from uneven.methods.base import ClientCard
from uneven.methods.channelwise import ChannelMethod
from uneven.rng import generator
from uneven.submodels import Submodel


class FederatedDropout(ChannelMethod):
    """Every client of every round trains a fresh random choice of channels.

    Paper: Caldas et al. 2018, Expanding the Reach of Federated Learning by Reducing Client Resource
    Requirements (arXiv 1812.07210), section 3.2.

    Rule: k = ceil(r C) of each group's C channels, uniformly without replacement; one draw per *group*, so
    that residual skips line up. A width is evaluated on a draw of its own, the same in every round.

    Deviations: no lossy compression; convolutions drop whole filters, as the linear layers do.
    """

    def channels(self, group: int, k: int, key: tuple[int | str, ...]) -> Tensor:
        size = self.supernet.groups[group].size
        draws = generator(self.context.seed, "federated dropout", *key, group)
        return torch.randperm(size, generator=draws)[:k].sort().values

    def evaluation_submodel(self, client: ClientCard, t: int) -> Submodel:
        return self._kept(client.width, ("evaluation", f"{client.width:g}"))
