"""What a run shows while it goes on, and at its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from uneven.experiment import Experiment
from uneven.plan import budget_line, short
from uneven.tracking import Line

if TYPE_CHECKING:
    from uneven.comparison import Run


MOST_SHOWN = 8
"""Capacities that are shown one by one."""


class Terminal:
    """A live bar where there is a terminal, else one plain line per evaluation. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1, state="")
        self._accuracy = ""

    def __enter__(self) -> Terminal:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, experiment: Experiment, folder: Path | None, done: int) -> None:
        spec, d = experiment.spec, experiment.supernet.size
        capacities = [f"{c:g}" for c in sorted({card.capacity for card in experiment.cards}, reverse=True)]
        if len(capacities) > MOST_SHOWN:
            capacities = [f"{len(capacities)} of {capacities[-1]} to {capacities[0]}"]
        method, model = spec.names["method"], spec.names["model"]
        self._console.print(
            f"{method}: {len(experiment.cards)} clients, {model} of {d:,} parameters, capacities "
            f"{', '.join(capacities)}" + (f", in {folder}" if folder else ""),
            soft_wrap=True,
        )
        if done:
            self._console.print(f"goes on after round {done}")
        self._bar.update(self._task, total=spec.rounds, completed=done)

    def finished_round(self, line: Line) -> None:
        if "evaluation" in line:
            self._accuracy = f"  accuracy {line['evaluation']['accuracy']:.3f}"
            if not self._console.is_terminal:
                self._console.print(f"round {line['round']}  loss {line['loss']:.3f}{self._accuracy}")
        self._bar.update(self._task, completed=line["round"], state=f"loss {line['loss']:.3f}{self._accuracy}")


def result_table(result: dict[str, Any]) -> Table:
    """Per capacity: clients, parameters, MACs, bytes a round, accuracy."""
    table = Table(title=f"{result['method']} after round {result['rounds']}", title_justify="left")
    for heading in ("capacity", "clients", "parameters", "MACs", "bytes a round*", "accuracy"):
        table.add_column(heading, justify="right")
    for row in result["per_capacity"]:
        table.add_row(
            f"{row['capacity']:g}",
            str(row["clients"]),
            f"{row['parameters']:,}",
            f"{row['macs']:,}",
            "-" if row["bytes"] is None else f"{row['bytes']:,.0f}",
            f"{row['accuracy']:.3f}",
        )
    return table


def closing_lines(result: dict[str, Any]) -> list[str]:
    """The outcome in words."""
    local = result["local"]
    text = ""
    if "perplexity" in result:
        text = f"; top-3 accuracy {result['top3']:.3f}, perplexity {result['perplexity']:,.1f}"
    lines = [
        f"full model: accuracy {result['accuracy']:.3f}, best {result['best_accuracy']:.3f} "
        f"in round {result['best_round']}{text}",
        f"clients on their own test data: mean {local['mean']:.3f}, worst {local['worst']:.3f}, "
        f"tail {local['tail']:.3f} (lowest 30 %)",
        "* of one client, down and up; an estimate: the tensors that travel, uncoded",
    ]
    given = result["allocation"]
    if "budget" in given:
        lines.insert(-1, budget_line(given))
    if all(row["capacity"] < 1 for row in result["per_capacity"]):
        lines.insert(1, "no client holds the full model: its accuracy is that of what the method makes of it")
    if result["failures"]:
        lines.insert(2, f"failed updates: {result['failures']} (reasons in rounds.jsonl)")
    return lines


class ComparisonView:
    """How far each run of a comparison is: a live table on a terminal, a line per finished run elsewhere."""

    def __init__(self, console: Console, runs: Sequence[Run], what: str) -> None:
        self._console, self._runs, self._what = console, runs, what
        self._live = Live(self._table(), console=console, auto_refresh=False, transient=True)
        self._told = {run.folder.path for run in runs if run.folder.finished}

    def __enter__(self) -> ComparisonView:
        self._console.print(f"{len(self._runs)} {self._what}, {len(self._told)} of them finished before")
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def refresh(self) -> None:
        if self._console.is_terminal:
            self._live.update(self._table(), refresh=True)
            return
        for run in self._runs:
            if run.folder.path not in self._told and (result := run.result()) is not None:
                self._told.add(run.folder.path)
                self._console.print(f"{run.folder.path}: accuracy {result['accuracy']:.3f}", soft_wrap=True)

    def _table(self) -> Table:
        table = Table("method", "seed", "round", "accuracy so far")
        for run in self._runs:
            lines = run.folder.read_lines("rounds.jsonl")
            scores = [line["evaluation"]["accuracy"] for line in lines if "evaluation" in line]
            done = f"{len(lines)}/{run.spec.rounds}"
            table.add_row(
                _label(run.row.label, run.row.names), str(run.seed), done, f"{scores[-1]:.3f}" if scores else "-"
            )
        return table


