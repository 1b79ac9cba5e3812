"""Gradients of single examples, layer by layer, from one backward pass over a batch.

The gradient of the summed loss with respect to a layer's *output* holds that of each example in a row of its own.
Together with the layer's input it gives the example's gradient of the layer's weights:

- linear, one vector an example: the outer product of output gradient and input, whose squares factorise;
- linear, many positions: a product of two matrices; convolution: its own gradient, an example at a time;
- norm: output gradient times normalised input, summed over positions; a bias: summed over positions;
- embedding: the rows of the example's own tokens.

So the batch is gone through as in training, and nothing of size examples x parameters is ever made. It asks of the
model that each parameter is used in one such call, on examples along the first axis (see `plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from uneven.scores.tally import Tally
from uneven.submodels.rules import arguments, operator_name

PIECE = 2 << 20
"""Bytes of single examples' gradients that are made at once: what stays in a core's own cache."""


@dataclass(frozen=True)
class Seen:
    """One call as it ran, on a batch.

    ``args``: its arguments by name. ``output``: the gradient of its result, examples first. ``names``: those of
    its parameters, by what they are to it (``weight``, ``bias``).
    """

    node: fx.Node
    names: Mapping[str, str]
    args: Mapping[str, Any]
    output: Tensor
    tally: Tally

    def add(self, what: str, each: Tensor) -> None:
        """Add gradients ``(examples, *shape)`` of the weight or bias, if that is a parameter."""
        if what in self.names:
            self.tally.add(self.names[what], each)


Form = Callable[[Seen], None]


def linear(seen: Seen) -> None:
    """y = W x + b, at one or many positions of an example."""
    examples, rows = len(seen.output), seen.output.shape[-1]
    output = seen.output.reshape(examples, -1, rows)
    seen.add("bias", output.sum(1))
    if "weight" not in seen.names:
        return
    name = seen.names["weight"]
    inputs = seen.args["input"].reshape(examples, -1, seen.args["input"].shape[-1])
    if inputs.shape[1] == 1:
        seen.tally.add_products(name, output[:, 0], inputs[:, 0])
        return
    size = rows * inputs.shape[-1] * output.element_size()
    for left, right in _pieces(max(1, PIECE // size), output, inputs):
        seen.tally.add(name, left.mT @ right)


def convolution(seen: Seen) -> None:
    """A convolution of any rank, stride, dilation and groups."""
    seen.add("bias", seen.output.flatten(2).sum(2))
    if "weight" not in seen.names:
        return
    rank = seen.output.dim() - 2
    stride, padding, dilation = (_of_rank(seen.args[name], rank) for name in ("stride", "padding", "dilation"))
    geometry = (stride, padding, dilation, False, [0] * rank, seen.args["groups"], (False, True, False))
    for output, x in _pieces(1, seen.output, seen.args["input"]):
        found = torch.ops.aten.convolution_backward(output, x, seen.args["weight"], None, *geometry)
        seen.add("weight", found[1][None])


def _of_rank(value: list[int], rank: int) -> list[int]:
    return [*value] * rank if len(value) == 1 else [*value]


def _pieces(size: int, *tensors: Tensor) -> zip[tuple[Tensor, ...]]:
    """So many examples after so many, of each tensor."""
    return zip(*(torch.split(tensor, size) for tensor in tensors), strict=True)


def channel_norm(seen: Seen) -> None:
    """y = s * normalised(x) + b, with a scale and a shift for each channel, the second axis."""
    _norm(seen, lambda each: each.reshape(*each.shape[:2], -1).sum(2))


def entry_norm(seen: Seen) -> None:
    """y = s * normalised(x) + b, with a scale and a shift for each entry of the last axes."""
    shape = seen.args["normalized_shape"]
    _norm(seen, lambda each: each.reshape(len(each), -1, *shape).sum(1))


def _norm(seen: Seen, over_positions: Callable[[Tensor], Tensor]) -> None:
    if "bias" in seen.names:
        seen.add("bias", over_positions(seen.output))
    if "weight" in seen.names:
        plain = {name: None if name in ("weight", "bias") else value for name, value in seen.args.items()}
        seen.add("weight", over_positions(seen.output * seen.node.target(**plain)))  # type: ignore[operator]


def embedding(seen: Seen) -> None:
    """The rows of an example's tokens; those of a token that comes twice are added before they are squared."""
    words, width = seen.args["weight"].shape
    tokens = seen.args["indices"].reshape(len(seen.output), -1)
    learned = (tokens != seen.args["padding_idx"]).reshape(-1)
    keys = (tokens + torch.arange(len(tokens))[:, None] * words).reshape(-1)[learned]
    unique, place = keys.unique(return_inverse=True)
    rows = seen.output.reshape(-1, width)[learned]
    each = rows.new_zeros(len(unique), width).index_add_(0, place, rows)
    seen.tally.add_rows(seen.names["weight"], unique % words, each)


