"""Early exits: a model that makes logits on its way as well, and what of it runs up to one of them.

Such a model returns ``torch.stack(logits, dim=1)``, ``(batch, exits, classes)``, the first exit first. Up to an
exit runs all that its logits or those of earlier exits need, and what changes the state before them (counters).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx

from uneven.submodels.rules import arguments, operator_name
from uneven.submodels.rules.base import shape_of


def logits_of(graph: fx.Graph) -> list[fx.Node]:
    """The logits of each exit, ``(batch, classes)``, in order; none of a model that has no early exits."""
    (result,) = next(iter(reversed(graph.nodes))).all_input_nodes
    if operator_name(result) != "stack":
        return []
    call = arguments(result)
    two_axes = all(len(shape_of(logits.meta["val"])) == 2 for logits in call["tensors"])
    return list(call["tensors"]) if two_axes and call["dim"] in (1, -2) else []


def until(graph: fx.Graph, exit: int | None) -> list[fx.Node]:
    """The nodes that run up to an exit, 1 the first, in order; all, and the output, where it is None."""
    nodes = list(graph.nodes)
    if exit is None:
        return nodes
    live = set(logits_of(graph)[:exit])
    before = nodes[: max(map(nodes.index, live)) + 1]
    owners = _owners(before)
    owned = {owners[node] for node in live}
    for node in reversed(before):
        changes = _writes(node) and (owners[node] in owned or owners[node].op == "get_attr")
        if node in live or changes or node.op == "placeholder":
            live.update({node, *node.all_input_nodes})
            owned.update(owners[read] for read in node.all_input_nodes)
    return [node for node in before if node in live]


def _owners(nodes: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
    """The node that made the data of each: of a view, and of a call that changes a tensor, that of the tensor."""
    owners: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        shares = node.target is operator.getitem or any(a.alias_info is not None for a in _arguments(node))
        owners[node] = owners[node.all_input_nodes[0]] if shares and node.all_input_nodes else node
    return owners


def _writes(node: fx.Node) -> bool:
    return any(a.alias_info is not None and a.alias_info.is_write for a in _arguments(node))


def _arguments(node: fx.Node) -> Sequence[torch.Argument]:
    schema = getattr(node.target, "_schema", None)
    return schema.arguments if schema is not None else ()


def end(graph: fx.Graph, logits: Sequence[fx.Node], training: bool) -> None:
    """Return the logits of every exit, stacked, in training, and else those of the last."""
    stack = torch.ops.aten.stack.default
    graph.output(graph.call_function(stack, (list(logits), 1)) if training else logits[-1])
    graph.eliminate_dead_code()