FULL = {
    "full": "accuracy",
    "best": "best_accuracy",
    "smallest": "smallest",
    "top-3": "top3",
    "perplexity": "perplexity",
}
LOCAL = {"mean": "local_mean", "worst": "local_worst", "tail": "local_tail"}
PRICES = {"parameters": "parameters", "MACs": "macs", "memory": "memory", "bytes a round*": "bytes_per_round"}


def comparison_tables(rows: Sequence[dict[str, Any]], target: float | None = None) -> list[Table]:
    """Means with 95 % intervals, below them the paired difference to the first method and in how many of the seeds
    it was better; what they cost; what it takes to reach a target; what was tuned."""
    tables = [
        _scores("in % after the final round: mean ± 95 %, difference to the first, seeds won", FULL, rows),
        _scores("clients on their own test data, in %; tail: the lowest 30 %", LOCAL, rows),
    ]
    prices = _right_aligned("cost: means over the clients that take part", [*PRICES, "budget"])
    for row in rows:
        if row["seeds"]:
            budget = f"{row['budget']['mean']:.1%}" if "budget" in row else "-"
            prices.add_row(_label_of(row), *(short(row[key]) for key in PRICES.values()), budget)
    tables.append(prices)
    if target is not None:
        tables.append(_target_table(rows, target))
    tuned = [row for row in rows if "tuning" in row]
    return [*tables, *([_tuning_table(tuned)] if tuned else [])]


def _target_table(rows: Sequence[dict[str, Any]], target: float) -> Table:
    """What it takes to reach an accuracy, of the seeds that did."""
    scales = {"rounds": 1.0, "bytes": 1e-6, "simulated_seconds": 1.0}
    shown = {key: scale for key, scale in scales.items() if any(key in row["target"] for row in rows)}
    headings = {"bytes": "MB*", "simulated_seconds": "simulated seconds"}
    title = f"to {100 * target:g} % accuracy of the full model: mean ± 95 % over the seeds that got there"
    table = _right_aligned(title, ["seeds", *(headings.get(key, key) for key in shown)])
    for row in rows:
        own = row["target"]
        cells = (_interval(own[key], scale) if key in own else "-" for key, scale in shown.items())
        table.add_row(_label_of(row), f"{len(own['seeds'])} of {own['of']}", *cells)
    return table


def _scores(title: str, columns: dict[str, str], rows: Sequence[dict[str, Any]]) -> Table:
    """A row for each method, of those columns that some method has."""
    shown = {heading: key for heading, key in columns.items() if any(key in row for row in rows)}
    table = _right_aligned(title, ["seeds", *shown])
    for row in rows:
        if row["seeds"]:
            table.add_row(_label_of(row), str(len(row["seeds"])), *(_cell(row, key) for key in shown.values()))
        else:
            table.add_row(_label_of(row), "0", "not run")
    return table


def _cell(row: dict[str, Any], key: str) -> str:
    """The mean, below it the difference, and the seeds won: one under the other, as a line has 80 places."""
    if key not in row:
        return "-"
    scale, paired = 1 if key == "perplexity" else 100, row[key].get("difference")
    below = f"\n{_interval(paired, scale, '+')}\n{paired['won']} of {paired['of']}" if paired else ""
    return _interval(row[key], scale) + below


def _tuning_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The value of each tuned key, and the accuracy that it was chosen for."""
    seed, keys = rows[0]["tuning"]["seed"], list(rows[0]["tuning"]["trials"][0]["values"])
    table = _right_aligned(f"chosen on validation data, seed {seed}", [*keys, "accuracy in %"])
    for row in rows:
        tuning, label = row["tuning"], _label_of(row)
        if tuning["chosen"] is None:
            table.add_row(label, *("none" for _ in keys), "-")
            continue
        accuracy = next(t["accuracy"] for t in tuning["trials"] if t["values"] == tuning["chosen"])
        table.add_row(label, *chosen_values(tuning), f"{100 * accuracy:.1f}")
    return table


def chosen_values(tuning: dict[str, Any]) -> list[str]:
    """The chosen value of each key, marked where it is the lowest or highest that was tried."""
    return [text + " (edge)" * (key in tuning["at_edge"]) for key, text in tuning["chosen"].items()]


def _right_aligned(title: str, headings: Iterable[str]) -> Table:
    table = Table("method", title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _label(method: str, grid: Iterable[tuple[str, Any]]) -> str:
    return " ".join([method, *(f"{key}={value}" for key, value in grid)])


def _label_of(row: dict[str, Any]) -> str:
    return _label(row["method"], row["grid"].items())


def _interval(mean: dict[str, Any], scale: float, sign: str = "") -> str:
    half = mean["half_width_95"]
    return f"{scale * mean['mean']:{sign}.1f}" + ("" if half is None else f" ± {scale * half:.1f}")
