"""What a run shows while it goes on, and at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from uneven.experiment import Experiment
from uneven.tracking import Line


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
        capacities = sorted({card.capacity for card in experiment.cards}, reverse=True)
        method, model = (spec.model_dump(mode="json")[part]["name"] for part in ("method", "model"))
        self._console.print(
            f"{method}: {len(experiment.cards)} clients, {model} of {d:,} parameters, capacities "
            f"{', '.join(f'{c:g}' for c in capacities)}" + (f", in {folder}" if folder else ""),
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
    lines = [
        f"full model: accuracy {result['accuracy']:.3f}, best {result['best_accuracy']:.3f} "
        f"in round {result['best_round']}",
        f"clients on their own test data: mean {local['mean']:.3f}, worst {local['worst']:.3f}, "
        f"tail {local['tail']:.3f} (lowest 30 %)",
        "* of one client, down and up; an estimate: the tensors that travel, uncoded",
    ]
    if result["failures"]:
        lines.insert(2, f"failed updates: {result['failures']} (reasons in rounds.jsonl)")
    return lines
