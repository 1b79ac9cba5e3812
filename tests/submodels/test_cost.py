"""Counted parameters and multiply-accumulates, against PyTorch's own counts of the networks that run."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tests.submodels.helpers import info
from uneven.models import MODELS
from uneven.submodels import ChannelSubmodel, Supernet

Analysed = Callable[..., Supernet]


def counted_macs(submodel: ChannelSubmodel, shape: tuple[int, ...], batch: int = 1) -> float:
    network = submodel.network().load(submodel.gather(submodel.supernet.initial)).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(batch, *shape))
    return counter.get_total_flops() / 2 / batch


@pytest.mark.parametrize("width", [1, 1 / 2, 1 / 4])
@pytest.mark.parametrize("name", ["resnet18", "shufflenet_v2_x0_5", "resnet_tiny", "cnn", "mlp"])
def test_counts_equal_those_of_the_network(analysed: Analysed, name: str, width: float) -> None:
    supernet = analysed(name, size=32)
    submodel = supernet.prefix(width)
    assert submodel.macs == counted_macs(submodel, (3, 32, 32))
    assert submodel.macs == counted_macs(submodel, (3, 32, 32), batch=3)
    assert supernet.macs(submodel) == submodel.macs
    assert submodel.size == sum(w.numel() for w in submodel.network().parameters())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("resnet18", 11_173_962), ("resnet_tiny", 175_258), ("shufflenet_v2_x0_5", 352_042)],
)
def test_known_sizes_of_full_models(analysed: Analysed, name: str, parameters: int) -> None:
    supernet = analysed(name, size=32)
    assert supernet.size == parameters
    assert supernet.size == sum(p.numel() for p in MODELS[name](info(3, 32, 32)).parameters())
    assert supernet.prefix(1.0).size == parameters
    assert supernet.submodel({}).size == parameters


def test_macs_of_a_network_by_hand() -> None:
    """A 3x3 convolution 2 -> 4 on 6x6, a depthwise one, and 4 * 36 -> 5; at half, 2 channels."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Flatten(), nn.Linear(144, 5)
    )
    supernet = Supernet(model, torch.zeros(2, 6, 6))
    assert supernet.prefix(1.0).macs == 36 * 4 * 2 * 9 + 36 * 4 * 9 + 144 * 5
    assert supernet.prefix(0.5).macs == 36 * 2 * 2 * 9 + 36 * 2 * 9 + 72 * 5


def test_a_quarter_of_the_width_costs_about_a_sixteenth(analysed: Analysed) -> None:
    full, quarter = (analysed("resnet18", size=32).prefix(width) for width in (1.0, 0.25))
    assert 1 / 17 < quarter.size / full.size < 1 / 15
    assert 1 / 17 < quarter.macs / full.macs < 1 / 15


def test_a_tied_weight_counts_once() -> None:
    a, b = nn.Linear(8, 8), nn.Linear(8, 8)
    b.weight = a.weight
    supernet = Supernet(nn.Sequential(nn.Linear(6, 8), a, nn.ReLU(), b, nn.Linear(8, 5)), torch.zeros(6))
    assert supernet.size == (48 + 8) + (64 + 8) + 8 + (40 + 5)
    assert "3.weight" not in supernet.initial
    assert supernet.prefix(0.5).size == (24 + 4) + (16 + 4) + 4 + (20 + 5)
