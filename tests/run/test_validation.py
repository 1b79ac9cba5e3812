"""`data.validation`: which examples are held out, and that the test set plays no part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import uneven
from tests.run.helpers import TINY, one_error, server, sets
from uneven.data import DataOptions, Federation, from_tensors, from_texts, load
from uneven.data.rows import InMemory
from uneven.errors import DataError
from uneven.spec import nested


def numbered(y: Sequence[int], **others: Any) -> InMemory:
    """Input i is (i,), of class y_i; where there is a test set its inputs are negative."""
    return from_tensors(torch.arange(len(y)).unsqueeze(1), torch.tensor(y), **others)


TEST = (torch.tensor([[-1], [-2]]), torch.tensor([0, 1]))


def federation(source: InMemory, count: int | None, share: float, kind: str = "iid", **others: Any) -> Federation:
    options = DataOptions(source=source, validation=share, partition={"kind": kind, **others})
    return load(options, count, seed=3)


def inputs(*splits: Any) -> list[int]:
    return [int(i) for split in splits for i in split.x]


def owned(fed: Federation) -> list[list[int]]:
    return [inputs(client.train, client.test) for client in fed.clients]


@pytest.mark.parametrize(
    ("kind", "others"),
    [("iid", {}), ("dirichlet", {"alpha": 1.0}), ("pathological", {"classes": 2}), ("shards", {})],
)
def test_every_example_is_held_out_or_a_clients(kind: str, others: dict[str, Any]) -> None:
    y = [0] * 50 + [1] * 30 + [2] * 20
    fed = federation(numbered(y, test=TEST), 5, 0.1, kind, **others)
    everything = sum(owned(fed), inputs(fed.test))
    assert sorted(everything) == list(range(100)), "none twice, none of the test set"
    assert torch.bincount(fed.test.y).tolist() == [5, 3, 2]
    assert fed.test.y.tolist() == [y[i] for i in inputs(fed.test)]


def test_the_draw_is_the_seeds() -> None:
    options = DataOptions(source=numbered([0, 1] * 50, test=TEST), validation=0.1, partition={"kind": "iid"})
    first, again, other = (inputs(load(options, 5, seed).test) for seed in (1, 1, 2))
    assert first == again != other
    assert len(other) == 10


def test_each_natural_client_gives_its_share() -> None:
    """Of 40, 10 and 21 examples, .1 are 4, 1 and 2; who has too few for ``drop_below`` gives none."""
    client = ["a"] * 40 + ["b"] * 10 + ["c"] * 21 + ["d"] * 9
    source = numbered([0, 1] * 40, test=TEST, client=client)
    fed = federation(source, None, 0.1, "natural", drop_below=10)
    assert [client.name for client in fed.clients] == ["a", "b", "c"], "b keeps 9, and stays"
    held = [client[i] for i in inputs(fed.test)]
    assert [held.count(name) for name in "abcd"] == [4, 1, 2, 0]
    assert sorted(sum(owned(fed), inputs(fed.test))) == list(range(71))
    assert all({client[i] for i in mine} == {name} for mine, name in zip(owned(fed), "abc", strict=True))


@given(
    sizes=st.lists(st.integers(2, 30), min_size=1, max_size=12), share=st.floats(0.01, 0.99, allow_subnormal=False)
)
def test_shares_are_even(sizes: list[int], share: float) -> None:
    """Each client gives its share to within one, and keeps two; all together give theirs to within a half, if
    no client is too small."""
    client = [k for k, size in enumerate(sizes) for _ in range(size)]
    source = numbered([0] * len(client), test=(TEST[0], torch.zeros(2).long()), client=client)
    try:
        fed = federation(source, None, share, "natural")
    except DataError:
        assert all(round(size * share) <= 1 for size in sizes) or max(sizes) == 2
        return
    left = [len(mine) for mine in owned(fed)]
    for size, kept in zip(sizes, left, strict=True):
        assert kept >= 2
        assert abs(size - kept - size * share) < 1 or kept == 2
    if min(left) > 2:
        assert abs(len(fed.test) - sum(sizes) * share) <= 0.5
    assert len(fed.test) == sum(sizes) - sum(left)


def test_what_is_too_small_to_share_is_an_error() -> None:
    """Four clients of two examples, of which both are needed."""
    source = numbered([0, 1] * 4, client=[0, 0, 1, 1, 2, 2, 3, 3], test=TEST)
    with pytest.raises(DataError, match=r"data.validation = 0.5 holds out none of 8 .* keeps 2"):
        federation(source, None, 0.5, "natural")


def test_a_set_without_a_test_split_keeps_its_test_apart() -> None:
    """Of 100, 20 are the test set that the run would have without validation; .1 of the others are held out."""
    source = numbered([0, 1] * 50)
    fed = federation(source, 5, 0.1)
    tested = inputs(load(DataOptions(source=source, partition={"kind": "iid"}), 5, seed=3).test)
    assert len(tested) == 20
    assert sorted(sum(owned(fed), inputs(fed.test)) + tested) == list(range(100))
    assert len(fed.test) == 8


def test_limits() -> None:
    """The share is one of the examples that are kept; a limit on the test set is not one on validation data."""
    source = numbered([0, 1] * 50, test=TEST)
    options = DataOptions(source=source, validation=0.5, train_limit=40, test_limit=1, partition={"kind": "iid"})
    fed = load(options, 5)
    assert len(fed.test) == 20
    assert sum(map(len, owned(fed))) == 20


def test_texts_are_held_out_like_all_else() -> None:
    """And the vocabulary is that of the clients' training texts."""
    source = from_texts(
        [f"same word{i}" for i in range(40)], torch.arange(40) % 2, test=(["test"], torch.tensor([0]))
    )
    fed = load(DataOptions(source=source, validation=0.25, max_length=8, partition={"kind": "iid"}), 4)
    assert len(fed.test) == 10
    assert fed.test.x.shape == (10, 8)
    assert sum(len(client.train) + len(client.test) for client in fed.clients) == 30


