"""What Fisher information costs, as a share of a training epoch: `python benchmarks/fisher_time.py [MODEL ...]`.

Prints, for each model, CPU seconds of one epoch of SGD at batch 64 over some examples, and for each way to take
the gradients of single examples its time over the same examples as a ratio to that; the way that `auto` takes is
marked, with its examples at once. One thread; epoch and ways in turn in one process, the least of two
each.

Measured on two busy cores of an AMD EPYC (CPU seconds; `*` is what ``auto`` takes):

    model         parameters  examples epoch, s  layers     vmap     loop  at once
    mlp              178,110       512     0.01    1.31*   37.50    21.79     6017
    cnn               50,794       512     0.32    1.41*    1.43     2.67       68
    resnet_tiny      175,258       256     0.70    1.60*    1.56     2.87       32
    resnet18      11,173,962       512    19.21    1.42*    2.96     1.93       32
    encoder          662,410       256     0.75    1.31*    1.66     2.61       32
    attending        662,026       256     0.79             1.53*    2.21       12
    lstm             228,618       256     0.14            19.53     3.88*       1

So `layers` wherever a model allows it; else `vmap`, up to about a million parameters and not for recurrent layers,
which it takes apart; else `loop`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from uneven.data import Examples, Info
from uneven.errors import MethodError
from uneven.models import build
from uneven.scores import gradients
from uneven.scores.tally import Tally
from uneven.scores.ways import planned
from uneven.submodels import Network, Supernet
from uneven.training import TrainingOptions, train_locally

REPEATS = 2
WAYS = ("layers", "vmap", "loop")
GREY, COLOUR, TOKENS = torch.zeros(1, 28, 28), torch.zeros(3, 32, 32), torch.ones(64, dtype=torch.int64)


class Attending(nn.Module):
    """torch's own encoder, 2 layers of 128 channels, with positions that are a parameter."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, 128), nn.Parameter(torch.randn(64, 128) / 50)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.words(x) + self.places).mean(1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """Words at 64, an LSTM of 128."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(words, 64), nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(x))[0][:, -1])  # type: ignore[no-any-return]


def attending(info: Info) -> nn.Module:
    return Attending(info.vocab_size or 0, info.num_classes)


def recurrent(info: Info) -> nn.Module:
    return Recurrent(info.vocab_size or 0, info.num_classes)


@dataclass(frozen=True)
class Case:
    model: str | Callable[[Info], nn.Module]
    example: Tensor
    examples: int
    words: int | None = None

    def network(self) -> Network:
        labels = tuple(map(str, range(10)))
        info = Info(tuple(self.example.shape), 10, labels)
        if self.words is not None:
            info = replace(info, vocab_size=self.words, pad_id=0)
        supernet = Supernet(build(self.model, info, {}, seed=0), self.example)
        return supernet.prefix(1.0).network().load(supernet.initial)

    def data(self) -> Examples:
        shape = (self.examples, *self.example.shape)
        x = torch.randn(shape) if self.words is None else torch.randint(1, self.words, shape)
        return Examples(x, torch.randint(10, (self.examples,)))


CASES = {
    "mlp": Case("mlp", GREY, 512),
    "cnn": Case("cnn", GREY, 512),
    "resnet_tiny": Case("resnet_tiny", COLOUR, 256),
    "resnet18": Case("resnet18", COLOUR, 512),
    "encoder": Case("encoder", TOKENS, 256, 2_000),
    "attending": Case(attending, TOKENS, 256, 2_000),
    "lstm": Case(recurrent, TOKENS, 256, 2_000),
}


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds: what others do on the machine counts little."""
    start = time.process_time()
    work()
    return time.process_time() - start


def allowed(network: Network, data: Examples) -> list[str]:
    """The ways that a model has."""
    ways = []
    for way in WAYS:
        try:
            gradients(network, data, limit=1, method=way)  # type: ignore[arg-type]
            ways.append(way)
        except MethodError:
            pass
    return ways


def line(name: str, case: Case) -> str:
    torch.manual_seed(0)
    network, data = case.network(), case.data()
    options = TrainingOptions(batch_size=64, epochs=1)
    work: dict[str, Callable[[], object]] = {
        "epoch": lambda: train_locally(network, data, options, 1e-6, torch.Generator()),
    }
    for way in allowed(network, data):
        work[way] = partial(gradients, network, data, method=way)  # type: ignore[arg-type]
    rounds = [{key: seconds(run) for key, run in work.items()} for _ in range(REPEATS)]
    times = {key: min(taken[key] for taken in rounds) for key in work}
    one = data.batch(torch.arange(1))
    tally = Tally(network.weights())
    plan = planned(network.eval(), *one, tally, nn.functional.cross_entropy, 512 << 20, "auto")
    ratios = (
        f"{times[way] / times['epoch']:7.2f}{'*' if way == plan.way else ' '}" if way in times else " " * 8
        for way in WAYS
    )
    d = sum(weight.numel() for weight in network.weights().values())
    return f"{name:12} {d:11,} {len(data):9} {times['epoch']:8.2f} {' '.join(ratios)} {plan.chunk:7}"


def main(*names: str) -> None:
    torch.set_num_threads(1)
    heads = " ".join(f"{way:>7} " for way in WAYS)
    print(f"{'model':12} {'parameters':>11} {'examples':>9} {'epoch, s':>8} {heads} {'at once':>7}")
    for name in names or CASES:
        print(line(name, CASES[name]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
