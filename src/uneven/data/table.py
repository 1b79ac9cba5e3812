"""A federation at a glance: who holds how many examples of which class."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from uneven.data.federation import Federation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 12
"""Most classes that get a column of their own."""
_COLOURS = 20
"""Most classes that get a colour of their own, and a line in the legend."""


@dataclass(frozen=True)
class ClientRow:
    """One client: its examples for training and for testing, and those for training by class; for the next token,
    what is to be predicted in them, by token."""

    id: int
    name: str
    train: int
    test: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Description:
    """All clients, the classes' names, and the size of the global test set. ``kind``: what the labels are, classes
    or tokens."""

    clients: tuple[ClientRow, ...]
    labels: tuple[str, ...]
    input_shape: tuple[int, ...]
    test: int
    kind: str = "classes"

    def summary(self) -> str:
        """One line, e.g. ``"100 clients, 4795 training examples (3 / 43 / 155 a client), ..."``."""
        sizes = [client.train for client in self.clients]
        spread = f"{min(sizes)} / {median(sizes):g} / {max(sizes)}"
        held = median(sum(count > 0 for count in client.counts) for client in self.clients)
        return (
            f"{len(sizes)} clients, {sum(sizes)} training examples (least / median / most: {spread}), "
            f"{held:g} of {len(self.labels)} {self.kind} at the median client, "
            f"{sum(client.test for client in self.clients)} local and {self.test} global test examples, "
            f"input {'x'.join(map(str, self.input_shape))}"
        )


def describe(federation: Federation) -> Description:
    """The numbers of a federation as plain data."""
    info = federation.info
    rows = tuple(
        ClientRow(
            client.id,
            client.name,
            len(client.train),
            len(client.test),
            tuple(client.label_counts(info.num_classes).tolist()),
        )
        for client in federation.clients
    )
    kind = "tokens" if info.task == "next_token" else "classes"
    return Description(rows, info.labels, info.input_shape, len(federation.test), kind)


def table(description: Description) -> Table:
    """A table for rich to print: a row a client, up to 12 classes as numbered columns, else the largest three."""
    many = len(description.labels) > _COLUMNS
    numbers = [str(k) for k in range(len(description.labels))]
    legend = ", ".join(f"{k} {label}" for k, label in zip(numbers, description.labels, strict=True))
    caption = description.summary() if many else f"{description.kind}: {legend}\n\n{description.summary()}"
    out = Table(title="Training examples by client", caption=caption, caption_justify="left", box=None)
    for heading in ("client", "train", "test"):
        out.add_column(heading, justify="right", no_wrap=True)
    for heading in (description.kind, "largest") if many else numbers:
        out.add_column(heading, justify="left" if heading == "largest" else "right", overflow="fold")
    for client in description.clients:
        cells = _largest(client.counts, description.labels) if many else [str(n or "·") for n in client.counts]
        out.add_row(client.name, str(client.train), str(client.test), *cells)
    return out


def _largest(counts: Sequence[int], labels: Sequence[str]) -> list[str]:
    order = sorted(range(len(counts)), key=lambda k: (-counts[k], k))[:3]
    held = sum(count > 0 for count in counts)
    return [str(held), ", ".join(f"{labels[k]} {counts[k]}" for k in order if counts[k])]


def plot(federation: Federation, path: str | Path) -> None:
    """Write a picture (its kind by the suffix) of every client's training examples, stacked by class if they have
    one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    description = describe(federation)
    n = len(description.clients)
    figure = Figure(figsize=(9, min(1.6 + 0.15 * n, 40)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _bars(axes, description)
    axes.set_title(_title(description), loc="left", fontsize=10)
    figure.savefig(path, dpi=150)


def _title(description: Description) -> str:
    sizes = [client.train for client in description.clients]
    return f"{len(sizes)} clients, {sum(sizes):,} training examples: {min(sizes)} to {max(sizes)} a client"


def _bars(axes: "Axes", description: Description) -> None:
    labels, counts = description.labels, np.array([client.counts for client in description.clients])
    if description.kind == "tokens":  # an example has many
        labels, counts = ("texts",), np.array([[client.train] for client in description.clients])
    left = np.cumsum(counts, axis=1) - counts
    y = np.arange(len(counts))
    colours = _colours(len(labels))
    for k, label in enumerate(labels):
        held = counts[:, k] > 0
        axes.barh(y[held], counts[held, k], left=left[held, k], height=0.85, color=colours[k], label=label)
    axes.set(ylim=(len(counts) - 0.4, -0.6), xlabel="training examples", ylabel="client")
    axes.margins(x=0.01)
    step = -(-len(counts) // 250)  # as many names as there is room for
    axes.set_yticks(y[::step], [client.name for client in description.clients][::step], fontsize=6.5)
    axes.tick_params(axis="y", length=0, pad=2)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    _legend(axes, labels, colours)


def _colours(classes: int) -> Any:
    """(classes, 4) colours: distinct ones while there are any, then a scale."""
    from matplotlib import colormaps

    if classes <= 10:
        return colormaps["tab10"](np.arange(classes))
    if classes <= _COLOURS:
        return colormaps["tab20"](np.arange(classes))
    return colormaps["turbo"](np.linspace(0.03, 0.97, classes))


def _legend(axes: "Axes", labels: Sequence[str], colours: Any) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    figure = axes.get_figure()
    if len(labels) <= _COLOURS:
        handles = [Patch(color=colour, label=label) for colour, label in zip(colours, labels, strict=True)]
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)
    elif figure is not None:
        norm = BoundaryNorm(np.arange(len(labels) + 1) - 0.5, len(labels))
        scale = ScalarMappable(norm, ListedColormap(colours))
        ticks = np.linspace(0, len(labels) - 1, 11).round()
        bar = figure.colorbar(scale, ax=axes, ticks=ticks, anchor=(0, 1), shrink=0.5, aspect=30)
        bar.ax.set_yticklabels([f"{int(k)} {labels[int(k)]}" for k in ticks], fontsize=8)
        bar.minorticks_off()
