"""Which links of one layer are dropped and grown."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from uneven.submodels import Submodel
from uneven.submodels.topk import top_k

Mask = Mapping[str, Tensor]  # prunable tensor -> bool, of its shape: where links are
Scores = Mapping[str, Tensor]


def strongest(scores: Tensor, among: Tensor, k: int, draws: torch.Generator) -> Tensor:
    """Where the k highest scores among some places are, a bool tensor; ties go by a draw, never by position.

    Args:
        scores: of any shape; what is not ``among`` is not looked at.
        among: bool, of the same shape; at least k are true.
    """
    keys = torch.rand(scores.shape, generator=draws)
    chosen = torch.zeros_like(among)
    (best,) = top_k([scores[among]], k, [keys[among]])
    chosen[among] = best
    return chosen


def held(submodel: Submodel, mask: Mask) -> dict[str, int]:
    """How many of the links of each tensor a submodel holds."""
    return {name: int(submodel.select(name, links).sum()) for name, links in mask.items()}


def drop_and_grow(mask: Tensor, swap: int, keep: Tensor, grow: Tensor, draws: torch.Generator) -> Tensor:
    """The layer's next mask: the ``swap`` links of the lowest ``keep`` go, the highest ``grow`` among the places
    that were free come. What is dropped cannot come back in the same adjustment."""
    kept = strongest(keep, mask, int(mask.sum()) - swap, draws)
    return kept | strongest(grow, ~mask, swap, draws)
