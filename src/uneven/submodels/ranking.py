"""Channels chosen by importance: scores of parameters, summed over every tensor that a channel runs along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from uneven.submodels.axes import channels_along
from uneven.submodels.channels import ChannelSubmodel, Supernet
from uneven.submodels.masks import checked

ChannelScope = Literal["group", "global"]


def channel_scores(supernet: Supernet, scores: Mapping[str, Tensor]) -> list[Tensor]:
    """The score of each channel of each group, ``(C,)``: the sum over its entries in all members of the group.

    ``scores``: parameter name -> scores of its entries, of its shape; parameters not named count for nothing.

    Raises:
        MethodError: a score is NaN.
    """
    totals = []
    for name, score in scores.items():
        checked(name, score)
    for group in supernet.groups:
        total = torch.zeros(group.size, dtype=torch.float64)
        for name, dim in group.members:
            if name in scores:
                along = (
                    scores[name].transpose(0, dim).flatten(1).sum(1) if scores[name].dim() > 1 else scores[name]
                )
                channel = channels_along(supernet.structure.axes[name][dim], group.atom)
                total.index_add_(0, channel[channel >= 0], along[channel >= 0].double())
        totals.append(total)
    return totals


def best_channels(supernet: Supernet, scores: Mapping[str, Tensor], width: float) -> ChannelSubmodel:
    """The ceil(r C) highest-scored channels of every group; equal scores go by the lower channel."""
    counts = supernet.channels(width)
    ranked = [total.argsort(descending=True, stable=True) for total in channel_scores(supernet, scores)]
    return supernet.submodel({group: ranked[group][:k] for group, k in counts.items()})


def best_channels_overall(supernet: Supernet, scores: Mapping[str, Tensor], size: int) -> ChannelSubmodel:
    """The channels that are worth most for their parameters, whichever group they are of: as many as leave at most
    ``size`` parameters, and the best one of each group.

    A channel's worth is its score divided by the number of its entries.
    """
    ones = channel_scores(supernet, {name: torch.ones_like(scores[name]) for name in scores})
    worths = [
        total / count.clamp(min=1) for total, count in zip(channel_scores(supernet, scores), ones, strict=True)
    ]
    order = torch.cat(worths).argsort(descending=True, stable=True)
    owners = torch.cat([torch.full((len(worth),), i) for i, worth in enumerate(worths)])
    starts = [int((owners < i).sum()) for i in range(len(worths))]

    def kept(count: int) -> ChannelSubmodel:
        chosen = order[:count]
        keep = {i: chosen[owners[chosen] == i] - start for i, start in enumerate(starts)}
        best = {i: worth.argmax().view(1) for i, worth in enumerate(worths)}
        return supernet.submodel({i: own if len(own) else best[i] for i, own in keep.items()})

    low, high = 0, len(order)
    while low < high:  # sizes grow with the number of channels
        middle = (low + high + 1) // 2
        low, high = (middle, high) if kept(middle).size <= size else (low, middle - 1)
    return kept(low)
