"""Tensors cut into blocks of channels, and blocks blended with the mean of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from uneven.submodels import ChannelSubmodel, State, Supernet
from uneven.submodels.axes import Axis, channels_along
from uneven.submodels.groups import Group


@dataclass(frozen=True)
class Cut:
    """One axis cut into blocks: the number of the block of each entry, and of its place there; both (size,) int64.

    Entries of the same place in two blocks differ in nothing but the block of their channel.
    """

    block: Tensor
    place: Tensor


def cut(axis: Axis, groups: Sequence[Group], count: int) -> Cut:
    """Cut every group's C channels into ``count`` blocks, the b-th from floor(b C / count) on.

    An axis of several groups (queries, keys and values laid end to end) has that many times the blocks. What two
    entries of one channel have apart (the position, after a flatten) tells their places apart.
    """
    channels = torch.stack([channels_along(axis, group.atom) for group in groups])  # -1 in entries of others
    sizes = torch.tensor([[group.size] for group in groups])
    blocks = ((channels + 1) * count - 1) // sizes
    within = torch.where(channels < 0, -1, channels - blocks * sizes // count)
    places = torch.cat([within, _repeats(_numbered(channels))[None]])
    return Cut(_numbered(blocks), _numbered(places))


def _numbered(columns: Tensor) -> Tensor:
    """A number for every column, the same for equal ones."""
    numbers: Tensor = torch.unique(columns, dim=1, return_inverse=True)[1]
    return numbers


def _repeats(numbers: Tensor) -> Tensor:
    """How many equal numbers come before each."""
    order = numbers.argsort(stable=True)
    counts = numbers.bincount()
    first = (counts.cumsum(0) - counts)[numbers[order]]
    return torch.empty_like(numbers).index_copy_(0, order, torch.arange(len(numbers)) - first)


class Blocks:
    """The blocks of every parameter: each axis of a channel group is cut into ``count``."""

    def __init__(self, supernet: Supernet, count: int) -> None:
        self._axes = {name: supernet.structure.axes[name] for name in supernet.parameters}
        self._cuts: dict[str, dict[int, Cut]] = {name: {} for name in supernet.parameters}
        for name, axes in self._axes.items():
            for dim, axis in enumerate(axes):
                groups = [group for group in supernet.groups if group.atom in axis.atoms()]
                if groups:
                    self._cuts[name][dim] = cut(axis, groups, count)

    def blended(self, state: State, trained: Sequence[ChannelSubmodel], share: float) -> State:
        """A block in which these submodels hold nothing becomes (1 - share) of it and share of the others' mean.

        An entry whose place none of the others has stays as it is.
        """
        new = dict(state)
        for name, cuts in self._cuts.items():
            touched = self._touched(name, trained)
            if not touched.all():
                new[name] = _blended(state[name], touched, cuts, share)
        return new

    def _touched(self, name: str, trained: Sequence[ChannelSubmodel]) -> Tensor:
        """Which entries are in a block of which something is held, bool; of size 1 on axes that are not cut."""
        cuts, axes = self._cuts[name], self._axes[name]
        touched = torch.zeros((), dtype=torch.bool)
        for submodel in trained:
            own = torch.ones([1] * len(axes), dtype=torch.bool)
            for dim, each in cuts.items():
                some = torch.zeros_like(each.block, dtype=torch.bool)
                some[each.block[submodel.entries(axes[dim])]] = True  # by number of block
                own = own & some[each.block].view([-1 if d == dim else 1 for d in range(len(axes))])
            touched = touched | own
        return touched


def _blended(tensor: Tensor, touched: Tensor, cuts: dict[int, Cut], share: float) -> Tensor:
    counted = touched.to(tensor.dtype)
    total = tensor * counted
    for dim, each in cuts.items():
        total, counted = _by_place(total, dim, each.place), _by_place(counted, dim, each.place)
    mean = total / counted.clamp(min=1)
    for dim, each in cuts.items():
        mean, counted = mean.index_select(dim, each.place), counted.index_select(dim, each.place)
    return torch.where(~touched & (counted > 0), (1 - share) * tensor + share * mean, tensor)


def _by_place(tensor: Tensor, dim: int, place: Tensor) -> Tensor:
    """The sum over the entries of an axis that have the same place."""
    shape = list(tensor.shape)
    shape[dim] = int(place.max()) + 1
    return tensor.new_zeros(shape).index_add_(dim, place, tensor)
