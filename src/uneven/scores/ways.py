"""Three ways to the gradients of single examples, and which of them a model takes.

``layers`` reads them off one backward pass over a batch, for models whose parameters are used in the usual layers;
``vmap`` differentiates by `torch.func`, for any operators that it can batch; ``loop`` takes one example after the
other. They differ in the last bits, so the choice depends on the model and the options alone, never on a clock.
The constants here are measured: see benchmarks/fisher_time.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, fx
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from uneven.errors import MethodError
from uneven.scores.layers import Watched, plan
from uneven.scores.tally import Tally
from uneven.submodels import Network
from uneven.submodels.rules import operator_name
from uneven.training import Loss
from uneven.training.losses import of_examples, summed

Way = Literal["auto", "layers", "vmap", "loop"]
Add = Callable[[Tensor, Tensor], None]
"""Adds the gradients of a chunk's x and y to a tally."""

CACHE = 32 << 20
"""Bytes that the work on one chunk had better not exceed by much: with more, it waits for memory."""
LEAST = 32
"""Examples that ``layers`` takes at once however large they are, where the limit of memory allows it."""
FEW = 8
"""Examples of which the gradients must fit in `CACHE` for ``vmap`` to be faster than ``loop``."""
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
"""Operators that ``vmap`` takes apart into their steps."""


@dataclass(frozen=True)
class Plan:
    """The way that a network takes, and with how many examples at once."""

    way: Way
    chunk: int
    add: Add


def planned(
    network: Network, x: Tensor, y: Tensor, tally: Tally, loss: Loss, chunk_bytes: int, method: Way
) -> Plan:
    """How a network in evaluation mode adds gradients to a tally.

    ``x``, ``y``: one example, to see what it needs and whether it can be batched.

    Raises:
        MethodError: the model does not allow the method asked for.
    """
    graph = network.graphs[1]
    activations = _activations(graph, x)
    weights = sum(weight.numel() * weight.element_size() for weight in network.weights().values())
    uses = plan(graph.graph, network.weights())
    if method in ("auto", "layers") and not isinstance(uses, str):
        chunk = min(chunk_bytes // (2 * activations), max(LEAST, CACHE // activations))
        return Plan("layers", max(1, chunk), layered(Watched(graph, uses, tally), loss))
    if method == "layers":
        raise MethodError(f"method = 'layers': {uses}; use 'vmap' or 'loop'")
    steps = any(operator_name(node) in RECURRENT for node in graph.graph.nodes)
    if method == "vmap" or (method == "auto" and FEW * weights <= CACHE and not steps):
        why = _fails(vmapped(network, Tally(network.weights()), loss), x, y)
        if why is None:
            chunk = min(chunk_bytes // (2 * (activations + weights)), CACHE // weights)
            return Plan("vmap", max(1, chunk), vmapped(network, tally, loss))
        if method == "vmap":
            raise MethodError(f"method = 'vmap': {why}; use 'loop'")
    return Plan("loop", 1, looped(network, tally, loss))


def _fails(add: Add, x: Tensor, y: Tensor) -> str | None:
    """Why something cannot be done to one example, or only by torch's own slow loop; None if it can."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="There is a performance drop")
        try:
            add(x, y)
        except (RuntimeError, NotImplementedError, ValueError, UserWarning) as error:
            return str(error).strip().partition("\n")[0]
    return None


@torch.no_grad()
def _activations(evaluation: fx.GraphModule, x: Tensor) -> int:
    """Bytes of everything that a forward pass makes of one example."""
    run = fx.Interpreter(evaluation, garbage_collect_values=False)
    run.run(x)
    made = tree_leaves([value for node, value in run.env.items() if node.op != "get_attr"])
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in made if isinstance(t, Tensor)}
    return sum(storages.values())


def layered(run: Watched, loss: Loss) -> Add:
    """One backward pass over the examples; see `uneven.scores.layers`."""

    def add(x: Tensor, y: Tensor) -> None:
        _summed(loss, run(x), y).backward()  # type: ignore[no-untyped-call]

    return add


def _summed(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """The sum of the losses of single examples."""
    if loss is of_examples:
        return summed(logits, y)
    return torch.stack([loss(logits[i : i + 1], y[i : i + 1]) for i in range(len(y))]).sum()


def vmapped(network: Network, tally: Tally, loss: Loss) -> Add:
    """All examples side by side, with a gradient of every parameter for each."""
    weights = {name: weight.detach() for name, weight in network.weights().items()}
    each = vmap(grad(lambda values, x, y: loss(network.call(values, x[None]), y[None])), (None, 0, 0))

    def add(x: Tensor, y: Tensor) -> None:
        with sdpa_kernel(SDPBackend.MATH):  # the only form of attention that can be batched
            for name, found in each(weights, x, y).items():
                tally.add(name, found)

    return add


def looped(network: Network, tally: Tally, loss: Loss) -> Add:
    """The batch as if it were one example: with its own loss, and one gradient."""
    weights = network.weights()

    def add(x: Tensor, y: Tensor) -> None:
        found = torch.autograd.grad(loss(network(x), y), list(weights.values()), allow_unused=True)
        for name, one in zip(weights, found, strict=True):
            if one is not None:
                tally.add(name, one[None])

    return add
