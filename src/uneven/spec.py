"""One experiment as data: typed, checked all at once, TOML in and out.

Every key is optional; the defaults are the demo's. ``--set a.b=value`` and keyword arguments in Python take the
same dotted names.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer, model_validator

from uneven.aggregation import ServerOptions
from uneven.allocation import LEVELS, Capacities, Policy, policy_class
from uneven.data import DataOptions
from uneven.devices import DevicesOptions
from uneven.diagnostics import DiagnosticsOptions
from uneven.errors import ModelError, SpecError, UnevenError, nearest
from uneven.evaluation import EvaluationOptions
from uneven.lookup import find, unknown_options
from uneven.methods import Method, method_class
from uneven.models import find_model
from uneven.options import Many, Options
from uneven.problems import lines
from uneven.submodels.cost import Unit
from uneven.submodels.groups import Attention
from uneven.submodels.rules import Rule
from uneven.training import TrainingOptions

NAMED = ("model", "method", "allocation")
"""The sections that name a thing."""
CLASSES: Mapping[str, Callable[[Any], Any]] = {"method": method_class, "allocation": policy_class}
"""Those whose thing is a class with options of its own."""


class ClientsOptions(Options):
    """The ``[clients]`` section."""

    count: int | None = Field(default=None, ge=1)
    """How many clients. Default 100, or as many as the data name where the partition is natural."""
    capacities: Capacities = Capacities(levels=LEVELS)
    """How much of the model each client can hold: a number for all, a list, or a table. Of ``allocation``
    ``tiers``, the default."""


class Named(BaseModel):
    """A section that names a thing and passes the other keys on to it."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, given: Any) -> Any:
        return given if isinstance(given, Mapping | BaseModel) else {"name": given}

    @field_serializer("name", check_fields=False)
    def _dotted(self, name: Any) -> str:
        return name if isinstance(name, str) else f"{name.__module__}:{name.__qualname__}"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ModelSection(Named):
    """The ``[model]`` section; other keys are the model's own options. A name alone will do."""

    name: str | Callable[..., Any] = "cnn"
    """A model of uneven, or ``package.module:function``; in Python the function itself."""


class MethodSection(Named):
    """The ``[method]`` section; other keys are the method's own options. A name alone will do."""

    name: str | type[Any] = "heterofl"
    """A method of uneven, or ``package.module:Class``; in Python the class itself."""


class AllocationSection(Named):
    """The ``[allocation]`` section; other keys are the policy's own options. A name alone will do."""

    name: str | type[Any] = "tiers"
    """A policy of uneven, or ``package.module:Class``; in Python the class itself."""


class GroupsOptions(Options):
    """The ``[groups]`` section: what the user says about the model's channels."""

    attention: Attention = "head_dim"
    """Inside attention: keep all heads and drop the same channels of each (``head_dim``), or drop whole heads
    (``heads``)."""
    frozen: Many[str] = ()
    """Axes that stay whole, as ``tensor:axis``."""
    rules: dict[str, str] = Field(default_factory=dict)
    """Rules for operators that have none, ``library::operator`` to ``package.module:function``."""

    def arguments(self) -> dict[str, Any]:
        """As keyword arguments of `uneven.submodels.Supernet`."""
        rules: dict[str, Rule] = {
            name: find(path, {}, f"groups.rules.{name}", ModelError) for name, path in self.rules.items()
        }
        return {"attention": self.attention, "frozen": self.frozen, "rules": rules}


class EngineOptions(Options):
    """The ``[engine]`` section."""

    name: Literal["auto", "serial"] = "auto"
    """``serial``: one client after the other. ``auto`` chooses among engines that give the same bits."""


class CheckpointOptions(Options):
    """The ``[checkpoint]`` section."""

    every: int = Field(default=1, ge=1)
    """Write a checkpoint after every so many rounds, and after the last."""


