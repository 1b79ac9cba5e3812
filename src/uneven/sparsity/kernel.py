"""Linear layers of few links, computed from the links alone.

y = x W^T and both of its gradients by sparse kernels (compressed rows): what a layer of density rho costs falls
with rho, but a link costs more than a place of a dense layer. Where that pays is measured; see
`uneven.sparsity.kernel_choice`. Weights stay dense tensors that are zero without a link, as are their gradients,
so that all else goes on as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from uneven.submodels import MaskSubmodel, Network
from uneven.submodels.masks import MaskedNetwork


class Layout:
    """Where the links of one layer are, W of ``(out, in)``, by rows and by columns.

    Args:
        mask: bool, ``(out, in)``, or ``(in, out)`` where the layer keeps its weights like that (``flipped``).
    """

    def __init__(self, mask: Tensor, flipped: bool = False) -> None:
        places = torch.arange(mask.numel()).view(mask.shape)
        if flipped:
            mask, places = mask.t(), places.t()
        self.rows, self.columns = _Rows(mask, places), _Rows(mask.t(), places.t())


class _Rows:
    """A matrix of links by compressed rows; ``places``: the position of each in the flat weight tensor."""

    def __init__(self, mask: Tensor, places: Tensor) -> None:
        self._shape, self.places = mask.shape, places[mask]
        self._starts = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0)).int()
        self._columns = mask.nonzero()[:, 1].int().contiguous()

    def matrix(self, values: Tensor) -> Tensor:
        _quiet()
        return torch.sparse_csr_tensor(self._starts, self._columns, values, self._shape, check_invariants=False)

    def of(self, weight: Tensor) -> Tensor:
        """The matrix of a weight tensor's entries."""
        return self.matrix(weight.reshape(-1)[self.places])


@cache
def _quiet() -> None:
    """PyTorch says once that its compressed rows are beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.zeros(1, 1).to_sparse_csr()


class _SparseLinear(torch.autograd.Function):
    """x ``(n, in)``, weight, layout -> x W^T, ``(n, out)``. Kernels take columns of x, hence the turns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layout: Layout) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layout = layout
        return (layout.rows.of(weight) @ x.t()).t().contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (x, weight), rows = ctx.saved_tensors, ctx.layout.rows
        turned, of_x, of_weight = gradients[0].t().contiguous(), None, None
        if ctx.needs_input_grad[0]:
            of_x = (ctx.layout.columns.of(weight) @ turned).t().contiguous()
        if ctx.needs_input_grad[1]:
            zeros = rows.matrix(torch.zeros(len(rows.places)))
            found = torch.sparse.sampled_addmm(zeros, turned, x, beta=0.0)
            of_weight = torch.zeros_like(weight)
            of_weight.view(-1)[rows.places] = found.values()
        return of_x, of_weight, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout) -> Tensor:
    """A linear layer, ``(..., in)`` -> ``(..., out)``; the weight is zero where the layout has no link."""
    y = _SparseLinear.apply(x.reshape(-1, x.shape[-1]), weight, layout)  # type: ignore[no-untyped-call]
    y = y.view(*x.shape[:-1], y.shape[-1])
    return y if bias is None else y + bias  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Call:
    """A linear layer in a graph. ``flipped``: the weight is ``(in, out)``."""

    node: fx.Node
    weight: str
    flipped: bool

    @property
    def arguments(self) -> tuple[Any, Any, Any]:
        """Input, weight and bias (or None)."""
        if self.flipped:
            bias, x, weight = self.node.args
            return x, weight, bias
        return self.node.args[0], self.node.args[1], self.node.args[2] if len(self.node.args) > 2 else None


def linear_layers(graph: fx.GraphModule, network: Network) -> list[Call]:
    """The linear layers whose weight is a parameter of the network as it is, by the parameter's name."""
    names = {id(weight): name for name, weight in network.weights().items()}
    held = {path: names.get(id(weight)) for path, weight in graph.named_parameters(remove_duplicate=False)}
    calls = []
    for node in graph.graph.nodes:
        flipped = str(node.target) == "aten.addmm.default" and not node.kwargs
        if node.op == "call_function" and (flipped or str(node.target) == "aten.linear.default"):
            weight = node.args[2 if flipped else 1]
            name = held.get(str(weight.target)) if isinstance(weight, fx.Node) else None
            if name is not None:
                calls.append(Call(node, name, flipped))
    return calls


class SparseNetwork(MaskedNetwork):
    """A masked network whose training steps compute some linear layers from their links.

    In evaluation mode, where the gradient of all places is asked, it is a masked network like any other.

    Args:
        names: the weights of those layers; one that the submodel holds whole stays as it is.
    """

    def __init__(self, submodel: MaskSubmodel, names: Collection[str]) -> None:
        super().__init__(submodel.supernet.prefix(1.0).network(), submodel)
        self._graphs[True] = self._replaced(self.graphs[0], set(names) & submodel.masks.keys())

    def _replaced(self, graph: fx.GraphModule, names: Collection[str]) -> fx.GraphModule:
        copy = fx.Graph()
        copy.output(copy.graph_copy(graph.graph, {}))
        new = fx.GraphModule(graph, copy)
        for call in linear_layers(new, self):
            if call.weight in names:
                layout = Layout(self.submodel.masks[call.weight], call.flipped)
                with copy.inserting_before(call.node):
                    node = copy.call_function(_with(layout), call.arguments)
                call.node.replace_all_uses_with(node)
                copy.erase_node(call.node)
        new.recompile()
        return new


def _with(layout: Layout) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    return lambda x, weight, bias: linear(x, weight, bias, layout)
