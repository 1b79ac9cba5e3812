"""Fixtures: the command line in processes of its own."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.run.helpers import Ended, server


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., Ended]:
    """Runs ``uneven ARGV`` in a process of its own, with ``tmp_path`` as its folder; see `Server`."""
    return partial(server(), cwd=tmp_path)
