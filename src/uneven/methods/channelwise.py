"""What the methods share that give each client channels of every group."""

from __future__ import annotations

import torch
from torch import Tensor

from uneven.methods.base import ClientCard, Method
from uneven.submodels import Submodel


class ChannelMethod(Method):
    """A method that says which k of a group's C channels a client keeps, in `channels`.

    Submodels move from round to round, so running statistics of norms would mix those of different
    networks: batch statistics are used in training, and recalibrated before an evaluation.
    """

    def channels(self, group: int, k: int, key: tuple[int | str, ...]) -> Tensor:
        """The channels of one group, ``(k,)`` int64, for a draw or offset named by ``key``."""
        raise TypeError(f"{type(self).__name__} must define channels(group, k, key)")

    def submodel(self, t: int, client: ClientCard) -> Submodel:
        return self._kept(client.width, (t, client.id))

    def _kept(self, width: float, key: tuple[int | str, ...]) -> Submodel:
        counts = self.supernet.channels(width)
        return self.supernet.submodel({group: self.channels(group, k, key) for group, k in counts.items()})

    @property
    def recalibrates(self) -> bool:
        return bool(self.supernet.running)


def window(offset: int, k: int, size: int) -> Tensor:
    """k channels from ``offset`` on, wrapping around: ``(offset + j) mod size``."""
    return (torch.arange(k) + offset) % size
