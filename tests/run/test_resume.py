"""A run that is killed at any moment goes on to the same end, bit for bit.

The kills are real: a process of its own gets SIGKILL, at an exact place or after a while.
"""

import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from tests.run.helpers import assert_same_run, contents, files, lines, one_error, server, sets

SCAFFOLD = sets({"method.name": "scaffold", "clients.capacities": 1, "rounds": 4, "server.optimizer": "adam"})
# Every option that keeps something between rounds, and running statistics.
HETEROFL = sets(
    {"model.name": "cnn", "model.hidden": None, "model.norm": "batch", "rounds": 3},
    {"clients.capacities": [1, 0.5, 0.25, 1, 0.5, 0.25], "server.optimizer": "momentum"},
    {"training.schedule": "cosine", "method.static_batch_norm": False, "server.weights": "afl"},
)
SPARSE = [*SCAFFOLD, "--set", "checkpoint.every=2", "--set", "rounds=5"]
RUNS = {"scaffold": SCAFFOLD, "heterofl": HETEROFL, "sparse": SPARSE}

CHECKPOINT = "lambda _, target: target.name == 'checkpoint.safetensors'"
MEMORY = "lambda _, target: target.parent.name == 'memories'"

FAULTS = {
    "the spec is written": "at('uneven.run:_go_on')",
    "a client of round 1 trains": "at('uneven.methods.base:train_locally', 2)",
    "a client of round 3 trains": "at('uneven.engines.serial:SerialEngine._train_one', 8)",
    "the updates of round 2 are merged": "at('uneven.methods.base:Method.merge', 2, after=True)",
    "the last client is evaluated": "at('uneven.evaluation:_local', 2)",
    "the full model is evaluated": "at('uneven.evaluation:_score')",
    "before the line of round 2": "at('uneven.tracking:RunFolder.append_round', 2)",
    "between line and checkpoint": "at('uneven.tracking:RunFolder.save_checkpoint', 2)",
    "the first checkpoint is on disk, not in place": f"at('pathlib:Path.replace', where={CHECKPOINT})",
    "the second checkpoint is on disk, not in place": f"at('pathlib:Path.replace', 2, where={CHECKPOINT})",
    "the second checkpoint is in place": f"at('pathlib:Path.replace', 2, after=True, where={CHECKPOINT})",
    "the last checkpoint is done": "at('uneven.run:summary')",
    "clients.jsonl is there, result.json is not": "at('json:dumps', where=lambda *_, indent=None: indent == 2)",
    "the result is on disk, not in place": (
        "at('pathlib:Path.replace', where=lambda _, target: target.name == 'result.json')"
    ),
}
OF_MEMORIES = {
    "between two memories of round 2": f"at('pathlib:Path.replace', 5, where={MEMORY})",
    "between the memories and the checkpoint": f"at('pathlib:Path.replace', 6, after=True, where={MEMORY})",
    "between the checkpoint and old memories": "at('uneven.tracking:RunFolder._drop_memories', 3)",
    "some old memories are gone": (
        "at('pathlib:Path.unlink', after=True, where=lambda p, **_: p.parent.name == 'memories')"
    ),
}
# With a checkpoint every two rounds a place comes up less often: these are reached there too.
IN_SPARSE = [
    "a client of round 3 trains",
    "between line and checkpoint",
    "the second checkpoint is on disk, not in place",
    "the second checkpoint is in place",
    "the last checkpoint is done",
    "between two memories of round 2",
    "between the checkpoint and old memories",
]
IN_HETEROFL = [
    "a client of round 3 trains",
    "the full model is evaluated",
    "between line and checkpoint",
    "the second checkpoint is on disk, not in place",
    "the last checkpoint is done",
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each run without a kill."""
    root = tmp_path_factory.mktemp("reference")
    for name, arguments in RUNS.items():
        ended = server()("run", *arguments, "--out", name, cwd=root)
        assert (ended.code, ended.err) == (0, ""), ended
    return {name: root / name for name in RUNS}


def cases() -> list[Any]:
    everything = FAULTS | OF_MEMORIES
    chosen = {
        "scaffold": everything,
        "heterofl": {name: everything[name] for name in IN_HETEROFL},
        "sparse": {name: everything[name] for name in IN_SPARSE},
    }
    return [
        pytest.param(run, fault, id=f"{run}-{name}")
        for run, faults in chosen.items()
        for name, fault in faults.items()
    ]


@pytest.mark.parametrize(("run", "fault"), cases())
def test_killed_at_an_exact_place(run: str, fault: str, reference: dict[str, Path], tmp_path: Path) -> None:
    ended = server()("run", *RUNS[run], "--out", "killed", cwd=tmp_path, before=fault)
    assert ended.killed, ended
    assert not (tmp_path / "killed" / "result.json").exists()
    ended = server()("run", "--resume", "killed", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, ""), ended
    assert_same_run(tmp_path / "killed", reference[run])


@pytest.mark.parametrize("cut", [1, 2, 150])
def test_a_line_cut_short(cut: int, reference: dict[str, Path], tmp_path: Path) -> None:
    """The kill came while the line of round 3 was written; what it lacks does not pass for a line."""
    before = FAULTS["between line and checkpoint"].replace("2)", "3)")
    assert server()("run", *SCAFFOLD, "--out", "killed", cwd=tmp_path, before=before).killed
    rounds = tmp_path / "killed" / "rounds.jsonl"
    assert len(lines(rounds)) == 3
    rounds.write_bytes(rounds.read_bytes()[:-cut])
    assert server()("run", "--resume", "killed", cwd=tmp_path).code == 0
    assert_same_run(tmp_path / "killed", reference["scaffold"])


def test_a_checkpoint_half_written(reference: dict[str, Path], tmp_path: Path) -> None:
    fault = (
        "def half():\n"
        "    os.truncate('killed/.checkpoint.safetensors.partial', 99)\n"
        "    die()\n"
        f"at('pathlib:Path.replace', 2, half, where={CHECKPOINT})"
    )
    assert server()("run", *SCAFFOLD, "--out", "killed", cwd=tmp_path, before=fault).killed
    assert server()("run", "--resume", "killed", cwd=tmp_path).code == 0
    assert_same_run(tmp_path / "killed", reference["scaffold"])


def test_killed_again_while_it_goes_on(reference: dict[str, Path], tmp_path: Path) -> None:
    kills = [
        (["run", *SPARSE, "--out", "killed"], FAULTS["a client of round 3 trains"]),
        (
            ["run", "--resume", "killed"],
            "at('uneven.tracking:RunFolder.write', where=lambda *a: 'rounds' in a[1])",
        ),
        (["run", "--resume", "killed"], FAULTS["between line and checkpoint"]),
        (["run", "--resume", "killed"], FAULTS["the last checkpoint is done"]),
    ]
    for argv, fault in kills:
        assert server()(*argv, cwd=tmp_path, before=fault).killed
    assert server()("run", "--resume", "killed", cwd=tmp_path).code == 0
    assert_same_run(tmp_path / "killed", reference["sparse"])


@pytest.mark.parametrize("run", RUNS)
def test_killed_at_random_until_it_is_done(run: str, reference: dict[str, Path], tmp_path: Path) -> None:
    draws = random.Random(run)
    folder = tmp_path / "killed"
    delays = iter([*(draws.uniform(0.1, 0.7) for _ in range(5)), None])
    while not (folder / "spec.toml").exists():  # until then there is nothing to go on with
        server()("run", *RUNS[run], "--out", "killed", cwd=tmp_path, kill_after=next(delays))
    for delay in delays:
        server()("run", "--resume", "killed", cwd=tmp_path, kill_after=delay)
    assert_same_run(folder, reference[run])


def test_the_installed_command(reference: dict[str, Path], tmp_path: Path) -> None:
    """Once without the server: the command as users start it, killed from outside as soon as a round is done."""
    command = Path(sys.executable).with_name("uneven")
    process = subprocess.Popen([command, "run", *SCAFFOLD, "--out", "killed"], cwd=tmp_path)
    while not (tmp_path / "killed" / "checkpoint.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    resume = [command, "run", "--resume", "killed"]
    done = subprocess.run(resume, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert_same_run(tmp_path / "killed", reference["scaffold"])


def test_a_finished_run_stays_as_it_is(reference: dict[str, Path], tmp_path: Path) -> None:
    before = contents(reference["scaffold"])
    ended = server()("run", "--resume", reference["scaffold"], cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert contents(reference["scaffold"]) == before


def test_only_the_memories_of_the_last_checkpoint_stay(reference: dict[str, Path]) -> None:
    for run in ("scaffold", "sparse"):
        last = {c: line["round"] for line in lines(reference[run] / "rounds.jsonl") for c in line["cohort"]}
        if run == "sparse":  # checkpoints after rounds 2, 4 and 5
            last = {c: min(5, t + t % 2) for c, t in last.items()}
        found = {path.name for path in (reference[run] / "memories").iterdir()}
        assert found == {f"{client}-{t}.safetensors" for client, t in last.items()}


def test_interrupted(reference: dict[str, Path], tmp_path: Path) -> None:
    """Ctrl-C is a kill that says how to go on."""
    fault = "at('uneven.methods.base:Method.merge', 2, interrupt)"
    ended = server()("run", *SCAFFOLD, "--out", "stopped", cwd=tmp_path, before=fault)
    assert ended.code == 130
    assert ended.err == "stopped; go on with uneven run --resume stopped\n"
    assert server()("run", "--resume", "stopped", cwd=tmp_path).code == 0
    assert_same_run(tmp_path / "stopped", reference["scaffold"])


def test_one_thread(reference: dict[str, Path], tmp_path: Path) -> None:
    """Sums over several threads have other bits, so a run takes one, wherever it is started."""
    before = (
        "import torch\n"
        "torch.set_num_threads(4)\n"
        "at('uneven.methods.base:train_locally', fault=lambda: print(torch.get_num_threads(), 'thread'))"
    )
    ended = server()("run", *SCAFFOLD, "--out", "four", cwd=tmp_path, before=before)
    assert "\n1 thread\n" in ended.out
    assert_same_run(tmp_path / "four", reference["scaffold"])


def broken(reference: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to be broken."""
    return Path(shutil.copytree(reference, tmp_path / "copy"))


def refused(tmp_path: Path, *says: str) -> None:
    """Resuming is refused with one error, and changes nothing."""
    before = files(tmp_path / "copy")
    one_error(server()("run", "--resume", "copy", cwd=tmp_path), *says)
    assert files(tmp_path / "copy") == before


def test_of_another_model(reference: dict[str, Path], tmp_path: Path) -> None:
    spec = broken(reference["scaffold"], tmp_path) / "spec.toml"
    spec.write_text(re.sub(r"hidden = \[\s*8,\s*\]", "hidden = [9]", spec.read_text()))
    refused(tmp_path, "another model", "is (8,) in it", "(9,)")


def test_of_another_method(reference: dict[str, Path], tmp_path: Path) -> None:
    spec = broken(reference["scaffold"], tmp_path) / "spec.toml"
    spec.write_text(spec.read_text().replace('"scaffold"', '"fedavg"'))
    refused(tmp_path, "another model or method", "absent")


@pytest.mark.parametrize("size", [0, 5, 100, -10])
def test_a_corrupt_checkpoint(size: int, reference: dict[str, Path], tmp_path: Path) -> None:
    path = broken(reference["scaffold"], tmp_path) / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    refused(tmp_path, "checkpoint.safetensors")


def test_a_checkpoint_that_uneven_did_not_write(reference: dict[str, Path], tmp_path: Path) -> None:
    path = broken(reference["scaffold"], tmp_path) / "checkpoint.safetensors"
    path.write_bytes(save({"model/weight": torch.zeros(2)}))
    refused(tmp_path, "checkpoint.safetensors")


@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
def test_a_memory_that_is_lost(content: bytes | None, reference: dict[str, Path], tmp_path: Path) -> None:
    memory = min((broken(reference["scaffold"], tmp_path) / "memories").iterdir())
    memory.unlink() if content is None else memory.write_bytes(content)
    refused(tmp_path, memory.name)


def test_lines_that_are_lost(reference: dict[str, Path], tmp_path: Path) -> None:
    """The bytes of the whole run could not be told any more."""
    rounds = broken(reference["scaffold"], tmp_path) / "rounds.jsonl"
    rounds.write_text("".join(rounds.read_text().splitlines(keepends=True)[1:]))
    refused(tmp_path, "rounds.jsonl", "rounds 1 to 4")
    rounds.unlink()
    refused(tmp_path, "rounds.jsonl")


def test_a_line_that_is_not_json(reference: dict[str, Path], tmp_path: Path) -> None:
    rounds = broken(reference["scaffold"], tmp_path) / "rounds.jsonl"
    rounds.write_text("{nonsense\n" + rounds.read_text())
    refused(tmp_path, "rounds.jsonl")


def test_fewer_rounds_than_are_done(reference: dict[str, Path], tmp_path: Path) -> None:
    spec = broken(reference["scaffold"], tmp_path) / "spec.toml"
    spec.write_text(spec.read_text().replace("rounds = 4", "rounds = 3"))
    refused(tmp_path, "rounds = 3", "4")
