"""Runs that predict the next word: what they write down, what they say, and models that do not fit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import uneven
from uneven.data import Info, from_texts
from uneven.errors import ModelError
from uneven.progress import closing_lines

TEXTS = ["the cat sat", "the dog sat down", "a cat and a dog"] * 20
SPEC: dict[str, Any] = {
    "rounds": 2,
    "cohort": 1.0,
    "data": {
        "source": from_texts(TEXTS, client=["x", "y", "z"] * 20),
        "task": "next_token",
        "partition": "natural",
        "max_length": 6,
    },
    "model": {"name": "slimmable_lstm", "embedding": 4, "hidden": 6},
    "clients": {"capacities": {"levels": [1.0, 0.5]}},
    "training": {"epochs": 1, "lr": 0.5},
    "evaluation": {"every": 1},
}
OF_TEXTS = {"accuracy", "loss", "top3", "perplexity", "text_perplexity"}


def test_what_is_written_of_a_run(tmp_path: Path) -> None:
    result = uneven.run(SPEC, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    last = lines[-1]["evaluation"]
    for scores in (result, last, *result["per_capacity"], *last["per_capacity"]):
        assert scores.keys() >= OF_TEXTS
        assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
        assert 0 <= scores["accuracy"] <= scores["top3"] <= 1
    assert {key: last[key] for key in OF_TEXTS} == {key: result[key] for key in OF_TEXTS}
    assert lines[1]["evaluation"]["loss"] < math.log(9)  # it learns: better than any of nine tokens alike
    told = closing_lines(result)[0]
    assert f"top-3 accuracy {result['top3']:.3f}, perplexity {result['perplexity']:,.1f}" in told


def test_classes_are_written_as_before(tmp_path: Path) -> None:
    labelled = {**SPEC["data"], "source": from_texts(TEXTS, torch.arange(60) % 3), "task": "classify"}
    data = {**labelled, "tokenizer": "words", "partition": "iid"}
    result = uneven.run({**SPEC, "data": data, "clients": {**SPEC["clients"], "count": 3}})
    assert not (OF_TEXTS - {"accuracy", "loss"}) & result.keys()
    assert "perplexity" not in closing_lines(result)[0]


class Mine(nn.Module):
    """Logits of so many tokens, at every position or of the whole text."""

    def __init__(self, info: Info, outputs: int, whole: bool) -> None:
        super().__init__()
        self.words, self.head, self.whole = nn.Embedding(info.num_classes, 4), nn.Linear(4, outputs), whole

    def forward(self, x: Tensor) -> Tensor:
        rows = self.head(self.words(x))
        return rows.mean(1) if self.whole else rows  # type: ignore[no-any-return]


def mine(info: Info, more: int = 0, whole: bool = False) -> nn.Module:
    return Mine(info, info.num_classes + more, whole)


def test_a_model_of_ones_own() -> None:
    result = uneven.run(SPEC, model=mine)
    assert result.keys() >= OF_TEXTS


@pytest.mark.parametrize(
    ("options", "shape"), [({"more": 2}, r"\(batch, 5, 11\)"), ({"whole": True}, r"\(batch, 9\)")]
)
def test_an_output_that_is_not_of_every_token_is_refused(options: dict[str, Any], shape: str) -> None:
    def built(info: Info) -> nn.Module:
        return mine(info, **options)

    with pytest.raises(ModelError, match=rf"output is {shape}, .* texts of 5 of 9 tokens: .* \(batch, 5, 9\)"):
        uneven.run(SPEC, model=built)
