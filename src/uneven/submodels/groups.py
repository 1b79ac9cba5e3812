"""Channel groups: the axes of a model's tensors that must drop the same channels.

`analyse` walks the training and the evaluation graph of a traced model, asks the rule of each operator which
axes are one and the same (`uneven.submodels.rules`), and returns what is left to drop. Inputs and outputs stay
whole. An operator without a rule on an axis that could be dropped is an error that names it, never a guess.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, fx

from uneven.errors import ModelError
from uneven.submodels.axes import Axis, fixed, freeze
from uneven.submodels.rules import RULES, Axes, Call, Outcome, operator_name, shape_of
from uneven.submodels.trace import Traced, line_of

UNKNOWN = "it comes out of"  # the reason why an axis stays whole, followed by an operator without a rule


@dataclass(frozen=True)
class Group:
    """One channel group: ``size`` channels that many tensors share.

    ``name``: the module that writes them first. ``members``: every (tensor, axis) they run along.
    """

    index: int
    name: str
    size: int
    members: tuple[tuple[str, int], ...]
    atom: Axis = field(repr=False)


@dataclass(frozen=True)
class Structure:
    """What the analysis of a traced model found.

    ``axes``: the axes of every parameter and buffer. ``groups``: what can be dropped, in the model's order.
    ``kept``: a line for each axis of a parameter that cannot, with the reason. ``calls``: what the rule of
    each operator said, for both graphs. ``output``: the axes of the model's output.
    """

    axes: dict[str, Axes]
    groups: tuple[Group, ...]
    kept: tuple[str, ...]
    calls: dict[fx.Node, Outcome]
    output: Axes


def analyse(traced: Traced) -> Structure:
    """Find the channel groups of a traced model.

    Raises:
        ModelError: an operator without a rule meets an axis that could be dropped, or a call that its rule
            cannot read; every such operator is named with its line in the model.
    """
    tensors = traced.parameters | traced.buffers
    axes = {name: [Axis(size) for size in tensor.shape] for name, tensor in tensors.items()}
    walks = [_Walk(axes, traced.constants) for _ in range(2)]
    for walk, graph in zip(walks, (traced.training, traced.evaluation), strict=True):
        walk.run(graph)
    _keep_unused(axes, (traced.training, traced.evaluation))
    _refuse_unknown([pair for walk in walks for pair in walk.unknown])
    groups = _groups({name: axes[name] for name in traced.parameters})
    kept = tuple(_kept({name: axes[name] for name in traced.parameters}))
    return Structure(axes, groups, kept, walks[0].calls | walks[1].calls, walks[1].output)


def _keep_unused(axes: dict[str, Axes], graphs: tuple[fx.Graph, fx.Graph]) -> None:
    used = {node.target for graph in graphs for node in graph.nodes if node.op == "get_attr" and node.users}
    for name in axes.keys() - used:
        for axis in axes[name]:
            freeze(axis, "the model does not use it")


class _Walk:
    """One pass over a graph, in order: each node's axes from those of its arguments."""

    def __init__(self, state: dict[str, Axes], constants: dict[str, Tensor]) -> None:
        self.state, self.constants = state, constants
        self.env: dict[fx.Node, Any] = {}
        self.calls: dict[fx.Node, Outcome] = {}
        self.unknown: list[tuple[fx.Node, list[Axis]]] = []
        self.output: Axes = []
        self.tail: set[fx.Node] = set()

    def run(self, graph: fx.Graph) -> None:
        self.tail = _tail(graph, self.state)
        visit = {
            "placeholder": self._placeholder,
            "get_attr": self._get_attr,
            "call_function": self._call,
            "output": self._output,
        }
        for node in graph.nodes:
            visit[node.op](node)

    def _placeholder(self, node: fx.Node) -> None:
        batch, *sizes = shape_of(node.meta["val"])
        self.env[node] = [Axis(batch, "batch", dynamic=True), *(fixed(s, "the model's input") for s in sizes)]

    def _get_attr(self, node: fx.Node) -> None:
        name = str(node.target)
        if name in self.state:
            self.env[node] = self.state[name]
        else:
            self.env[node] = [fixed(size, "a constant in the model") for size in self.constants[name].shape]

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            self.env[node] = self.env[node.args[0]][node.args[1]]  # type: ignore[index]
            return
        function = RULES.get(operator_name(node))
        if function is None:
            self._unknown(node)
            return
        try:
            outcome = function(Call(node, self.env))
        except (ValueError, IndexError, KeyError) as error:
            raise ModelError(
                f"operator {operator_name(node)} is used in a way that its rule cannot read "
                f"({error})\n  at {line_of(node)}"
            ) from error
        _check_sizes(node, outcome)
        self.calls[node], self.env[node] = outcome, outcome.outputs

    def _unknown(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        results = [value] if isinstance(value, Tensor) else value
        if not isinstance(results, list | tuple):
            return  # a size, or a check on one: no axes come of it
        inputs = [axis for n in node.all_input_nodes for axis in self.env.get(n) or []]
        free = [axis for axis in inputs if isinstance(axis, Axis) and not axis.frozen]
        self.unknown.append((node, free))
        if node in self.tail:
            for axis in free:
                freeze(axis, f"{operator_name(node)} makes the model's output of it")
        fresh = [_fresh(r, operator_name(node)) if isinstance(r, Tensor) else [] for r in results]
        self.env[node] = fresh[0] if isinstance(value, Tensor) else fresh

    def _output(self, node: fx.Node) -> None:
        (self.output,) = (self.env[result] for result in node.all_input_nodes)
        for axis in self.output:
            freeze(axis, "the model's output")


def _tail(graph: fx.Graph, state: dict[str, Axes]) -> set[fx.Node]:
    """The calls with no weights after them: what they read is the model's output in all but name."""
    weights = (node for node in graph.nodes if node.op == "get_attr" and node.target in state)
    weighted = {user for node in weights for user in node.users}
    tail: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if all(user in tail and user not in weighted for user in node.users):
            tail.add(node)
    return tail


def _check_sizes(node: fx.Node, outcome: Outcome) -> None:
    """A rule that misreads a call is found out by the sizes of its result."""
    value, outputs = node.meta["val"], cast(Any, outcome.outputs)
    results = [(outputs, value)] if isinstance(value, Tensor) else list(zip(outputs, value, strict=True))
    for axes, result in results:
        if [axis.size for axis in axes] != shape_of(result):
            raise ModelError(
                f"operator {operator_name(node)} is used in a way that its rule cannot read: it gives "
                f"({', '.join(map(str, axes))}) and not {tuple(shape_of(result))}\n  at {line_of(node)}"
            )


def _fresh(result: Tensor, source: str) -> Axes:
    """Axes for a tensor of which only the shape is known; they freeze whatever they meet."""
    sizes = zip(result.shape, shape_of(result), strict=True)
    return [Axis(size, f"{UNKNOWN} {source}", isinstance(s, torch.SymInt)) for s, size in sizes]


def _refuse_unknown(unknown: list[tuple[fx.Node, list[Axis]]]) -> None:
    """An axis that only met the result of such an operator would be frozen for want of a rule: refused too."""
    bad = {
        f"operator {operator_name(node)} at {line_of(node)}"
        for node, axes in unknown
        if any(atom.reason is None or atom.reason.startswith(UNKNOWN) for axis in axes for atom in axis.atoms())
    }
    if bad:
        raise ModelError(
            "no rule says what becomes of the channels in\n  " + "\n  ".join(sorted(bad)) + "\n"
            "  Use operators that have one: " + ", ".join(sorted(n for n in RULES if not n.endswith("_")))
        )


def _groups(parameters: dict[str, Axes]) -> tuple[Group, ...]:
    members: dict[Axis, list[tuple[str, int]]] = {}
    for name, axes in parameters.items():
        for dim, axis in enumerate(axes):
            for atom in dict.fromkeys(axis.atoms()):
                if atom.reason is None:
                    members.setdefault(atom, []).append((name, dim))
    return tuple(
        Group(i, _writer(found), atom.size, tuple(found), atom) for i, (atom, found) in enumerate(members.items())
    )


def _writer(members: list[tuple[str, int]]) -> str:
    """The module whose output the channels are: the first that has them on its tensor's first axis."""
    name = next((name for name, dim in members if dim == 0), members[0][0])
    return name.rpartition(".")[0] or name


def _kept(parameters: dict[str, Axes]) -> Iterator[str]:
    for name, axes in parameters.items():
        for dim, axis in enumerate(axes):
            reasons = dict.fromkeys(atom.reason for atom in axis.atoms() if atom.reason and atom.size > 1)
            if reasons:
                yield f"{name} axis {dim} {axis}: {'; '.join(r for r in reasons if r)}"
