"""Predicted and measured memory by model and width: `python benchmarks/memory.py [MODEL ...] [--default-malloc]`.

Prints, for each width and batch size, the predicted and the measured peak of a training step and of an evaluation
pass in MB (10^6 bytes), their ratio and difference; each measurement runs in a fresh process of one thread.
``--default-malloc`` measures with glibc's allocator as it comes (see `uneven.submodels.memory`). GPT-2 needs
`transformers`. Models that the supernet cannot analyse yet are named, and left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from uneven.data import Info
from uneven.errors import UnevenError
from uneven.models import build
from uneven.submodels import Supernet
from uneven.submodels.memory import Memory, measure, predict
from uneven.training.options import TrainingOptions

WIDTHS = (1.0, 0.5, 0.25)
VOCABULARY = 10_000


@dataclass(frozen=True)
class Case:
    model: str
    example: Tensor
    classes: int
    batches: tuple[int, ...]
    training: dict[str, Any]

    @property
    def info(self) -> Info:
        return Info(tuple(self.example.shape), self.classes, tuple(map(str, range(self.classes))))


class Lstm(nn.Module):
    """Predicts the next word: 10,000 words at 256, two layers of 512."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 256)
        self.layers = nn.LSTM(256, 512, 2, batch_first=True)
        self.next = nn.Linear(512, words)

    def forward(self, x: Tensor) -> Tensor:
        return self.next(self.layers(self.words(x))[0])


def lstm(info: Info) -> nn.Module:
    return Lstm(info.num_classes)


class Gpt2(nn.Module):
    """The logits of transformers' GPT-2: 8 layers of 6 heads of 64, 10,000 words, 18 M parameters."""

    def __init__(self, words: int) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel  # type: ignore[import-not-found]

        size = {"n_embd": 384, "n_layer": 8, "n_head": 6, "n_positions": 256, "vocab_size": words}
        self.model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, use_cache=False).logits  # type: ignore[no-any-return]


def gpt2(info: Info) -> nn.Module:
    return Gpt2(info.num_classes)


CASES = {
    "resnet18": Case("resnet18", torch.zeros(3, 32, 32), 10, (16, 32, 64), {"momentum": 0.9}),
    "lstm": Case(
        "benchmarks.memory:lstm", torch.zeros(64, dtype=torch.int64), VOCABULARY, (8, 16, 32), {"momentum": 0.9}
    ),
    "gpt2": Case(
        *("benchmarks.memory:gpt2", torch.zeros(128, dtype=torch.int64), VOCABULARY, (4, 8)),
        {"optimizer": "adamw"},
    ),
}


def rows(case: Case, default_malloc: bool) -> Iterator[tuple[float, int, Memory, Memory]]:
    """(width, batch, predicted, measured) of one model."""
    supernet = Supernet(build(case.model, case.info, {}, seed=0), case.example)
    for width in WIDTHS:
        for batch in case.batches:
            training = TrainingOptions(**case.training, batch_size=batch)
            predicted = predict(supernet.prefix(width), case.example, training)
            measured = measure(
                *(case.model, case.info, case.example, training), width=width, default_malloc=default_malloc
            )
            yield width, batch, predicted, measured


def line(predicted: int, measured: int) -> str:
    difference = (predicted - measured) / 1e6
    return f"{predicted / 1e6:9.1f} {measured / 1e6:9.1f} {predicted / measured:6.2f} {difference:+8.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--default-malloc", action="store_true")
    given = parser.parse_args()
    head = f"{'predicted':>9} {'measured':>9} {'ratio':>6} {'MB':>8}"
    print(f"{'model':10} {'width':>5} {'batch':>5} | training {head[9:]} | inference {head[10:]}")
    for name in given.models:
        try:
            for width, batch, predicted, measured in rows(CASES[name], given.default_malloc):
                both = (line(getattr(predicted, k), getattr(measured, k)) for k in ("training", "inference"))
                print(f"{name:10} {width:5g} {batch:5} | {' | '.join(both)}", flush=True)
        except (UnevenError, ImportError) as error:
            print(f"{name:10} left out: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))  # so that a measuring process finds benchmarks.memory
    main()
