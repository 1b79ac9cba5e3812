"""Exact top-k over named tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def top_k(scores: Sequence[Tensor], k: int, ties: Sequence[Tensor]) -> list[Tensor]:
    """Where the k highest scores of several tensors together are: bool tensors of their shapes, exactly k ones.

    Equal scores go by the larger absolute value of ``ties`` (tensors of the same shapes), then by the lower
    position, counted through the tensors in order. NaN has no place in an order: check for it first.

    Raises:
        ValueError: k is not in 0..n, n the number of scores.

    >>> scores, ties = [torch.tensor([3.0, 1.0]), torch.tensor([1.0])], [torch.zeros(2), torch.ones(1)]
    >>> [mask.tolist() for mask in top_k(scores, 2, ties)]
    [[True, False], [True]]
    """
    flat = torch.cat([score.reshape(-1) for score in scores])
    if not 0 <= k <= len(flat):
        raise ValueError(f"k = {k}: must be in 0..{len(flat)}")
    chosen = torch.zeros(len(flat), dtype=torch.bool)
    if k:
        threshold = flat.kthvalue(len(flat) - k + 1).values
        torch.gt(flat, threshold, out=chosen)
        tied = (flat == threshold).nonzero().squeeze(1)
        if len(tied) > 1:
            size = torch.cat([tie.reshape(-1) for tie in ties])[tied].abs()
            tied = tied[size.argsort(descending=True, stable=True)]
        chosen[tied[: k - int(chosen.sum())]] = True
    parts = chosen.split([score.numel() for score in scores])  # type: ignore[no-untyped-call]
    return [part.view(score.shape) for part, score in zip(parts, scores, strict=True)]
