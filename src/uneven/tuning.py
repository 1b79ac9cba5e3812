"""Values chosen on validation data, such as each method's learning rate.

Every row of a comparison tries the same values: each in an ordinary run, for one seed that the comparison does not
use, that is scored on held-out training examples (``data.validation``) and never sees the test set. The row then
takes the value of the best accuracy after the final round, the first of equals.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from uneven.comparison import Row, Run, Value, product
from uneven.errors import SpecError

FOLDER = "tune"
"""Where the trials are, in the comparison's folder."""
SHARE = 0.1
"""``data.validation`` of the trials where the spec does not say it."""
FIRST_SEED = 1000
"""The seed of the trials: this, or the next that the comparison does not use."""

Trials = list[tuple[Row, list[Run]]]
"""Each row, with a run for each value or combination of values."""


def plan(rows: Sequence[Row], tune: Sequence[str], seeds: Sequence[int], seed: int | None = None) -> Trials:
    """What has to be run to choose.

    ``tune``: texts ``a.b=x,y``, combined as in a grid. ``seed``: that of these runs, not one of ``seeds``.

    Raises:
        SpecError: a value cannot be tuned, or a spec with it does not hold.
    """
    points = product("--tune", tune)
    _check(points, rows)
    if seed is None:
        seed = next(n for n in itertools.count(FIRST_SEED) if n not in seeds)
    if seed in seeds:
        raise SpecError([f"--tune-seed {seed}: is one of --seeds, values are chosen with a seed apart from them"])
    return [(row, [_trial(row, point, seed) for point in points]) for row in rows]


def _check(points: Sequence[tuple[Value, ...]], rows: Sequence[Row]) -> None:
    in_grid = [value for row in rows for value in row.grid]
    for key, values in _by_key(points).items():
        if len({value.text for value in values}) < 2:
            raise SpecError(
                [f"--tune {key}={values[0].text}: one value leaves nothing to choose, give two or more"]
            )
        if any(value.key == key for value in in_grid):
            raise SpecError([f"--tune {key}: is in --grid too, which fixes it; give it to one of them"])
    if any(_sets_validation(value.layer) for value in (*in_grid, *itertools.chain(*points))):
        raise SpecError(
            ["data.validation: --tune sets it, for the runs that choose alone; give one share by --set"]
        )


def _sets_validation(layer: Mapping[str, Any]) -> bool:
    data = layer.get("data")
    return isinstance(data, Mapping) and "validation" in data


def _by_key(points: Sequence[tuple[Value, ...]]) -> dict[str, list[Value]]:
    """The values of each key at all points."""
    return {axis[0].key: list(axis) for axis in zip(*points, strict=True)}


def _trial(row: Row, point: tuple[Value, ...], seed: int) -> Run:
    share = row.spec(seed).data.validation or SHARE
    return replace(row, tuned=point, over=_validated(row, share), out=row.out / FOLDER).run(seed)


def _validated(row: Row, share: float | None) -> tuple[Mapping[str, Any], ...]:
    return (*row.over, {"data": {"validation": share}})


def chosen(trials: Trials) -> list[Row]:
    """The rows with the best of their values laid over them, and without validation data.

    A trial that did not finish cannot be chosen; a row of which none did has no value.
    """
    return [_settled(row, runs) for row, runs in trials]


def _settled(row: Row, trials: Sequence[Run]) -> Row:
    results = [trial.result() for trial in trials]
    scores = [None if result is None else result["accuracy"] for result in results]
    finished = {i: score for i, score in enumerate(scores) if score is not None}
    best = max(finished, key=finished.__getitem__, default=None)
    tuned = () if best is None else trials[best].row.tuned
    tuning = {
        "seed": trials[0].seed,
        "validation": trials[0].spec.data.validation,
        "chosen": dict(_texts(tuned)) or None,
        "at_edge": _at_edge(tuned, [trial.row.tuned for trial in trials]),
        "trials": [
            {"values": dict(_texts(trial.row.tuned)), "accuracy": score}
            for trial, score in zip(trials, scores, strict=True)
        ],
    }
    return replace(row, tuned=tuned, over=_validated(row, None), tuning=tuning)


def _texts(values: Sequence[Value]) -> list[tuple[str, str]]:
    return [(value.key, value.text) for value in values]


def _at_edge(tuned: Sequence[Value], points: Sequence[tuple[Value, ...]]) -> list[str]:
    """The keys whose value is the lowest or highest number tried, so that a better one may lie beyond."""
    tried = {key: [value.value for value in values] for key, values in _by_key(points).items()}
    return [
        key
        for key, _, value in tuned
        if all(_is_number(other) for other in tried[key]) and value in (min(tried[key]), max(tried[key]))
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