def folder(path: Path, test: dict[str, Any]) -> str:
    """Training images of two classes that can be told apart, and a test set as given."""
    label = np.arange(60) % 2
    x = np.random.default_rng(0).normal(size=(60, 4)) + label[:, None]
    path.mkdir()
    pq.write_table(pa.table({"x": list(x.astype(np.float32)), "label": label}), path / "train.parquet")
    pq.write_table(pa.table(test), path / "test.parquet")
    return str(path)


def test_the_test_set_is_not_read(tmp_path: Path) -> None:
    """Another one, and one that cannot be read as such at all, give the same run to the last digit."""
    tests: dict[str, dict[str, Any]] = {
        "good": {"x": [[0.0] * 4, [1.0] * 4], "label": [0, 1]},
        "more": {"x": [[9.0] * 4] * 5, "label": [2, 0, 2, 1, 2]},
        "wrong": {"x": ["not", "numbers"], "label": [-1, 7]},
    }
    tiny: dict[str, Any] = {}
    for key, value in (TINY | {"clients.count": 4}).items():
        section, layer = key.split(".")[0], nested(key, value)[key.split(".")[0]]
        tiny[section] = tiny.get(section, {}) | layer if isinstance(layer, dict) else layer
    results = []
    for name, test in tests.items():
        data = {"source": folder(tmp_path / name, test), "validation": 0.2}
        results.append(uneven.run(**tiny, data=data))
        results[-1].pop("seconds")
    assert results[0] == results[1] == results[2]
    assert results[0]["accuracy"] * 12 == pytest.approx(round(results[0]["accuracy"] * 12)), "of 12 examples"
    with pytest.raises(DataError, match="holds string"):
        uneven.run(**tiny, data={"source": str(tmp_path / "wrong")})


@pytest.mark.parametrize("share", [0, 1, -0.1, "all"])
def test_bad_shares(share: Any, tmp_path: Path) -> None:
    keys = sets({"data.validation": share})
    one_error(server()("run", *keys, cwd=tmp_path), f"data.validation = {share!r}")


def test_a_test_share_beside_a_test_split_is_still_an_error(tmp_path: Path) -> None:
    keys = sets({"data.validation": 0.1, "data.test_share": 0.2})
    one_error(server()("run", *keys, cwd=tmp_path), "data.test_share = 0.2 has no effect")
