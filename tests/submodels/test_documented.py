"""The code in docs/your-model-and-data.md about models runs, and does what it says there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.submodels.helpers import loaded
from uneven.submodels import Supernet

PAGE = Path(__file__).parents[2] / "docs" / "your-model-and-data.md"


def run(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "documented"}
    exec(compile(source, str(PAGE), "exec"), names)
    return names


def test_the_pages_code(capsys: pytest.CaptureFixture[str]) -> None:
    wrapper, custom = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    supernet = Supernet(run(wrapper)["model"], torch.arange(5))
    assert loaded(supernet, supernet.prefix(0.5))(torch.ones(2, 9, dtype=torch.int64)).shape == (2, 9, 100)
    supernet = run(custom)["supernet"]
    said = re.search(r"print\(.*\)  # (.*)", custom)
    assert said is not None
    assert capsys.readouterr().out == said[1] + "\n"
    with torch.no_grad():
        assert loaded(supernet, supernet.prefix(0.5))(torch.randn(3, 6)).shape == (3, 5)
