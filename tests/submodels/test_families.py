"""The laws of channel submodels on model families that people use, at random widths and channels."""

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.submodels.families import FAMILIES, mixing_norms, without_norms
from tests.submodels.helpers import (
    differences_at_full_width,
    gap_to_zeroed,
    loaded,
    misaligned,
    random_keep,
    randomised,
    train_step,
)
from uneven.submodels import Supernet

# shufflenet is among the library's own models, and tested there
NAMES = [name for name in FAMILIES if name != "shufflenet"]
OF_TOKENS = ("gpt2", "bert", "roberta", "distilbert", "llama", "transformer_encoder")
few = settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
seeds = st.integers(0, 2**31)


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """Of the module's scope, so that all tests of one family follow each other, on one worker."""
    return str(request.param)


@cache
def prepared(name: str, norms: bool = True, attention: str = "head_dim") -> tuple[nn.Module, Supernet, Tensor]:
    """A family's model with random tensors, its supernet, and a batch of three."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, example = FAMILIES[name](False)
        if not norms and attention == "head_dim" and not mixing_norms(model):
            return prepared(name)
        model = randomised(model if norms else without_norms(model))
        shifts = [example.roll(i) for i in range(3)]
        x = torch.stack(shifts) if example.dtype == torch.int64 else torch.randn(3, *example.shape)
    return model, Supernet(model, example, attention=attention), x  # type: ignore[arg-type]


def test_there_are_families_enough() -> None:
    assert len(FAMILIES) >= 15


def test_width_one_is_the_model(name: str) -> None:
    """Outputs, gradients and buffers in both modes, to the bit; which of a llama's gradients is added first, on
    the way back through its rotated halves, is another on some processors."""
    assert differences_at_full_width(*prepared(name), summed=name == "llama") == []


@few
@given(seed=seeds)
def test_what_is_kept_lines_up(name: str, seed: int) -> None:
    """Law 5 by planting; laws 3 and 4: what is gathered is what is counted, and goes back where it was."""
    _, supernet, _ = prepared(name)
    submodel = supernet.submodel(random_keep(supernet, seed))
    assert misaligned(submodel) == []
    assert submodel.size == sum(submodel.gather(supernet.initial)[n].numel() for n in supernet.parameters)
    for tensor, full in supernet.initial.items():
        positions = torch.arange(full.numel()).view(full.shape)
        read = submodel.gather({tensor: positions})[tensor]
        back = torch.zeros(full.shape, dtype=torch.int64)
        submodel.add(tensor, back, read + 1)
        assert torch.equal(back.flatten().nonzero().flatten(), read.flatten().sort().values)
        assert torch.equal(submodel.gather({tensor: back})[tensor], read + 1)


@few
@given(seed=seeds, training=st.booleans())
def test_dropped_channels_are_as_good_as_zero(name: str, seed: int, training: bool) -> None:
    """Without norms over channels. Dropout draws by shapes, so models with dropout are compared in evaluation."""
    model, supernet, x = prepared(name, norms=False)
    drops = any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())
    submodel = supernet.submodel(random_keep(supernet, seed))
    assert gap_to_zeroed(submodel, x, training and not drops) < 1e-5


@pytest.mark.parametrize("name", ["gpt2", "llama", "vit"], indirect=True, scope="module")
@few
@given(seed=seeds)
def test_dropped_heads_are_as_good_as_zero(name: str, seed: int) -> None:
    _, supernet, x = prepared(name, norms=False, attention="heads")
    submodel = supernet.submodel(random_keep(supernet, seed))
    assert misaligned(submodel) == []
    assert gap_to_zeroed(submodel, x) < 1e-5


@pytest.mark.parametrize("width", [0.5, 1e-9])
def test_a_training_step(name: str, width: float) -> None:
    """At half the width, and with one channel of every group."""
    _, supernet, x = prepared(name)
    network = loaded(supernet, supernet.prefix(width))
    logits = network.train()(x)
    assert logits.shape == loaded(supernet, supernet.prefix(1.0))(x).shape
    assert train_step(network, x) > 0


@pytest.mark.parametrize("name", [*OF_TOKENS, "lstm", "gru", "rnn"], indirect=True, scope="module")
def test_sequences_of_any_length(name: str) -> None:
    model, supernet, x = prepared(name)
    for longer in (x[:, :3], torch.cat([x, x, x], 1)):
        whole = loaded(supernet, supernet.prefix(1.0)).eval()
        assert torch.equal(whole(longer), model.eval()(longer))
        half = loaded(supernet, supernet.prefix(0.5)).eval()(longer)
        assert half.shape == whole(longer).shape


@pytest.fixture
def _plain_attention() -> Iterator[None]:
    with sdpa_kernel(SDPBackend.MATH):  # PyTorch counts no other on a CPU
        yield


@pytest.mark.usefixtures("_plain_attention")
@pytest.mark.parametrize("name", [name for name in NAMES if name != "lstm"], indirect=True, scope="module")
@pytest.mark.parametrize("width", [1, 0.5])
def test_macs_are_those_that_pytorch_counts(name: str, width: float) -> None:
    _, supernet, x = prepared(name)
    submodel = supernet.prefix(width)
    network = loaded(supernet, submodel).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(x)
    assert submodel.macs == counter.get_total_flops() / 2 / len(x)


def test_macs_of_an_lstm_by_hand() -> None:
    """PyTorch counts none. Per token: two layers of 4 gates of 10 units, which read 8 and 10, and 10 each of
    their own; then 10 -> 50. Of half: 5 units, 4 embedded."""
    _, supernet, _ = prepared("lstm")
    assert supernet.prefix(1.0).macs == 7 * (4 * 10 * (8 + 10) + 4 * 10 * (10 + 10) + 10 * 50)
    assert supernet.prefix(0.5).macs == 7 * (4 * 5 * (4 + 5) + 4 * 5 * (5 + 5) + 5 * 50)
