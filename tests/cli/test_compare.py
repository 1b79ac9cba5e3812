"""`uneven compare`, `uneven plan` and `uneven groups`, as a user sees them."""

from __future__ import annotations

import json
import math
import re
import statistics
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.laws.world import supernet
from tests.run.helpers import files, one_error, server, sets
from uneven.comparison import parse_seeds, rows
from uneven.errors import SpecError
from uneven.plan import limit
from uneven.statistics import METRICS, difference, mean_of
from uneven.submodels.cost import widest, width_for
from uneven.training import TrainingOptions

TRAINING = TrainingOptions()
FORKED = "from tests.run.forked import fork_runs\nfork_runs()\n"


def compare(folder: Path, *arguments: str, before: str = FORKED) -> dict[str, Any]:
    ended = server()("compare", *sets(rounds=2), "--out", "c", *arguments, cwd=folder, before=before)
    assert (ended.code, ended.err) == (0, ""), ended
    table: dict[str, Any] = json.loads((folder / "c" / "comparison.json").read_text())
    return table


def test_every_combination_is_run_and_summed_up(tmp_path: Path) -> None:
    table = compare(tmp_path, "--methods", "heterofl,fedrolex", "--seeds", "0-1", "--grid", "training.lr=0.01,0.1")
    assert [(row["method"], row["grid"]["training.lr"]) for row in table["rows"]] == [
        *(("heterofl", lr) for lr in ("0.01", "0.1")),
        *(("fedrolex", lr) for lr in ("0.01", "0.1")),
    ]
    for row in table["rows"]:
        where = tmp_path / "c" / row["method"] / f"training.lr={row['grid']['training.lr']}"
        results = [json.loads((where / f"seed-{seed}" / "result.json").read_text()) for seed in (0, 1)]
        assert row["accuracy"]["values"] == [result["accuracy"] for result in results]
        assert row["accuracy"]["mean"] == pytest.approx(statistics.mean(row["accuracy"]["values"]))
        assert row["bytes_per_round"] == statistics.mean(
            sum((r["bytes"]["up"], r["bytes"]["down"])) / 2 for r in results
        )
        spec = tomllib.loads((where / "seed-1" / "spec.toml").read_text())
        assert spec["training"]["lr"] == float(row["grid"]["training.lr"])
        assert spec["versions"]["torch"] == torch.__version__  # a run writes down what it resolved
        assert spec["engine"] == {"name": "serial"}
    first, *others = table["rows"]
    metrics = [
        key for key in METRICS if key not in ("top3", "perplexity", "text_perplexity")
    ]  # those are of texts
    assert [key for key in METRICS if key in first] == metrics
    for key in metrics:
        assert "difference" not in first[key]
        for row in others:
            pairs = [a - b for a, b in zip(row[key]["values"], first[key]["values"], strict=True)]
            assert row[key]["difference"]["values"] == pytest.approx(pairs)
            assert (row[key]["difference"]["won"], row[key]["difference"]["of"]) == (sum(p > 0 for p in pairs), 2)


def test_what_is_shown(tmp_path: Path) -> None:
    """Below a method's accuracies are the differences to the first, in pairs, and the seeds won."""
    arguments = ("--methods", "heterofl,fedrolex", "--seeds", "0-1")
    shown = server()("compare", *sets(rounds=2), "--out", "c", *arguments, cwd=tmp_path, before=FORKED).out
    rows = json.loads((tmp_path / "c" / "comparison.json").read_text())["rows"]
    for names in (("accuracy", "best_accuracy", "smallest"), ("local_mean", "local_worst", "local_tail")):
        for row in rows:
            cells = [f"{100 * row[n]['mean']:.1f} ± {100 * row[n]['half_width_95']:.1f}" for n in names]
            assert re.search(r" +│ +".join([row["method"], "2", *map(re.escape, cells)]), shown), (names, shown)
        paired = [rows[1][n]["difference"] for n in names]
        below = [
            [f"{100 * p['mean']:+.1f} ± {100 * p['half_width_95']:.1f}" for p in paired],
            [f"{p['won']} of 2" for p in paired],
        ]
        lines = (" +│ +".join(map(re.escape, cells)) for cells in below)
        assert re.search(" +│\n│ +│ +│ +".join(lines), shown), (names, shown)


