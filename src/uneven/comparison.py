"""Methods compared: every combination of method, options and seed as a run of its own, then statistics.

A run that is finished is not run again, and one that was stopped goes on, so a comparison can be interrupted at
any time and started again; its ``comparison.json`` comes out the same.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from uneven.errors import RunError, SpecError, nearest
from uneven.methods import METHODS
from uneven.spec import Spec, nested, parse, setting
from uneven.statistics import reached, statistics
from uneven.tracking import RunFolder

Table = Mapping[str, Any]
POLL_SECONDS = 0.2


class Value(NamedTuple):
    """A value of one key of the spec; ``text`` names it in tables and folders."""

    key: str
    text: str
    value: Any

    @property
    def layer(self) -> Table:
        """As tables to lay over a spec."""
        return nested(self.key, self.value)


@dataclass(frozen=True, eq=False)
class Row:
    """What has a row in the comparison's table: a method, and values of some keys; its runs differ in the seed.

    ``label`` names the method, ``base``, ``over`` and ``profile`` are the spec but for the values, and ``out`` is
    the folder of all rows. ``tuned`` are the values that were chosen for it, ``tuning`` says how.
    """

    label: str
    grid: tuple[Value, ...]
    base: Table
    over: tuple[Table, ...]
    profile: str | None
    out: Path
    tuned: tuple[Value, ...] = ()
    tuning: Table | None = None

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """The keys and values that tell it from the other rows of its method."""
        return tuple((value.key, value.text) for value in (*self.grid, *self.tuned))

    def spec(self, seed: int) -> Spec:
        """The spec of its run.

        Raises:
            SpecError: it does not hold.
        """
        values = (value.layer for value in (*self.grid, *self.tuned))
        return parse(self.base, [*self.over, *values, {"seed": seed}], self.profile)

    def run(self, seed: int) -> Run:
        """Its run with a seed, in a folder that its names give."""
        name = ",".join(f"{key}={text}" for key, text in self.names).replace("/", "_") or "."
        return Run(self, seed, self.spec(seed), RunFolder(self.out / self.label / name / f"seed-{seed}"))


@dataclass(frozen=True)
class Run:
    """One run of a comparison."""

    row: Row
    seed: int
    spec: Spec
    folder: RunFolder

    def result(self) -> dict[str, Any] | None:
        """The content of its ``result.json``, None while it is not finished."""
        path = self.folder.path / "result.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def rows(
    table: Table,
    over: Sequence[Table],
    profile: str | None,
    *,
    methods: Sequence[str],
    grid: Sequence[str],
    out: Path,
) -> list[Row]:
    """Every row: methods x grid. A method is a name, or the label of a table ``[compare.LABEL]``; see `_form`.

    Raises:
        SpecError: a method is not known, a value of the grid cannot be read, or the seed is among them.
    """
    base = {key: value for key, value in table.items() if key != "compare"}
    forms = table.get("compare", {})
    if not isinstance(forms, Mapping):
        raise SpecError([f"compare = {forms!r}: must hold tables, [compare.LABEL]"])
    points = product("--grid", grid)
    if any("seed" in layer for layer in over):
        raise SpecError([_NO_SEED])
    methods = list(dict.fromkeys(methods))
    return [
        Row(label, point, base, (*over, _form(label, forms)), profile, out)
        for label in methods
        for point in points
    ]


def plan(rows: Sequence[Row], seeds: Sequence[int]) -> list[Run]:
    """Every run: rows x seeds. A row for which tuning could choose nothing has none.

    Raises:
        SpecError: a spec among them does not hold.
    """
    return [row.run(seed) for row in rows if row.tuned or row.tuning is None for seed in seeds]


def _form(label: str, forms: Table) -> Table:
    """What a label lays over the spec.

    In ``[compare.LABEL]`` the spec's own keys, but ``name``, are laid over the spec; ``name`` and all other keys
    are the method's. Without ``name`` the label is the method where it is one; else the spec's method stays.
    """
    is_method = label in METHODS or ":" in label
    if label not in forms and not is_method:
        raise SpecError(
            [f"--methods {label!r}: {nearest(label, [*METHODS, *forms])}, or a table [compare.{label}]"]
        )
    form = forms.get(label, {})
    if not isinstance(form, Mapping):
        raise SpecError([f"compare.{label} = {form!r}: must be a table"])
    layer = {key: value for key, value in form.items() if key in Spec.model_fields and key != "name"}
    method = {key: value for key, value in form.items() if key not in layer}
    if "seed" in layer:
        raise SpecError([f"compare.{label}.{_NO_SEED}"])
    if "method" in layer:
        if method:
            raise SpecError([f"compare.{label}.{next(iter(method))}: put it into compare.{label}.method"])
        return layer
    if is_method or not layer:
        method = {"name": label, **method}
    return {**layer, "method": method} if method else layer


_NO_SEED = "seed: has no effect in a comparison, which takes --seeds"


def product(option: str, texts: Sequence[str]) -> list[tuple[Value, ...]]:
    """Every combination of the values that the texts give, such as ``a.b=x,y`` each.

    Raises:
        SpecError: a text cannot be read, or its key is the seed or that of another; names ``option``.
    """
    axes = [_axis(option, text) for text in texts]
    keys = [axis[0].key for axis in axes]
    if "seed" in keys:
        raise SpecError([_NO_SEED])
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        raise SpecError([f"{option} {twice[0]}: is given twice, give all its values at once"])
    return list(itertools.product(*axes))


def _axis(option: str, text: str) -> list[Value]:
    """Each value of ``a.b=x,y``; a value given twice counts once."""
    key, equals, values = (part.strip() for part in text.partition("="))
    if not key or not equals or not values:
        raise SpecError([f"{option} {text!r}: must be of the form a.b=x,y"])
    parsed = setting(f"values=[{values}]")["values"]
    entries = parsed if isinstance(parsed, list) else [value.strip() for value in values.split(",")]
    named = {value if isinstance(value, str) else json.dumps(value): value for value in entries}
    return [Value(key, name, value) for name, value in named.items()]


def parse_seeds(text: str) -> list[int]:
    """``0-4`` or ``0,3,7`` or both.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise SpecError([f"--seeds {text!r}: must be like 0-4 or 0,3,7"])
        if int(last or first) < int(first):
            raise SpecError([f"--seeds {text!r}: {part.strip()} counts down, it must be like 0-4"])
        seeds += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(seeds))


