"""What a rule is: the question (a call of the graph), the answer (an outcome), and the registry.

A rule answers three questions about one call in a model's graph: which axes are one and the same, which
integers of the call change with the width (``resize``), and how many multiply-accumulates it makes
(``macs``). An operator that has no rule is never guessed at: see `uneven.submodels.groups`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from uneven.submodels.axes import Axis, count, fixed, unify

Axes = list[Axis]
Sizes = Mapping[Axis, int]
SPATIAL = "a position in space or time"
PLACE = "its entries have a place of their own"


@dataclass
class Outcome:
    """What a rule found out about a call.

    ``outputs``: the axes of the result, or a list of those for a call with several results.
    ``resize``: the arguments that change with the width, by name, from the sizes kept.
    ``macs``: multiply-accumulates per example, from the sizes kept.
    ``target``: the operator to call instead in a small network; ``resize`` then gives all its arguments.
    ``whole``: axes that the call cannot do with less of; an error where one of them could be dropped.
    ``attention``: of a product of two activations, the axes that it runs over side by side (the heads) and
    those of the matrices that it multiplies (the channels of a head).
    """

    outputs: Axes | list[Axes]
    resize: Callable[[Sizes], dict[str, Any]] | None = None
    macs: Callable[[Sizes], int] | None = None
    target: Any = None
    whole: Sequence[Axis] = ()
    attention: tuple[Axes, Axes] | None = None


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
        """The axes of each tensor in a list of them, without those that are missing."""
        return [self._env[value] for value in self.args[name] if value is not None]

    def operands(self) -> list[Axes]:
        """The axes of every tensor argument that is not a list."""
        return [axes for name in self.args if (axes := self.axes(name))]

    @property
    def sizes(self) -> list[int]:
        """The sizes of the (first) result as traced, a dynamic size by its hint."""
        return shape_of(self._result)

    def fresh(self, dim: int, reason: str | None = SPATIAL) -> Axis:
        """A new axis for one of the (first) result's, whole for the reason given; dynamic where the size is."""
        dynamic = self.dynamic(dim)
        return Axis(self.sizes[dim], reason or ("a length" if dynamic else None), dynamic)

    def dynamic(self, dim: int) -> bool:
        """Whether the size of one of the (first) result's axes depends on the input's."""
        return isinstance(self._result.shape[dim], torch.SymInt)

    @property
    def _result(self) -> Any:
        value = self.node.meta["val"]
        return value if isinstance(value, torch.Tensor) else value[0]


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
    """The shape of a traced tensor, with the hint of each symbolic size.

    Raises:
        ValueError: a size depends on the data's values.
    """
    return [_hint(s) if isinstance(s, torch.SymInt) else int(s) for s in value.shape]


def _hint(size: torch.SymInt) -> int:
    hint = size.node.hint
    if hint is None:
        raise ValueError("the size of its result depends on the data's values")
    return int(hint)


def tie(axes: Axes, axis: Axis) -> None:
    """A one-dimensional parameter (a bias, a norm's scale, a running statistic) runs along ``axis``."""
    if axes:
        unify(axes[0], axis)


def stretch(operands: Sequence[Axes]) -> Axes:
    """Axes aligned from the right are the same, but for those of one entry, which stretch."""
    out = [fixed(1)] * max(map(len, operands), default=0)
    for axes in operands:
        for i in range(1, len(axes) + 1):
            if single(axes[-i]):
                continue
            if single(out[-i]):
                out[-i] = axes[-i]
            else:
                unify(out[-i], axes[-i])
    return out


def single(axis: Axis) -> bool:
    """Whether an axis has one entry, whatever the input."""
    return axis.size == 1 and not axis.root().dynamic


def numel(axes: Sequence[Axis], sizes: Sizes) -> int:
    return math.prod(count(axis, sizes) for axis in axes)


def as_list(value: int | Sequence[int]) -> Sequence[int]:
    return [value] if isinstance(value, int) else value


def operator_name(node: fx.Node) -> str:
    """``conv2d`` for ATen's operators, ``library::name`` for all others."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet is None:  # a Python function on sizes: operator.mul is not aten::mul
        return f"python::{getattr(node.target, '__name__', node.target)}"
    return str(packet._qualified_op_name).removeprefix("aten::")