def test_next_tokens_are_compared_by_perplexity_too(tmp_path: Path) -> None:
    """Less is better there."""
    titles = [f"{a} {b} {c}" for a in "abc" for b in "de" for c in "fgh"]
    table = pa.table({"title": titles, "who": [str(i % 3) for i in range(len(titles))]})
    pq.write_table(table, tmp_path / "titles.parquet")
    keys = {
        "data.source": str(tmp_path / "titles.parquet"),
        "data.shape": None,
        "data.task": "next_token",
        "data.input": "title",
        "data.client": "who",
        "data.partition": "natural",
        "model.name": "slimmable_lstm",
        "model.hidden": 4,
        "model.embedding": 4,
        "clients.count": None,
        "cohort": 3,
        "rounds": 1,
    }
    arguments = ("--methods", "heterofl,fedrolex", "--seeds", "0-1", "--out", "c")
    ended = server()("compare", *sets(keys), *arguments, cwd=tmp_path, before=FORKED)
    assert (ended.code, ended.err) == (0, ""), ended
    first, other = json.loads((tmp_path / "c" / "comparison.json").read_text())["rows"]
    for key in ("top3", "perplexity", "text_perplexity"):
        pairs = [a - b for a, b in zip(other[key]["values"], first[key]["values"], strict=True)]
        won = sum(p < 0 if "perplexity" in key else p > 0 for p in pairs)
        assert other[key]["difference"]["values"] == pytest.approx(pairs)
        assert other[key]["difference"]["won"] == won
    assert f"{first['perplexity']['mean']:.1f} ± " in ended.out


def test_what_is_finished_is_not_run_again_and_seeds_can_be_added(tmp_path: Path) -> None:
    """Three seeds at once, or two and then a third after one run was lost: the same file."""
    methods = ("--methods", "heterofl")
    compare(tmp_path, *methods, "--seeds", "0-1")
    kept, lost = (tmp_path / "c" / "heterofl" / f"seed-{seed}" for seed in (0, 1))
    before = (kept / "result.json").stat().st_mtime_ns
    (lost / "result.json").unlink()  # as if stopped before its end
    interrupted = compare(tmp_path, *methods, "--seeds", "0-2", "--jobs", "2")
    assert (kept / "result.json").stat().st_mtime_ns == before
    (tmp_path / "fresh").mkdir()
    assert compare(tmp_path / "fresh", *methods, "--seeds", "0-2") == interrupted


