"""SCAFFOLD: control variates against the drift of local training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from uneven.data import Examples
from uneven.errors import MethodError
from uneven.methods.base import Assignment, Client, ClientCard, Context, Update
from uneven.methods.full import FullModelMethod
from uneven.submodels import State
from uneven.training import Correction


class ScaffoldClient(Client):
    """Local steps along g - c_n + c; its memory is the variate c_n (zero at first)."""

    def train(self, assignment: Assignment, data: Examples, memory: State) -> tuple[Update, State]:
        start, c = assignment.payload["model"], assignment.payload["variate"]
        c_n = memory or {name: torch.zeros_like(tensor) for name, tensor in c.items()}
        network = self.network(assignment).load(start)
        report = self.fit(network, assignment, data, self._along(c, c_n))
        end = network.values()
        scale = 1 / (report.steps * report.lr)
        new = {name: c_n[name] - c[name] + scale * (start[name] - end[name]) for name in c}
        change = {name: new[name] - c_n[name] for name in c}
        return self.update(assignment, data, report, {"model": end, "variate": change}), new

    @staticmethod
    def _along(c: State, c_n: State) -> Correction:
        def correct(weights: Mapping[str, nn.Parameter]) -> None:
            for name, weight in weights.items():
                if weight.grad is not None:  # an unused weight has none, and stays
                    weight.grad.add_(c[name] - c_n[name])

        return correct


class Scaffold(FullModelMethod):
    """FedAvg whose local steps are corrected by control variates, one on the server and one per client.

    Paper: Karimireddy et al. 2020, SCAFFOLD: Stochastic Controlled Averaging for Federated Learning
    (arXiv 1910.06378), Algorithm 1 with option II.

    Rule: local step y <- y - eta (g - c_n + c); after K of them c_n' = c_n - c + (x - y) / (K eta), and the
    server adds (1/N) sum_n (c_n' - c_n) to c, N the number of all clients that can take part.

    Deviations: none in the rule. Option II reads the mean gradient off the distance travelled, so it needs
    plain SGD: momentum, AdamW and clipping are refused.
    """

    Client = ScaffoldClient

    def __init__(self, context: Context, options: Any) -> None:
        super().__init__(context, options)
        self.variate = {n: torch.zeros_like(self.state[n]) for n in self.supernet.parameters}

    def resolve(self, context: Context, options: Any) -> Any:
        training = context.training
        for name, plain in (("optimizer", "sgd"), ("momentum", None), ("clip_norm", None)):
            value = getattr(training, name)
            if value and value != plain:
                raise MethodError(
                    f"training.{name} = {value!r}: scaffold needs plain SGD, without momentum or clipping"
                )
        return super().resolve(context, options)

    def payload(self, t: int, client: ClientCard) -> Mapping[str, State]:
        return {"model": self.state, "variate": self.variate}

    def merge(self, t: int, results: Iterable[tuple[Assignment, Update]]) -> None:
        total = {name: torch.zeros_like(tensor) for name, tensor in self.variate.items()}

        def summed() -> Iterator[tuple[Assignment, Update]]:
            for assignment, update in results:
                for name, change in update.payload["variate"].items():
                    assignment.submodel.add(name, total[name], change)
                yield assignment, update

        super().merge(t, summed())
        clients = len(self.eligible())
        self.variate = {name: tensor + total[name] / clients for name, tensor in self.variate.items()}

    def saved(self) -> State:
        return super().saved() | {f"variate/{name}": tensor for name, tensor in self.variate.items()}

    def restore(self, tensors: State) -> None:
        super().restore(tensors)
        self.variate = {name: tensors[f"variate/{name}"] for name in self.variate}
