"""Tiny runs, in real processes, and the comparison of their folders."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TINY = {
    "rounds": 4,
    "cohort": 3,
    "clients.count": 6,
    "model.name": "mlp",
    "model.hidden": [8],
    "training.epochs": 1,
    "training.schedule": "constant",
    "evaluation.every": 2,
}
"""About a tenth of a second of training."""


def sets(*tables: dict[str, Any], **more: Any) -> list[str]:
    """``--set`` arguments of a tiny run with other keys laid over it; a key that is None is left out."""
    keys = TINY | {"data.source": tiny_data(), "data.shape": [1, 8, 8]}
    for table in (*tables, more):
        keys |= table
    return [part for k, v in keys.items() if v is not None for part in ("--set", f"{k}={json.dumps(v)}")]


@dataclass(frozen=True)
class Ended:
    """How a process ended; a negative code is the signal that killed it."""

    code: int
    out: str
    err: str

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


class Server:
    """The client's side of `tests.run.server`."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("server.py")
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __call__(self, *argv: object, cwd: Path, before: str = "", kill_after: float | None = None) -> Ended:
        """Run ``uneven ARGV`` in ``cwd``, after the code ``before``; SIGKILL it after some seconds if asked."""
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            pid = self._start(argv, cwd, before, str(out), str(err))
            if kill_after is not None:
                time.sleep(kill_after)
                with contextlib.suppress(ProcessLookupError):  # it had ended before
                    os.kill(pid, signal.SIGKILL)
            return Ended(self._receive(), out.read_text(), err.read_text())

    def in_terminal(self, *argv: object, cwd: Path) -> Ended:
        """Run ``uneven ARGV`` in a terminal; ``out`` and ``err`` are both what it shows, with its escapes."""
        screen, keyboard = pty.openpty()
        before = "import os\nos.environ |= {'TERM': 'xterm-256color', 'COLUMNS': '100'}"
        with ThreadPoolExecutor(1) as reader:
            self._start(argv, cwd, before, os.ttyname(keyboard), os.ttyname(keyboard))
            shown = reader.submit(_all_of, screen)
            code = self._receive()
            os.close(keyboard)
            return Ended(code, shown.result(), shown.result())

    def _start(self, argv: Sequence[object], cwd: Path, before: str, out: str, err: str) -> int:
        """The process id of the command."""
        request = {"argv": [str(a) for a in argv], "cwd": str(cwd), "before": before, "out": out, "err": err}
        self._send(request)
        return self._receive()

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def _receive(self) -> int:
        assert self._process.stdout is not None
        return int(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


def _all_of(screen: int) -> str:
    """What a terminal is sent until nobody has it open any more."""
    shown = b""
    with contextlib.suppress(OSError), open(screen, "rb", buffering=0) as file:  # Linux ends it with an error
        while part := file.read(4096):
            shown += part
    return shown.decode()


@cache
def server() -> Server:
    """The one server of this test process."""
    started = Server()
    atexit.register(started.close)
    return started


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, also hidden ones."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def contents(folder: Path) -> dict[str, Any]:
    """Every file of a run folder, as bytes or as data without the times."""
    return {name: _content(folder / name) for name in files(folder)}


def _content(path: Path) -> Any:
    if path.suffix == ".jsonl":
        return [_timeless(line) for line in lines(path)]
    return _timeless(json.loads(path.read_text())) if path.suffix == ".json" else path.read_bytes()


def _timeless(table: dict[str, Any]) -> dict[str, Any]:
    assert table.get("seconds", 0) >= 0
    return {key: value for key, value in table.items() if key != "seconds"}


def assert_same_run(folder: Path, reference: Path) -> None:
    """The same files with the same content, times excepted."""
    ours, theirs = contents(folder), contents(reference)
    assert ours.keys() == theirs.keys()
    for name, content in theirs.items():
        assert ours[name] == content, f"{name} differs"


def one_error(ended: Ended, *says: str) -> str:
    """The message of a command that ended with one clear error and nothing else."""
    assert ended.code == 2, ended
    assert ended.err.startswith("error: "), ended.err
    assert "Traceback" not in ended.err
    assert ended.err.count("error: ") == 1
    for words in says:
        assert words in ended.err, ended.err
    return ended.err.removeprefix("error: ").strip()


@cache
def tiny_data() -> str:
    """A folder with 90 training and 30 test images of 8x8 in three classes that can be told apart."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    draws = np.random.default_rng(0)
    for split, n in (("train", 90), ("test", 30)):
        label = np.arange(n) % 3
        x = draws.normal(size=(n, 64)) + label[:, None]
        table = pa.table({"x": list(x.astype(np.float32)), "label": label})
        pq.write_table(table, Path(folder.name) / f"{split}.parquet")
    return folder.name
