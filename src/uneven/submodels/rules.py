"""What each operator says about axes: one rule per kind of operator.

A rule answers three questions about one call in a model's graph: which axes are one and the same, which
integers of the call change with the width (``resize``), and how many multiply-accumulates it makes
(``macs``). An operator that has no rule here is never guessed at: see `uneven.submodels.groups`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from uneven.submodels.axes import Axis, concat, count, fixed, freeze, product, regroup, sections, unify

Axes = list[Axis]
Sizes = Mapping[Axis, int]
SPATIAL = "a position in space or time"


@dataclass
class Outcome:
    """What a rule found out about a call.

    ``outputs``: the axes of the result, or a list of those for a call with several results.
    ``resize``: the arguments that change with the width, by name, from the sizes kept.
    ``macs``: multiply-accumulates per example, from the sizes kept.
    ``target``: the operator to call instead in a small network; ``resize`` then gives all its arguments.
    """

    outputs: Axes | list[Axes]
    resize: Callable[[Sizes], dict[str, Any]] | None = None
    macs: Callable[[Sizes], int] | None = None
    target: Any = None


class Call:
    """One operator call of the graph: its arguments by name, and the axes of its tensors."""

    def __init__(self, node: fx.Node, env: Mapping[fx.Node, Any]) -> None:
        self.node, self._env = node, env
        self.args = arguments(node)

    def axes(self, name: str) -> Axes:
        """The axes of a tensor argument; none for a number or a missing tensor."""
        value = self.args.get(name)
        return self._env[value] if isinstance(value, fx.Node) and isinstance(self._env.get(value), list) else []

    def list_axes(self, name: str) -> list[Axes]:
        return [self._env[value] for value in self.args[name]]

    @property
    def sizes(self) -> list[int]:
        """The sizes of the result as traced (a dynamic size by its hint)."""
        return shape_of(self.node.meta["val"])


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operator call by name, however they were passed."""
    schema = node.target._schema  # type: ignore[union-attr]
    given = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
    defaults = {a.name: a.default_value if a.has_default_value() else None for a in schema.arguments}
    return defaults | given


Rule = Callable[[Call], Outcome]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for ATen operators; a name covers its in-place form too."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys((*names, *(f"{name}_" for name in names)), function))
        return function

    return register


def shape_of(value: Any) -> list[int]:
    """The shape of a traced tensor, with the hint of each symbolic size."""
    return [int(s.node.hint) if isinstance(s, torch.SymInt) else int(s) for s in value.shape]


def _tie(axes: Axes, axis: Axis) -> None:
    """A one-dimensional parameter (a bias, a norm's scale, a running statistic) runs along ``axis``."""
    if axes:
        unify(axes[0], axis)