def test_matched_budgets(tmp_path: Path) -> None:
    """Channel methods of one width cost the same; FedAvg at the smallest width leaves budget unused."""
    (tmp_path / "spec.toml").write_text('[compare.small]\nname = "fedavg"\nfit = "smallest"\n')
    arguments = ("spec.toml", "--methods", "heterofl,federated_dropout,small", "--seeds", "0", "--match", "macs")
    rows = compare(tmp_path, *arguments)["rows"]
    assert [row["budget"]["unit"] for row in rows] == ["macs"] * 3
    for row in rows[:2]:
        assert row["budget"]["least"] == row["budget"]["most"] == 1
    assert rows[2]["budget"]["most"] == 1 > rows[2]["budget"]["mean"] > rows[2]["budget"]["least"]
    assert rows[0]["macs"] == rows[1]["macs"]
    assert rows[0]["accuracy"]["half_width_95"] is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--methods", "heterofll"), ["heterofll", "did you mean 'heterofl'"]),
        (("--seeds", "x"), ["--seeds 'x'", "0-4"]),
        (("--seeds", "4-0"), ["counts down"]),
        (("--set", "seed=3"), ["seed", "--seeds"]),
        (("--grid", "seed=3,4"), ["seed", "--seeds"]),
        (("--grid", "training.lr"), ["--grid 'training.lr'", "a.b=x,y"]),
        (("--grid", "rounds=1,2", "--grid", "rounds=3"), ["--grid rounds", "twice"]),
        (("--match", "minutes"), ["match = 'minutes'"]),
        (("--grid", "training.lr=0.1,-1"), ["training.lr = -1"]),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: tuple[str, ...], says: list[str]) -> None:
    one_error(server()("compare", *sets(), "--out", "c", *arguments, cwd=tmp_path), *says)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("label", "form", "expected"),
    [
        # keys of the spec are laid over it, the others are the method's, whose name may be the label
        ("fedrolex", {}, {"method": {"name": "fedrolex"}}),
        ("small", {"name": "fedavg", "fit": "smallest"}, {"method": {"name": "fedavg", "fit": "smallest"}}),
        ("fedavg", {"fit": "smallest"}, {"method": {"name": "fedavg", "fit": "smallest"}}),
        ("fjord", {"rounds": 7}, {"method": {"name": "fjord"}, "rounds": 7}),
        ("long", {"name": "fjord", "rounds": 7}, {"method": {"name": "fjord"}, "rounds": 7}),
        # a label that is no method keeps the spec's method, and may change its options
        ("long", {"rounds": 7}, {"method": {"name": "fedavg", "fit": "exclude"}, "rounds": 7}),
        ("long", {"rounds": 7, "fit": "smallest"}, {"method": {"name": "fedavg", "fit": "smallest"}, "rounds": 7}),
        ("long", {"method": "fjord", "server": {"lr": 0.5}}, {"method": {"name": "fjord"}, "server": {"lr": 0.5}}),
        ("fjord", {"method": {"name": "scalefl"}}, {"method": {"name": "scalefl"}}),
    ],
)
def test_what_a_label_lays_over_the_spec(label: str, form: Any, expected: dict[str, Any], tmp_path: Path) -> None:
    table = {"method": {"name": "fedavg", "fit": "exclude"}, "compare": {label: form}}
    (row,) = rows(table, [], None, methods=[label], grid=[], out=tmp_path)
    spec = row.spec(0)
    assert row.label == label
    assert {"name": spec.method.name, **spec.method.options} == expected["method"]
    assert spec.rounds == expected.get("rounds", 60)
    assert spec.server.lr == expected.get("server", {}).get("lr")


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("fit = 1", ["method.name = 'lab'", "heterofl"]),  # neither a method nor a key of the spec
        ("seed = 3", ["compare.lab.seed", "--seeds"]),
        ("rounds = 0", ["rounds = 0"]),
        ('method = "fjord"\nname = "fjord"', ["compare.lab.name", "compare.lab.method"]),
        ("serve = { lr = 1 }\nrounds = 2", ["serve"]),
    ],
)
def test_bad_labels(tmp_path: Path, form: str, says: list[str]) -> None:
    (tmp_path / "spec.toml").write_text(f"[compare.lab]\n{form}\n")
    one_error(server()("compare", "spec.toml", "--methods", "lab", "--out", "c", cwd=tmp_path), *says)
    (tmp_path / "spec.toml").write_text("[compare]\nlab = 3\n")
    one_error(server()("compare", "spec.toml", "--methods", "lab", cwd=tmp_path), "compare.lab = 3", "a table")
    (tmp_path / "spec.toml").write_text("compare = 3\n")
    one_error(server()("compare", "spec.toml", "--methods", "lab", cwd=tmp_path), "compare = 3", "tables")


def test_another_comparison_is_not_written_over(tmp_path: Path) -> None:
    compare(tmp_path, "--methods", "heterofl", "--seeds", "0")
    before = files(tmp_path / "c" / "heterofl" / "seed-0")
    changed = server()(
        "compare", *sets(rounds=3), "--out", "c", "--methods", "heterofl", "--seeds", "0", cwd=tmp_path
    )
    one_error(changed, "another spec")
    assert files(tmp_path / "c" / "heterofl" / "seed-0") == before


def test_a_run_that_fails_is_named_and_the_others_count(tmp_path: Path) -> None:
    """A learning rate that gives NaN stops its own run alone. Here runs are processes as users have them."""
    arguments = ("--methods", "heterofl", "--seeds", "0", "--grid", "training.lr=0.05,1e30", "--out", "c")
    ended = server()("compare", *sets(), *arguments, cwd=tmp_path)
    one_error(ended, "training.lr=1e+30", "quorum")
    rows = json.loads((tmp_path / "c" / "comparison.json").read_text())["rows"]
    assert [len(row["seeds"]) for row in rows] == [1, 0]


def test_what_is_named_twice_is_run_once(tmp_path: Path) -> None:
    """Also where two spellings are one value; values may be lists."""
    grid = ("--grid", "training.lr=0.1,0.10", "--grid", "clients.capacities=[1, 1, 1, 0.5, 0.5, 0.5],1")
    rows = compare(tmp_path, "--methods", "heterofl,heterofl", "--seeds", "0,0", *grid, "--jobs", "2")["rows"]
    assert [row["grid"]["clients.capacities"] for row in rows] == ["[1, 1, 1, 0.5, 0.5, 0.5]", "1"]
    assert all(len(row["seeds"]) == 1 for row in rows)