class Spec(Options):
    """One experiment."""

    name: str = Field(default="demo", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the run folder, ``runs/<name>-<n>``."""
    seed: int = Field(default=0, ge=0)
    """Every random draw comes from it."""
    rounds: int = Field(default=60, ge=1)
    """T, the rounds of training."""
    cohort: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, le=1)] = 10
    """Clients a round: a whole number, or a share in (0, 1] of the clients that can take part."""
    quorum: float = Field(default=0.5, ge=0, le=1)
    """The share of a cohort whose updates must be accepted; below it the run stops."""
    match: Unit | None = None
    """Solve each client's width so that the method's submodel costs what its capacity would, in this unit."""
    data: DataOptions = DataOptions()
    clients: ClientsOptions = ClientsOptions()
    allocation: AllocationSection = AllocationSection()
    devices: DevicesOptions | None = None
    model: ModelSection = ModelSection()
    groups: GroupsOptions = GroupsOptions()
    method: MethodSection = MethodSection()
    training: TrainingOptions = TrainingOptions()
    server: ServerOptions = ServerOptions()
    evaluation: EvaluationOptions = EvaluationOptions()
    diagnostics: DiagnosticsOptions = DiagnosticsOptions()
    engine: EngineOptions = EngineOptions()
    checkpoint: CheckpointOptions = CheckpointOptions()

    @property
    def method_class(self) -> type[Method]:
        return method_class(self.method.name)

    @property
    def allocation_class(self) -> type[Policy]:
        return policy_class(self.allocation.name)

    @property
    def allocation_options(self) -> Any:
        return self.allocation_class.Options(**self.allocation.options)

    @property
    def names(self) -> dict[str, str]:
        """The names of method, model and allocation, dotted where they are the user's own."""
        dumped = self.model_dump(mode="json", include={key: {"name"} for key in NAMED})
        return {section: table["name"] for section, table in dumped.items()}

    @property
    def method_options(self) -> Any:
        return self.method_class.Options(**self.method.options)

    def to_toml(self, resolved: Mapping[str, Any]) -> str:
        """The spec as TOML with defaults filled in, and what a run has resolved laid over it."""
        table = _merge(self.model_dump(mode="json"), resolved)
        if not self.allocation_class.DEALS_CAPACITIES:
            table["clients"] = {key: value for key, value in table["clients"].items() if key != "capacities"}
        return tomli_w.dumps(_without_none(table))


def load(path: Path, over: Sequence[Mapping[str, Any]] = (), profile: str | None = None) -> Spec:
    """Read a spec file, lay a profile and then other tables over it.

    Raises:
        SpecError: everything that is wrong, at once.
    """
    return parse({"name": path.stem, **read(path)}, over, profile)


def read(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, unchecked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError([f"cannot read the spec {path}: {error.strerror}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError([f"{path} is not TOML: {error}"]) from error


def parse(table: Mapping[str, Any], over: Sequence[Mapping[str, Any]] = (), profile: str | None = None) -> Spec:
    """A checked spec from nested tables; see `load`. What a run wrote beside its spec (``versions``) is no key."""
    merged = _full({k: v for k, v in table.items() if k not in ("profile", "compare", "versions")})
    for layer in (_profile(table.get("profile", {}), profile), *over):
        merged = _merge(merged, _full(layer))
    return _validated(merged)


def given(options: BaseModel) -> dict[str, Any]:
    """What was set of options, as nested tables; classes and tensors as they are."""
    return {
        key: given(value) if isinstance(value, BaseModel) else value
        for key, value in options
        if key in options.model_fields_set or key == "kind"
    }


def _full(layer: Mapping[str, Any]) -> dict[str, Any]:
    """The layer with sections as tables: options as what was set of them, a name alone as a table with it."""
    tables = {key: given(value) if isinstance(value, BaseModel) else value for key, value in layer.items()}
    alone = (key for key in NAMED if key in tables and not isinstance(tables[key], Mapping))
    tables |= {key: {"name": tables[key]} for key in alone}
    data = tables.get("data")
    if isinstance(data, Mapping) and isinstance(kind := data.get("partition"), str):
        tables["data"] = {**data, "partition": {"kind": kind}}
    return tables


def _profile(profiles: Any, name: str | None) -> Mapping[str, Any]:
    if name is None:
        return {}
    if not isinstance(profiles, Mapping) or name not in profiles:
        known = list(profiles) if isinstance(profiles, Mapping) else []
        hint = nearest(name, known) if known else "the spec has no [profile.…] tables"
        raise SpecError([f"profile = {name!r}: {hint}"])
    chosen = profiles[name]
    if not isinstance(chosen, Mapping):
        raise SpecError([f"profile.{name} = {chosen!r}: must be a table"])
    return chosen


def setting(text: str) -> dict[str, Any]:
    """``a.b=value`` (the command line's ``--set``) as nested tables; a value that is not TOML is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SpecError([f"--set {text!r}: must be of the form a.b=value"])
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return nested(key.strip(), parsed)


def nested(key: str, value: Any) -> dict[str, Any]:
    """A dotted key and its value as nested tables."""
    first, dot, rest = key.partition(".")
    return {first: nested(rest, value) if dot else value}


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``base``. A table that names another kind of thing (``kind``, ``name``) replaces; but
    another method or allocation keeps the options that both have, as the density or the budget."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not _replaces(old, value):
            merged[key] = _merge(old, value)
        elif key in CLASSES and isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = {**_shared(old, value, CLASSES[key]), **value}
        else:
            merged[key] = value
    return merged


def _shared(old: Mapping[str, Any], new: Mapping[str, Any], find_class: Callable[[Any], Any]) -> dict[str, Any]:
    """The old options that mean the same to what the new ones are of."""
    with suppress(UnevenError, KeyError):  # told when the whole is checked
        before, now = (find_class(section["name"]).Options.model_fields for section in (old, new))
        same = {key for key in before.keys() & now.keys() if before[key].annotation == now[key].annotation}
        return {key: value for key, value in old.items() if key in same}
    return {}


def _replaces(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return any(key in old and key in new and new[key] != old[key] for key in ("kind", "name"))


def _validated(table: dict[str, Any]) -> Spec:
    problems: list[str] = []
    spec = None
    try:
        spec = Spec.model_validate(table)
    except ValidationError as error:
        problems += lines(Spec, table, error)
    problems += [
        *_class_problems("method", table, MethodSection().name),
        *_class_problems("allocation", table, AllocationSection().name),
        *_model_problems(table.get("model", {})),
        *_dead_capacities(table),
    ]
    if problems or spec is None:
        raise SpecError(problems)
    return spec


def _class_problems(key: str, table: Any, default: Any) -> Iterator[str]:
    """Problems in the own options of a method or policy, found even where other sections have theirs."""
    name, options = _name_and_options(table.get(key, {}), default)
    if not isinstance(name, str | type):
        return  # a problem of the section itself
    try:
        known = CLASSES[key](name).Options
        known.model_validate(options)
    except UnevenError as error:
        yield str(error)
    except ValidationError as error:
        yield from lines(known, options, error, (key,))


def _dead_capacities(table: Any) -> Iterator[str]:
    """Capacities beside a policy that does not deal them out."""
    name, _ = _name_and_options(table.get("allocation", {}), AllocationSection().name)
    clients = table.get("clients", {})
    if not isinstance(clients, Mapping) or "capacities" not in clients:
        return
    with suppress(UnevenError):  # told already
        if not policy_class(name).DEALS_CAPACITIES:
            yield (
                f"clients.capacities: has no effect with allocation '{name}', which says itself what each client "
                "gets: leave it out"
            )


def _model_problems(section: Any) -> Iterator[str]:
    name, options = _name_and_options(section, ModelSection().name)
    if not isinstance(name, str) and not callable(name):
        return
    try:
        yield from unknown_options(find_model(name), options, "model", given=1)
    except ModelError as error:
        yield str(error)


def _name_and_options(section: Any, default: Any) -> tuple[Any, dict[str, Any]]:
    table = dict(section)
    return table.pop("name", default), table


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list | tuple) else value
