"""The topology that a run starts from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from uneven.errors import MethodError
from uneven.rng import generator
from uneven.sparsity.densities import Layers, links, links_in_all
from uneven.sparsity.rules import strongest
from uneven.submodels import State, Supernet
from uneven.submodels.topk import top_k

Initial = Literal["random", "magnitude", "snip"]


def first_mask(
    supernet: Supernet, density: float, layers: Layers | Literal["global"], initial: Initial, seed: int
) -> State:
    """The links of the first round, which follow from the run's seed.

    ``snip``: the scores are known after that round only (see `uneven.sparsity.opening.Snip`); until then links are
    random, under ERK where they are to be the best of all layers together.

    Raises:
        MethodError: as `initial_mask`.
    """
    draws = generator(seed, "topology")
    weights = {name: supernet.initial[name] for name in supernet.maskable}
    if initial == "magnitude":
        scores = {name: weight.abs() for name, weight in weights.items()}
    else:
        scores = {name: torch.rand(weight.shape, generator=draws) for name, weight in weights.items()}
        layers = "erk" if layers == "global" else layers
    return initial_mask(supernet, density, layers, scores, draws)


def initial_mask(
    supernet: Supernet,
    density: float,
    layers: Layers | Literal["global"],
    scores: Mapping[str, Tensor],
    draws: torch.Generator,
) -> State:
    """The links of the highest scores: K_l of each prunable tensor, or the best of all (``global``).

    Args:
        scores: prunable tensor -> a score for every place.
        draws: decide between equal scores.

    Raises:
        MethodError: the density cannot be had, or leaves a layer without a link.
    """
    if layers != "global":
        return {
            name: strongest(scores[name], torch.ones_like(scores[name], dtype=torch.bool), k, draws)
            for name, k in links(supernet, density, layers).items()
        }
    names = supernet.maskable
    keys = [torch.rand(scores[name].shape, generator=draws) for name in names]
    best = top_k([scores[name] for name in names], links_in_all(supernet, density), keys)
    mask = dict(zip(names, best, strict=True))
    for name in names:
        if not mask[name].any():
            raise MethodError(
                f"method.density = {density:g}: {name} would have no link among the largest scores of the "
                "whole model; use a higher density, or method.layers = 'erk'"
            )
    return mask
