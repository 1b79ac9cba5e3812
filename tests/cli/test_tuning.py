"""`uneven compare --tune`: values chosen on validation data."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.run.helpers import Ended, one_error, server, sets
from uneven import comparison, tuning
from uneven.comparison import Row, Run

FORKED = "from tests.run.forked import fork_runs\nfork_runs()\n"
LR = "training.lr"


def compare(folder: Path, *arguments: str, fault: str = "") -> Ended:
    return server()("compare", *sets(rounds=2), "--out", "c", *arguments, cwd=folder, before=FORKED + fault)


def content(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((folder / "c" / "comparison.json").read_text())
    return table


def result(run: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((run / "result.json").read_text())
    return table


def spec(run: Path) -> dict[str, Any]:
    return tomllib.loads((run / "spec.toml").read_text())


def planned(
    out: Path, *methods: str, grid: Sequence[str] = (), table: Mapping[str, Any] | None = None
) -> list[Row]:
    return comparison.rows(table or {}, [], None, methods=methods, grid=grid, out=out)


def pretend(trials: tuning.Trials, *accuracies: Sequence[float | None]) -> None:
    """Let each row's trials have ended so, with accuracies of their own in better rounds before."""
    for (_, runs), of_row in zip(trials, accuracies, strict=True):
        for run, accuracy in zip(runs, of_row, strict=True):
            if accuracy is not None:
                run.folder.path.mkdir(parents=True)
                outcome = {"accuracy": accuracy, "best_accuracy": 1 - accuracy}
                (run.folder.path / "result.json").write_text(json.dumps(outcome))


def test_each_row_takes_its_best_value(tmp_path: Path) -> None:
    """By the final round; the first of equals; each method and grid value its own; at the lowest or highest
    number, in whatever order they were given, a better one may lie beyond."""
    rows = planned(tmp_path, "heterofl", "fedrolex", grid=["rounds=1,2"])
    trials = tuning.plan(rows, [f"{LR}=0.05,0.2,0.1"], seeds=[0, 1])
    pretend(trials, [0.5, 0.6, 0.7], [0.3, 0.7, 0.7], [0.4, 0.4, 0.3], [None, 0.1, None])
    settled = tuning.chosen(trials)
    assert [(row.label, *row.names) for row in settled] == [
        ("heterofl", ("rounds", "1"), (LR, "0.1")),
        ("heterofl", ("rounds", "2"), (LR, "0.2")),
        ("fedrolex", ("rounds", "1"), (LR, "0.05")),
        ("fedrolex", ("rounds", "2"), (LR, "0.2")),
    ]
    assert [row.tuning["at_edge"] for row in settled if row.tuning] == [[], [LR], [LR], [LR]]
    runs = comparison.plan(settled, [0, 1])
    assert [run.spec.training.lr for run in runs] == [0.1, 0.1, 0.2, 0.2, 0.05, 0.05, 0.2, 0.2]
    assert settled[3].tuning == {
        "seed": 1000,
        "validation": 0.1,
        "chosen": {LR: "0.2"},
        "at_edge": [LR],
        "trials": [
            {"values": {LR: "0.05"}, "accuracy": None},
            {"values": {LR: "0.2"}, "accuracy": 0.1},
            {"values": {LR: "0.1"}, "accuracy": None},
        ],
    }


def test_combinations_and_what_has_no_order(tmp_path: Path) -> None:
    trials = tuning.plan(planned(tmp_path, "heterofl"), [f"{LR}=1,2", "training.schedule=constant,cosine"], [0])
    tried = [run.row.names for run in trials[0][1]]
    assert tried == [((LR, lr), ("training.schedule", s)) for lr in "12" for s in ("constant", "cosine")]
    pretend(trials, [0.1, 0.2, 0.3, 0.4])
    (row,) = tuning.chosen(trials)
    assert row.names == tried[3]
    assert row.tuning is not None
    assert row.tuning["at_edge"] == [LR]


