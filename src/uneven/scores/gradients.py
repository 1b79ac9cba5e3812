"""Gradients of single examples: their mean and mean square over a client's data."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor, fx

from uneven.data import Examples
from uneven.errors import MethodError, nearest
from uneven.scores.tally import Gradients, Tally
from uneven.scores.ways import Way, looped, planned
from uneven.submodels import Network, State
from uneven.submodels.rules import arguments, operator_name
from uneven.training import Loss
from uneven.training.losses import of_examples


@torch.enable_grad()
def gradients(
    network: Network,
    data: Examples,
    limit: int = 512,
    *,
    loss: Loss = of_examples,
    chunk_bytes: int = 512 << 20,
    method: Way = "auto",
) -> Gradients:
    """The mean and the mean square of the gradients of single examples, at the network's present weights.

    The network runs as in evaluation, and is left in that mode: no dropout, running statistics as they are.

    Args:
        data: labelled examples; the first ``limit`` of them are used.
        loss: of logits ``(1, ...)`` and labels of one example, a scalar; by default -log p(y | x), of a text the
            sum over its targets.
        chunk_bytes: what activations and gradients of the examples that are worked on at once may take, roughly.
        method: ``layers``, ``vmap`` or ``loop`` (see `uneven.scores.ways`); ``auto`` is the first of them that
            the model allows and that is worth it.

    Raises:
        MethodError: there are no examples or no labels, a norm takes statistics of the batch, an option is out of
            range, or the model does not allow the method asked for.
    """
    tally = Tally(network.weights())
    data = _checked(data, method, limit=limit, chunk_bytes=chunk_bytes)
    network.eval()
    if (norm := couples(network, training=False)) is not None:
        raise MethodError(coupled(norm))
    chosen = planned(network, *_batch(data, 0, 1), tally, loss, chunk_bytes, method)
    for start in range(0, len(data), chosen.chunk):
        chosen.add(*_batch(data, start, start + chosen.chunk))
    return tally.result(len(data))


@torch.enable_grad()
def batch_squares(network: Network, data: Examples, limit: int, batch: int) -> tuple[State, int]:
    """The mean over batches of the squared gradient of a batch's mean -log p(y | x); and the examples it took.

    An approximation of F for the price of an epoch: squares of means, not a mean of squares.

    Args:
        data: as for `gradients`, of which the first ``limit`` are used, ``batch`` at once.

    Raises:
        MethodError: there are no examples or no labels, or a count is out of range.
    """
    data = _checked(data, "auto", limit=limit, batch=batch)
    tally = Tally(network.weights())
    add = looped(network.eval(), tally, of_examples)
    starts = range(0, len(data), batch)
    for start in starts:
        add(*_batch(data, start, start + batch))
    return tally.result(len(starts)).square, len(data)


def _checked(data: Examples, method: str, **counts: int) -> Examples:
    """The examples to use, if there are any and all can be understood."""
    for name, count in counts.items():
        if count < 1:
            raise MethodError(f"{name} = {count}: must be at least 1")
    if method not in get_args(Way):
        raise MethodError(f"method = {method!r}: {nearest(method, get_args(Way))}")
    if not len(data):
        raise MethodError("gradients are taken of labelled examples: there are none")
    if data.y.dtype != torch.int64 or (data.y.dim() == 1 and bool((data.y < 0).any())):
        raise MethodError("gradients are taken of labelled examples: some have no label (a class, 0 or more)")
    return data[: counts["limit"]]


def _batch(data: Examples, start: int, stop: int) -> tuple[Tensor, Tensor]:
    return data.batch(torch.arange(start, min(stop, len(data))))


def couples(network: Network, training: bool = True) -> str | None:
    """The first norm that takes the statistics of a batch in this mode, by its name; None if there is none.

    Under such a norm an example has no gradient of its own. A batch norm in evaluation takes its running
    statistics, and couples nothing.
    """
    for node in network.graphs[0 if training else 1].graph.nodes:
        if operator_name(node) == "batch_norm":
            call = arguments(node)
            if call["training"]:
                tensors = (call[name] for name in ("weight", "running_mean"))
                named = next((str(t.target) for t in tensors if isinstance(t, fx.Node)), str(node.name))
                return named.rpartition(".")[0] or named
    return None


def coupled(norm: str) -> str:
    """The message about a model of which `couples` named a norm."""
    return (
        f"the batch norm {norm} couples the examples of a batch, which then have no gradient of their own; use "
        "group norm (model.norm = 'group'), or freeze its statistics"
    )
