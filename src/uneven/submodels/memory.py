"""The memory that a submodel needs on a device: predicted from its graph, or measured in a fresh process.

`predict` runs a training step and an evaluation pass on tensors without data and adds up the storages that are
alive at each moment, with what oneDNN and MKL allocate unseen. That is what the step *needs*. What a process
*takes* depends on its allocator too. Where each big block is mapped on its own and returned when it is freed
(glibc with a fixed ``MALLOC_MMAP_THRESHOLD_``), a process takes within 15 % of what is needed. glibc as it
comes raises that threshold up to 32 MB as blocks are freed, and keeps holes among the blocks below it: measured
15 to 73 % more, and no rule for how much was found. `measure` therefore fixes the threshold, unless told not to;
a client that did so would train about half as fast (measured on ResNet-18), so plan with room for the holes:
`HEADROOM`.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from uneven.data import Examples, Info
from uneven.errors import ModelError, UnevenError
from uneven.models import build
from uneven.submodels import MaskSubmodel, Submodel, Supernet
from uneven.training.local import make_optimizer, of_logits, train_locally
from uneven.training.losses import of_examples
from uneven.training.options import TrainingOptions

HEADROOM = 0.75
"""What a process may take beyond what is predicted, as a share of it, with glibc's allocator as it comes: a little
more than the most that was measured (ResNet-18, 40 processes: 0.15 to 0.73, and up to 0.3 apart for one and the
same step)."""
STEPS = 2
"""Steps until memory repeats: the first makes the optimizer's state, the second runs with it from the start."""

aten = torch.ops.aten


@dataclass(frozen=True)
class Memory:
    """Peaks in bytes, above the process's start and without the client's data.

    ``training``: of a training step at the batch size: weights, gradients, optimizer state, activations saved
    for the backward pass, what comes and goes. ``inference``: of an evaluation pass at the batch size.
    """

    training: int
    inference: int


@dataclass(frozen=True)
class Step:
    """Bytes alive in a training step, once the optimizer has its state.

    ``weights``: parameters and buffers. ``forward``: after the loss, all that is saved for the backward pass
    included. ``backward``: the peak of the backward pass. ``held``: after the step, with gradients and the
    optimizer's state. ``peak``: of all.
    """

    weights: int
    forward: int
    backward: int
    held: int
    peak: int


def predict(submodel: Submodel, example: Tensor, training: TrainingOptions) -> Memory:
    """The memory that a submodel needs, without running it.

    Args:
        example: one input without a batch axis; only its shape and dtype matter.
        training: the optimizer, clipping and batch size count.
    """
    mask = 0
    if isinstance(submodel, MaskSubmodel):  # trains the full model's tensors, with a byte for each masked entry
        mask = sum(entries.numel() for entries in submodel.masks.values())
        submodel = submodel.supernet.prefix(1.0)
    network = submodel.network()
    return Memory(
        training=simulate_training(network, example, training).peak + mask,
        inference=simulate_inference(network, example, training.batch_size) + mask,
    )


def simulate_training(network: nn.Module, example: Tensor, training: TrainingOptions) -> Step:
    """The steps of `uneven.training.train_locally` on a copy of any module, without data or arithmetic."""
    with _without_data(network) as (twin, live):
        weights, optimizer = live.now, make_optimizer(list(twin.parameters()), training, training.lr)
        twin.train()
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = _loss(twin(_batch(example, training.batch_size)))
            forward = live.now
            before, live.peak = live.peak, live.now
            loss.backward()  # type: ignore[no-untyped-call]
            backward, live.peak = live.peak, max(live.peak, before)
            if training.clip_norm is not None:
                nn.utils.clip_grad_norm_(twin.parameters(), training.clip_norm)
            optimizer.step()
        del loss
        return Step(weights, forward, backward, live.now, live.peak)


def simulate_inference(network: nn.Module, example: Tensor, batch: int) -> int:
    """Bytes at the peak of an evaluation pass of any module."""
    with _without_data(network) as (twin, live), torch.no_grad():
        twin.eval()(_batch(example, batch))
        return live.peak


@contextmanager
def _without_data(network: nn.Module) -> Iterator[tuple[nn.Module, _Live]]:
    """A copy of a module with tensors that have shapes only, and the count of what is alive among them."""
    fake, memo, live = FakeTensorMode(), dict[int, Any](), _Live()
    with FakeCopyMode(fake):
        twin = copy.deepcopy(network, memo)
    for tensor in memo.values():
        if isinstance(tensor, Tensor):
            tensor.grad = None
            live.see(tensor)
    with fake, live, _BiasInPlace():
        yield twin, live