FORMS: Mapping[str, Form] = {
    "linear": linear,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), convolution),
    **dict.fromkeys(("group_norm", "batch_norm", "instance_norm"), channel_norm),
    **dict.fromkeys(("layer_norm", "rms_norm"), entry_norm),
    "embedding": embedding,
}
Uses = Mapping[fx.Node, Mapping[str, str]]
"""The calls that use parameters, and the names of these by what they are to the call."""


def plan(graph: fx.Graph, parameters: Mapping[str, Tensor]) -> Uses | str:
    """The calls of a graph that use parameters; or, if one is used in a way that has no form, which and how."""
    batch = next(node for node in graph.nodes if node.op == "placeholder").meta["val"].shape[0]
    uses: dict[fx.Node, dict[str, str]] = {}
    done: set[str] = set()
    for node in graph.nodes:
        for user in node.users if node.op == "get_attr" and node.target in parameters else ():
            name, operator = str(node.target), operator_name(user)
            if operator not in FORMS:
                return f"parameter {name} is used by {operator}"
            if name in done:
                return f"parameter {name} is used more than once"
            what = next(what for what, value in arguments(user).items() if value is node)
            if what not in ("weight", "bias") or not _has_form(user, batch):
                return f"parameter {name} is used by {operator} in an unusual way, or not on one example a row"
            done.add(name)
            uses.setdefault(user, {})[what] = name
    return uses


def _has_form(node: fx.Node, batch: torch.SymInt) -> bool:
    """Whether a call's input and result have the batch as their first axis (or one row, the same for all, that is
    only added to what each example has of its own), and no option that its form leaves out."""
    call = arguments(node)
    if isinstance(call.get("padding"), str) or call.get("scale_grad_by_freq"):
        return False
    rows = {_rows(call[input_name(node)], batch), _rows(node, batch)}
    return rows == {"batch"} or (rows == {1} and all(operator_name(user) == "add" for user in node.users))


def input_name(node: fx.Node) -> str:
    """What a call that has a form names its input."""
    return "indices" if operator_name(node) == "embedding" else "input"


def _rows(node: fx.Node, batch: torch.SymInt) -> Any:
    size = node.meta["val"].shape[0]
    if isinstance(size, torch.SymInt):
        return "batch" if size.node.expr == batch.node.expr else size.node.expr
    return size


class Watched(fx.Interpreter):
    """Runs a graph on a batch, so that a backward pass adds each example's gradients to a tally.

    ``uses``: what `plan` returned for the graph. The parameters themselves get no gradients.
    """

    def __init__(self, module: fx.GraphModule, uses: Uses, tally: Tally) -> None:
        super().__init__(module)
        self.uses, self.tally, self.examples = uses, tally, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.examples = len(x)
        result: Tensor = self.run(x)
        return result

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().get_attr(target, args, kwargs).detach()

    def run_node(self, node: fx.Node) -> Any:
        result = super().run_node(node)
        return self._watched(node, result) if node in self.uses else result

    def _watched(self, node: fx.Node, result: Tensor) -> Tensor:
        """The result, a row for each example; its gradient goes to the form of the call."""
        args = dict(fx.node.map_arg(arguments(node), self.env.__getitem__))
        args[input_name(node)] = self._for_each(args[input_name(node)])
        result = self._for_each(result)
        if not result.requires_grad:  # there is no parameter before
            result.requires_grad_()
        if result.is_leaf or result._is_view():  # what comes next may change it in place, and the hook is lost
            result = result.clone()
        form, names = FORMS[operator_name(node)], self.uses[node]

        def hook(output: Tensor) -> None:
            form(Seen(node, names, args, output, self.tally))

        result.register_hook(hook)  # type: ignore[no-untyped-call]
        return result

    def _for_each(self, rows: Tensor) -> Tensor:
        return rows if len(rows) == self.examples else rows.expand(self.examples, *rows.shape[1:])
