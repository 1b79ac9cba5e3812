"""The network that a submodel runs: two graphs, training and evaluation, over one set of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, fx, nn

from uneven.submodels.rules import operator_name
from uneven.submodels.trace import State


class Network(nn.Module):
    """A small dense network: the training or the evaluation graph over one set of tensors.

    ``tensors``: the parameters and buffers by their names in the full model, in the submodel's shapes.
    ``constants``: what the graphs read besides, alike; see `Supernet`.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        training: fx.GraphModule,
        evaluation: fx.GraphModule,
        constants: Mapping[str, Tensor],
    ) -> None:
        super().__init__()
        self.tensors, self.constants = dict(tensors), dict(constants)
        self.graphs = (training, evaluation)
        self._graphs: dict[bool | None, Callable[[Tensor], Tensor]] = {True: training, False: evaluation}
        for name, tensor in self.tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name.replace(".", "/"), tensor)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, ``(batch, classes)``, as the full module would compute them in its present mode."""
        return self._graphs[self.training](x)

    def call(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Logits under other values of some tensors (by their names in the full model), as `forward` otherwise.

        Differentiable in them, and fit for `torch.func` transforms where the model's operators are.
        """
        graph = self._graphs[self.training]
        return torch.func.functional_call(graph, dict(tensors), (x,))  # type: ignore[arg-type, no-any-return]

    def weights(self) -> dict[str, nn.Parameter]:
        """The trained tensors, by their names in the full model."""
        return {n: t for n, t in self.tensors.items() if isinstance(t, nn.Parameter)}

    @torch.no_grad()
    def load(self, values: State) -> Self:
        """Copy values (in the submodel's shapes) into the network, and forget its gradients."""
        torch._foreach_copy_(list(self.tensors.values()), [values[name] for name in self.tensors])
        for tensor in self.weights().values():
            tensor.grad = None
        return self

    @torch.no_grad()
    def take(self, constants: State) -> None:
        """Copy other entries of the constants into the network."""
        for name, tensor in self.constants.items():
            tensor.copy_(constants[name])

    @torch.no_grad()
    def values(self) -> State:
        """A copy of every tensor of the network."""
        return {name: tensor.detach().clone() for name, tensor in self.tensors.items()}

    def confine(self) -> None:
        """Set to zero the gradient of every weight that the submodel does not hold; here all are held."""

    @torch.no_grad()
    def observe(self, x: Tensor) -> Tensor:
        """Logits of a pass that sets every running statistic to that of this batch; else as in evaluation."""
        if None not in self._graphs:
            self._graphs[None] = _observing(self.graphs[1])
        return self._graphs[None](x)


def _observing(evaluation: fx.GraphModule) -> fx.GraphModule:
    """The evaluation graph with norms that take batch statistics, and remember them whole (momentum 1)."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(evaluation.graph, {}))
    for node in graph.nodes:
        if operator_name(node) == "batch_norm":
            rewrite_arguments(node, None, {"training": True, "momentum": 1.0}, {})
    return fx.GraphModule(evaluation, graph)


def rewrite_arguments(node: fx.Node, target: Any, changes: dict[str, Any], copies: dict[fx.Node, fx.Node]) -> None:
    """Put new values where a call has them, by position or by name."""
    if target is not None:
        mapped = {n: copies[v] if isinstance(v, fx.Node) else v for n, v in changes.items()}
        node.target, node.args, node.kwargs = target, (), mapped
        return
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    for name, value in changes.items():
        position = names.index(name)
        mapped = fx.map_arg(value, copies.__getitem__)
        if position < len(node.args):
            node.update_arg(position, mapped)
        else:
            node.update_kwarg(name, mapped)


def module_tree(tensors: Mapping[str, Tensor]) -> nn.Module:
    """Empty modules that hold the tensors under their dotted names."""
    root = nn.Module()
    for name, tensor in tensors.items():
        *path, leaf = name.split(".")
        module = root
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(leaf, tensor)
        else:
            module.register_buffer(leaf, tensor)
    return root
