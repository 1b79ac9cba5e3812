"""FedRolex: a window of channels that rolls over the model."""

from __future__ import annotations

from torch import Tensor

from uneven.methods.base import ClientCard
from uneven.methods.channelwise import ChannelMethod, window
from uneven.submodels import Submodel


class FedRolex(ChannelMethod):
    """All clients of a round train a window of channels that moves on by one each round.

    Paper: Alam et al. 2022, FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model
    Extraction (arXiv 2212.01548), Algorithm 1 and equation 3.

    Rule: in round t = 1, 2, ... a client of width r holds the channels {(t - 1 + j) mod C : j < k} of a group
    of C, k = ceil(r C). The output is not rolled. A width is evaluated on the window of the last round.

    Deviations: rounds count from 1, so the first window is the prefix.
    """

    def channels(self, group: int, k: int, key: tuple[int | str, ...]) -> Tensor:
        t = int(key[0])
        return window(t - 1, k, self.supernet.groups[group].size)

    def evaluation_submodel(self, client: ClientCard, t: int) -> Submodel:
        return self._kept(client.width, (max(t, 1),))
