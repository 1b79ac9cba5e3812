"""What FedMef's sparse activations save and cost: `benchmarks/activation_memory.py [MODEL ...] [--batch N]`.

For each density of the activations: MB (10^6 bytes) that a forward pass leaves for the backward pass, and the peak
of a training step, both of resident memory in a fresh process of one thread whose blocks go back to the system
when they are freed; the median processor seconds of a step, beside it; and the cosine of the gradient with that of
dense activations, at initial weights and random data. Linux only. MODEL: resnet18, resnet_tiny (images of 3 x 32 x
32) or gpt2 (256 tokens, hidden 256, 4 layers; needs `transformers`).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from uneven.data import Info
from uneven.models import build
from uneven.sparsity.activations import SparseActivations
from uneven.submodels import Network, Supernet
from uneven.training.losses import cross_entropy

DENSITIES = (1.0, 0.5, 0.3, 0.1)
REPEATS = 3
MB = 1e6
KEYS = ("kept", "peak")


def network_of(model: str, batch: int) -> tuple[Network, Tensor, Tensor]:
    """A network in training, and a batch of random data."""
    torch.manual_seed(0)
    if model == "gpt2":
        tokens = Info((256,), 4096, tuple(map(str, range(4096))), vocab_size=4096, task="next_token")
        options = {"hidden": 256, "layers": 4, "heads": 4, "positions": 256, "dropout": 0.0}
        x = torch.randint(0, 4096, (batch, 256))
        supernet = Supernet(build(model, tokens, options, seed=0), x[0])
        y = torch.randint(0, 4096, (batch, 256))
    else:
        info = Info((3, 32, 32), 10, tuple("0123456789"))
        supernet = Supernet(build(model, info, {}, seed=0), torch.zeros(info.input_shape))
        x, y = torch.randn(batch, *info.input_shape), torch.randint(0, 10, (batch,))
    return supernet.prefix(1.0).network().load(supernet.initial).train(), x, y


def loss_of(network: Network, density: float, x: Tensor, y: Tensor) -> Tensor:
    """The loss of a batch, its activations kept at a density; 1: as PyTorch keeps them."""
    weights = network.weights().values()
    with SparseActivations(density, weights) if density < 1 else nullcontext():
        return cross_entropy(network(x), y)


def memory(model: str, density: float, batch: int) -> dict[str, int]:
    """The measuring process: bytes that are kept, and the peak, above weights, gradients and batch."""
    torch.set_num_threads(1)
    network, x, y = network_of(model, batch)
    loss_of(network, density, x, y).backward()  # code that is loaded when it first runs; gradients
    start = _settle()
    loss = loss_of(network, density, x, y)
    gc.collect()
    _trim()
    kept = _status("VmRSS") - start
    loss.backward()
    return {"kept": kept, "peak": _status("VmHWM") - start}


def speed(model: str, batch: int) -> dict[float, tuple[float, float]]:
    """Density -> median processor seconds of a step, and the gradient's cosine with the dense one."""
    torch.set_num_threads(1)
    network, x, y = network_of(model, batch)
    weights, times = list(network.weights().values()), {density: list[float]() for density in DENSITIES}
    gradients: dict[float, Tensor] = {}
    for _ in range(REPEATS + 1):  # the first is not counted
        for density in DENSITIES:
            for weight in weights:
                weight.grad = None
            begin = time.process_time()
            loss_of(network, density, x, y).backward()
            times[density].append(time.process_time() - begin)
            gradients[density] = torch.cat([w.grad.reshape(-1) for w in weights if w.grad is not None])
    cosine = torch.nn.functional.cosine_similarity
    gradients = {density: gradient.double() for density, gradient in gradients.items()}
    dense = gradients[1.0]
    return {d: (statistics.median(times[d][1:]), cosine(gradients[d], dense, 0).item()) for d in DENSITIES}


def _trim() -> None:
    ctypes.CDLL(None).malloc_trim(0)


def _settle() -> int:
    gc.collect()
    _trim()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def in_fresh_process(model: str, density: float, batch: int) -> dict[str, int]:
    """`memory`, with blocks that go back to the system when they are freed."""
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    }
    command = [sys.executable, __file__, model, "--batch", str(batch), "--density", str(density)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=["resnet18", "resnet_tiny"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--density", type=float, help="measure this one here, as JSON")
    given = parser.parse_args()
    if given.density is not None:
        print(json.dumps(memory(given.models[0], given.density, given.batch)))
        return
    for model in given.models:
        found = {density: in_fresh_process(model, density, given.batch) for density in DENSITIES}
        steps = speed(model, given.batch)
        print(f"{model}, batch {given.batch}")
        print(f"{'activations':>11} {'kept MB':>8} {'':>5} {'peak MB':>8} {'':>5} {'step s':>7} {'cosine':>7}")
        for density in DENSITIES:
            kept, peak = (f"{found[density][k] / MB:8.1f} {found[density][k] / found[1.0][k]:5.2f}" for k in KEYS)
            print(f"{density:11g} {kept} {peak} {steps[density][0]:7.2f} {steps[density][1]:7.3f}")


if __name__ == "__main__":
    main()
