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


def test_another_method_keeps_the_options_that_mean_the_same_to_both() -> None:
    table = {"method": {"name": "fedrts", "every": 3, "density": 0.1, "gamma": 0.2}}
    assert layered("method=set", table=table).method.options == {"every": 3, "density": 0.1}
    assert layered("method=static", table=table).method.options == {"density": 0.1}
    assert layered("method={name='set', every=4}", table=table).method.options == {"every": 4, "density": 0.1}
    distilled = {"method": {"name": "fjord", "distillation": True}}  # ScaleFL's is a weight
    assert layered("method=scalefl", table=distilled).method.options == {}
    nobody = {"method": {"name": "nobody", "density": 0.1}}
    assert layered("method=set", table=nobody).method.options == {}
    with pytest.raises(SpecError, match=r"method\.kind"):
        layered("method={kind='b'}", table={"method": {"kind": "a"}})


def test_a_partition_by_its_kind_alone_takes_options_of_it() -> None:
    plan = layered("data.partition.limit=9", table={"data": {"partition": "natural"}}).data.partition
    assert (plan.kind, plan.limit) == ("natural", 9)  # type: ignore[union-attr]
    assert layered("data.partition=iid", table={"data": {"partition": "natural"}}).data.partition.kind == "iid"


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
