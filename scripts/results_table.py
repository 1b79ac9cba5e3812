"""Print the tables of ``uneven compare`` for a page: GitHub markdown from the ``comparison.json`` of each folder.

python scripts/results_table.py runs/cifar10-comparison runs/agnews-comparison --baseline heterofl
python scripts/results_table.py runs/titles-comparison --local

Accuracies are in %, of the final round, mean over seeds ± half of the 95 % interval (Student's t); the difference
to the baseline is of pairs with the same seed, at the same values of the grid. Beside the final round stands the
mean of the last five evaluations; of texts perplexity, too. Parameters, multiply-accumulates
of one example and memory of a training step (predicted) are means over the clients that take part; bytes are those
of all clients of a round, down and up (an estimate: the tensors that travel, uncoded). A tuned value marked edge
is the lowest or highest that was tried. ``--local``: instead, the clients' accuracies on their own test data
(mean, worst client, tail: the lowest 30 %), each with its difference and in how many of the seeds it is better.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from uneven.errors import RunError, SpecError, UnevenError, nearest
from uneven.progress import chosen_values
from uneven.statistics import difference

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]
NOT_RUN = "not run"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="holds a comparison.json")
    parser.add_argument("--baseline", metavar="LABEL", help="the method to compare with; default: each first one")
    parser.add_argument("--local", action="store_true", help="clients on their own test data")
    given = parser.parse_args()
    try:
        print("\n".join(markdown(given.folders, given.baseline, given.local)))
    except UnevenError as error:
        sys.exit(f"error: {error}")


def markdown(folders: Sequence[Path], baseline: str | None = None, local: bool = False) -> list[str]:
    """The lines: a table for each folder, under its name where there are several.

    Raises:
        RunError: a folder has no comparison.
        SpecError: a comparison has no such baseline.
    """
    lines: list[str] = []
    for folder in folders:
        rows = read(folder)
        against = baseline or rows[0]["method"]
        if against not in (methods := [row["method"] for row in rows]):
            raise SpecError([f"--baseline {against!r}: is not in {folder}; {nearest(against, methods)}"])
        title = [f"### {folder.name}", ""] if len(folders) > 1 else []
        lines += [*([""] if lines else []), *title, *table(rows, against, local)]
    return lines


def read(folder: Path) -> list[Row]:
    path = folder / "comparison.json"
    try:
        rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not what uneven compare writes: {error}") from error
    return rows


def table(rows: Sequence[Row], baseline: str, local: bool = False) -> list[str]:
    """A heading, the alignment, and a line for each row."""
    columns = [("seeds", lambda row: str(len(row["seeds"]))), *(_local if local else _full)(rows, baseline)]
    if any("tuning" in row for row in rows):
        columns.append(("tuned", tuned))
    head = [" | ".join(["method", *(name for name, _ in columns)])]
    head += [" | ".join(["---", *("---:" for _ in columns)])]
    body = (
        " | ".join([label(row), *((show(row) if row["seeds"] else NOT_RUN) for _, show in columns)])
        for row in rows
    )
    return [f"| {line} |" for line in (*head, *body)]


def _full(rows: Sequence[Row], baseline: str) -> list[Column]:
    return [
        ("full model", lambda row: percent(row["accuracy"])),
        (f"to {baseline}", lambda row: paired(row, "accuracy", baseline, rows)[0]),
        *_if_there(rows, "recent_accuracy", "last 5 evaluations", percent),
        *_if_there(rows, "perplexity", "perplexity", plain),
        ("smallest capacity", lambda row: percent(row["smallest"])),
        ("local mean", lambda row: percent(row["local_mean"])),
        ("local worst", lambda row: percent(row["local_worst"])),
        ("parameters", lambda row: f"{row['parameters']:,.0f}"),
        ("MACs, M", lambda row: f"{row['macs'] / 1e6:.3g}"),
        ("memory, MB", lambda row: f"{row['memory'] / 1e6:.3g}"),
        ("bytes a round, MB", lambda row: f"{row['bytes_per_round'] / 1e6:.3g}"),
    ]


def _if_there(rows: Sequence[Row], key: str, name: str, show: Callable[[Row], str]) -> list[Column]:
    return [(name, lambda row: show(row[key]) if key in row else "")] if any(key in row for row in rows) else []


def _local(rows: Sequence[Row], baseline: str) -> list[Column]:
    columns: list[Column] = []
    for name in ("mean", "worst", "tail"):
        key = f"local_{name}"
        columns += [
            (f"local {name}", lambda row, key=key: percent(row[key])),
            (f"to {baseline}", lambda row, key=key: paired(row, key, baseline, rows)[0]),
            ("won", lambda row, key=key: paired(row, key, baseline, rows)[1]),
        ]
    return columns


def label(row: Row) -> str:
    return " ".join([row["method"], *(f"{key}={value}" for key, value in row["grid"].items())])


def percent(mean: Mapping[str, Any]) -> str:
    return interval(mean["mean"], mean["half_width_95"])


def plain(mean: Mapping[str, Any]) -> str:
    half = mean["half_width_95"]
    return f"{mean['mean']:.1f}" + ("" if half is None else f" ± {half:.1f}")


def interval(mean: float, half: float | None, sign: str = "") -> str:
    return f"{100 * mean:{sign}.1f}" + ("" if half is None else f" ± {100 * half:.1f}")


def paired(row: Row, key: str, baseline: str, rows: Sequence[Row]) -> tuple[str, str]:
    """The metric less that of the baseline at the same values of the grid, over the seeds that both have, and in
    how many of them it is larger."""
    other = next((r for r in rows if r["method"] == baseline and r["grid"] == row["grid"]), row)
    if other is row:
        return "", ""
    ours, theirs = (
        dict(zip(r["seeds"], r[key]["values"] if r["seeds"] else (), strict=True)) for r in (row, other)
    )
    found = difference(ours, theirs)
    if found is None:
        return NOT_RUN, NOT_RUN
    return interval(found["mean"], found["half_width_95"], "+"), f"{found['won']} of {found['of']}"


def tuned(row: Row) -> str:
    """The chosen value, with its key where there are several."""
    keys, values = list(row["tuning"]["chosen"]), chosen_values(row["tuning"])
    return values[0] if len(keys) == 1 else ", ".join(f"{k}={v}" for k, v in zip(keys, values, strict=True))


if __name__ == "__main__":
    main()
