"""The public surface: what is exported is documented, and importing it is quick."""

import inspect
import subprocess
import sys

import pytest

import uneven


@pytest.mark.parametrize("name", uneven.__all__)
def test_exported(name: str) -> None:
    found = getattr(uneven, name)
    assert inspect.getdoc(found)
    assert found.__module__.startswith("uneven")
    members = [] if inspect.isfunction(found) else [m for m in vars(found).values() if inspect.isfunction(m)]
    for member in members:
        public = not member.__name__.startswith("_") and member.__module__.startswith("uneven")
        assert not public or inspect.signature(member).return_annotation is not inspect.Signature.empty


def test_nothing_else_is_public() -> None:
    modules = {name for name in dir(uneven) if inspect.ismodule(getattr(uneven, name))}
    assert {name for name in dir(uneven) if not name.startswith("_")} - modules == set(uneven.__all__)


def test_slow_imports_are_late() -> None:
    code = (
        "import sys, uneven, uneven.cli\n"
        "late = {'flwr_datasets', 'datasets', 'matplotlib', 'torchvision'}\n"
        "print(sorted(late & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