def test_a_run_that_says_much_does_not_hang(tmp_path: Path) -> None:
    """More than a pipe holds, on standard error."""
    (tmp_path / "loud.py").write_text(
        "import sys\n"
        "from uneven.methods import HeteroFL\n"
        "class Loud(HeteroFL):\n"
        "    def adjust(self, t):\n"
        "        print('x' * 300_000, file=sys.stderr)\n"
    )
    table = compare(tmp_path, "--methods", "loud:Loud", "--seeds", "0", before="")
    assert table["rows"][0]["seeds"] == [0]


def test_intervals_by_hand() -> None:
    """0.1, 0.2, 0.6: mean .3, s = sqrt(.07), t(.975, 2) = 4.302653, half-width 4.302653 sqrt(.07 / 3)."""
    mean = mean_of([0.1, 0.2, 0.6])
    assert mean.mean == pytest.approx(0.3)
    assert mean.half == pytest.approx(4.302653 * math.sqrt(0.07 / 3), rel=1e-6)


def test_differences_by_hand() -> None:
    """Seeds 1, 2, 4: .1, 0, -.4; mean -.1, s = sqrt(.07), one won; one of lower numbers."""
    found = difference({0: 9.0, 1: 0.3, 2: 0.5, 4: 0.2}, {1: 0.2, 2: 0.5, 3: 9.0, 4: 0.6})
    assert found is not None
    assert found["values"] == pytest.approx([0.1, 0.0, -0.4])
    assert found["mean"] == pytest.approx(-0.1)
    assert found["half_width_95"] == pytest.approx(4.302653 * math.sqrt(0.07 / 3), rel=1e-6)
    assert (found["won"], found["of"]) == (1, 3)
    fewer = difference({1: 3.0, 2: 4.0, 3: 9.0}, {1: 5.0, 2: 4.0, 3: 10.0}, lower_is_better=True)
    assert fewer is not None
    assert fewer["won"] == 2
    assert difference({0: 1.0}, {1: 1.0}) is None


def test_seeds() -> None:
    assert parse_seeds("3, 0-2,2") == [3, 0, 1, 2]
    for bad in ("", "1-", "a", "-1"):
        with pytest.raises(SpecError):
            parse_seeds(bad)


def test_plan_shows_costs_and_the_widest_that_fits(tmp_path: Path) -> None:
    """An mlp of 64 inputs, 8 hidden units and 3 classes: 64 k + k + 3 k + 3 parameters with k units."""
    ended = server()("plan", *sets(), "--macs", "300", cwd=tmp_path)
    assert ended.code == 0, ended
    for k in (8, 6, 4, 3, 2, 1):
        assert re.search(rf"│ +{68 * k + 3} │ +{67 * k} │", ended.out), k
    assert "the widest that fits (macs at most 300): 0.5" in ended.out
    one_error(server()("plan", *sets(), "--macs", "10", cwd=tmp_path), "no width fits")
    one_error(server()("plan", *sets(), "--memory", "x", cwd=tmp_path), "--memory 'x'", "512MB")


def test_quantities() -> None:
    assert [limit(t, "f") for t in ("5", "2k".upper(), "1.5MB", "2GiB")] == [5, 2000, 1_500_000, 2 * 2**30]
    for bad in ("", "0", "-1MB", "1Z", "MB"):
        with pytest.raises(SpecError):
            limit(bad, "f")


@pytest.mark.parametrize("unit", ["params", "macs", "bytes", "memory"])
def test_widest_is_within_its_limit_and_the_next_step_is_not(unit: Any) -> None:
    from uneven.submodels.cost import cost, widths

    net = supernet("cnn-group")
    steps = widths(net)
    for capacity in (0.9, 0.5, 0.3):
        limit = math.ceil(capacity * cost(net.prefix(1.0), unit, TRAINING))
        width = width_for(net, capacity, unit, TRAINING)
        assert cost(net.prefix(width), unit, TRAINING) <= limit
        assert cost(net.prefix(steps[steps.index(width) + 1]), unit, TRAINING) > limit


def test_a_capacity_out_of_reach_names_the_range() -> None:
    net = supernet("cnn-group")
    with pytest.raises(SpecError, match=r"reachable range is 0\.\d+ to 1"):
        width_for(net, 0.001, "params", TRAINING)
    assert widest(net, lambda submodel: False) is None


def test_groups(tmp_path: Path) -> None:
    ended = server()("groups", *sets(), "--plot", "g.png", cwd=tmp_path)
    assert ended.code == 0, ended
    assert "1 channel groups" in ended.out
    assert "1.weight:0, 1.bias:0, 3.weight:1" in ended.out
    assert "the model's output" in ended.out
    assert (tmp_path / "g.png").stat().st_size > 1000