@rule("conv1d", "conv2d", "conv3d")
def convolution(call: Call) -> Outcome:
    """Grouped: input = G * a, weight = (G * b, a, *kernel), output = G * b. G drops only in a depthwise one."""
    x, w, groups = call.axes("input"), call.axes("weight"), call.args["groups"]
    channel = len(x) - len(w) + 1  # 0 where the input has no batch axis
    lead = Axis(groups)
    unify(x[channel], product([lead, w[1]]))
    unify(w[0], product([lead, Axis(w[0].size // groups)]))
    if w[1].size > 1:
        freeze(lead, "groups of a convolution")
    for axis in w[2:]:
        freeze(axis, "a kernel's positions")
    for axis in x[channel + 1 :]:
        freeze(axis, SPATIAL)
    _tie(call.axes("bias"), w[0])
    out = [*x[:channel], w[0], *(fixed(size, SPATIAL) for size in call.sizes[channel + 1 :])]
    return Outcome(
        out,
        resize=lambda sizes: {"groups": count(lead, sizes)} if groups > 1 else {},
        macs=lambda sizes: _numel(out, sizes) * _numel(w[1:], sizes),
    )


@rule("linear")
def linear(call: Call) -> Outcome:
    x, w = call.axes("input"), call.axes("weight")
    unify(x[-1], w[1])
    _tie(call.axes("bias"), w[0])
    out = [*x[:-1], w[0]]
    return Outcome(out, macs=lambda sizes: _numel(out, sizes) * count(w[1], sizes))


@rule("batch_norm")
def batch_norm(call: Call) -> Outcome:
    x = call.axes("input")
    for name in ("weight", "bias", "running_mean", "running_var"):
        _tie(call.axes(name), x[1])
    return Outcome(list(x))


@rule("group_norm")
def group_norm(call: Call) -> Outcome:
    """Channels are G * (C / G): every group keeps the same entries, so that its statistics stay its own."""
    x, groups = call.axes("input"), call.args["num_groups"]
    lead = fixed(groups, "groups of a norm")
    unify(x[1], product([lead, Axis(x[1].size // groups)]))
    for name in ("weight", "bias"):
        _tie(call.axes(name), x[1])
    return Outcome(list(x))


@rule("layer_norm")
def layer_norm(call: Call) -> Outcome:
    x = call.axes("input")
    normalised = x[-len(call.args["normalized_shape"]) :]
    for name in ("weight", "bias"):
        for own, axis in zip(call.axes(name), normalised, strict=False):
            unify(own, axis)
    return Outcome(list(x), resize=lambda sizes: {"normalized_shape": [count(axis, sizes) for axis in normalised]})


@rule(
    *(
        "relu",
        "relu6",
        "leaky_relu",
        "elu",
        "gelu",
        "silu",
        "mish",
        "sigmoid",
        "tanh",
        "softplus",
        "hardtanh",
    ),
    *("hardswish", "hardsigmoid", "abs", "neg", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "erf", "square"),
    *("dropout", "feature_dropout", "contiguous", "clone", "detach", "to", "alias"),
    *("softmax", "log_softmax"),  # over the channels that are kept, as a norm
)
def pointwise(call: Call) -> Outcome:
    return Outcome(list(call.axes("self") or call.axes("input")))


@rule("add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum", "clamp", "clamp_min", "clamp_max")
def broadcast(call: Call) -> Outcome:
    """Axes aligned from the right are the same, but for those of one entry, which stretch."""
    operands = [axes for name in ("self", "other", "exponent", "min", "max") if (axes := call.axes(name))]
    out = [fixed(1)] * max(map(len, operands), default=0)
    for axes in operands:
        for i in range(1, len(axes) + 1):
            if axes[-i].size == 1 and not axes[-i].dynamic:
                continue
            if out[-i].size == 1:
                out[-i] = axes[-i]
            else:
                unify(out[-i], axes[-i])
    return Outcome(out)


@rule("view", "reshape", "flatten", "unflatten", "_unsafe_view")
def reshape(call: Call) -> Outcome:
    out = regroup(call.axes("self"), call.sizes)
    return Outcome(out, resize=lambda sizes: _resized_shape(call, out, sizes))


def _resized_shape(call: Call, out: Axes, sizes: Sizes) -> dict[str, Any]:
    """The shape argument with each integer that depends on the width computed anew."""
    name = next((n for n in ("size", "shape", "sizes") if n in call.args), None)
    if name is None:  # flatten takes no sizes
        return {}
    shape = call.args[name]
    start = call.args["dim"] % len(call.axes("self")) if "dim" in call.args else 0
    return {name: [_resized(old, axis, sizes) for old, axis in zip(shape, out[start:], strict=False)]}


def _resized(old: Any, axis: Axis, sizes: Sizes) -> Any:
    if not any(atom.dynamic for atom in axis.atoms()):
        return count(axis, sizes)  # also where it was -1: a batch size times channels may need the only -1
    return old if axis.frozen else -1  # the graph computes such a size from the full model's channels


@rule("transpose", "swapaxes")
def transpose(call: Call) -> Outcome:
    x = list(call.axes("self"))
    i, j = (call.args[name] for name in (("dim0", "dim1") if "dim0" in call.args else ("axis0", "axis1")))
    x[i], x[j] = x[j], x[i]
    return Outcome(x)


@rule("prelu")
def prelu(call: Call) -> Outcome:
    x = call.axes("self")
    if call.axes("weight")[0].size > 1:
        unify(call.axes("weight")[0], x[1])
    return Outcome(list(x))


@rule("expand")
def expand(call: Call) -> Outcome:
    """Axes of one entry stretch, to the size that they are given; the others stay as they are (-1)."""
    x, new = call.axes("self"), len(call.sizes) - len(call.axes("self"))
    out, given = [fixed(size, "it repeats one entry") for size in call.sizes], list(call.args["size"])
    for i, axis in enumerate(x, start=new):
        if axis.size != 1 or axis.dynamic:
            out[i], given[i] = axis, -1
    return Outcome(out, resize=lambda _: {"size": given})


@rule("permute")
def permute(call: Call) -> Outcome:
    x = call.axes("self")
    return Outcome([x[i] for i in call.args["dims"]])


@rule("unsqueeze")
def unsqueeze(call: Call) -> Outcome:
    x, dim = list(call.axes("self")), call.args["dim"]
    x.insert(dim if dim >= 0 else len(x) + 1 + dim, fixed(1))
    return Outcome(x)


@rule("squeeze")
def squeeze(call: Call) -> Outcome:
    """The small network is told which axes go: a width of one channel must not make its axis one of them."""
    x, dims = call.axes("self"), call.args.get("dim")
    chosen = range(len(x)) if dims is None else [d % len(x) for d in _as_list(dims)]
    gone = [i for i in chosen if x[i].size == 1 and not x[i].dynamic]
    return Outcome(
        [axis for i, axis in enumerate(x) if i not in gone],
        resize=lambda _: {"self": call.args["self"], "dim": gone},
        target=torch.ops.aten.squeeze.dims,
    )


@rule("cat", "concat")
def concatenate(call: Call) -> Outcome:
    tensors, dim = call.list_axes("tensors"), call.args["dim"]
    out = list(tensors[0])
    for axes in tensors[1:]:
        for i, axis in enumerate(axes):
            if i != dim % len(out):
                unify(out[i], axis)
    out[dim] = concat([axes[dim] for axes in tensors])
    return Outcome(out)


@rule("chunk", "split", "split_with_sizes")
def split(call: Call) -> Outcome:
    """The small network is told its pieces' sizes, since a width may leave them unequal."""
    x, dim = call.axes("self"), call.args["dim"] % len(call.axes("self"))
    pieces = sections(x[dim], [shape_of(piece)[dim] for piece in call.node.meta["val"]])
    outputs = [[*x[:dim], piece, *x[dim + 1 :]] for piece in pieces]

    def resize(sizes: Sizes) -> dict[str, Any]:
        kept = [count(piece, sizes) for piece in pieces]
        return {"self": call.args["self"], "split_sizes": kept, "dim": dim}

    if all(piece.frozen for piece in pieces):
        return Outcome(outputs)
    return Outcome(outputs, resize=resize, target=torch.ops.aten.split_with_sizes.default)


@rule("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d")
@rule(*(f"adaptive_{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)))
@rule(*(f"max_pool{n}d_with_indices" for n in (1, 2, 3)))
def pool(call: Call) -> Outcome:
    x, value = call.axes("self"), call.node.meta["val"]
    spatial = int(operator_name(call.node).partition("pool")[2][0])  # 1 in adaptive_avg_pool1d
    for axis in x[-spatial:]:
        freeze(axis, SPATIAL)
    sizes = shape_of(value if isinstance(value, torch.Tensor) else value[0])
    out = [*x[:-spatial], *(fixed(size, SPATIAL) for size in sizes[-spatial:])]
    return Outcome(out if isinstance(value, torch.Tensor) else [out, out])  # with indices: two results


@rule("mean", "sum", "amax", "amin", "var", "std")
def reduce(call: Call) -> Outcome:
    x, dims = call.axes("self"), call.args.get("dim")
    gone = range(len(x)) if dims is None or dims == [] else [d % len(x) for d in _as_list(dims)]
    kept = [fixed(1) if i in gone else axis for i, axis in enumerate(x)]
    return Outcome([axis for i, axis in enumerate(kept) if call.args.get("keepdim") or i not in gone])


def _as_list(value: int | Sequence[int]) -> Sequence[int]:
    return [value] if isinstance(value, int) else value


def _numel(axes: Sequence[Axis], sizes: Sizes) -> int:
    return math.prod(count(axis, sizes) for axis in axes)


def is_norm(node: fx.Node) -> bool:
    """Whether a call divides by the spread of its input, and so undoes any factor on it."""
    return operator_name(node) in {"batch_norm", "group_norm", "layer_norm"}


def operator_name(node: fx.Node) -> str:
    """``conv2d`` for ATen's operators, ``library::name`` for all others."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet is None:  # a Python function on sizes: operator.mul is not aten::mul
        return f"python::{getattr(node.target, '__name__', node.target)}"
    return str(packet._qualified_op_name).removeprefix("aten::")
