"""One topology, drawn once."""

from __future__ import annotations

import pytest
import torch

from tests.laws.world import World
from uneven.methods import METHODS
from uneven.methods.topology import SparseMethod


def made(seed: int = 0, **options: object) -> tuple[World, SparseMethod]:
    world = World(METHODS["static"], "mlp", [1.0, 0.5, 1.0], {"density": 0.4} | options, seed=seed)
    assert isinstance(world.method, SparseMethod)
    return world, world.method


@pytest.mark.parametrize("initial", ["random", "magnitude"])
def test_never_changes(initial: str) -> None:
    world, method = made(initial=initial)
    first = {name: mask.clone() for name, mask in method.mask.items()}
    for t in range(1, 4):
        world.round(t)
        for name, mask in method.mask.items():
            assert torch.equal(mask, first[name])
            assert not method.state[name][~mask].any()


def test_trains_links_in_every_layer() -> None:
    """But for those of a unit that is off for all examples."""
    world, method = made()
    before = dict(method.state)
    world.round(1)
    for name, mask in method.mask.items():
        assert (method.state[name] != before[name])[mask].float().mean() > 0.5


def test_links_at_the_start() -> None:
    """Of the largest initial |x|, or drawn by the run's seed."""
    _, large = made(initial="magnitude")
    for name, mask in large.mask.items():
        sizes = large.supernet.initial[name].abs()
        assert mask.all() or sizes[mask].min() >= sizes[~mask].max()
    one, again, other = (made(seed)[1].mask["1.weight"] for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert int(one.sum()) == int(other.sum()) == int(large.mask["1.weight"].sum())
