"""What the methods share that grow links by the mean of the clients' gradients."""

from __future__ import annotations

import torch

from uneven.methods.base import Assignment, Update
from uneven.methods.dynamic import DynamicMethod
from uneven.submodels import State


class GradientGrowth(DynamicMethod):
    """Keeps sum p_n g_n of a round, p_n = n_n / sum n_i; what a client did not send counts as 0."""

    def begin(self, t: int) -> None:
        self._sum = {name: torch.zeros(mask.shape) for name, mask in self.mask.items()}
        self._examples = 0

    def observe(self, assignment: Assignment, update: Update) -> None:
        self._examples += update.examples
        for name, found in update.candidates.items():
            if found.gradient is not None:
                self._sum[name].view(-1).index_add_(0, found.places, found.gradient, alpha=update.examples)

    @property
    def gradient(self) -> State:
        """The mean of the round's gradients, by tensor."""
        return {name: total / max(self._examples, 1) for name, total in self._sum.items()}
