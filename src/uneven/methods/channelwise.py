"""What the methods share that give each client channels of every group."""

from __future__ import annotations

import torch
from torch import Tensor

from uneven.methods.base import ClientCard, Method
from uneven.submodels import Submodel


class ChannelMethod(Method):
    """A method that says which k of a group's C channels a client keeps, in `channels`.

    Submodels move from round to round, so norms use batch statistics in training, and their running statistics
    are recalibrated before an evaluation, by the clients that can hold the evaluated width; by all, where none
    can (the full model may be wider than any client).
    """

    def channels(self, group: int, k: int, key: tuple[int | str, ...]) -> Tensor:
        """The channels of one group, ``(k,)`` int64, for a draw or offset named by ``key``."""
        raise TypeError(f"{type(self).__name__} must define channels(group, k, key)")

    def submodel(self, t: int, client: ClientCard) -> Submodel:
        return self._kept(client.width, (t, client.id))

    def _kept(self, width: float, key: tuple[int | str, ...]) -> Submodel:
        counts = self.supernet.channels(width)
        return self.supernet.submodel({group: self.channels(group, k, key) for group, k in counts.items()})


def window(offset: int, k: int, size: int) -> Tensor:
    """k channels from ``offset`` on, wrapping around: ``(offset + j) mod size``."""
    return (torch.arange(k) + offset) % size
