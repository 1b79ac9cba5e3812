"""The data sets inside the wheel."""

import pyarrow.parquet as pq
import pytest
import torch

from uneven.data import DataOptions, load
from uneven.data.sources import EMBEDDED
from uneven.errors import DataError


def test_fashion_mini_is_the_default_balanced_and_small():
    fed = load(DataOptions(partition={"kind": "iid"}), 10)
    y = torch.cat([split.y for c in fed.clients for split in (c.train, c.test)])
    assert torch.bincount(y).tolist() == [600] * 10
    assert torch.bincount(fed.test.y).tolist() == [100] * 10
    assert fed.info.input_shape == (1, 28, 28)
    assert fed.info.labels[0] == "T-shirt/top"
    assert fed.test.x.float().mean() == pytest.approx(73, abs=3)  # the known mean of Fashion-MNIST


def test_the_default_partition_can_be_made_of_it():
    assert len(load(DataOptions(), None, seed=0).clients) == 100


def test_shakespeare_is_there_by_role_for_the_text_models():
    table = pq.read_table(EMBEDDED / "shakespeare" / "train.parquet")
    assert table.column_names == ["role", "play", "text"]
    assert table.num_rows > 30_000
    assert "To be, or not to be" in " ".join(
        text for role, _, text in zip(*table.to_pydict().values(), strict=True) if role == "Hamlet/HAMLET"
    )
    with pytest.raises(DataError, match="'shakespeare' has none of the columns label, fine_label"):
        load(DataOptions(source="shakespeare", partition={"kind": "natural"}))


def test_all_of_it_stays_small():
    assert sum(file.stat().st_size for file in EMBEDDED.rglob("*") if file.is_file()) <= 5_000_000
