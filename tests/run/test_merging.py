"""Layers of a spec: a key set before a name counts, and another name drops what belonged to the old one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import uneven
from tests.run.helpers import one_error, server, sets
from uneven.errors import SpecError
from uneven.spec import parse, setting


def layered(*texts: str, table: dict[str, Any] | None = None) -> uneven.Spec:
    return parse(table or {}, [setting(text) for text in texts])


def test_a_key_set_before_the_name_counts() -> None:
    assert layered("method.mu=0.5", "method.name=fedprox").method.options == {"mu": 0.5}
    assert layered("model.norm=batch", "model.name=resnet_tiny").model.options == {"norm": "batch"}
    partition = layered("data.partition.alpha=100", "data.partition.kind=dirichlet").data.partition
    assert partition.alpha == 100  # type: ignore[union-attr]


def test_another_name_drops_the_old_ones_keys() -> None:
    table = {"method": {"name": "fedprox", "mu": 0.5}, "data": {"partition": {"kind": "shards", "shards": 3}}}
    spec = layered("method=heterofl", "data.partition=iid", table=table)
    assert (spec.method.name, spec.method.options, spec.data.partition.kind) == ("heterofl", {}, "iid")


def test_a_key_of_another_method_is_refused() -> None:
    with pytest.raises(SpecError, match=r"method.mu = 0.5: no such key"):
        layered("method.mu=0.5", "method.name=heterofl")


def test_a_run_of_other_versions_goes_on_only_when_told(tmp_path: Path) -> None:
    """Another PyTorch may give other bits."""
    assert server()("run", *sets(), "--out", "r", cwd=tmp_path).code == 0
    spec = tmp_path / "r" / "spec.toml"
    text = spec.read_text()
    spec.write_text(text.replace('torch = "', 'torch = "1.'))
    one_error(server()("run", "--resume", "r", cwd=tmp_path), "was started with torch 1.", "[versions]")
    spec.write_text(text[: text.index("[versions]")])
    assert server()("run", "--resume", "r", cwd=tmp_path).code == 0
