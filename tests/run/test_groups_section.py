"""The spec's ``[groups]`` section: what the user says about the model's channels reaches the analysis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.run.helpers import one_error, server, sets
from uneven.data import Info, from_tensors
from uneven.experiment import Experiment
from uneven.spec import parse


class Attends(nn.Module):
    """Three tokens of eight numbers, four heads of two channels."""

    def __init__(self, info: Info) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, info.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        heads = [part.unflatten(2, (4, 2)).transpose(1, 2) for part in self.qkv(x).chunk(3, 2)]
        mixed = nn.functional.scaled_dot_product_attention(*heads)
        return self.out(mixed.transpose(1, 2).flatten(2).mean(1))


def sizes(**groups: Any) -> list[int]:
    x, y = torch.randn(40, 3, 8), torch.arange(40) % 2
    data = {"source": from_tensors(x, y), "partition": "iid"}
    spec = parse({"data": data, "clients": {"count": 4}, "cohort": 2, "model": Attends, "groups": groups})
    run = Experiment(spec)
    assert run.round(1).failures == []
    return sorted(group.size for group in run.supernet.groups)


def test_attention() -> None:
    """Channels of a head for queries with keys, and for values; or the heads."""
    assert sizes() == sizes(attention="head_dim") == [2, 2]
    assert sizes(attention="heads") == [4]


def test_frozen() -> None:
    """What reads the values is frozen, so they are; or all three are."""
    assert sizes(frozen=["out.weight:1"]) == [2]
    assert sizes(frozen=["qkv.weight:0"]) == []


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("groups.attention", "head", ["groups.attention = 'head'"]),
        ("groups.frozen", ["nothing:0"], ["nothing"]),
        ("groups.rules", {"my::op": "no_such_module:rule"}, ["groups.rules.my::op", "no_such_module"]),
    ],
)
def test_bad_input(tmp_path: Path, key: str, value: Any, says: list[str]) -> None:
    texts = [part for part in sets() if part != "--set"]
    toml = {"groups.rules": 'groups.rules={ "my::op" = "no_such_module:rule" }'}
    changes = [toml.get(key, f"{key}={value!r}".replace("'", '"'))]
    arguments = [part for text in [*texts, *changes] for part in ("--set", text)]
    one_error(server()("groups", *arguments, cwd=tmp_path), *says)
