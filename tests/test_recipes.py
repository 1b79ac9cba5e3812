"""Every recipe holds: as it is, in each of its profiles, and for every method that it compares."""

from pathlib import Path

import pytest

from uneven.comparison import plan, rows
from uneven.spec import load, read

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))
CASES = [(path, profile) for path in RECIPES for profile in (None, *read(path).get("profile", {}))]


@pytest.mark.parametrize(("path", "profile"), CASES, ids=lambda value: getattr(value, "stem", value))
def test_recipe(path: Path, profile: str | None, tmp_path: Path) -> None:
    load(path, profile=profile)
    labels = [*read(path).get("compare", {}), "heterofl", "fedrolex"]
    found = rows(read(path), [], profile, methods=labels, grid=[], out=tmp_path)
    assert [run.row.label for run in plan(found, [0])] == labels
