"""The laws over every tiny model of `patterns` and `operators`: groups by hand, bits, zeros, a training step."""

from functools import cache

import pytest
from torch import Tensor, nn

from tests.submodels import operators, test_patterns
from tests.submodels.cases import prepare
from tests.submodels.helpers import (
    differences_at_full_width,
    gap_to_zeroed,
    loaded,
    misaligned,
    random_keep,
    train_step,
)
from uneven.submodels import Supernet

CASES = test_patterns.CASES | operators.CASES
each = pytest.mark.parametrize("name", CASES)
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


@cache
def prepared(name: str) -> tuple[nn.Module, Supernet, Tensor]:
    return prepare(CASES[name])


@each
def test_groups(name: str) -> None:
    _, supernet, _ = prepared(name)
    found = sorted((g.size, sorted(f"{tensor}.{dim}" for tensor, dim in g.members)) for g in supernet.groups)
    assert found == sorted((size, sorted(members.split())) for size, members in CASES[name].groups)


@each
def test_width_one_is_the_model_to_the_bit(name: str) -> None:
    """Outputs, gradients and buffers, in training and in evaluation; dropout with the same seed too."""
    assert differences_at_full_width(*prepared(name)) == []


@each
@pytest.mark.parametrize("seed", range(3))
def test_dropped_channels_are_as_good_as_zero(name: str, seed: int) -> None:
    _, supernet, x = prepared(name)
    submodel = supernet.submodel(random_keep(supernet, seed))
    assert misaligned(submodel) == []
    assert submodel.size == sum(submodel.gather(supernet.initial)[n].numel() for n in supernet.parameters)
    for training in [False] if name == "dropout" else [False, True]:  # its draws depend on the shapes
        gap = gap_to_zeroed(submodel, x, training)
        assert gap > 1e-4 if CASES[name].mixes else gap < 1e-5


@each
@pytest.mark.parametrize("width", [0.5, 1e-9])
def test_a_training_step(name: str, width: float) -> None:
    """At half the width, and with one channel of every group."""
    _, supernet, x = prepared(name)
    network = loaded(supernet, supernet.prefix(width))
    assert network(x).shape == (5, 5)
    assert train_step(network, x) > 0
    assert network.eval()(x[:2]).shape == (2, 5)
