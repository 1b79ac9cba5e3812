"""The contract of a server weighting: how much each client counts in the average of a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor


class Weighting:
    """a_n of every update; here 1 for all.

    Attributes:
        state: what it keeps between rounds, by name.
    """

    asks_loss: ClassVar[bool] = False
    """Whether clients are to tell F_n, the mean loss of what they hold on their training data, before they
    train."""

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def weight(self, client: int, examples: int, loss: float | None) -> float:
        """a_n >= 0; only its relation to those of the other clients of the round counts."""
        return 1.0

    def learn(self, losses: Mapping[int, float]) -> None:
        """Take up F_n of the round's accepted updates, by client, once they are merged."""


class ByExamples(Weighting):
    """a_n = n_n, the size of the training split."""

    def weight(self, client: int, examples: int, loss: float | None) -> float:
        return float(examples)
