"""Running an experiment from start to end: rounds, run folder, progress, result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from uneven.errors import RunError
from uneven.evaluation import Evaluation
from uneven.experiment import Experiment
from uneven.records import client_lines, resolved, round_line, summary, versions
from uneven.spec import Spec, given, load, parse, read
from uneven.tracking import Line, RunFolder, State


class Watcher(Protocol):
    """Sees a run go on: the terminal's progress bar, or nothing."""

    def started(self, experiment: Experiment, folder: Path | None, done: int) -> None: ...

    def finished_round(self, line: Line) -> None: ...


class Silent:
    """Shows nothing."""

    def started(self, experiment: Experiment, folder: Path | None, done: int) -> None:
        pass

    def finished_round(self, line: Line) -> None:
        pass


def run(
    spec: Spec | Mapping[str, Any] | str | Path | None = None,
    *,
    out: str | Path | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """Run one experiment and return its result, the content of ``result.json``.

    Args:
        spec: a `Spec`, nested tables, the path of a spec file, or nothing for the demo's.
        out: the run folder to write; nothing is written without it.
        sections: parts of the spec laid over it, e.g. ``rounds=10, method={"name": "fedavg"}``. A method may
            be a class, ``data={"source": ...}`` may hold tensors (`uneven.data.from_tensors`).

    Raises:
        UnevenError: whatever is wrong with the spec, the data, the model or the run.
    """
    folder = None if out is None else RunFolder(Path(out))
    return start(_assembled(spec, sections), folder)


def _assembled(spec: Spec | Mapping[str, Any] | str | Path | None, sections: Mapping[str, Any]) -> Spec:
    if isinstance(spec, str | Path):
        spec = load(Path(spec))
    return parse(given(spec) if isinstance(spec, Spec) else spec or {}, [sections])


def start(
    spec: Spec, folder: RunFolder | None, overwrite: bool = False, watcher: Watcher | None = None
) -> dict[str, Any]:
    """Run a spec from the first round on."""
    with one_thread():
        experiment = Experiment(spec)
        if folder is not None:
            folder.create(spec.to_toml(resolved(experiment)), overwrite)
        return _go_on(experiment, folder, 0, [], watcher or Silent())


def resume(path: str | Path, watcher: Watcher | None = None) -> dict[str, Any]:
    """Go on with a run that was stopped, from its last checkpoint, to the same end bit for bit.

    Raises:
        RunError: not a run folder, or its checkpoint is of another model or method.
    """
    folder = RunFolder(Path(path))
    written = read(folder.spec)
    _check_versions(written.get("versions", {}), folder)
    with one_thread():
        experiment = Experiment(load(folder.spec))
        t, tensors, memories = folder.load_checkpoint()
        if t > experiment.spec.rounds:
            raise RunError(f"{folder.spec} has rounds = {experiment.spec.rounds}, but round {t} is done")
        if t:
            _check_fits(experiment.saved(), tensors, folder)
            experiment.restore(tensors)
            experiment.engine.memories = memories
        elif "versions" not in written:  # prepared by a comparison
            folder.write("spec.toml", experiment.spec.to_toml(resolved(experiment)))
        return _go_on(experiment, folder, t, folder.keep_rounds(t), watcher or Silent())


def _check_versions(then: Mapping[str, str], folder: RunFolder) -> None:
    """Another PyTorch or numpy may give other bits: not without being told to."""
    now = versions()
    for name in ("uneven", "torch", "numpy"):
        if then.get(name, now[name]) != now[name]:
            raise RunError(
                f"{folder.path} was started with {name} {then[name]}, and this is {now[name]}, which may give "
                "other bits; to go on all the same, remove the table [versions] from its spec.toml"
            )


def _check_fits(expected: State, found: State, folder: RunFolder) -> None:
    for name in sorted(expected.keys() | found.keys()):
        ours = tuple(expected[name].shape) if name in expected else "absent"
        theirs = tuple(found[name].shape) if name in found else "absent"
        if ours != theirs:
            raise RunError(
                f"the checkpoint in {folder.path} is of another model or method: {name} is {theirs} in it "
                f"and {ours} in the spec's"
            )


def _go_on(
    experiment: Experiment, folder: RunFolder | None, done: int, lines: list[Line], watcher: Watcher
) -> dict[str, Any]:
    """The rounds after round ``done``. Each: train, evaluate if due, write the line, write the checkpoint."""
    spec = experiment.spec
    watcher.started(experiment, folder.path if folder else None, done)
    evaluation: Evaluation | None = None
    changed: set[int] = set()
    for t in range(done + 1, spec.rounds + 1):
        log = experiment.round(t)
        changed |= set(log.cohort) & experiment.engine.memories.keys()
        evaluation = experiment.evaluate(t) if experiment.is_due(t) else None
        lines.append(round_line(log, evaluation, experiment))
        if folder is not None:
            folder.append_round(lines[-1])
            if t % spec.checkpoint.every == 0 or t == spec.rounds:
                folder.save_checkpoint(t, experiment.saved(), experiment.engine.memories, changed)
                changed = set()
        watcher.finished_round(lines[-1])
    if evaluation is None:  # resumed after the last round
        evaluation = experiment.evaluate(spec.rounds)
    result = summary(experiment, lines, evaluation)
    if folder is not None:
        folder.finish(client_lines(experiment, evaluation), result)
    return result


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, PyTorch computes with one thread: two threads give other bits, and small networks no speed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
