"""What a client's training split is made of: counts of its labels, tokens or pixel values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from uneven.data import ClientData, Info
from uneven.errors import SpecError

Kind = Literal["tokens", "labels", "inputs"]
BINS = 16
"""Bins of a channel's pixel values 0..255."""


@dataclass(frozen=True)
class Histograms:
    """Counts of one kind: for each client (V,) int64. ``per_example``: the most that one example adds to them."""

    kind: Kind
    counts: Sequence[Tensor]
    per_example: int


def histograms(clients: Sequence[ClientData], info: Info, kind: Kind | None) -> Histograms:
    """Every client's counts; by default of tokens, where an input is a text, else of labels.

    Raises:
        SpecError: the data have none of this kind, or only one that can be, or a client has none.
    """
    kind = kind or ("labels" if info.vocab_size is None else "tokens")
    found = {"tokens": _tokens, "labels": _labels, "inputs": _inputs}[kind](clients, info)
    if len(found.counts[0]) < 2:
        raise SpecError(
            [
                f"allocation.counts = {kind!r}: the data have but one value of {kind}, so that all clients are "
                "alike; use another kind, or allocation 'uniform'"
            ]
        )
    empty = [client.name for client, counts in zip(clients, found.counts, strict=True) if not counts.any()]
    if empty:
        raise SpecError(
            [
                f"allocation.counts = {kind!r}: client {name} has no {kind} in its training split, and so no "
                "score; leave it out, or use another kind"
                for name in empty
            ]
        )
    return found


def _labels(clients: Sequence[ClientData], info: Info) -> Histograms:
    one = clients[0].train.y[0].numel()
    return Histograms("labels", [client.label_counts(info.num_classes) for client in clients], one)


def _tokens(clients: Sequence[ClientData], info: Info) -> Histograms:
    if info.vocab_size is None:
        raise SpecError(["allocation.counts = 'tokens': the inputs are not texts; use 'labels' or 'inputs'"])
    words = ~torch.isin(torch.arange(info.vocab_size), torch.tensor(info.marks))
    counts = [client.token_counts[words] for client in clients if client.token_counts is not None]
    longest = info.input_shape[0] + (info.task == "next_token")  # the last token is a target alone
    return Histograms("tokens", counts, longest)


def _inputs(clients: Sequence[ClientData], info: Info) -> Histograms:
    x = clients[0].train.x
    if x.dtype != torch.uint8:
        what = "texts; use 'tokens'" if info.vocab_size is not None else "numbers, not images; use 'labels'"
        raise SpecError([f"allocation.counts = 'inputs': counts pixel values 0..255, and the inputs are {what}"])
    return Histograms("inputs", [_pixels(client.train.x) for client in clients], x[0].numel())


def _pixels(x: Tensor) -> Tensor:
    """(channels * BINS,) counts of images (n, channels, ...), channel by channel."""
    width = 256 // BINS
    channels = [torch.bincount(x[:, c].flatten() // width, minlength=BINS) for c in range(x.shape[1])]
    return torch.cat(channels)
