"""Which layers of a topology train faster from their links alone: measured, once for each kind of layer.

What was measured is kept in the user's cache (``$XDG_CACHE_HOME/uneven``, else ``~/.cache/uneven``), so that all
runs on a machine choose alike; a run writes its choice to its spec, and keeps it when it is resumed.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, fx

from uneven.errors import MethodError
from uneven.sparsity.kernel import Layout, linear, linear_layers
from uneven.submodels import Network, Supernet

DENSEST = 0.1
SMALLEST = 1 << 16  # places; below that a layer is a small part of what a step takes
REPEATS = 5
GAIN = 0.8  # of the dense time; layers nearer to it than that gained nothing in a whole step


def named(given: Sequence[str], supernet: Supernet, sparse: Collection[str]) -> tuple[str, ...]:
    """Layers that a spec names, which must be linear and among the ``sparse`` tensors.

    Raises:
        MethodError: one is not.
    """
    network = supernet.prefix(1.0).network()
    known = sorted({call.weight for call in linear_layers(network.graphs[0], network)}.intersection(sparse))
    for name in given:
        if name not in known:
            raise MethodError(
                f"method.sparse_layers: {name!r} is no sparse linear layer of the topology, which has "
                + (", ".join(known) or "none")
            )
    return tuple(given)


def faster(supernet: Supernet, mask: Mapping[str, Tensor], batch: int) -> tuple[str, ...]:
    """The weights of the linear layers that a training step on ``batch`` examples computes faster from the links.

    Only layers of at most one link in ten places, and not of small ones.
    """
    density = {name: float(links.float().mean()) for name, links in mask.items()}
    some = [name for name, links in mask.items() if density[name] <= DENSEST and links.numel() >= SMALLEST]
    if not some:
        return ()
    network = supernet.prefix(1.0).network().load(supernet.initial)
    rows = _rows(network, supernet.example, batch)
    known, chosen = _read(), list[str]()
    for call in linear_layers(network.graphs[0], network):
        if call.weight in some and call.weight not in chosen:
            shape = tuple(mask[call.weight].shape[:: -1 if call.flipped else 1])
            key = f"{_machine()} {rows[call.node.name]} {shape[0]} {shape[1]} {density[call.weight]:.2g}"
            if key not in known:
                known = _kept({key: ratio(rows[call.node.name], shape[0], shape[1], density[call.weight])})
            if known[key] < GAIN:
                chosen.append(call.weight)
    return tuple(chosen)


def ratio(rows: int, out: int, into: int, density: float) -> float:
    """CPU time of a step of one layer from its links, over that of the dense layer: forward, and back for input
    and weight; the least of a few."""
    draws = torch.Generator().manual_seed(0)
    mask = torch.rand(out, into, generator=draws) < density
    x = torch.randn(rows, into, generator=draws, requires_grad=True)
    weight = (torch.randn(out, into, generator=draws) * mask).requires_grad_()
    back, layout = torch.randn(rows, out, generator=draws), Layout(mask)

    def dense() -> None:
        _, of_weight = torch.autograd.grad(torch.nn.functional.linear(x, weight), [x, weight], back)
        of_weight.masked_fill_(~mask, 0.0)

    def sparse() -> None:
        torch.autograd.grad(linear(x, weight, None, layout), [x, weight], back)

    return seconds(sparse) / seconds(dense)


def seconds(work: Callable[[], None]) -> float:
    """CPU time of some work, the least of a few; once before to warm up."""
    work()
    taken = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return max(min(taken), 1e-9)


class _Watching(fx.Interpreter):
    """Runs a graph and notes the rows of each linear layer's input."""

    def __init__(self, graph: fx.GraphModule, network: Network) -> None:
        super().__init__(graph)
        self._calls = {call.node.name: call.arguments[0] for call in linear_layers(graph, network)}
        self.rows: dict[str, int] = {}

    def run_node(self, n: fx.Node) -> object:
        if n.name in self._calls:
            x = self.env[self._calls[n.name]]
            self.rows[n.name] = x.numel() // x.shape[-1]
        return super().run_node(n)


@torch.no_grad()
def _rows(network: Network, example: Tensor, batch: int) -> dict[str, int]:
    watching = _Watching(network.graphs[0], network)
    watching.run(example.expand(batch, *example.shape))
    return watching.rows


def _machine() -> str:
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} torch {torch.__version__}"


def _file() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "uneven" / "sparse_linear.json"


def _read() -> dict[str, float]:
    """What is known; nothing where the file is none of ours."""
    try:
        found = json.loads(_file().read_text(encoding="utf-8"))
        return {str(key): float(value) for key, value in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _kept(measured: dict[str, float]) -> dict[str, float]:
    """All that is known with what was measured; what another process found meanwhile goes first, so that runs side
    by side choose alike. Without a place to write, it is measured again next time."""
    known = measured | _read()
    try:
        _file().parent.mkdir(parents=True, exist_ok=True)
        partial = _file().with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(known, indent=1), encoding="utf-8")
        partial.replace(_file())
    except OSError:
        pass
    return known
