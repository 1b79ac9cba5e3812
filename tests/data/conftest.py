"""Small sets in the hub's column form, written to a temporary folder."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from uneven.data import from_tensors
from uneven.data.rows import InMemory

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.fixture
def images() -> Callable[..., pa.Array]:
    """An image column out of arrays (h, w) or (h, w, 3) uint8."""

    def make(arrays: list[np.ndarray], kind: str = "PNG") -> pa.Array:
        files = []
        for array in arrays:
            file = io.BytesIO()
            Image.fromarray(array).save(file, kind)
            files.append({"bytes": file.getvalue(), "path": None})
        return pa.array(files, IMAGE)

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write columns as a parquet file, with the classes' names in its metadata if given; gives its path."""

    def make(name: str, columns: dict[str, object], names: list[str] | None = None) -> str:
        table = pa.table(columns)
        if names is not None:
            info = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
            table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        return str(path)

    return make


@pytest.fixture
def vectors(write: Callable[..., str]) -> Callable[..., str]:
    """A file of n vectors of 4 numbers; vector i is (i, i, i, i), its class i mod 3."""

    def make(name: str = "train.parquet", n: int = 30, **columns: object) -> str:
        x = [[float(i)] * 4 for i in range(n)]
        return write(name, {"x": x, "label": [i % 3 for i in range(n)], **columns})

    return make


@pytest.fixture
def numbered() -> Callable[..., InMemory]:
    """n examples in memory that can be told apart: input i is (i,), its class i mod ``classes``."""

    def make(n: int, classes: int = 10, **others: object) -> InMemory:
        x = torch.arange(n).unsqueeze(1)
        return from_tensors(x, torch.arange(n) % classes, test=(x[:5], torch.arange(5) % classes), **others)

    return make
