"""What each width of a model costs on a device, and the widest that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.table import Table

from uneven import fitting
from uneven.allocation import Allocation
from uneven.data import Federation
from uneven.device_fit import Fitter
from uneven.devices import BUILTIN, Device, classes_of, fleet, read_classes
from uneven.errors import SpecError, nearest
from uneven.experiment import load_model
from uneven.quantities import quantity
from uneven.spec import Spec
from uneven.submodels import Submodel, Supernet
from uneven.submodels.cost import Unit, cost, widest
from uneven.submodels.memory import Memory, measure, predict

WIDTHS = (1.0, 0.75, 0.5, 0.375, 0.25, 0.125, 0.0625)


@dataclass(frozen=True)
class Row:
    """The cost of one width. ``measured`` is None where it was not asked for."""

    width: float
    parameters: int
    macs: int
    nbytes: int
    predicted: Memory
    measured: Memory | None


class Planner:
    """The costs of a spec's model at any width."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.federation: Federation
        self.supernet: Supernet
        self.federation, self.supernet = load_model(spec)
        self.fitter = Fitter(spec, self.supernet)

    def row(self, width: float, measured: bool) -> Row:
        submodel = self.supernet.prefix(width)
        memory = predict(submodel, self.supernet.example, self.spec.training)
        truth = self._measure(width) if measured else None
        return Row(width, submodel.size, submodel.macs, submodel.nbytes, memory, truth)

    def _measure(self, width: float) -> Memory:
        section, info = self.spec.model_dump(mode="json")["model"], self.federation.info
        name = section.pop("name")
        groups = self.spec.groups.arguments()
        if groups.pop("rules"):
            raise SpecError(["--measure: cannot be used with groups.rules, which another process does not know"])
        return measure(name, info, self.supernet.example, self.spec.training, section, width, groups=groups)

    def widest(self, limits: Mapping[Unit, int]) -> float | None:
        """The widest prefix within every limit, memory with room for the allocator; None if even the smallest
        width is not."""

        def takes(submodel: Submodel, unit: Unit) -> float:
            return self.fitter.memory(submodel) if unit == "memory" else cost(submodel, unit, self.spec.training)

        return widest(self.supernet, lambda submodel: all(takes(submodel, u) <= limits[u] for u in limits))

    def devices(self) -> Table | None:
        """The widest part that each class of the spec's devices has memory for."""
        if self.spec.devices is None:
            return None
        owned = fleet(self.spec.devices, self.federation, self.spec.seed)
        shown = Table(title="the widest that each class has memory for, MB", title_justify="left")
        shown.add_column("class", no_wrap=True)
        for heading in ["clients", "memory", "width", "takes*", "s a round**"]:
            shown.add_column(heading, justify="right", no_wrap=True)
        sizes = [len(client.train) for client in self.federation.clients]
        for name, device in owned.classes.items():
            own = [n for n, its in zip(sizes, owned.names, strict=True) if its == name]
            shown.add_row(name, str(len(own)), f"{device.memory / 1e6:.4g}", *self._fit(device, own))
        return shown

    def _fit(self, device: Device, sizes: Sequence[int]) -> list[str]:
        """What a device can take, and how long a round of the mean of its clients takes, where it has any."""
        width = self.fitter.widest(device)
        if width is None:
            return ["none"]
        part = self.supernet.prefix(width)
        seconds = f"{fmean(self.fitter.seconds(part, device, n) for n in sizes):.3g}" if sizes else "-"
        return [f"{width:.4g}", f"{self.fitter.memory(part) / 1e6:.4g}", seconds]

    def clients(self) -> list[Table | str]:
        """What the spec gives each client, and how its budget is met where there is one."""
        given = fitting.allocate(self.spec, self.federation, self.supernet)
        spent = fitting.spent(self.spec, self.federation, self.supernet, given)
        line = [] if given.budget is None else [budget_line(fitting.summary(self.spec, given, spent))]
        return [clients_table(self.federation, given, spent), *line]


def device_memory(spec: Spec, name: str) -> int:
    """The memory of a class of devices: the spec's, or where it has none those that come with uneven."""
    classes = read_classes(BUILTIN) if spec.devices is None else classes_of(spec.devices)
    if name not in classes:
        raise SpecError([f"--device {name!r}: {nearest(name, list(classes))}"])
    return classes[name].memory


def limit(text: str, field: str) -> int:
    """A limit given on the command line, as `quantity` reads it."""
    try:
        return quantity(text)
    except ValueError as error:
        raise SpecError([f"{field} {error}"]) from error


def table(rows: list[Row], batch: int) -> Table:
    """A row per width: parameters, MACs, bytes of a message, memory (predicted, and measured where it was)."""
    shown = Table(title=f"MACs of one example; MB of memory at batch size {batch}", title_justify="left")
    with_measured = any(row.measured for row in rows)
    measured = ["measured", "(eval)"] if with_measured else []
    for heading in ["width", "parameters", "MACs", "message", "training", "(eval)", *measured]:
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = [f"{row.width:.4g}", short(row.parameters), short(row.macs), f"{row.nbytes / 1e6:.2f}"]
        for memory in [row.predicted, *([row.measured] if row.measured else [])]:
            cells += [f"{memory.training / 1e6:.1f}", f"{memory.inference / 1e6:.1f}"]
        shown.add_row(*cells)
    return shown


def clients_table(federation: Federation, given: Allocation, spent: fitting.Spent) -> Table:
    """A row per client: its size, what the policy went by, the ratio before rounding, what it gets, and what that
    costs of the full model."""
    ratios = {} if given.ratios is None else {"ratio": given.ratios}
    columns = {**given.columns, **ratios, given.unit: given.capacities, f"{spent.cost}, share": spent.shares}
    shown = Table("client", title="what each client gets", title_justify="left")
    for heading in ["examples", *columns]:
        shown.add_column(heading.replace("_", " "), justify="right", no_wrap=True)
    for client in federation.clients:
        numbers = (f"{column[client.id]:.4f}" for column in columns.values())
        shown.add_row(client.name, f"{len(client.train):,}", *numbers)
    return shown


def budget_line(given: dict[str, Any]) -> str:
    """The budget that an allocation was asked to spend, and what it spends; see `uneven.fitting.summary`."""
    return (
        f"allocation {given['policy']}: {given['budget']:g} of the full model's {given['cost']} asked on average, "
        f"{given['exact']:.4f} before rounding, {given['realised']:.4f} realised"
    )


def short(number: float) -> str:
    """A number in three or four figures.

    >>> short(999), short(50_794), short(4_271_232), short(11_173_962)
    ('999', '50.8 k', '4.27 M', '11.2 M')
    """
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:g}"
