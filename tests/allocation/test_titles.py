"""The Medium titles, seven publications: scores and widths against a computation of their own.

They are not part of the project: their folder is in ``$UNEVEN_DATA``, else in ``shared/data`` beside the project.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import rankdata

from tests.allocation.world import supernet
from uneven.allocation import Allocation
from uneven.data import DataOptions, Federation, load
from uneven.fitting import allocate
from uneven.spec import parse

SETS = Path(os.environ.get("UNEVEN_DATA", Path(__file__).parents[3] / "shared" / "data"))
TITLES = SETS / "medium_titles"
LOW, HIGH, BUDGET = 0.2, 0.8, 0.5

pytestmark = pytest.mark.skipif(
    not TITLES.is_dir(), reason="the Medium titles are not part of the project: set UNEVEN_DATA"
)


def data(words: int) -> dict[str, Any]:
    """Every title whole; 80 % of each publication's are for training."""
    return {
        "source": str(TITLES),
        "task": "next_token",
        "partition": "natural",
        "vocab_size": words,
        "max_length": 64,
    }


@cache
def federation(words: int) -> Federation:
    return load(DataOptions(**data(words)), None, 0)


@cache
def given(words: int, **options: Any) -> Allocation:
    """What HASA gives the publications, of a model with 64 and 128 channels."""
    spec = parse({"data": data(words), "allocation": {"name": "hasa", **options}})
    return allocate(spec, federation(words), supernet(64, 128))


@cache
def counts(words: int) -> np.ndarray[Any, Any]:
    """(clients, V) counted word by word; V are all words that there are, the unknown one among them."""
    found = federation(words)
    labels = found.info.labels
    rows = [Counter(labels[i] for text in client.train.x.tolist() for i in text) for client in found.clients]
    return np.array([[row[label] for label in labels if label != labels[found.info.pad_id or 0]] for row in rows])


def entropy(p: Any) -> Any:
    return -(p * np.log(p)).sum(-1)


def divergence(own: Any, pooled: Any) -> Any:
    """The entropy of the mean less the mean of entropies, of distributions with 1 added to each count."""
    p, q = ((c + 1) / (c + 1).sum(-1, keepdims=True) for c in (own, pooled))
    return entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2


def weights(words: int) -> Any:
    n = np.array([len(client.train) for client in federation(words).clients])
    return n / n.sum()


def widths(score: Any, p: Any, passes: Any) -> tuple[Any, Any]:
    """Ratios, and widths of 128 channels: the best of all 128 ways to round seven ratios."""
    r = LOW + (HIGH - LOW) * (rankdata(score) - 1) / 6
    if passes == 2:
        for _ in range(2):
            r = np.clip(BUDGET / (p @ r) * r, LOW, HIGH)
    else:
        r = np.clip(r * brentq(lambda a: p @ np.clip(a * r, LOW, HIGH) - BUDGET, 0, 4, xtol=1e-14), LOW, HIGH)
    ways = (np.array(way) / 128 for way in itertools.product(*([np.floor(c), np.ceil(c)] for c in r * 128)))
    return r, max((way for way in ways if p @ way <= BUDGET + 1e-9), key=lambda way: p @ way)


@pytest.mark.parametrize("passes", ["exact", 2])
@pytest.mark.parametrize("words", [2000, 20_000])
def test_all_seven_scores_and_widths(words: int, passes: Any) -> None:
    names = [client.name for client in federation(words).clients]
    assert len(names) == 7
    own, p = counts(words), weights(words)
    score = divergence(own, own.sum(0))
    found = given(words, passes=passes)
    assert found.columns["score"] == pytest.approx(score, abs=1e-12)
    ratios, rounded = widths(score, p, passes)
    assert found.ratios == pytest.approx(ratios, abs=1e-9)
    assert found.exact == pytest.approx(p @ ratios, abs=1e-9)
    assert p @ np.array(found.capacities) == pytest.approx(p @ rounded, abs=1e-12)
    assert all(abs(a - b) <= 1 / 128 for a, b in zip(found.capacities, ratios, strict=True))
    if passes == "exact":
        assert found.exact == pytest.approx(BUDGET, abs=1e-9)


def test_with_all_words_scores_go_by_size_and_two_passes_miss_the_budget() -> None:
    score, p = given(20_000).columns["score"], weights(20_000)
    assert list(np.argsort(score)) == list(np.argsort(-p))
    assert given(20_000, passes=2).exact == pytest.approx(0.494, abs=5e-4)


@pytest.mark.parametrize("words", [2000, 20_000])
def test_the_null_stands_beside_the_scores(words: int) -> None:
    """By draws of their own. Of the smallest client's divergence nothing is left: it is chance."""
    own, draws = counts(words), np.random.default_rng(0)
    pooled = own.sum(0)
    null = [divergence(draws.multinomial(n, pooled / pooled.sum(), 20), pooled).mean() for n in own.sum(1)]
    found = given(words, draws=40)
    assert found.columns["null"] == pytest.approx(np.array(null), rel=0.02)
    debiased = np.array(found.columns["score"]) - found.columns["null"]
    smallest = int(own.sum(1).argmin())
    assert debiased[smallest] == min(debiased)
    assert abs(debiased[smallest]) < 0.05 * found.columns["score"][smallest]
