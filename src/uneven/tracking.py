"""The run folder: what is written, when, and how a run that was stopped goes on.

====================== ===================================================================================
``spec.toml``          the spec as resolved, with versions
``rounds.jsonl``       one line a round: losses, cohort, failures, bytes, MACs, seconds, evaluation
``checkpoint.safetensors`` the state after the last checkpointed round; no times or paths inside
``memories/``          what clients remember between rounds (SCAFFOLD's variates), one file each
``clients.jsonl``      one line a client: name, size, capacity, last local accuracy
``result.json``        the outcome, written last: a folder that has it is finished
====================== ===================================================================================

A round's line is written before its checkpoint, and files are replaced in one step, so whenever the process
dies the checkpoint is whole and the lines up to its round are there; lines after it are dropped on resuming.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from uneven.errors import RunError

Line = dict[str, Any]
State = dict[str, Tensor]


def new_folder(root: Path, name: str) -> Path:
    """The first of ``<name>-1``, ``<name>-2``, ... in ``root`` that does not exist yet."""
    n = 1
    while (root / f"{name}-{n}").exists():
        n += 1
    return root / f"{name}-{n}"


class RunFolder:
    """Reads and writes one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, spec_toml: str, overwrite: bool) -> None:
        """Start a run here.

        Raises:
            RunError: the folder has files and ``overwrite`` is false, or is not a run's, or cannot be made.
        """
        occupied = self.path.exists() and not (self.path.is_dir() and self._is_empty())
        if occupied and not overwrite:
            raise RunError(
                f"{self.path} exists: choose another --out, give --overwrite to replace it, or --resume to go on"
            )
        if occupied and not (self.path / "spec.toml").is_file():
            raise RunError(f"{self.path} is not a run folder (it has no spec.toml), so it is not overwritten")
        with explained(f"cannot write to {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
            for name in ("result.json", "checkpoint.safetensors", "rounds.jsonl", "clients.jsonl"):
                (self.path / name).unlink(missing_ok=True)
            self._drop_memories(keep=set())
            self.write("spec.toml", spec_toml)

    def _is_empty(self) -> bool:
        """Whether nothing is here, or only what a kill left of writing the spec."""
        return all(path == _partial(self.path / "spec.toml") for path in self.path.iterdir())

    @property
    def spec(self) -> Path:
        """The resolved spec.

        Raises:
            RunError: there is none, so this is no run folder.
        """
        path = self.path / "spec.toml"
        if not path.is_file():
            raise RunError(f"{self.path} is not a run folder: it has no spec.toml")
        return path

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").is_file()

    def write(self, name: str, content: str | bytes) -> None:
        """Replace a file in one step: it has either its old content or its new, and survives a power cut."""
        target = self.path / name
        partial = _partial(target)
        data = content if isinstance(content, bytes) else content.encode()
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
            _sync_folder(target.parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def write_lines(self, name: str, lines: Iterable[Line]) -> None:
        self.write(name, "".join(_json(line) + "\n" for line in lines))

    def read_lines(self, name: str) -> list[Line]:
        """The whole lines of a file; one cut short by a kill is left out.

        Raises:
            RunError: it cannot be read.
        """
        path = self.path / name
        try:
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            whole = text[: text.rfind("\n") + 1]
            return [json.loads(line) for line in whole.splitlines()]
        except (OSError, ValueError) as error:
            raise RunError(f"cannot read {path}: {error}") from error

    def append_round(self, line: Line) -> None:
        what = f"cannot write the line of round {line['round']} to {self.path}"
        with (
            explained(f"{what}; go on with --resume {self.path}"),
            (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file,
        ):
            file.write(_json(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def save_checkpoint(self, t: int, tensors: State, memories: Mapping[int, State], changed: set[int]) -> None:
        """Write the state after round t. ``changed``: the clients whose memory is not on disk yet.

        Raises:
            RunError: it cannot be written; the checkpoint before it is still good.
        """
        with explained(
            f"cannot write the checkpoint of round {t} to {self.path}; the one before it is good, "
            f"go on with --resume {self.path}"
        ):
            old = self._memory_files()
            files = {n: f"{n}-{t}.safetensors" if n in changed else old[n] for n in sorted(memories)}
            if files:
                (self.path / "memories").mkdir(exist_ok=True)
            for n in sorted(changed & set(memories)):
                self.write(f"memories/{files[n]}", save(_plain(memories[n])))
            # One metadata key: the format does not keep the order of several.
            facts = json.dumps({"round": t, "memories": {str(n): name for n, name in files.items()}})
            self.write("checkpoint.safetensors", save(_plain(tensors), {"uneven": facts}))
            self._drop_memories(keep=set(files.values()))

    def load_checkpoint(self) -> tuple[int, State, dict[int, State]]:
        """The round, tensors and client memories of the last checkpoint; round 0 and nothing if there is none.

        Raises:
            RunError: a file cannot be read.
        """
        path = self.path / "checkpoint.safetensors"
        if not path.is_file():
            return 0, {}, {}
        tensors, facts = _checkpoint(path)
        memories = {int(n): _read(self.path / "memories" / name)[0] for n, name in facts["memories"].items()}
        return facts["round"], tensors, memories

    def keep_rounds(self, last: int) -> list[Line]:
        """Drop the lines after round ``last``, and return those kept.

        Raises:
            RunError: not all lines up to there are there.
        """
        lines = [line for line in self.read_lines("rounds.jsonl") if line["round"] <= last]
        if [line["round"] for line in lines] != list(range(1, last + 1)):
            raise RunError(f"{self.path / 'rounds.jsonl'} must have the lines of rounds 1 to {last}, one each")
        with explained(f"cannot write to {self.path}"):
            self.write_lines("rounds.jsonl", lines)
        return lines

    def finish(self, clients: Iterable[Line], result: Line) -> None:
        """Write the outcome, ``result.json`` last.

        Raises:
            RunError: it cannot be written; no round is lost.
        """
        with explained(f"cannot write the result to {self.path}; go on with --resume {self.path}"):
            self.write_lines("clients.jsonl", clients)
            self.write("result.json", _json(result, indent=2) + "\n")

    def _memory_files(self) -> dict[int, str]:
        path = self.path / "checkpoint.safetensors"
        return {int(n): name for n, name in _checkpoint(path)[1]["memories"].items()} if path.is_file() else {}

    def _drop_memories(self, keep: set[str]) -> None:
        for path in (self.path / "memories").glob("*.safetensors"):
            if path.name not in keep:
                path.unlink()


def _json(line: Line, indent: int | None = None) -> str:
    return json.dumps(_finite(line), indent=indent)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity, which a loss may be: they become null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _sync_folder(path: Path) -> None:
    """Make a rename inside the folder last; where folders cannot be opened (Windows), the system sees to it."""
    if os.name == "posix":
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _partial(target: Path) -> Path:
    """Where a file is written before it replaces ``target``."""
    return target.with_name(f".{target.name}.partial")


def _plain(tensors: State) -> State:
    """Tensors as the format wants them: contiguous, none sharing memory with another."""
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


def _checkpoint(path: Path) -> tuple[State, Any]:
    """The tensors of a checkpoint, and its facts: ``round``, and the file of each client's memory."""
    tensors, facts = _read(path)
    if not isinstance(facts, dict) or facts.keys() != {"round", "memories"}:
        raise RunError(f"{path} is not a checkpoint of uneven")
    return tensors, facts


def _read(path: Path) -> tuple[State, Any]:
    try:
        with safe_open(path, framework="pt") as file:
            facts = (file.metadata() or {}).get("uneven", "{}")
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(facts)  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from error


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn an error of the file system into one line for the user."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{what}: {error.strerror or error}") from error
