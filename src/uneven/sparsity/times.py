"""What a link of each layer costs in time, as far as arithmetic goes."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from uneven.submodels import Supernet
from uneven.submodels.axes import Axis
from uneven.submodels.rules.base import Axes, numel


def time_per_link(supernet: Supernet) -> dict[str, float]:
    """Multiply-accumulates of one example's forward pass that each entry of a prunable tensor takes part in.

    Of a convolution, the positions of its output; of a linear layer on a text, its tokens. An entry that is only
    read counts once for each entry of the result, in the mean (a table of words: tokens over words). A tensor that
    is used twice counts twice; the weights of one call share its work evenly.
    """
    calls, kept = supernet.structure.calls, supernet.prefix(1.0).kept
    graph = next(iter(calls)).graph  # of training; that of evaluation reads the same weights
    data = _of_the_input(graph)
    times = dict.fromkeys(supernet.maskable, 0.0)
    for node in graph.nodes:
        if node not in calls or node not in data:
            continue
        weights = {name for source in node.all_input_nodes for name in _weights(source, data) if name in times}
        size = sum(supernet.initial[name].numel() for name in weights)
        call = calls[node]
        work = call.macs(kept) if call.macs is not None else numel(_first(call.outputs), kept)
        for name in weights:
            times[name] += work / size
    return times


def _first(outputs: Axes | list[Axes]) -> Axes:
    """The axes of a call's result, or of the first of several; a number has none."""
    several = bool(outputs) and not isinstance(outputs[0], Axis)
    return outputs[0] if several else outputs  # type: ignore[return-value]


def _of_the_input(graph: fx.Graph) -> set[fx.Node]:
    """The nodes whose value depends on the example."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder" or any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def _weights(source: fx.Node, data: set[fx.Node]) -> Iterator[str]:
    """The tensors that an operand is made of, where it is a view of weights."""
    if source.op == "get_attr":
        yield str(source.target)
    elif source not in data:
        for earlier in source.all_input_nodes:
            yield from _weights(earlier, data)