def _batch(example: Tensor, batch: int) -> Tensor:
    return torch.zeros(batch, *example.shape, dtype=example.dtype)


def _loss(logits: Tensor) -> Tensor:
    """Cross-entropy with class 0, at every exit or position."""
    return of_examples(logits, torch.zeros(logits.shape[:-1], dtype=torch.int64))


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of every storage from the operator that makes it until its last tensor is gone.

    ``now``: bytes alive. ``peak``: the most there were.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._packed = 0

    def see(self, tensor: Tensor, hidden: int = 0) -> None:
        """Count a tensor's storage once, with ``hidden`` bytes that live as long."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes() + hidden
        if key not in self._alive:
            self._alive[key] = weakref.ref(storage, lambda _: self._gone(key, size))
            self.now += size
            self.peak = max(self.peak, self.now)

    def _gone(self, key: int, size: int) -> None:
        del self._alive[key]
        self.now -= size

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        saved, passing = _onednn(function, args, result)
        packed = max(self._packed, _packed(function, args))
        self.now += packed - self._packed
        self._packed = packed
        self.peak = max(self.peak, self.now + passing)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.see(tensor, saved if tensor.numel() == 0 else 0)
        return result


def _onednn(function: Any, args: Any, result: Any) -> tuple[int, int]:
    """Bytes that oneDNN allocates unseen: those saved with the empty result (a workspace), those in passing.

    - A convolution copies input and weight into blocked layouts and computes a blocked output, which it then
      copies to the plain one. (Without this, ResNet-18's evaluation is predicted at 0.81 to 0.89 of what is
      measured.)
    - LSTM, in training: a workspace of 15.4 bytes for each byte of output (measured, 60 to 512 hidden units),
      of which the forward pass touches the four gates, states and cells: 6. The backward pass touches the rest.
    """
    if function is aten.convolution.default:
        x, weight = args[:2]
        return 0, max(_nbytes(x, weight, result), 2 * _nbytes(result))
    if function is aten.convolution_backward.default:
        grad, x, weight = args[:3]
        by_input = max(_nbytes(grad, weight, x), 2 * _nbytes(x)) if args[-1][0] else 0
        by_weight = _nbytes(grad, x, weight) + (_nbytes(x) if args[-1][0] else 0)
        return 0, max(by_input, by_weight)
    if function is aten.mkldnn_rnn_layer.default and args[-1]:
        return 6 * _nbytes(result[0]), 0
    if function is aten.mkldnn_rnn_layer_backward.default:
        return 0, 9 * _nbytes(args[7])
    return 0, 0


def _packed(function: Any, args: Any) -> int:
    """Bytes of the buffer in which MKL packs the operands of a float matrix product, and which it keeps.

    Measured on x86 with one thread: with more than 384 rows the second matrix is packed whole, at most 384 of
    the shared dimension at a time, and 384 rows of the first (11.0 MB for 512 x 512 x 10,000, 16.3 for
    512 x 384 x 10,000, 3.3 for 1,024 x 384 x 1,536, each 0.4 MB of code included; else 1 MB at most: not counted).
    """
    if function not in (aten.mm.default, aten.addmm.default) or not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return 0
    first, second = args[-2:]
    (rows, shared), columns = first.shape, second.shape[1]
    if rows <= 384:
        return 0
    depth = min(shared, 384) if shared <= 384 or shared >= 768 else -(-shared // 2)
    return int(depth * (columns + 384) * first.element_size())


def _nbytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class _BiasInPlace(TorchFunctionMode):
    """`linear` on an input that is not contiguous adds its bias in place, but not where a mode watches it."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in (aten.linear.default, nn.functional.linear) and len(args) == 3 and args[2] is not None:
            x, weight, bias = args
            if x.dim() > 2 and not (x.dim() == 3 and x.is_contiguous()):
                return torch.matmul(x, weight.t()).add_(bias)
        return function(*args, **kwargs)


# --- the measured mode -------------------------------------------------------------------------------------

MAPPED = 64 * 1024
"""Bytes from which glibc maps a block on its own in a measuring process; fixing it stops it from growing."""


