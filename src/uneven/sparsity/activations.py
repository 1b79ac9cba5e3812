"""Activations that are kept for the backward pass in fewer bytes: the largest of them, signs, or shapes only.

Scaled activation pruning in the spirit of FedMef (arXiv 2403.14737); how it is done is a choice of ours. Of what a
layer with weights keeps of its input only the share of the largest |a| is stored, times one factor so that their
norm is that of all. It takes part in the gradient of the layer's own weights alone, so all that flows back to
earlier layers is exact. A ReLU keeps one bit for each value, and max pooling no values: their backward passes read
no more, exactly. What norms and other functions keep is left as it is, and so is the batch itself, which is in
memory anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
LAYERS = {aten.conv1d, aten.conv2d, aten.conv3d, aten.linear, aten.addmm, aten.mm, aten.matmul}
SIGNED = {aten.relu, aten.relu_}
SHAPED = {aten.max_pool1d, aten.max_pool2d, aten.max_pool3d}
POWERS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)

Packed = tuple[Any, ...]
Pair = tuple[Callable[[Tensor], Packed], Callable[[Packed], Tensor]]


class SparseActivations(TorchFunctionMode):
    """Inside, operators of a network's graph keep less for the backward pass."""

    def __init__(self, density: float, weights: Iterable[Tensor]) -> None:
        """``density``: the share of a layer's input that is kept. ``weights``: all of the network's."""
        super().__init__()
        self._density = density
        self._weights = {_storage(weight) for weight in weights}

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        pair = self._pair(getattr(func, "overloadpacket", None), args)
        if pair is None:
            return func(*args, **kwargs)
        pack, unpack = pair

        def keep(tensor: Tensor) -> Tensor | Packed:
            return pack(tensor) if self._is_activation(tensor) else tensor

        def restore(saved: Tensor | Packed) -> Tensor:
            return saved if isinstance(saved, Tensor) else unpack(saved)

        with saved_tensors_hooks(keep, restore):
            return func(*args, **kwargs)

    def _pair(self, operator: Any, args: Sequence[Any]) -> Pair | None:
        if operator in LAYERS and any(_storage(x) in self._weights for x in args if isinstance(x, Tensor)):
            return (lambda tensor: largest(tensor, self._density)), scattered
        if operator in SIGNED:
            return signs, from_signs
        return (shape, from_shape) if operator in SHAPED else None

    def _is_activation(self, tensor: Tensor) -> bool:
        return tensor.requires_grad and tensor.is_floating_point() and _storage(tensor) not in self._weights


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def largest(tensor: Tensor, density: float) -> Packed:
    """The ``ceil(density n)`` largest |a| of n, scaled to the norm of all; where they are takes a bit each."""
    flat = tensor.detach().reshape(-1)
    size = flat.abs()
    best = size.topk(math.ceil(round(density * len(flat), 9)), sorted=False)
    mask = torch.zeros(len(flat), dtype=torch.bool)
    mask[best.indices] = True
    norm = best.values.norm()
    values = flat[mask] * (flat.norm() / norm if norm > 0 else 1.0)
    return bits(mask), values, tensor.shape


def scattered(packed: Packed) -> Tensor:
    """The activations that `largest` kept, 0 where it kept none."""
    where, values, shape = packed
    flat: Tensor = values.new_zeros(math.prod(shape))
    flat[from_bits(where, len(flat))] = values
    return flat.view(shape)


def signs(tensor: Tensor) -> Packed:
    """Which values are positive, a bit each."""
    return bits(tensor.detach().reshape(-1) > 0), tensor.dtype, tensor.shape


def from_signs(packed: Packed) -> Tensor:
    """1 where a value was positive, else 0."""
    where, dtype, shape = packed
    return from_bits(where, math.prod(shape)).to(dtype).view(shape)


def shape(tensor: Tensor) -> Packed:
    """The shape alone."""
    return tensor.dtype, tensor.shape


def from_shape(packed: Packed) -> Tensor:
    """Zeros of a shape."""
    dtype, size = packed
    return torch.zeros(size, dtype=dtype)


def bits(mask: Tensor) -> Tensor:
    """A flat bool tensor of n, ``(ceil(n / 8),)`` uint8."""
    padded = torch.nn.functional.pad(mask.to(torch.uint8), (0, -len(mask) % 8))
    return (padded.view(-1, 8) * POWERS).sum(1, dtype=torch.uint8)


def from_bits(packed: Tensor, n: int) -> Tensor:
    """The bool tensor that `bits` packed."""
    return (packed[:, None] & POWERS).ne(0).view(-1)[:n]
