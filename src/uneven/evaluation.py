"""How good the model is: the full one, each capacity's submodel, and each client's own on its own data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import torch
from pydantic import Field
from torch import Tensor

from uneven.data import ClientData, Examples, Federation
from uneven.data.federation import NOTHING
from uneven.methods import ClientCard, Method
from uneven.options import Options
from uneven.rng import generator
from uneven.submodels import Network

BATCH = 250
LOGITS = 1 << 22
"""Most logits that are made at once, so that long texts and many tokens still fit."""
TOP = 3
RESAMPLES = 1000

Counts = tuple[Tensor, Tensor]
"""Of each test example, (n,) float64: how many of its targets are predicted right, and how many it has."""


class EvaluationOptions(Options):
    """The ``[evaluation]`` section of a spec."""

    every: int = Field(default=5, ge=1)
    """Evaluate after every so many rounds, and after the last."""


@dataclass(frozen=True)
class Score:
    """How good predictions are.

    ``accuracy``: in [0, 1], over all targets: the examples, or of texts everything that is to be predicted.
    ``loss``: mean cross-entropy of a target in nats. Of texts also ``top3``, the share of targets of which fewer
    than three tokens are given a higher probability, and ``text_perplexity``, the mean over texts that have a
    target of exp(mean cross-entropy of the text).
    """

    accuracy: float
    loss: float
    top3: float | None = None
    text_perplexity: float | None = None

    def numbers(self) -> dict[str, float]:
        """What is written down of it, by name; of texts with ``perplexity``, exp(loss)."""
        if self.top3 is None or self.text_perplexity is None:
            return {"accuracy": self.accuracy, "loss": self.loss}
        perplexity = torch.tensor(self.loss, dtype=torch.float64).exp().item()  # infinity, where math would raise
        return {**asdict(self), "perplexity": perplexity}


@dataclass(frozen=True)
class Recalibration:
    """What filling the statistics of norms cost: submodels down and statistics up in bytes (an estimate), MACs."""

    down: int = 0
    up: int = 0
    macs: int = 0


@dataclass(frozen=True)
class Evaluation:
    """One evaluation.

    ``full``: the full model on the global test set. ``by_capacity``: that of each capacity, there too.
    ``local``: per client, its own submodel's accuracy on its own test split. ``recalibration``: what
    was done for it on the clients. ``counts``: per client, what the accuracy comes from.
    """

    full: Score
    by_capacity: dict[float, Score]
    local: tuple[float, ...]
    recalibration: Recalibration = Recalibration()
    counts: tuple[Counts, ...] = field(default=(), repr=False)

    def local_summary(self) -> dict[str, float]:
        """Mean over clients, worst client, and tail: the mean of the lowest 30 % (``ceil(0.3 K)`` clients)."""
        lowest = sorted(self.local)
        tail = lowest[: math.ceil(round(0.3 * len(lowest), 9))]
        return {"mean": sum(lowest) / len(lowest), "worst": lowest[0], "tail": sum(tail) / len(tail)}

    def worst_interval(self, seed: int) -> tuple[float, float]:
        """The 95 % percentile interval of the worst client's accuracy, over samples of its own test examples.

        Each of 1000 samples draws as many examples as there are, with replacement (Efron 1979); of texts, titles
        and not single words, since the words of one title are not independent. That another client might be the
        worst in another sample is not in it.
        """
        worst = min(range(len(self.local)), key=self.local.__getitem__)
        right, targets = (count[self.counts[worst][1] > 0] for count in self.counts[worst])
        draws = generator(seed, "worst interval")
        picks = (torch.randint(len(right), (len(right),), generator=draws) for _ in range(RESAMPLES))
        found = torch.stack([right[pick].sum() / targets[pick].sum() for pick in picks])
        low, high = found.quantile(torch.tensor([0.025, 0.975], dtype=found.dtype)).tolist()
        return low, high


def evaluate(method: Method, federation: Federation, cards: Sequence[ClientCard], t: int) -> Evaluation:
    """Evaluate the method's state after round t."""
    classes = federation.info.num_classes
    full = ClientCard(-1, 0, torch.zeros(classes), 1.0, 1.0, method.supernet.size)
    capacities = {card.capacity: card for card in [full, *cards]}
    by_capacity: dict[float, Score] = {}
    local: dict[int, Counts] = {}
    down = up = macs = 0
    for capacity in sorted(capacities, reverse=True):
        submodel = method.evaluation_submodel(capacities[capacity], t)
        network = submodel.network().load(method.values(submodel)).eval()
        if method.recalibrates:
            able = [card.id for card in cards if card.capacity >= capacity] or [card.id for card in cards]
            running = method.supernet.running
            recalibrate(network, running, [federation.clients[n].train for n in able])
            down += len(able) * submodel.nbytes
            up += len(able) * sum(network.tensors[name].nbytes for pair in running for name in pair)
            macs += submodel.macs * sum(len(federation.clients[n].train) for n in able)
        by_capacity[capacity] = _score(network, federation.test, classes)
        mine = [card for card in cards if card.capacity == capacity]
        own = {card.id: method.own_submodel(card, t, federation.clients[card.id].train) for card in mine}
        local |= _local(network, [federation.clients[n] for n, part in own.items() if part is None], classes)
        for n, part in own.items():
            if part is not None:
                network = part.network().load(method.values(part)).eval()
                local |= _local(network, [federation.clients[n]], classes)
    counts = tuple(local[card.id] for card in cards)
    accuracies = tuple((right.sum() / targets.sum()).item() for right, targets in counts)
    return Evaluation(by_capacity[1.0], by_capacity, accuracies, Recalibration(down, up, macs), counts)


