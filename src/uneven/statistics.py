"""What runs of several seeds say together: means with intervals, differences in pairs, costs, what it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

Json = dict[str, Any]


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, with half of its 95 % interval (Student's t; None for a single seed)."""

    mean: float
    half: float | None
    values: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.half is None else f" ± {self.half:.3f}")

    def to_json(self) -> Json:
        return {"mean": self.mean, "half_width_95": self.half, "values": list(self.values)}


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and half-width t_{0.975, n-1} s / sqrt(n), s the sample standard deviation.

    >>> str(mean_of([0.1, 0.2, 0.3]))
    '0.200 ± 0.248'
    """
    n, mean = len(values), math.fsum(values) / len(values)
    if n < 2:
        return Mean(mean, None, tuple(values))
    s = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    return Mean(mean, float(stats.t.ppf(0.975, n - 1)) * s / math.sqrt(n), tuple(values))


@dataclass(frozen=True)
class Metric:
    """How to read a number out of a ``result.json``, if it is there, and which way is better."""

    read: Callable[[Any], float | None]
    lower_is_better: bool = False


# Of the final round, and beside it the best accuracy of all rounds, and the mean of the last that were evaluated.
# The last three are of texts alone.
METRICS = {
    "accuracy": Metric(lambda result: result["accuracy"]),
    "best_accuracy": Metric(lambda result: result["best_accuracy"]),
    "recent_accuracy": Metric(lambda result: result.get("recent_accuracy")),
    "smallest": Metric(lambda result: result["per_capacity"][-1]["accuracy"]),
    "local_mean": Metric(lambda result: result["local"]["mean"]),
    "local_worst": Metric(lambda result: result["local"]["worst"]),
    "local_tail": Metric(lambda result: result["local"]["tail"]),
    "top3": Metric(lambda result: result.get("top3")),
    "perplexity": Metric(lambda result: result.get("perplexity"), lower_is_better=True),
    "text_perplexity": Metric(lambda result: result.get("text_perplexity"), lower_is_better=True),
}
# Costs of a run: means over the clients that take part.
COSTS: dict[str, Callable[[Any], float]] = {
    "parameters": lambda result: _client_mean(result, "parameters"),
    "macs": lambda result: _client_mean(result, "macs"),
    "memory": lambda result: _client_mean(result, "memory"),
    "bytes_per_round": lambda result: (result["bytes"]["up"] + result["bytes"]["down"]) / result["rounds"],
    "training_macs": lambda result: result["macs"],
}


def _client_mean(result: Any, key: str) -> float:
    rows = [row for row in result["per_capacity"] if row["bytes"] is not None]  # those that take part
    total: float = sum(row["clients"] * row[key] for row in rows) / sum(row["clients"] for row in rows)
    return total


def statistics(results: Mapping[int, Any], first: Mapping[int, Any]) -> Iterator[tuple[str, Any]]:
    """Each metric over the seeds, with its difference to the first row's; each cost; the share of a budget used.

    ``results``, ``first``: the row's and the first row's, by seed; the same object where it is the first.
    """
    for name, metric in METRICS.items():
        values = _values(results, metric)
        if len(values) < len(results):  # there is no such number, or in some run it was not finite
            continue
        paired = None if results is first else difference(values, _values(first, metric), metric.lower_is_better)
        yield name, mean_of(list(values.values())).to_json() | ({"difference": paired} if paired else {})
    for name, cost in COSTS.items():
        yield name, math.fsum(cost(result) for result in results.values()) / len(results)
    if all("budget" in result for result in results.values()):
        yield "budget", next(iter(results.values()))["budget"]


def _values(results: Mapping[int, Any], metric: Metric) -> dict[int, float]:
    read = ((seed, metric.read(result)) for seed, result in results.items())
    return {seed: value for seed, value in read if value is not None}


def difference(
    ours: Mapping[int, float], theirs: Mapping[int, float], lower_is_better: bool = False
) -> Json | None:
    """Ours less theirs, seed by seed, over the seeds that both have; None if there are none.

    As JSON: a `Mean`, and in how many ``of`` the seeds ours is better (``won``; equal is not better).

    >>> difference({0: 0.5, 1: 0.25, 7: 0.9}, {0: 0.25, 1: 0.25, 2: 0.1})["won"]
    1
    """
    pairs = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not pairs:
        return None
    won = sum(pair < 0 if lower_is_better else pair > 0 for pair in pairs)
    return {**mean_of(pairs).to_json(), "won": won, "of": len(pairs)}


def reach(lines: Iterable[Mapping[str, Any]], target: float) -> dict[str, float] | None:
    """What it takes until the full model's accuracy is first at least a target, by a run's ``rounds.jsonl``.

    ``rounds``, ``bytes`` of all clients, down and up, and where the clients' devices are known
    ``simulated_seconds``, all up to and with that round; None if no evaluation found so much.
    """
    spent = {"bytes": 0.0, "simulated_seconds": 0.0}
    for line in lines:
        spent["bytes"] += line["bytes"]["down"] + line["bytes"]["up"]
        spent["simulated_seconds"] += line.get("simulated_seconds", math.nan)
        if "evaluation" in line and line["evaluation"]["accuracy"] >= target:
            found = {"rounds": line["round"], **spent}
            return {key: value for key, value in found.items() if not math.isnan(value)}
    return None


def reached(runs: Mapping[int, Iterable[Mapping[str, Any]]], target: float) -> Json:
    """`reach` over the seeds that did, ``seeds``, and ``of`` how many. ``runs``: the lines by seed."""
    found = {seed: spent for seed, lines in runs.items() if (spent := reach(lines, target)) is not None}
    keys = list(next(iter(found.values()), {}))
    means = {key: mean_of([spent[key] for spent in found.values()]).to_json() for key in keys}
    return {"seeds": list(found), "of": len(runs), **means}
