"""Links as the arms of a bandit: what a memory of all rounds is worth. `python benchmarks/bandit.py [PICTURE]`.

Of 20 links 5 may be active. An active link turns out well with probability .6 if it is one of the 5 best, else
with .4; of the others nothing is seen (semi-bandit feedback). The regret of a step is .2 for each of the best that
is not active. The rules:

- ``thompson``: the top 5 of draws from Beta posteriors, FedRTS's own (`uneven.sparsity.posterior.Posterior`), with
  lambda = 1 or 10: what one outcome weighs;
- ``mean``: the top 5 of the posteriors' means;
- ``last round``: links that turned out well in the last round stay, random ones take the places of the others, as
  where links are adjusted by the last round alone.

Prints the mean regret over 20 seeded repeats at the end, its slope (per step) over the last half, and in how many
of the repeats that is above .1. The picture (.png) shows the mean regret; that of the
docs is ``docs/bandit.png``.

Measured, 8,000 steps, 13 CPU seconds:

    rule                   regret    slope  above .1
    thompson, lambda 1      187.4   0.0039         0
    thompson, lambda 10    1107.2   0.1101        10
    mean, lambda 1         3529.0   0.4400        20
    last round             5491.3   0.6859        20

So with lambda = 10 half of the repeats are too sure too early, and stay with a link that is not among the best.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uneven.rng import generator, subseed
from uneven.sparsity.posterior import Posterior

LINKS, ACTIVE, GAP, REPEATS, STEPS = 20, 5, 0.2, 20, 8000
MEANS = torch.tensor([0.5 + GAP / 2] * ACTIVE + [0.5 - GAP / 2] * (LINKS - ACTIVE))


@dataclass
class Thompson:
    """Draws of the posterior, or its means."""

    strength: float
    sampled: bool = True

    def __post_init__(self) -> None:
        self._belief = Posterior({"w": torch.Size((REPEATS, LINKS))}, self.strength, sampled=self.sampled)

    def scores(self, seed: int) -> Tensor:
        return self._belief.score("w", seed).double()

    def learn(self, outcome: Tensor, active: Tensor) -> None:
        self._belief.update("w", outcome, active)


class LastRound:
    """1 where a link turned out well, 0 where not, 1/2 where it was not active."""

    def __init__(self) -> None:
        self._last = torch.full((REPEATS, LINKS), 0.5)

    def scores(self, seed: int) -> Tensor:
        return self._last.double()

    def learn(self, outcome: Tensor, active: Tensor) -> None:
        self._last = torch.where(active, outcome, 0.5)


RULES: dict[str, Callable[[], Thompson | LastRound]] = {
    "thompson, lambda 1": lambda: Thompson(1.0),
    "thompson, lambda 10": lambda: Thompson(10.0),
    "mean, lambda 1": lambda: Thompson(1.0, sampled=False),
    "last round": LastRound,
}


def regret(rule: Thompson | LastRound, steps: int = STEPS, seed: int = 0) -> NDArray[np.float64]:
    """The regret so far, (repeats, steps), of one rule; outcomes and ties are drawn alike for all rules."""
    draws = generator(seed, "bandit")
    total, lost = torch.zeros(REPEATS, dtype=torch.float64), []
    for t in range(steps):
        outcome = (torch.rand((REPEATS, LINKS), generator=draws) < MEANS).float()
        ties = torch.rand((REPEATS, LINKS), generator=draws, dtype=torch.float64)
        best = (rule.scores(subseed(seed, "thompson", t)) + 1e-9 * ties).topk(ACTIVE).indices
        active = torch.zeros((REPEATS, LINKS), dtype=torch.bool).scatter_(1, best, True)
        rule.learn(outcome, active)
        total = total + GAP * (ACTIVE - active[:, :ACTIVE].sum(1))
        lost.append(total)
    return torch.stack(lost, 1).numpy()


def slopes(lost: NDArray[np.float64]) -> NDArray[np.float64]:
    """Regret a step over the last half, (repeats,)."""
    half = lost.shape[1] // 2
    found: NDArray[np.float64] = (lost[:, -1] - lost[:, half - 1]) / (lost.shape[1] - half)
    return found


def picture(path: str, lost: dict[str, NDArray[np.float64]]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, rows in lost.items():
        axes.plot(np.arange(1, rows.shape[1] + 1), rows.mean(0), label=name)
    axes.set(xscale="log", yscale="log", xlabel="steps", ylabel=f"regret, mean of {REPEATS}")
    axes.legend()
    figure.savefig(path, dpi=150)


def main(*paths: str) -> None:
    torch.set_num_threads(1)
    lost = {name: regret(make()) for name, make in RULES.items()}
    print(f"{'rule':20} {'regret':>8} {'slope':>8} {'above .1':>9}")
    for name, rows in lost.items():
        found = slopes(rows)
        print(f"{name:20} {rows[:, -1].mean():8.1f} {found.mean():8.4f} {(found > 0.1).sum():9}")
    for path in paths:
        picture(path, lost)


if __name__ == "__main__":
    main(*sys.argv[1:])
