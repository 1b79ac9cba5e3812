"""The disk is full: one clear error, what was there stays good, and with room again the run ends as it would have.

Two real faults: a limit on the size of files (the kernel refuses what goes beyond it), and ``/dev/full`` in the
place of the file that is written, which answers every write as a full disk does.
"""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.run.helpers import assert_same_run, files, one_error, server, sets

RUN = sets({"method.name": "scaffold", "clients.capacities": 1})
SAVE = "uneven.tracking:RunFolder.save_checkpoint"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reference")
    assert server()("run", *RUN, "--out", "run", cwd=root).code == 0
    return root / "run"


CHECKPOINT = "where=lambda _, name, *__: name.startswith('checkpoint')"


@pytest.mark.parametrize(
    ("round_", "fault"),
    [
        (1, f"at('{SAVE}', 1, no_space)"),
        (2, f"at('{SAVE}', 2, no_space)"),
        (2, f"at('uneven.tracking:RunFolder.write', 2, no_space, {CHECKPOINT})"),  # the memories had room
        (4, f"at('uneven.tracking:RunFolder.write', 4, no_space, {CHECKPOINT})"),
    ],
)
def test_files_that_may_not_grow(round_: int, fault: str, reference: Path, tmp_path: Path) -> None:
    ended = server()("run", *RUN, "--out", "run", cwd=tmp_path, before=fault)
    one_error(ended, f"cannot write the checkpoint of round {round_}", "File too large", "--resume run")
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    if round_ > 1:
        assert load_file(checkpoint)
    else:
        assert not checkpoint.exists()
    assert not [name for name in files(tmp_path) if "partial" in name]
    assert server()("run", "--resume", "run", cwd=tmp_path).code == 0
    assert_same_run(tmp_path / "run", reference)


def test_still_no_room(reference: Path, tmp_path: Path) -> None:
    """To go on without room is the same error, again and again, and costs nothing."""
    server()("run", *RUN, "--out", "run", cwd=tmp_path, before=f"at('{SAVE}', 3, no_space)")
    before = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    for _ in range(2):
        ended = server()("run", "--resume", "run", cwd=tmp_path, before=f"at('{SAVE}', 1, no_space)")
        one_error(ended, "cannot write the checkpoint of round 3")
        assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == before
    assert server()("run", "--resume", "run", cwd=tmp_path).code == 0
    assert_same_run(tmp_path / "run", reference)


@pytest.mark.parametrize(
    ("place", "file", "says"),
    [
        (f"'{SAVE}', 2", ".checkpoint.safetensors.partial", "cannot write the checkpoint of round 2"),
        ("'uneven.tracking:RunFolder.finish'", ".result.json.partial", "cannot write the result"),
        ("'uneven.tracking:RunFolder.finish'", ".clients.jsonl.partial", "cannot write the result"),
    ],
)
def test_a_full_device(place: str, file: str, says: str, reference: Path, tmp_path: Path) -> None:
    fault = f"def fill():\n    import os\n    os.symlink('/dev/full', 'run/{file}')\nat({place}, fault=fill)"
    ended = server()("run", *RUN, "--out", "run", cwd=tmp_path, before=fault)
    one_error(ended, says, "No space left on device", "--resume run")
    assert not (tmp_path / "run" / "result.json").exists()
    assert server()("run", "--resume", "run", cwd=tmp_path).code == 0
    assert_same_run(tmp_path / "run", reference)


def test_a_full_device_for_lines(reference: Path, tmp_path: Path) -> None:
    fault = (
        "def fill():\n"
        "    import os\n"
        "    os.rename('run/rounds.jsonl', 'run/rounds')\n"
        "    os.symlink('/dev/full', 'run/rounds.jsonl')\n"
        "at('uneven.tracking:RunFolder.append_round', 2, fill)"
    )
    ended = server()("run", *RUN, "--out", "run", cwd=tmp_path, before=fault)
    one_error(ended, "cannot write the line of round 2", "No space left on device", "--resume run")
    (tmp_path / "run" / "rounds").replace(tmp_path / "run" / "rounds.jsonl")
    assert server()("run", "--resume", "run", cwd=tmp_path).code == 0
    assert_same_run(tmp_path / "run", reference)


def test_no_room_for_the_spec(tmp_path: Path) -> None:
    """Nothing has begun: the same command again is all it takes."""
    before = "at('uneven.tracking:RunFolder.create', fault=no_space)"
    one_error(server()("run", *RUN, "--out", "run", cwd=tmp_path, before=before), "cannot write to run")
    assert server()("run", *RUN, "--out", "run", cwd=tmp_path).code == 0


def test_killed_before_the_spec(tmp_path: Path) -> None:
    before = "at('pathlib:Path.replace')"
    assert server()("run", *RUN, "--out", "run", cwd=tmp_path, before=before).killed
    one_error(server()("run", "--resume", "run", cwd=tmp_path), "is not a run folder")
    assert server()("run", *RUN, "--out", "run", cwd=tmp_path).code == 0
