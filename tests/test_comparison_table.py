"""`scripts/results_table.py`: the table, from files written by hand."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts import results_table
from scripts.results_table import markdown

from uneven.errors import RunError, SpecError


def mean(*values: float, half: float | None = None) -> dict[str, Any]:
    return {"mean": sum(values) / len(values), "half_width_95": half, "values": list(values)}


def row(method: str, accuracies: dict[int, float], **others: Any) -> dict[str, Any]:
    if not accuracies:
        return {"method": method, "grid": {}, "seeds": [], **others}
    return {
        "method": method,
        "grid": {},
        "seeds": list(accuracies),
        "accuracy": mean(*accuracies.values(), half=0.0123),
        "smallest": mean(0.25),
        "local_mean": mean(0.625, half=0.05),
        "local_worst": mean(0.0),
        "local_tail": mean(0.125),
        "parameters": 1234567.8,
        "macs": 2_340_000.0,
        "memory": 5_600_000.0,
        "bytes_per_round": 78_000_000.0,
    } | others


def tuning(value: str | None, *edge: str) -> dict[str, Any]:
    return {"chosen": None if value is None else {"training.lr": value}, "at_edge": list(edge)}


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "comparison.json").write_text(json.dumps({"match": None, "rows": rows}))
    return folder


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_column(tmp_path: Path) -> None:
    """Differences over seeds 0 and 2: .1 and .2, mean .15, s = .0707, t(.975, 1) = 12.7062, half .6353."""
    folder = write(
        tmp_path / "c",
        row("base", {0: 0.5, 1: 0.9, 2: 0.5}, tuning=tuning("0.05")),
        row("other", {0: 0.6, 2: 0.7, 5: 0.8}, tuning=tuning("0.1", "training.lr")),
        row("later", {}, tuning=tuning(None)),
    )
    head, align, base, other, later = markdown([folder])
    costs = ["25.0", "62.5 ± 5.0", "0.0", "1,234,568", "2.34", "5.6", "78"]
    assert cells(head) == [
        *("method", "seeds", "full model", "to base", "smallest capacity", "local mean", "local worst"),
        *("parameters", "MACs, M", "memory, MB", "bytes a round, MB", "tuned"),
    ]
    assert set(cells(align)) == {"---", "---:"}
    assert cells(base) == ["base", "3", "63.3 ± 1.2", "", *costs, "0.05"]
    half = 12.7062 * math.sqrt(0.005) / math.sqrt(2)
    assert cells(other) == ["other", "3", "70.0 ± 1.2", f"+15.0 ± {100 * half:.1f}", *costs, "0.1 (edge)"]
    assert cells(later) == ["later", *["not run"] * 11]


def test_what_only_some_comparisons_have(tmp_path: Path) -> None:
    """The last evaluations, and perplexity, which is no percentage."""
    texts = {"recent_accuracy": mean(0.25, 0.35), "perplexity": mean(20.0, 30.0, half=1.25)}
    head, _, first, second = markdown([write(tmp_path / "c", row("a", {0: 0.5}, **texts), row("b", {0: 0.5}))])
    assert cells(head)[3:7] == ["to a", "last 5 evaluations", "perplexity", "smallest capacity"]
    assert cells(first)[4:6] == ["30.0", "25.0 ± 1.2"]
    assert cells(second)[4:6] == ["", ""]


def test_clients_on_their_own_data(tmp_path: Path) -> None:
    """Of seeds 0, 1 and 2 the first is won and the third is equal; the tails are equal; -.1, .2: t = 12.7062."""
    base = row("base", {0: 0.5, 1: 0.9, 2: 0.5}, local_mean=mean(0.3, 0.2, 0.4), local_worst=mean(0.0, 0.1, 0.1))
    base |= {"local_tail": mean(0.1, 0.1, 0.1)}
    other = row("other", {0: 0.5, 2: 0.5}, local_mean=mean(0.5, 0.4), local_worst=mean(0.2, 0.0))
    other |= {"local_tail": mean(0.1, 0.1)}
    head, _, first, second, later = markdown([write(tmp_path / "c", base, other, row("later", {}))], local=True)
    assert cells(head) == [
        *("method", "seeds", "local mean", "to base", "won", "local worst", "to base", "won"),
        *("local tail", "to base", "won"),
    ]
    assert cells(first) == ["base", "3", "30.0", "", "", "6.7", "", "", "10.0", "", ""]
    mean_half, worst_half = 12.7062 * 0.1, 12.7062 * 0.15
    assert cells(second) == [
        *("other", "2", "45.0", f"+10.0 ± {100 * mean_half:.1f}", "1 of 2"),
        *("10.0", f"+5.0 ± {100 * worst_half:.1f}", "1 of 2", "10.0", "+0.0 ± 0.0", "0 of 2"),
    ]
    assert cells(later) == ["later", *["not run"] * 10]


def test_the_baseline_is_that_of_the_same_grid_values(tmp_path: Path) -> None:
    """A row whose baseline has none of its seeds has no difference yet; nor has one that has no baseline."""
    folder = write(
        tmp_path / "c",
        row("a", {0: 0.3}, grid={"alpha": "0.1"}),
        row("a", {0: 0.6}, grid={"alpha": "1"}),
        row("b", {0: 0.4}, grid={"alpha": "0.1"}),
        row("b", {1: 0.9}, grid={"alpha": "1"}),
    )
    lines = [cells(line) for line in markdown([folder], "b")[2:]]
    assert [(line[0], line[3]) for line in lines] == [
        ("a alpha=0.1", "-10.0"),
        ("a alpha=1", "not run"),
        ("b alpha=0.1", ""),
        ("b alpha=1", ""),
    ]


def test_several_folders_have_their_names(tmp_path: Path) -> None:
    folders = [write(tmp_path / name, row("a", {0: 0.3})) for name in ("x", "y")]
    lines = markdown(folders)
    assert [line for line in lines if not line.startswith("|")] == ["### x", "", "", "### y", ""]
    assert len(lines) == 11
    assert "tuned" not in lines[2]


def test_several_tuned_keys_are_named(tmp_path: Path) -> None:
    chosen = {"chosen": {"training.lr": "1", "server.lr": "2"}, "at_edge": ["server.lr"]}
    (*_, line) = markdown([write(tmp_path / "c", row("a", {0: 0.3}, tuning=chosen))])
    assert cells(line)[-1] == "training.lr=1, server.lr=2 (edge)"


def test_what_is_not_there(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", row("heterofl", {0: 0.3}))
    with pytest.raises(SpecError, match=r"--baseline 'heteroffl'.*did you mean 'heterofl'"):
        markdown([folder], "heteroffl")
    for name, content in {"none": None, "text": "x", "list": "[]", "other": "{}"}.items():
        (tmp_path / name).mkdir()
        if content is not None:
            (tmp_path / name / "comparison.json").write_text(content)
        with pytest.raises(RunError, match=rf"{name}.comparison.json is not what uneven compare writes"):
            markdown([tmp_path / name])


def test_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "c", row("a", {0: 0.3}), row("b", {0: 0.5}))
    monkeypatch.setattr(sys, "argv", ["results_table.py", str(folder), "--baseline", "b"])
    results_table.main()
    assert capsys.readouterr().out.splitlines() == markdown([folder], "b")
    monkeypatch.setattr(sys, "argv", ["results_table.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="error: "):
        results_table.main()