@torch.no_grad()
def recalibrate(network: Network, running: Sequence[tuple[str, str]], data: Sequence[Examples]) -> None:
    """Fill the running statistics of norms: one pass over each client's training examples, then pooled.

    Means are weighted by examples; a pooled variance is the mean variance plus the variance of the means.
    A single value has no variance, which counts as 0. Counters are left alone.
    """
    double = torch.float64  # the difference of large sums
    first = {n: torch.zeros_like(network.tensors[n], dtype=double) for pair in running for n in pair}
    total = 0
    for examples in data:
        for index in torch.arange(len(examples)).split(BATCH):  # type: ignore[no-untyped-call]
            network.observe(examples.batch(index)[0])
            total += len(index)
            for mean_name, var_name in running:
                mean, var = (network.tensors[name].double() for name in (mean_name, var_name))
                var = torch.where(var.isnan(), 0.0, var)
                first[mean_name] += len(index) * mean
                first[var_name] += len(index) * (var + mean.square())
    for mean_name, var_name in running:
        mean = first[mean_name] / total
        network.tensors[mean_name].copy_(mean)
        network.tensors[var_name].copy_(first[var_name] / total - mean.square())


@dataclass(frozen=True)
class Predictions:
    """What becomes of each of n examples, (n,) float64 sums over its targets.

    ``targets``: how many there are, 1 of an example that has a class. ``right``: how many are predicted.
    ``top3``: see `Score`. ``loss``: their cross-entropy in nats.
    """

    targets: Tensor
    right: Tensor
    top3: Tensor
    loss: Tensor


@torch.no_grad()
def predict(network: Network, data: Examples, classes: int) -> Predictions:
    """The predictions of a network in evaluation mode, which chooses among so many classes or tokens."""
    sums = torch.zeros(4, len(data), dtype=torch.float64)
    size = max(1, min(BATCH, LOGITS // (data.y[0].numel() * classes)))
    for index in torch.arange(len(data)).split(size):  # type: ignore[no-untyped-call]
        x, y = data.batch(index)
        there = y != NOTHING
        logits, goal = network(x)[there], y[there]
        own = logits.gather(1, goal.unsqueeze(1))
        found = [
            torch.ones(len(goal)),
            logits.argmax(dim=1) == goal,
            (~(logits <= own)).sum(1) < TOP,  # nothing is above what is not a number
            torch.nn.functional.cross_entropy(logits, goal, reduction="none"),
        ]
        text = index[there.nonzero()[:, 0]]
        for total, one in zip(sums, found, strict=True):
            total.index_add_(0, text, one.double())
    return Predictions(*sums)


def _score(network: Network, data: Examples, classes: int) -> Score:
    found = predict(network, data, classes)
    targets = found.targets.sum()
    accuracy, loss = ((total.sum() / targets).item() for total in (found.right, found.loss))
    if data.y.dim() == 1:
        return Score(accuracy, loss)
    has = found.targets > 0
    text = (found.loss[has] / found.targets[has]).exp().mean().item()
    return Score(accuracy, loss, (found.top3.sum() / targets).item(), text)


def _local(network: Network, clients: Sequence[ClientData], classes: int) -> dict[int, Counts]:
    """What is right of each client's own test split, all in one go (evaluation does not couple examples)."""
    if not clients:
        return {}
    tests = [client.test for client in clients]
    pooled = Examples(torch.cat([test.x for test in tests]), torch.cat([test.y for test in tests]))
    found, sizes = predict(network, pooled, classes), [len(test) for test in tests]
    parts = zip(clients, found.right.split(sizes), found.targets.split(sizes), strict=True)  # type: ignore
    return {client.id: (right, targets) for client, right, targets in parts}