def measure(
    model: str,
    info: Info,
    example: Tensor,
    training: TrainingOptions,
    options: Mapping[str, Any] | None = None,
    width: float = 1.0,
    *,
    groups: Mapping[str, Any] | None = None,
    default_malloc: bool = False,
) -> Memory:
    """Measure a model's submodel of a width: an evaluation pass and two training steps in a fresh process.

    The peaks are of resident memory, one thread, above what the process had when all was loaded but the weights.

    Args:
        model: a name of `uneven.models.MODELS` or ``package.module:function``; ``options`` are its own.
        groups: the policy for channel groups, ``attention`` and ``frozen`` of `Supernet`.
        default_malloc: leave glibc's allocator as it comes, holes and all (see the module).

    Raises:
        UnevenError: the process failed (with what it said last), or this is not Linux.
    """
    if not Path("/proc/self/clear_refs").exists():
        raise UnevenError("the peak of a process's memory can only be measured on Linux (/proc/self/clear_refs)")
    job = {
        "model": model,
        "options": dict(options or {}),
        "info": asdict(info),
        "width": width,
        "shape": list(example.shape),
        "dtype": str(example.dtype).removeprefix("torch."),
        "training": training.model_dump(mode="json"),
        "groups": dict(groups or {}),
    }
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if not default_malloc:
        env |= {"MALLOC_MMAP_THRESHOLD_": str(MAPPED), "MALLOC_TRIM_THRESHOLD_": str(MAPPED)}
    command = [sys.executable, "-m", "uneven.submodels.memory"]
    done = subprocess.run(command, input=json.dumps(job), env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UnevenError(f"measuring {model} at width {width:g} failed: {said}")
    return Memory(**json.loads(done.stdout.strip().splitlines()[-1]))


def _measure_here(job: Mapping[str, Any]) -> Memory:
    """The measuring process: everything is loaded and warm before the weights come."""
    torch.set_num_threads(1)
    info = Info(**{**job["info"], "input_shape": tuple(job["info"]["input_shape"])})
    training = TrainingOptions(**{**job["training"], "epochs": None, "steps": STEPS})
    example = torch.zeros(job["shape"], dtype=getattr(torch, job["dtype"]))
    supernet = Supernet(build(job["model"], info, job["options"], seed=0), example, **job["groups"])
    network = supernet.prefix(job["width"]).network()
    del supernet
    _warm_up(training)
    x = _batch(example, training.batch_size)
    held = [*network.tensors.values(), *network.constants.values()]
    shapes = [(tensor.shape, tensor.dtype) for tensor in held]
    for tensor in held:
        tensor.data = torch.empty(0, dtype=tensor.dtype)
    start = _settle()
    for tensor, (shape, dtype) in zip(held, shapes, strict=True):
        tensor.data = torch.ones(shape, dtype=dtype)
    with torch.no_grad():
        shape = network.eval()(x.clone()).shape
    inference = _peak() - start
    labels = torch.zeros(shape[:-1], dtype=torch.int64)
    _settle()
    train_locally(network, Examples(x, labels), training, 1e-6, torch.Generator(), of_logits(network))
    return Memory(_peak() - start, inference)


class _Small(nn.Module):
    """One of each kind of layer whose code takes memory when it first runs."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(1, 16), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 64, 1, 2), nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 16, 3, 2, 1)),
            *(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.AdaptiveAvgPool2d(4)),
        )
        self.lstm, self.words = nn.LSTM(16, 16, 2, batch_first=True), nn.Embedding(4, 16)
        self.tail = nn.Sequential(nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.image(x).flatten(2).mT + self.words(torch.zeros(1, dtype=torch.int64))
        rows = self.lstm(rows)[0][:, None]
        attended = nn.functional.scaled_dot_product_attention(rows, rows, rows, is_causal=True)
        return self.tail(attended[:, 0].mean(1))  # type: ignore[no-any-return]


def _warm_up(training: TrainingOptions) -> None:
    small, x = _Small(), torch.randn(4, 3, 32, 32)
    optimizer = make_optimizer(list(small.parameters()), training, 1e-6)
    for _ in range(STEPS):
        _loss(small(x)).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(small.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        small.eval()(x)


def _settle() -> int:
    """Give freed memory back, forget the peak so far; returns the resident bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(key: str) -> int:
    """A line of the process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


if __name__ == "__main__":
    try:
        print(json.dumps(asdict(_measure_here(json.load(sys.stdin)))))
    except ModelError as error:
        sys.exit(str(error))
