"""Channel groups: the axes of a model's tensors that must drop the same channels.

`analyse` walks the training and the evaluation graph of a traced model, asks the rule of each operator which
axes are one and the same (`uneven.submodels.rules`), and returns what is left to drop. Inputs and outputs stay
whole. An operator without a rule on an axis that could be dropped is an error that names it, never a guess.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, fx

from uneven.errors import ModelError
from uneven.submodels.axes import BATCH, MIXED, Axis, freeze
from uneven.submodels.rules import RULES, Axes, Call, Outcome, Rule, operator_name, shape_of
from uneven.submodels.trace import Traced, line_of

UNKNOWN = "it comes out of"  # the reason why an axis stays whole, followed by an operator without a rule
Attention = Literal["head_dim", "heads"]


@dataclass(frozen=True)
class Policy:
    """What the user says about a model's axes.

    ``attention``: ``head_dim`` keeps all heads and drops the same channels inside each, ``heads`` drops whole
    heads. ``rules``: the user's own, by operator. ``frozen``: axes that stay whole, as ``"tensor:axis"``.
    """

    attention: Attention = "head_dim"
    rules: Mapping[str, Rule] = field(default_factory=dict)
    frozen: Sequence[str] = ()


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

    ``axes``: the axes of every parameter, buffer and constant. ``groups``: what can be dropped, in the model's
    order. ``kept``: a line for each axis of a parameter that cannot, with the reason. ``calls``: what the rule
    of each operator said, for both graphs. ``output``: the axes of the model's output. ``carried``: constants
    that run along a group, so that a small network needs its own entries of them.
    """

    axes: dict[str, Axes]
    groups: tuple[Group, ...]
    kept: tuple[str, ...]
    calls: dict[fx.Node, Outcome]
    output: Axes
    carried: tuple[str, ...]


def analyse(traced: Traced, policy: Policy | None = None) -> Structure:
    """Find the channel groups of a traced model.

    Raises:
        ModelError: an operator without a rule meets an axis that could be dropped, or a call that its rule
            cannot read, or all channels are mixed so that none can be dropped; every such operator is named
            with its line in the model.
    """
    policy = policy or Policy()
    if policy.attention not in get_args(Attention):
        raise ModelError(f"attention = {policy.attention!r}: must be 'head_dim' or 'heads'")
    state = traced.parameters | traced.buffers | traced.frozen
    tensors = state | traced.constants
    axes = {name: [Axis(size) for size in tensor.shape] for name, tensor in tensors.items()}
    for name, axis in _by_hand(policy.frozen, axes):
        freeze(axis, f"{name} is frozen by hand")
    walks = [_Walk(axes, set(state), {**RULES, **policy.rules}) for _ in range(2)]
    for walk, graph in zip(walks, (traced.training, traced.evaluation), strict=True):
        walk.run(graph)
    _keep_unused(axes, (traced.training, traced.evaluation))
    calls = walks[0].calls | walks[1].calls
    _apply(policy.attention, calls.values())
    _refuse_unknown([pair for walk in walks for pair in walk.unknown])
    parameters = {name: axes[name] for name in traced.parameters}
    groups = _groups(parameters)
    if not groups:
        _refuse_mixed(walks[0].mixed or walks[1].mixed)
    atoms = {group.atom for group in groups}
    carried = tuple(n for n in traced.constants if any(a in atoms for axis in axes[n] for a in axis.atoms()))
    return Structure(axes, groups, tuple(_kept(parameters)), calls, walks[1].output, carried)


def _by_hand(frozen: Sequence[str], axes: Mapping[str, Axes]) -> Iterator[tuple[str, Axis]]:
    for item in frozen:
        name, _, dim = item.rpartition(":")
        if name not in axes or not dim.isdecimal() or int(dim) >= len(axes[name]):
            raise ModelError(
                f"frozen = {item!r}: must be a tensor of the model and one of its axes, as 'layer.weight:0'"
            )
        yield item, axes[name][int(dim)]


def _keep_unused(axes: dict[str, Axes], graphs: tuple[fx.Graph, fx.Graph]) -> None:
    used = {node.target for graph in graphs for node in graph.nodes if node.op == "get_attr" and node.users}
    for name in axes.keys() - used:
        for axis in axes[name]:
            freeze(axis, "the model does not use it")


