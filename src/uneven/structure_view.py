"""A model's channel groups, shown: as tables, and as a picture of which tensors share which channels."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from uneven.submodels import Supernet

_CELL = 0.22  # inches a row or column of the picture


def groups_table(supernet: Supernet) -> Table:
    """Every group: its name, its channels, the tensors and axes that they run along."""
    table = Table("group", title=f"{len(supernet.groups)} channel groups", title_justify="left")
    table.add_column("channels", justify="right")
    table.add_column("tensor:axis", overflow="fold")
    for group in supernet.groups:
        members = ", ".join(f"{name}:{dim}" for name, dim in group.members)
        table.add_row(group.name, str(group.size), members)
    return table


def kept_table(supernet: Supernet) -> Table:
    """What is never dropped, a row for each reason."""
    reasons: dict[str, list[str]] = {}
    for line in supernet.structure.kept:
        place, _, reason = line.partition(": ")
        name, _, rest = place.partition(" axis ")
        reasons.setdefault(reason, []).append(f"{name}:{rest.split()[0]}")
    table = Table("kept whole because", title="not droppable", title_justify="left")
    table.add_column("tensor:axis", overflow="fold")
    for reason, places in reasons.items():
        table.add_row(reason, ", ".join(places))
    return table


def droppable_share(supernet: Supernet) -> float:
    """The share of the parameters that at least one group can drop: 1 minus that of one channel per group."""
    return 1 - supernet.prefix(1e-9).size / supernet.size


def plot(supernet: Supernet, path: Path) -> None:
    """Draw groups (rows) against tensors (columns); a cell says along which axis the tensor has the channels."""
    from matplotlib.figure import Figure  # takes a while to import

    names = supernet.parameters
    columns = {name: i for i, name in enumerate(names)}
    groups = supernet.groups
    figure = Figure(figsize=(3 + _CELL * len(names), 2 + _CELL * len(groups)), layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    for row, group in enumerate(groups):
        places = [columns[name] for name, _ in group.members]
        axes.plot([min(places), max(places)], [row, row], color="0.8", linewidth=1, zorder=1)
        for name, dim in group.members:
            axes.scatter(columns[name], row, s=60, marker="s", color=f"C{dim}", zorder=2)
            axes.annotate(str(dim), (columns[name], row), ha="center", va="center", fontsize=6, color="white")
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=6)
    axes.set_yticks(range(len(groups)), [f"{group.name} ({group.size})" for group in groups], fontsize=7)
    axes.set_title("channel groups and the tensors that share them (number: the tensor's axis)", fontsize=8)
    axes.grid(axis="x", color="0.95")
    axes.set_axisbelow(True)
    figure.savefig(path, dpi=150)
