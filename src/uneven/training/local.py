"""One client's local work: steps of an optimizer on the small network that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from uneven.data import Examples
from uneven.submodels.network import Network
from uneven.training.losses import cross_entropy, targets
from uneven.training.options import TrainingOptions

Loss = Callable[[Tensor, Tensor], Tensor]
Objective = Callable[[Tensor, Tensor], Iterable[Tensor]]
"""What a step minimises on a batch x, y: the sum of these scalars. Each is differentiated before the next is made,
so that the activations of one at a time are in memory."""
Correction = Callable[[Mapping[str, nn.Parameter]], None]


@dataclass(frozen=True)
class Report:
    """What local training tells: mean loss over its steps, steps, examples gone through, learning rate; and the
    mean loss before the first step, where it was asked."""

    loss: float
    steps: int
    seen: int
    lr: float
    start: float | None = None


def of_logits(network: Network, loss: Loss = cross_entropy) -> Objective:
    """The loss of a network's logits and the labels, as `uneven.training.losses` has them."""
    return lambda x, y: (loss(network(x), y),)


def train_locally(
    network: Network,
    data: Examples,
    options: TrainingOptions,
    lr: float,
    draws: torch.Generator,
    objective: Objective | None = None,
    correct: Correction | None = None,
) -> Report:
    """Train a network on a client's data, in place.

    Args:
        lr: the learning rate of this round.
        draws: orders the examples.
        objective: what each step minimises; by default the cross-entropy of the network's logits.
        correct: called in every step with the weights by name; may change their gradients. What it leaves is
            clipped and applied.
    """
    objective = objective or of_logits(network)
    network.train()
    weights = network.weights()
    optimizer = make_optimizer(list(weights.values()), options, lr)
    steps = options.steps_for(len(data))
    total, seen = 0.0, 0
    for x, y in _batches(data, options.batch_size, steps, draws):
        optimizer.zero_grad()
        for term in objective(x, y):
            term.backward()  # type: ignore[no-untyped-call]
            total += term.item()
        if correct is not None:
            correct(weights)
        if options.clip_norm is not None:
            nn.utils.clip_grad_norm_(weights.values(), options.clip_norm)
        optimizer.step()
        seen += len(y)
    return Report(total / steps, steps, seen, lr)


@torch.no_grad()
def mean_loss(network: Network, data: Examples, loss: Loss, options: TrainingOptions) -> float:
    """The mean loss of a network's logits over a client's data, in batches as large as training's.

    Norms take the statistics of the batch, as training does, since those that the server has may be of another
    network; all else is as in evaluation. The network's tensors stay as they are.
    """
    before, total, count = network.values(), 0.0, 0
    for index in _pieces(torch.arange(len(data)), options.batch_size):
        x, y = data.batch(index)
        total += loss(network.observe(x), y).item() * targets(y)
        count += targets(y)
    network.load(before)
    return total / count


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
            pieces = _pieces(torch.randperm(len(data), generator=draws), size)
        yield data.batch(pieces.pop(0))


def _pieces(order: Tensor, size: int) -> list[Tensor]:
    """Indices cut into pieces of nearly equal size, at most ``size``."""
    return list(order.tensor_split(-(-len(order) // size)))
