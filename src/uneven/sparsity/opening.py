"""A topology to start from that the clients of the first round have a say in.

They train a provisional topology, answer a question beside that, and the server takes another topology after the
round. Both halves of a method make the question from the options and the run's seed, so that none of it travels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from uneven.data import Examples
from uneven.rng import generator
from uneven.sparsity.densities import within
from uneven.sparsity.gradients import mean_gradient
from uneven.sparsity.rules import Mask, strongest
from uneven.submodels import State, Supernet
from uneven.submodels.masks import masked
from uneven.training import Loss, TrainingOptions, mean_loss

PIECE = 250  # examples that norms take their statistics of at once


class Opening(Protocol):
    """What the clients of the first round are asked, and what becomes of it."""

    @property
    def asks(self) -> Mapping[str, int]:
        """The vectors that a client answers with, name -> length."""

    def answers(self, data: Examples, training: TrainingOptions, loss: Loss) -> tuple[State, int]:
        """A client's answers, and the examples gone through for them, forward and back."""

    def mask(self, answers: State) -> Mask:
        """The topology that the clients' mean answers, weighted by their examples, speak for."""

    @property
    def told(self) -> float | None:
        """Bytes that tell a client which topology it is; None where it is told link by link."""


class MeanAnswers:
    """A running mean of clients' answers."""

    def __init__(self) -> None:
        self._sum, self._weight = dict[str, Tensor](), 0.0

    def add(self, answers: State, weight: float) -> None:
        """One client's answers, with its weight."""
        for name, answer in answers.items():
            self._sum[name] = self._sum.get(name, torch.zeros_like(answer)) + weight * answer
        self._weight += weight

    def mean(self) -> State:
        """Of each vector."""
        return {name: total / self._weight for name, total in self._sum.items()}


class Snip:
    """The links of the largest |g x| at the initial weights, g the gradient of the whole network.

    Connection sensitivity of Lee et al. 2019, SNIP (arXiv 1810.02340), equation 4, here of all data of the clients
    of the first round: they tell g_n x, and the server takes |sum p_n g_n x|. Norms that keep running statistics
    use those of the client's (first) examples.
    """

    told = None

    def __init__(self, supernet: Supernet, choose: Callable[[State], Mask]) -> None:
        """``choose``: the topology of a score for every place of every prunable tensor."""
        self._supernet, self._choose = supernet, choose
        self.asks = {f"snip/{name}": supernet.initial[name].numel() for name in supernet.maskable}

    def answers(self, data: Examples, training: TrainingOptions, loss: Loss) -> tuple[State, int]:
        """g x of every place, flat."""
        initial = self._supernet.initial
        network = self._supernet.prefix(1.0).network().load(initial)
        extra = 0
        if self._supernet.running:
            (piece, *_) = torch.arange(len(data)).split(PIECE)  # type: ignore[no-untyped-call]
            network.observe(data.batch(piece)[0])
            extra = math.ceil(len(piece) / 3)  # a forward pass is a third of one forward and back
        gradient = mean_gradient(network, data, training.batch_size, loss)
        told = {f"snip/{n}": (gradient[n] * initial[n]).reshape(-1) for n in self._supernet.maskable}
        return told, len(data) + extra

    def mask(self, answers: State) -> Mask:
        return self._choose(
            {n: answers[f"snip/{n}"].abs().view_as(self._supernet.initial[n]) for n in self._supernet.maskable}
        )


class Selection:
    """The candidate with the lowest loss at the initial weights, norms with the statistics of a client's data.

    Adaptive batch-norm selection of Huang et al. 2022, FedTiny (arXiv 2212.01977), section 3.2.
    """

    def __init__(self, supernet: Supernet, masks: Sequence[Mask]) -> None:
        """``masks``: the candidates; the first goes first among equals."""
        self._supernet, self.masks = supernet, masks
        self.asks = {"losses": len(masks)}
        self.told = math.log2(len(masks)) / 8

    def answers(self, data: Examples, training: TrainingOptions, loss: Loss) -> tuple[State, int]:
        """The mean loss of each candidate."""
        pieces = training.model_copy(update={"batch_size": PIECE})
        losses = []
        for mask in self.masks:
            part = masked(self._supernet, mask)
            network = part.network().load(part.gather(self._supernet.initial))
            losses.append(mean_loss(network, data, loss, pieces))
        return {"losses": torch.tensor(losses)}, math.ceil(len(losses) * len(data) / 3)

    def mask(self, answers: State) -> Mask:
        return self.masks[int(answers["losses"].argmin())]


def varied(mask: Mask, scores: Callable[[str, torch.Generator], Tensor], count: int, seed: int) -> list[Mask]:
    """A topology, and ``count`` - 1 others of as many links in all that spread them over the layers in other ways.

    Each layer's links are multiplied by a factor of its own, uniform in [1/2, 3/2], and then scaled to the same
    sum, at least one in each and at most all places.

    Args:
        scores: of every place of a tensor; the highest are links.
    """
    sizes = {name: links.numel() for name, links in mask.items()}
    total, masks = sum(int(links.sum()) for links in mask.values()), [mask]
    for i in range(1, count):
        draws = generator(seed, "candidate", i)
        factors = (torch.rand(len(sizes), generator=draws) + 0.5).tolist()
        weights = {
            name: factor * int(links.sum()) / sizes[name]
            for (name, links), factor in zip(mask.items(), factors, strict=True)
        }
        others = within(weights, {name: size - 1 for name, size in sizes.items()}, total - len(sizes))
        masks.append(
            {
                name: strongest(scores(name, draws), torch.ones_like(links), 1 + others[name], draws)
                for name, links in mask.items()
            }
        )
    return masks
