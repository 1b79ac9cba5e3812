"""One client's local work: steps of an optimizer on the small network that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from uneven.data import Examples
from uneven.submodels.network import Network
from uneven.training.options import TrainingOptions

Loss = Callable[[Tensor, Tensor], Tensor]
Correction = Callable[[Mapping[str, nn.Parameter]], None]


@dataclass(frozen=True)
class Report:
    """What local training tells: mean loss over its steps, steps, examples gone through, learning rate."""

    loss: float
    steps: int
    seen: int
    lr: float


def train_locally(
    network: Network,
    data: Examples,
    options: TrainingOptions,
    lr: float,
    draws: torch.Generator,
    loss: Loss = nn.functional.cross_entropy,
    correct: Correction | None = None,
) -> Report:
    """Train a network on a client's data, in place.

    Args:
        lr: the learning rate of this round.
        draws: orders the examples.
        loss: of logits ``(batch, classes)`` and labels ``(batch,)``, a scalar.
        correct: called after every backward pass with the weights by name; may change their gradients. What
            it leaves is clipped and applied.
    """
    network.train()
    weights = network.weights()
    optimizer = make_optimizer(list(weights.values()), options, lr)
    steps = options.steps_for(len(data))
    total, seen = 0.0, 0
    for x, y in _batches(data, options.batch_size, steps, draws):
        optimizer.zero_grad()
        value = loss(network(x), y)
        value.backward()  # type: ignore[no-untyped-call]
        if correct is not None:
            correct(weights)
        if options.clip_norm is not None:
            nn.utils.clip_grad_norm_(weights.values(), options.clip_norm)
        optimizer.step()
        total += value.item()
        seen += len(y)
    return Report(total / steps, steps, seen, lr)


def make_optimizer(weights: list[nn.Parameter], options: TrainingOptions, lr: float) -> torch.optim.Optimizer:
    """The optimizer of one round."""
    if options.optimizer == "adamw":
        return torch.optim.AdamW(weights, lr, weight_decay=options.weight_decay)
    return torch.optim.SGD(weights, lr, options.momentum or 0.0, weight_decay=options.weight_decay)


def _batches(data: Examples, size: int, steps: int, draws: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """``steps`` batches: a fresh order each pass, cut into pieces of nearly equal size, at most ``size``."""
    pieces: list[Tensor] = []
    for _ in range(steps):
        if not pieces:
            order = torch.randperm(len(data), generator=draws)
            pieces = list(order.tensor_split(-(-len(data) // size)))
        yield data.batch(pieces.pop(0))
