"""The entries that a prefix keeps are those of HeteroFL's own slicing, written out by hand.

As its published code does (Diao et al. 2021, `split_model`): each layer keeps the first ceil(r * C) of its output
channels and reads those that the layer before it kept; in attention the first ceil(r * D) of each head's D
channels, in the projections of queries, keys and values and in what reads them.
"""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from tests.submodels.families import Encoder
from tests.submodels.helpers import info
from uneven.models import MODELS
from uneven.submodels import Supernet

Kept = dict[str, tuple[Tensor, ...]]  # tensor -> the entries kept along each axis
widths = pytest.mark.parametrize("width", [1.0, 0.5, 0.3, 0.25, 1 / 16])


def first(width: float, size: int) -> Tensor:
    return torch.arange(math.ceil(round(width * size, 9)))


def by_hand_resnet(model: nn.Module, width: float) -> Kept:
    """Walks the modules in order; a block's skip reads what the block reads and writes what its second writes."""
    kept: Kept = {}
    stream = torch.arange(3)

    def layer(name: str, module: nn.Module, reads: Tensor) -> Tensor:
        if isinstance(module, nn.Conv2d | nn.Linear):
            out = first(width, module.weight.shape[0])
            if module.weight.shape[0] == 10:  # the classes
                out = torch.arange(10)
            kept[f"{name}.weight"] = (out, reads, *(torch.arange(k) for k in module.weight.shape[2:]))
            if module.bias is not None:
                kept[f"{name}.bias"] = (out,)
            return out
        if isinstance(module, nn.BatchNorm2d):
            for part in ("weight", "bias", "running_mean", "running_var"):
                kept[f"{name}.{part}"] = (reads,)
        return reads

    def sequence(prefix: str, modules: Iterator[tuple[str, nn.Module]], reads: Tensor) -> Tensor:
        for name, module in modules:
            path = f"{prefix}.{name}" if prefix else name
            parts = dict(module.named_children())
            if "first" in parts:
                inner = sequence(f"{path}.first", parts["first"].named_children(), reads)
                out = sequence(f"{path}.second", parts["second"].named_children(), inner)
                if list(parts["skip"].parameters()):
                    sequence(f"{path}.skip", parts["skip"].named_children(), reads)
                reads = out
            elif parts:
                reads = sequence(path, module.named_children(), reads)
            else:
                reads = layer(path, module, reads)
        return reads

    sequence("", model.named_children(), stream)
    return kept


def by_hand_encoder(model: Encoder, width: float, heads: int) -> Kept:
    """The stream of embeddings, per head the channels of in_proj and out_proj, the hidden units of each MLP."""
    vocabulary, dim = model.embed.weight.shape
    stream, inner = first(width, dim), first(width, dim // heads)
    per_head = torch.cat([head * (dim // heads) + inner for head in range(heads)])
    three = torch.cat([part * dim + per_head for part in range(3)])
    kept: Kept = {"embed.weight": (torch.arange(vocabulary), stream)}
    for i, block in enumerate(model.encoder.layers):
        name, hidden = f"encoder.layers.{i}", first(width, block.linear1.out_features)
        kept |= {
            f"{name}.self_attn.in_proj_weight": (three, stream),
            f"{name}.self_attn.in_proj_bias": (three,),
            f"{name}.self_attn.out_proj.weight": (stream, per_head),
            f"{name}.self_attn.out_proj.bias": (stream,),
            f"{name}.linear1.weight": (hidden, stream),
            f"{name}.linear1.bias": (hidden,),
            f"{name}.linear2.weight": (stream, hidden),
            f"{name}.linear2.bias": (stream,),
        }
        for norm in ("norm1", "norm2"):
            kept |= {f"{name}.{norm}.{part}": (stream,) for part in ("weight", "bias")}
    classes = torch.arange(model.head.out_features)
    return kept | {"head.weight": (classes, stream), "head.bias": (classes,)}


def check(supernet: Supernet, width: float, by_hand: Kept) -> None:
    """The positions that are kept, tensor by tensor."""
    tensors = {n: t for n, t in supernet.initial.items() if t.is_floating_point()}
    assert set(tensors) == set(by_hand)
    submodel = supernet.prefix(width)
    for name, tensor in tensors.items():
        positions = torch.arange(tensor.numel()).view(tensor.shape)
        expected = positions[torch.meshgrid(*by_hand[name], indexing="ij")]
        assert torch.equal(submodel.gather({name: positions})[name], expected), name


@pytest.fixture(scope="module")
def resnet() -> tuple[nn.Module, Supernet]:
    model = MODELS["resnet18"](info(3, 32, 32), norm="batch")
    return model, Supernet(model, torch.zeros(3, 32, 32))


@pytest.fixture(scope="module")
def encoder() -> tuple[Encoder, Supernet]:
    model = Encoder(50, 24, heads=3, hidden=40, layers=2, batch_first=True)
    return model, Supernet(model, torch.arange(7))


@widths
def test_resnet18(resnet: tuple[nn.Module, Supernet], width: float) -> None:
    model, supernet = resnet
    check(supernet, width, by_hand_resnet(model, width))


@widths
def test_transformer_encoder(encoder: tuple[Encoder, Supernet], width: float) -> None:
    model, supernet = encoder
    check(supernet, width, by_hand_encoder(model, width, heads=3))
