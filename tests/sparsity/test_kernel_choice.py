"""Which layers are computed from their links: those that measure faster, once, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.methods.test_topology import of
from uneven.data import Info
from uneven.errors import MethodError
from uneven.experiment import Experiment
from uneven.methods import METHODS
from uneven.methods.topology import SparseMethod
from uneven.records import resolved
from uneven.sparsity import kernel_choice
from uneven.sparsity.kernel import SparseNetwork
from uneven.spec import parse
from uneven.submodels import State, Supernet


def wide(info: Info) -> nn.Module:
    """Layers of 1,280, 65,536 and 768 places; the second is large enough to be measured."""
    return nn.Sequential(nn.Linear(5, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3))


def masks(net: Supernet, density: float) -> State:
    draws = torch.Generator().manual_seed(0)
    return {name: torch.rand(net.initial[name].shape, generator=draws) < density for name in net.maskable}


@pytest.fixture(scope="module")
def net() -> Supernet:
    return Supernet(wide(Info((5,), 3, ("a", "b", "c"))), torch.zeros(5))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "uneven" / "sparse_linear.json"


def measures(monkeypatch: pytest.MonkeyPatch, found: float) -> list[tuple[Any, ...]]:
    """In place of the clock; what it was asked."""
    asked: list[tuple[Any, ...]] = []

    def ratio(*what: Any) -> float:
        asked.append(what)
        return found

    monkeypatch.setattr(kernel_choice, "ratio", ratio)
    return asked


@pytest.mark.parametrize(("found", "chosen"), [(0.79, ("2.weight",)), (0.81, ())])
def test_what_measures_faster_is_chosen(
    found: float, chosen: tuple[str, ...], net: Supernet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the batch's rows, and of large layers alone."""
    asked = measures(monkeypatch, found)
    assert kernel_choice.faster(net, masks(net, 0.05), 8) == chosen
    assert [what[:3] for what in asked] == [(8, 256, 256)]
    assert asked[0][3] == pytest.approx(0.05, abs=0.01)


def test_what_is_denser_is_not_measured(net: Supernet, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = measures(monkeypatch, 0.1)
    assert kernel_choice.faster(net, masks(net, 0.11), 8) == ()
    assert asked == []


def test_it_is_measured_once(net: Supernet, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Another time for other rows. A file that is none of ours is measured anew."""
    asked, some = measures(monkeypatch, 0.5), masks(net, 0.05)
    for batch in (8, 8, 16):
        assert kernel_choice.faster(net, some, batch) == ("2.weight",)
    assert [what[0] for what in asked] == [8, 16]
    assert sorted(json.loads(cache.read_text()).values()) == [0.5, 0.5]
    for text in ("{", "[]", '{"a": []}'):
        cache.write_text(text)
        assert kernel_choice.faster(net, some, 8) == ("2.weight",)
    assert len(asked) == 5


def test_what_another_process_measured_meanwhile_counts(
    net: Supernet, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    measures(monkeypatch, 2.0)
    assert kernel_choice.faster(net, masks(net, 0.05), 8) == ()
    theirs = cache.read_text()
    cache.unlink()

    def slower(*what: object) -> float:
        cache.write_text(theirs)
        return 0.5

    monkeypatch.setattr(kernel_choice, "ratio", slower)
    assert kernel_choice.faster(net, masks(net, 0.05), 8) == ()


def test_without_a_place_to_write(net: Supernet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    measures(monkeypatch, 0.5)
    assert kernel_choice.faster(net, masks(net, 0.05), 8) == ("2.weight",)


def test_the_clock_gives_a_ratio() -> None:
    assert kernel_choice.ratio(4, 8, 8, 0.1) > 0


def sparse(name: str = "set", **options: Any) -> Experiment:
    dates = {} if name == "static" else {"every": 2, "end": 4}
    given = {"density": 0.05, **dates, **options}
    return Experiment(parse(of(name, given, model={"name": wide}, cohort=2)))


def test_a_run_takes_and_records_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """And trains with it, to the weights of the dense layers to float tolerance."""
    measures(monkeypatch, 0.5)
    chosen, dense = sparse(), sparse(sparse_layers=[])
    assert resolved(chosen)["method"]["sparse_layers"] == ["2.weight"]
    assert resolved(dense)["method"]["sparse_layers"] == []
    assert isinstance(chosen.engine._client.network(chosen.method.plan(1, chosen.cohort(1))[0]), SparseNetwork)  # type: ignore[attr-defined]
    for experiment in (chosen, dense):
        experiment.round(1)
    for name, tensor in dense.method.state.items():
        torch.testing.assert_close(chosen.method.state[name], tensor, rtol=1e-3, atol=1e-5)
    measures(monkeypatch, 2.0)  # a resumed run has its choice in its spec
    assert resolved(sparse(sparse_layers=["2.weight"]))["method"]["sparse_layers"] == ["2.weight"]


def test_not_where_links_move_between_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = measures(monkeypatch, 0.5)
    assert resolved(sparse("prunefl"))["method"]["sparse_layers"] == []
    assert resolved(sparse("fedmef"))["method"]["sparse_layers"] == []
    assert asked == []


@pytest.mark.parametrize("name", ["0.bias", "7.weight"])
def test_a_name_that_is_no_layer(name: str) -> None:
    says = rf"method.sparse_layers: '{name}' is no sparse linear layer .*, which has 0.weight, 2.weight, 4.weight"
    with pytest.raises(MethodError, match=says):
        sparse(sparse_layers=[name])


def test_a_layer_without_a_free_place() -> None:
    with pytest.raises(MethodError, match=r"'2.weight' is no sparse linear layer of the topology, which has none"):
        sparse("static", density=1.0, sparse_layers=["2.weight"])


def test_fedmef_prunes_what_layers_store() -> None:
    with pytest.raises(MethodError, match=r"method.sparse_layers: what they store is not pruned"):
        sparse("fedmef", sparse_layers=["2.weight"])
    assert issubclass(METHODS["fedmef"], SparseMethod)