def execute(runs: Sequence[Run], jobs: int, watch: Callable[[], None]) -> dict[Path, str]:
    """Run what is not finished, ``jobs`` at a time, each in a process of its own with one thread.

    Returns the error message of each run that failed, by its folder. ``watch`` is called now and then.

    Raises:
        RunError: a folder holds a run of another spec.
    """
    for run in runs:
        _prepare(run)
    waiting = [run for run in runs if not run.folder.finished]
    active: dict[Path, subprocess.Popen[bytes]] = {}
    failed: dict[Path, str] = {}
    try:
        while waiting or active:
            while waiting and len(active) < jobs:
                run = waiting.pop(0)
                active[run.folder.path] = _spawn(run)
            _collect(active, failed)
            watch()
            time.sleep(POLL_SECONDS)
    finally:
        for process in active.values():
            process.terminate()
    return failed


def _prepare(run: Run) -> None:
    """Put the spec into the run's folder, where `resume` finds it."""
    folder, text = run.folder, run.spec.to_toml({})
    planned = folder.path / "planned.toml"
    if planned.is_file() and planned.read_text(encoding="utf-8") == text:
        return
    started = (folder.path / "checkpoint.safetensors").is_file() or folder.finished
    if started:
        raise RunError(f"{folder.path} holds a run of another spec: choose another --out, or remove it")
    folder.create(text, overwrite=True)  # new, or stopped before its first checkpoint
    folder.write("planned.toml", text)


def _spawn(run: Run) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "uneven", "run", "--resume", str(run.folder.path)]
    with _errors(run.folder.path).open("w") as errors:  # a file holds any number of warnings, a pipe does not
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)


def _errors(path: Path) -> Path:
    return path / "stderr.txt"


def _collect(active: dict[Path, subprocess.Popen[bytes]], failed: dict[Path, str]) -> None:
    for path, process in list(active.items()):
        if process.poll() is not None:
            if process.returncode:
                said = _errors(path).read_text(encoding="utf-8", errors="replace").strip()
                failed[path] = said.removeprefix("error: ") or f"ended with code {process.returncode}"
            del active[path]


def summarise(rows: Sequence[Row], runs: Sequence[Run], target: float | None = None) -> list[dict[str, Any]]:
    """Of each row: how it was tuned, `uneven.statistics.statistics` over the finished seeds, and with a ``target``
    what it takes to reach that accuracy (`uneven.statistics.reached`)."""
    finished = [
        {run.seed: (run, result) for run in runs if run.row is row and (result := run.result()) is not None}
        for row in rows
    ]
    results = [{seed: result for seed, (_, result) in own.items()} for own in finished]
    table = [
        {
            "method": row.label,
            "grid": {value.key: value.text for value in row.grid},
            **({} if row.tuning is None else {"tuning": row.tuning}),
            "seeds": list(own),
            **({} if not own else dict(statistics(own, results[0]))),
        }
        for row, own in zip(rows, results, strict=True)
    ]
    if target is not None:
        for shown, own in zip(table, finished, strict=True):
            lines = {seed: run.folder.read_lines("rounds.jsonl") for seed, (run, _) in own.items()}
            shown["target"] = reached(lines, target)
    return table
