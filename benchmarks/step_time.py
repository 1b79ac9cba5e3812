"""How much faster a training step gets with the width: `python benchmarks/step_time.py [MODEL] [BATCH]`.

Prints, for each width, parameters, MACs, the median seconds of a training step (forward, backward, SGD) and the
ratio to the full width; one thread, all widths in turn in one process, so that the ratios hold on a noisy machine.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

from uneven.data import Info
from uneven.models import build
from uneven.submodels import Network, Supernet

WIDTHS = (1.0, 0.5, 0.25, 0.125)
REPEATS = 15


def step(network: Network, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    start = time.perf_counter()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(network(x), y).backward()
    optimizer.step()
    return time.perf_counter() - start


def main(model: str = "resnet18", batch: str = "10") -> None:
    torch.set_num_threads(1)
    info = Info((3, 32, 32), 10, tuple("0123456789"))
    supernet = Supernet(build(model, info, {}, seed=0), torch.zeros(info.input_shape))
    x, y = torch.randn(int(batch), *info.input_shape), torch.randint(0, 10, (int(batch),))
    submodels = [supernet.prefix(width) for width in WIDTHS]
    networks = [s.network().load(s.gather(supernet.initial)).train() for s in submodels]
    optimizers = [torch.optim.SGD(n.weights().values(), lr=0.01) for n in networks]
    times: list[list[float]] = [[] for _ in WIDTHS]
    for repeat in range(REPEATS + 2):
        for i, (network, optimizer) in enumerate(zip(networks, optimizers, strict=True)):
            seconds = step(network, optimizer, x, y)
            if repeat >= 2:  # the first two warm up
                times[i].append(seconds)
    medians = [statistics.median(t) for t in times]
    print(f"{model}, batch {batch}, one thread")
    print(f"{'width':>6} {'parameters':>11} {'MACs':>12} {'step':>9} {'ratio':>6}")
    for width, submodel, median in zip(WIDTHS, submodels, medians, strict=True):
        ratio = medians[0] / median
        print(f"{width:6g} {submodel.size:11,} {submodel.macs:12,} {median * 1e3:6.1f} ms {ratio:6.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
