"""Linear layers of few links, dense against computed from the links alone: `python benchmarks/sparse_linear.py`.

Prints CPU milliseconds of a step (forward, back for input and weight) of GPT-2's two MLP layers on 16 texts of 128
tokens, by density; then of a whole training step of GPT-2 (hidden 256, 8 layers, 2,000 tokens) at an overall
density, with how many of its linear layers the probe chose. One thread; the least of a few.

Measured on two busy cores of an AMD EPYC:

           layer    0.02    0.05     0.1   sparse / dense, one layer
     256 -> 1024    0.38    0.68    0.94
     1024 -> 256    0.51    1.00    1.33

     density  chosen  dense, ms  sparse, ms   one training step
        0.02      33       1649        1120
        0.05      25       1503        1169
         0.1       0       1488        1478

(1024 -> 256 at .05 was .69 in another run: near the bound the choice is a matter of the day, and then kept.) Where
the probe let 9 layers through at .1, with ratios of .8 to .9, the step took 1,580 ms to 1,564, hence its margin.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from uneven.data import Info
from uneven.models import build
from uneven.sparsity.initial import first_mask
from uneven.sparsity.kernel import SparseNetwork
from uneven.sparsity.kernel_choice import faster, ratio, seconds
from uneven.submodels import Network, Supernet
from uneven.submodels.masks import masked
from uneven.training import TrainingOptions
from uneven.training.local import make_optimizer
from uneven.training.losses import cross_entropy

TEXTS, TOKENS, WORDS = 16, 128, 2000
DENSITIES = (0.02, 0.05, 0.1)


def layers() -> None:
    print(f"{'layer':>12} " + " ".join(f"{density:>7}" for density in DENSITIES) + "   sparse / dense, one layer")
    for into, out in ((256, 1024), (1024, 256)):
        found = (ratio(TEXTS * TOKENS, out, into, density) for density in DENSITIES)
        print(f"{f'{into} -> {out}':>12} " + " ".join(f"{value:7.2f}" for value in found), flush=True)


def step(network: Network) -> Callable[[], None]:
    draws = torch.Generator().manual_seed(0)
    x, y = (torch.randint(1, WORDS, (TEXTS, TOKENS), generator=draws) for _ in range(2))
    weights = list(network.weights().values())
    optimizer = make_optimizer(weights, TrainingOptions(), 1e-4)

    def work() -> None:
        optimizer.zero_grad()
        cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
        network.confine()
        optimizer.step()

    return work


def whole() -> None:
    info = Info((TOKENS,), WORDS, tuple(map(str, range(WORDS))), task="next_token", vocab_size=WORDS, pad_id=0)
    supernet = Supernet(build("gpt2", info, {}, seed=0), torch.ones(TOKENS, dtype=torch.int64))
    print(f"{'density':>8} {'chosen':>7} {'dense, ms':>10} {'sparse, ms':>11}   one training step")
    for density in DENSITIES:
        mask = first_mask(supernet, density, "erk", "random", 0)
        part, names = masked(supernet, mask), faster(supernet, mask, TEXTS)
        values = part.gather(supernet.initial)
        dense = 1000 * seconds(step(part.network().load(values).train()))  # type: ignore[arg-type]
        sparse = 1000 * seconds(step(SparseNetwork(part, names).load(values).train()))  # type: ignore[arg-type]
        print(f"{density:8} {len(names):7} {dense:10.0f} {sparse:11.0f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    layers()
    whole()
