"""Every method with one topology on GPT-2: tied tables, transposed weights, texts."""

from __future__ import annotations

import pytest
import torch

from uneven.data import from_texts
from uneven.experiment import Experiment
from uneven.methods import METHODS
from uneven.methods.dynamic import DynamicMethod
from uneven.methods.topology import SparseMethod
from uneven.spec import parse

TEXTS = [
    f"once there was a {who} who {did} and {did} again" for who in "abcdefgh" for did in ("ran", "sang", "slept")
]
SPEC = {
    "rounds": 8,
    "cohort": 2,
    "clients": {"count": 3, "capacities": {"levels": [1.0], "unit": "params"}},
    "data": {"task": "next_token", "tokenizer": "words", "max_length": 7, "partition": "iid"},
    "model": {"name": "gpt2", "hidden": 8, "layers": 1, "heads": 2, "positions": 6},
    "training": {"optimizer": "adamw", "lr": 0.01, "batch_size": 4},
}


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if issubclass(method, SparseMethod)])
def test_trains_and_adjusts(name: str) -> None:
    method = {"name": name, "density": 0.5} | ({"every": 1} if issubclass(METHODS[name], DynamicMethod) else {})
    data = {**SPEC["data"], "source": from_texts(TEXTS, test=(TEXTS[:3], None))}  # type: ignore[dict-item]
    experiment = Experiment(parse({**SPEC, "data": data, "method": method}))
    sparse = experiment.method
    assert isinstance(sparse, SparseMethod)
    first = sparse.mask
    for t in (1, 2):
        assert not experiment.round(t).failures
    assert any(not torch.equal(first[key], sparse.mask[key]) for key in first) == (name != "static")
    for key, mask in sparse.mask.items():
        assert not sparse.state[key][~mask].any()
        assert sparse.state[key].any()
