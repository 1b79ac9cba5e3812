"""Make the table in ``docs/zoo.md``: what uneven finds in models of usual size, and what a width costs.

python scripts/zoo.py            # all families, with one thread; takes some minutes
python scripts/zoo.py gpt2 vit   # some, printed only
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the families live with the tests

import torch
from tests.submodels.families import FAMILIES
from torch import Tensor, nn

from uneven.submodels import ChannelSubmodel, Supernet

OUT = Path(__file__).parents[1] / "docs" / "zoo.md"
BATCH, WIDTHS, STEPS = 4, (1.0, 0.5, 0.25), 3
HEAD = """# The zoo

Model families, what uneven finds in them, and what a width costs: made by `python scripts/zoo.py`, one thread of
{processor}. The definitions are in `tests/submodels/families.py`; every family passes the laws in
`tests/submodels/test_families.py`.

- **groups**: channel groups found. **droppable**: the share of the parameters that lie along at least one of them.
- **analysis**: processor seconds for `Supernet(model, example)`, the least of {repeats}.
- **parameters** in millions and **step** in milliseconds (forward, backward and SGD, batch {batch}, the least of
  {steps}) at widths 1, 1/2 and 1/4.

| family | input | groups | droppable | analysis, s | parameters, M | step, ms |
| --- | --- | ---: | ---: | ---: | ---: | ---: |
"""
REPEATS = 2


def main() -> None:
    torch.set_num_threads(1)
    names = sys.argv[1:]
    rows = []
    for name in names or FAMILIES:
        rows.append(row(name))
        print(rows[-1], flush=True)
    if not names:
        head = HEAD.format(processor=processor(), batch=BATCH, steps=STEPS, repeats=REPEATS)
        OUT.write_text(head + "\n".join(rows) + "\n")


def row(name: str) -> str:
    model, example = FAMILIES[name](True)
    seconds = min(timed(lambda: Supernet(model, example)) for _ in range(REPEATS))
    supernet = Supernet(model, example)
    submodels = [supernet.prefix(width) for width in WIDTHS]
    sizes = " / ".join(f"{submodel.size / 1e6:.3g}" for submodel in submodels)
    steps = " / ".join(f"{1e3 * step_seconds(submodel, example):.0f}" for submodel in submodels)
    shape = "x".join(map(str, example.shape)) + ("" if example.is_floating_point() else " tokens")
    share = f"{100 * droppable(supernet):.1f} %"
    return f"| {name} | {shape} | {len(supernet.groups)} | {share} | {seconds:.1f} | {sizes} | {steps} |"


def droppable(supernet: Supernet) -> float:
    """The share of parameters with at least one axis that is not whole."""
    axes = supernet.structure.axes
    free = (n for n in supernet.parameters if not all(axis.frozen for axis in axes[n]))
    return sum(supernet.initial[name].numel() for name in free) / supernet.size


def step_seconds(submodel: ChannelSubmodel, example: Tensor) -> float:
    network = submodel.network().load(submodel.gather(submodel.supernet.initial)).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    x = torch.stack([example] * BATCH)
    x = torch.randn(x.shape) if x.is_floating_point() else x

    def step() -> None:
        logits = network(x).flatten(1)
        loss = nn.functional.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.int64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step()
    return min(timed(step) for _ in range(STEPS))


def timed(work: Callable[[], object]) -> float:
    """Seconds of the processor, so that other processes on the machine count little."""
    start = time.process_time()
    work()
    return time.process_time() - start


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), "this machine")


if __name__ == "__main__":
    main()
