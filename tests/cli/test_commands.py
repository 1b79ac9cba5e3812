"""The commands themselves, as a user sees them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.helpers import files, lines, one_error, server, sets
from uneven.methods import METHODS

COMMAND = Path(sys.executable).with_name("uneven")


def test_run(tmp_path: Path) -> None:
    """Plain lines where there is no terminal: what it is, one per evaluation, a table, the outcome."""
    ended = server()("run", *sets(), "--out", "here", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    first, *rest = ended.out.splitlines()
    assert first == "heterofl: 6 clients, mlp of 547 parameters, capacities 1, 0.5, 0.25, 0.125, in here"
    rounds = [line for line in rest if line.startswith("round ")]
    assert [re.sub(r"\d\.\d{3}", "#", line) for line in rounds] == [
        "round 2  loss #  accuracy #",
        "round 4  loss #  accuracy #",
    ]
    for heading in ("capacity", "clients", "parameters", "MACs", "bytes a round", "accuracy"):
        assert heading in ended.out
    result = json.loads((tmp_path / "here" / "result.json").read_text())
    assert f"full model: accuracy {result['accuracy']:.3f}, best {result['best_accuracy']:.3f}" in ended.out
    for row in result["per_capacity"]:
        assert re.search(rf"│ +{row['capacity']:g} │ +{row['clients']} │ +{row['parameters']} │", ended.out)
    assert "\x1b" not in ended.out
    assert rest[-1] == f"result: {Path('here') / 'result.json'}"


def test_the_default_folder_counts_up(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text("")
    for n in (1, 2):
        assert server()("run", "small.toml", *sets(rounds=1), cwd=tmp_path).code == 0
        assert (tmp_path / "runs" / f"small-{n}" / "result.json").exists()
    assert server()("run", *sets(rounds=1), cwd=tmp_path).code == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["demo-1", "small-1", "small-2"]


def test_overwrite(tmp_path: Path) -> None:
    scaffold = sets({"method.name": "scaffold", "clients.capacities": 1})
    assert server()("run", *scaffold, "--out", "here", cwd=tmp_path).code == 0
    assert server()("run", *sets(rounds=1), "--out", "here", "--overwrite", cwd=tmp_path).code == 0
    assert server()("run", *sets(rounds=1), "--out", "fresh", cwd=tmp_path).code == 0
    assert len(lines(tmp_path / "here" / "rounds.jsonl")) == 1
    assert files(tmp_path / "here").keys() == files(tmp_path / "fresh").keys()
    (tmp_path / "empty").mkdir()
    assert server()("run", *sets(rounds=1), "--out", "empty", cwd=tmp_path).code == 0, "nothing is lost in it"


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    """``[b]`` and ``:x:`` mean something to the library that prints."""
    name = "a[b]c:x:"
    ended = server()("run", *sets(rounds=1), "--out", name, cwd=tmp_path)
    assert ended.out.splitlines()[0].endswith(f"in {name}")
    assert ended.out.splitlines()[-1] == f"result: {name}/result.json"


def test_a_profile(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text("[profile.small]\nrounds = 1\nseed = 7\n")
    ended = server()("run", "spec.toml", *sets(rounds=None), "--profile", "small", "--out", "x", cwd=tmp_path)
    assert ended.code == 0
    result = json.loads((tmp_path / "x" / "result.json").read_text())
    assert (result["rounds"], result["seed"]) == (1, 7)
    assert "profile" not in (tmp_path / "x" / "spec.toml").read_text()


def test_all_methods(tmp_path: Path) -> None:
    ended = server()("methods", cwd=tmp_path)
    assert ended.code == 0
    for name in METHODS:
        assert name in ended.out


@pytest.mark.parametrize("name", METHODS)
def test_one_method(name: str, tmp_path: Path) -> None:
    """Its paper, its rule, what deviates, and every option with its default and meaning."""
    ended = server()("methods", name, cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    for part in ("Paper: ", "20", "Rule: ", "Deviations: "):
        assert part in ended.out
    for option, field in METHODS[name].Options.model_fields.items():
        default = "none" if field.default is None else str(field.default)
        default = default.lower() if isinstance(field.default, bool) else default
        assert re.search(rf"│ {option} +│ {default} +│ \w", ended.out), option
        assert field.description


def test_data(tmp_path: Path) -> None:
    ended = server()("data", *sets({"data.partition.kind": "iid"}), cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    summary = " ".join(ended.out.split())
    assert "6 clients, 72 training examples" in summary
    assert "18 local and 30 global test examples" in summary
    assert ended.out.splitlines()[-1] == "plot: demo-data.png"
    assert (tmp_path / "demo-data.png").read_bytes().startswith(b"\x89PNG")
    assert server()("data", *sets(), "--plot", "x.svg", cwd=tmp_path).code == 0
    assert "<svg" in (tmp_path / "x.svg").read_text()


def test_no_arguments_is_help(tmp_path: Path) -> None:
    ended = server()(cwd=tmp_path)
    for name in ("run", "methods", "data"):
        assert name in ended.out + ended.err


def test_in_a_terminal(tmp_path: Path) -> None:
    """The live bar, and the cursor shown again after it."""
    ended = server().in_terminal("run", *sets(), "--out", "x", cwd=tmp_path)
    assert ended.code == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", ended.out)
    assert re.search(r"round 4/4 .*loss \d\.\d{3}  accuracy \d\.\d{3}", text)
    assert "full model: accuracy" in text
    assert ended.out.rindex("\x1b[?25h") > ended.out.rindex("\x1b[?25l")


def test_an_error_in_a_terminal(tmp_path: Path) -> None:
    """The bar is cleared away before the error is shown."""
    ended = server().in_terminal("run", *sets(cohort=7), "--out", "x", cwd=tmp_path)
    assert ended.code == 2
    assert ended.out.rindex("error: cohort = 7: only 6 of 6 clients can take part") > ended.out.rindex("\x1b[?25h")
    assert not (tmp_path / "x").exists()


def test_exit_code_of_the_installed_command(tmp_path: Path) -> None:
    ended = subprocess.run(
        [COMMAND, "run", "--set", "rouns=3"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: rouns = 3: no such key; did you mean 'rounds'?\n"


def test_resume_says_where_it_goes_on(tmp_path: Path) -> None:
    before = "at('uneven.tracking:RunFolder.append_round', 3)"
    assert server()("run", *sets(), "--out", "x", cwd=tmp_path, before=before).killed
    assert "goes on after round 2" in server()("run", "--resume", "x", cwd=tmp_path).out
    one_error(server()("run", "--resume", "x/spec.toml", cwd=tmp_path), "is not a run folder")
