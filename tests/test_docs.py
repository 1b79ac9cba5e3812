"""What the docs show is what runs."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import uneven
from uneven import describe
from uneven.spec import parse

ROOT = Path(__file__).parent.parent
TINY = {"rounds": 1, "cohort": 2, "clients": {"count": 4}, "data": {"train_limit": 100}}


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, empty; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("strongest", "mine"):
        sys.modules.pop(name, None)


def test_write_a_method(here: Path) -> None:
    (source,) = blocks("write-a-method.md", "python")
    assert len([line for line in source.splitlines() if line.strip()]) < 60
    (here / "strongest.py").write_text(source, encoding="utf-8")
    result = uneven.run(method={"name": "strongest:Strongest", "random": 0.5}, **TINY)
    assert result["failures"] == 0
    text, options = describe.method("strongest:Strongest")
    assert "descending sum" in text
    assert options.row_count == 1


def test_your_model_and_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, script = blocks("your-model-and-data.md", "python")
    (here / "mine.py").write_text(model, encoding="utf-8")
    result = uneven.run(model={"name": "mine:wide_net", "channels": 16}, **TINY)
    assert len(result["per_capacity"]) == 4
    exec(compile(script, "your-model-and-data.md", "exec"), {})
    assert "[" in capsys.readouterr().out


def test_allocation(here: Path) -> None:
    (source,) = blocks("allocation.md", "python")
    (here / "mine.py").write_text(source, encoding="utf-8")
    result = uneven.run(allocation={"name": "mine:RootOfSize", "power": 2.0}, **TINY)
    assert result["allocation"]["policy"] == "mine:RootOfSize"
    assert result["allocation"]["exact"] == pytest.approx(0.5)
    (settings,) = blocks("allocation.md", "toml")
    assert parse(tomllib.loads(settings)).allocation_options.cost == "macs"


def test_diagnostics(here: Path) -> None:
    (source,) = blocks("diagnostics.md", "python")
    names: dict[str, Any] = {}
    exec(compile(source, "diagnostics.md", "exec"), names)
    assert len(names["measured"]) == 2
    for mask, term in names["third_term"].items():
        each = [line["bound"]["delta2"][mask] * line["bound"]["norm2"] for line in names["measured"]]
        assert term == pytest.approx(32 * 20 * sum(each) / 2)


def test_readme_shows_the_commands_that_make_has() -> None:
    readme, makefile = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "Makefile"))
    first_screen = "\n".join(readme.splitlines()[:40])
    for target in ("demo", "test"):
        assert f"make {target}" in first_screen
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_the_readme_shows_what_the_demo_prints() -> None:
    """The demo itself: what it promises, and the README's session line by line (accuracies to .03, since other
    processors round otherwise)."""
    result = uneven.run()
    assert result["accuracy"] >= 0.80
    assert all(row["accuracy"] >= 0.60 for row in result["per_capacity"])
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [
        [float(cell.replace(",", "")) for cell in line.strip("│").split("│")]
        for line in readme.splitlines()
        if line.startswith("│")
    ]
    keys = ("capacity", "clients", "parameters", "macs", "bytes")
    shown, real = [row[:-1] for row in rows], [[row[key] for key in keys] for row in result["per_capacity"]]
    assert shown == real
    accuracies = [row["accuracy"] for row in result["per_capacity"]]
    assert [row[-1] for row in rows] == pytest.approx(accuracies, abs=0.03)
    said = re.search(r"full model: accuracy (\S+), best (\S+) in round \d+", readme)
    assert said is not None
    assert [float(x) for x in said.groups()] == pytest.approx(
        [result["accuracy"], result["best_accuracy"]], abs=0.03
    )