def _apply(attention: Attention, calls: Iterable[Outcome]) -> None:
    """In every product of activations keep either the heads or the channels of a head, where both could go."""
    for heads, channels in (call.attention for call in calls if call.attention is not None):
        whole, dropped = (heads, channels) if attention == "head_dim" else (channels, heads)
        if not all(axis.frozen for axis in dropped):
            for axis in whole:
                freeze(axis, f'attention = "{attention}" keeps it whole')


class _Walk:
    """One pass over a graph, in order: each node's axes from those of its arguments."""

    def __init__(self, axes: dict[str, Axes], state: set[str], rules: Mapping[str, Rule]) -> None:
        self.axes, self.state, self.rules = axes, state, rules
        self.env: dict[fx.Node, Any] = {}
        self.calls: dict[fx.Node, Outcome] = {}
        self.unknown: list[tuple[fx.Node, list[Axis]]] = []
        self.mixed: dict[str, fx.Node] = {}
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
        value = node.meta["val"]
        batch, *sizes = shape_of(value)
        dynamic = [isinstance(size, torch.SymInt) for size in value.shape[1:]]
        inputs = (Axis(s, "the model's input", d) for s, d in zip(sizes, dynamic, strict=True))
        self.env[node] = [Axis(batch, BATCH, dynamic=True), *inputs]

    def _get_attr(self, node: fx.Node) -> None:
        self.env[node] = self.axes[str(node.target)]

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            self.env[node] = self.env[node.args[0]][node.args[1]]  # type: ignore[index]
            return
        function = self.rules.get(operator_name(node))
        try:
            if function is None:
                self._unknown(node)
                return
            outcome = function(Call(node, self.env))
            _check_sizes(node, outcome)
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise ModelError(
                f"operator {operator_name(node)} is used in a way that its rule cannot read "
                f"({error})\n  at {line_of(node)}"
            ) from error
        self._must_stay(node, outcome.whole)
        self.calls[node], self.env[node] = outcome, outcome.outputs
        self._note_mixed(node)

    def _unknown(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        results = [value] if isinstance(value, Tensor) else value
        if not isinstance(results, list | tuple):
            return  # a size, or a check on one: no axes come of it
        inputs = [axis for n in node.all_input_nodes for axis in self.env.get(n) or []]
        self._must_stay(node, [axis for axis in inputs if isinstance(axis, Axis)])
        fresh = [_fresh(r, operator_name(node)) if isinstance(r, Tensor) else [] for r in results]
        self.env[node] = fresh[0] if isinstance(value, Tensor) else fresh

    def _must_stay(self, node: fx.Node, axes: Sequence[Axis]) -> None:
        """Nothing is known of what a call makes of these axes: they stay whole, or the model is refused."""
        free = [axis for axis in axes if not axis.frozen]
        self.unknown.append((node, free))
        if node in self.tail:
            for axis in free:
                freeze(axis, f"{operator_name(node)} makes the model's output of it")

    def _note_mixed(self, node: fx.Node) -> None:
        """The first call at which channels were found to be mixed."""
        near = (axes for n in (node, *node.all_input_nodes) for axes in _flat(self.env.get(n)))
        for reason in {atom.reason for axis in near for atom in axis.atoms()}:
            if reason is not None and any(mix in reason for mix in MIXED):
                self.mixed.setdefault(reason, node)

    def _output(self, node: fx.Node) -> None:
        (self.output,) = (self.env[result] for result in node.all_input_nodes)
        for axis in self.output:
            freeze(axis, "the model's output")


def _flat(value: Any) -> Iterator[Axis]:
    if isinstance(value, Axis):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _flat(item)


def _tail(graph: fx.Graph, state: set[str]) -> set[fx.Node]:
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
            "  Give one with Supernet(model, example, rules={operator: rule}), or use operators that have one: "
            + ", ".join(sorted(n for n in RULES if not n.endswith("_")))
        )


def _refuse_mixed(mixed: Mapping[str, fx.Node]) -> None:
    if mixed:
        places = "\n  ".join(f"{reason}\n    at {line_of(node)}" for reason, node in mixed.items())
        raise ModelError(
            f"no channel of the model can be dropped:\n  {places}\n"
            "  Cut and join channels in pieces of equal size, so that a smaller model can do the same."
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