def test_a_row_without_a_finished_trial_has_no_runs_and_no_value(tmp_path: Path) -> None:
    trials = tuning.plan(planned(tmp_path, "heterofl", "fedrolex"), [f"{LR}=0.1,0.2"], [0])
    pretend(trials, [None, None], [0.1, 0.2])
    rows = tuning.chosen(trials)
    runs = comparison.plan(rows, [0])
    assert [run.row.label for run in runs] == ["fedrolex"]
    first, second = comparison.summarise(rows, runs)
    assert (first["tuning"]["chosen"], first["tuning"]["at_edge"], first["seeds"]) == (None, [], [])
    assert second["tuning"]["chosen"] == {LR: "0.2"}


def shares(runs: Sequence[Run]) -> set[float | None]:
    return {run.spec.data.validation for run in runs}


@pytest.mark.parametrize(("given", "share"), [(None, 0.1), (0.3, 0.3)])
def test_only_trials_see_validation_data(tmp_path: Path, given: float | None, share: float) -> None:
    """Also where the spec asks for it; a row's values are in the names of its folders, in either stage."""
    table = {} if given is None else {"data": {"validation": given}}
    trials = tuning.plan(planned(tmp_path, "heterofl", table=table), [f"{LR}=0.1,0.2"], [0, 1000, 1001])
    tried = trials[0][1]
    assert shares(tried) == {share}
    assert {run.spec.seed for run in tried} == {1002}
    assert tried[0].folder.path == tmp_path / "tune" / "heterofl" / f"{LR}=0.1" / "seed-1002"
    pretend(trials, [0.5, 0.1])
    runs = comparison.plan(tuning.chosen(trials), [0, 1000])
    assert shares(runs) == {None}
    assert [run.spec.seed for run in runs] == [0, 1000]
    assert runs[0].folder.path == tmp_path / "heterofl" / f"{LR}=0.1" / "seed-0"


TUNED = ("--methods", "heterofl,fedrolex", "--seeds", "0", "--tune", f"{LR}=0.1,0.001")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A comparison that was not stopped."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, compare(folder, *TUNED)


def test_a_tuned_comparison(whole: tuple[Path, Ended]) -> None:
    folder, ended = whole
    assert (ended.code, ended.err) == (0, "")
    for row in content(folder)["rows"]:
        where, tuned = folder / "c" / row["method"], row["tuning"]
        scores = {}
        for trial in tuned["trials"]:
            lr = trial["values"][LR]
            run = folder / "c" / "tune" / row["method"] / f"{LR}={lr}" / "seed-1000"
            scores[lr] = result(run)["accuracy"]
            assert (trial["accuracy"], spec(run)["data"]["validation"]) == (scores[lr], 0.1)
        assert list(scores) == ["0.1", "0.001"]
        best = tuned["chosen"][LR]
        assert best == max(scores, key=scores.__getitem__)
        assert [path.name for path in where.iterdir()] == [f"{LR}={best}"]
        run = where / f"{LR}={best}" / "seed-0"
        assert row["accuracy"]["values"] == [result(run)["accuracy"]]
        assert row["best_accuracy"]["values"] == [result(run)["best_accuracy"]]
        assert spec(run)["training"]["lr"] == float(best)
        assert "validation" not in spec(run)["data"]


def test_what_it_shows(whole: tuple[Path, Ended]) -> None:
    folder, ended = whole
    assert "4 runs to choose values, 0 of them finished before" in ended.out
    assert "2 runs, 0 of them finished before" in ended.out
    table = ended.out.partition("chosen on validation data, seed 1000")[2]
    for row in content(folder)["rows"]:
        (line,) = (line for line in table.splitlines() if row["method"] in line)
        tuned = row["tuning"]
        accuracy = max(trial["accuracy"] for trial in tuned["trials"])
        mark = " (edge)" if tuned["at_edge"] else ""
        assert [cell.strip() for cell in line.strip("│").split("│")] == [
            row["method"],
            tuned["chosen"][LR] + mark,
            f"{100 * accuracy:.1f}",
        ]


