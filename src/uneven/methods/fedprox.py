"""FedProx: a proximal term keeps local models near the global one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field
from torch import nn

from uneven.methods.base import Assignment, Client
from uneven.methods.full import FullModelMethod, FullModelOptions
from uneven.submodels import Network, State
from uneven.training import Correction


class ProximalClient(Client):
    """Adds the gradient of (mu / 2) ||w - x_t||^2 to every step."""

    def correction(self, network: Network, assignment: Assignment, memory: State) -> Correction | None:
        start, mu = assignment.payload["model"], self.options.mu

        def pull_back(weights: Mapping[str, nn.Parameter]) -> None:
            for name, weight in weights.items():
                if weight.grad is not None:  # an unused weight has none, and stays
                    weight.grad.add_(weight.detach() - start[name], alpha=mu)

        return pull_back if mu > 0 else None


class FedProx(FullModelMethod):
    """FedAvg whose clients minimise F_n(w) + (mu / 2) ||w - x_t||^2.

    Paper: Li et al. 2020, Federated Optimization in Heterogeneous Networks (arXiv 1812.06127), Algorithm 2.

    Rule: each local gradient is g + mu (w - x_t).

    Deviations: every client does the same epochs or steps; the paper also lets stragglers do less.
    """

    class Options(FullModelOptions):
        mu: float = Field(default=0.01, ge=0)
        """mu, the strength of the proximal term; 0 is FedAvg."""

    Client = ProximalClient
    NEUTRAL: ClassVar[Mapping[str, Any]] = {"mu": 0}