def test_stopped_in_either_stage(tmp_path: Path, whole: tuple[Path, Ended]) -> None:
    """Before the third trial, then before the last run: it goes on with what is left, to the same file."""
    stops = [f"at('uneven.comparison:_spawn', {call}, interrupt)" for call in (3, 4)]
    first, second, last = (compare(tmp_path, *TUNED, fault=fault) for fault in (*stops, ""))
    assert first.code != 0
    assert second.code != 0
    assert "4 runs to choose values, 2 of them finished before" in second.out
    assert (last.code, last.err) == (0, "")
    assert "4 runs to choose values, 4 of them finished before" in last.out
    assert "2 runs, 1 of them finished before" in last.out
    assert content(tmp_path) == content(whole[0])


def test_a_value_that_fails_is_named_and_others_can_be_added(tmp_path: Path) -> None:
    """What was tried is not run again, and the row may get another value."""
    once = ("--methods", "heterofl", "--seeds", "0", "--tune")
    ended = compare(tmp_path, *once, f"{LR}=0.0001,1e30")
    one_error(ended, f"{Path('tune') / 'heterofl' / (LR + '=1e+30')}", "quorum")
    (row,) = content(tmp_path)["rows"]
    assert row["tuning"]["chosen"] == {LR: "0.0001"}
    assert [trial["accuracy"] is None for trial in row["tuning"]["trials"]] == [False, True]
    assert row["seeds"] == [0]
    tried = tmp_path / "c" / "tune" / "heterofl" / f"{LR}=0.0001" / "seed-1000" / "result.json"
    before = tried.stat().st_mtime_ns
    ended = compare(tmp_path, *once, f"{LR}=0.0001,0.1")
    assert "2 runs to choose values, 1 of them finished before" in ended.out
    assert tried.stat().st_mtime_ns == before
    assert content(tmp_path)["rows"][0]["tuning"]["chosen"] == {LR: "0.1"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["training.lrr=0.1,0.2"], ["training.lrr = 0.1: no such key", "'lr'"]),
        ([f"{LR}=0.1"], [f"--tune {LR}=0.1", "two or more"]),
        ([f"{LR}=0.1,0.10"], [f"--tune {LR}=0.1", "two or more"]),
        ([f"{LR}=0.1,-1"], ["training.lr = -1"]),
        ([LR], [f"--tune '{LR}'", "a.b=x,y"]),
        (["seed=1,2"], ["seed", "--seeds"]),
        (["data.validation=0.1,0.2"], ["data.validation", "--tune sets it"]),
        (["data={validation=0.1},{validation=0.2}"], ["data.validation", "--tune sets it"]),
        ([f"{LR}=1,2", "--grid", "data.validation=0.1,0.2"], ["data.validation", "--tune sets it"]),
        ([f"{LR}=1,2", "--grid", f"{LR}=1,2"], [f"--tune {LR}", "--grid"]),
        ([f"{LR}=1,2", "--tune", f"{LR}=3,4"], [f"--tune {LR}", "twice"]),
        ([f"{LR}=1,2", "--tune-seed", "1"], ["--tune-seed 1", "--seeds"]),
        ([f"{LR}=1,2", "--set", "data.validation=2"], ["data.validation = 2"]),
    ],
)
def test_what_cannot_be_tuned(tmp_path: Path, arguments: list[str], says: list[str]) -> None:
    one_error(compare(tmp_path, "--seeds", "0-2", "--tune", *arguments), *says)
    assert not (tmp_path / "c").exists()


def test_a_seed_without_values_to_tune(tmp_path: Path) -> None:
    one_error(compare(tmp_path, "--tune-seed", "5"), "--tune-seed", "--tune")
    assert not (tmp_path / "c").exists()
