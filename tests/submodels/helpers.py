"""What the tests of the submodels share: random submodels, and the laws as functions that return what is wrong."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import product as tuples

import torch
from torch import Tensor, nn

from uneven.data import Info
from uneven.submodels import ChannelSubmodel, Network, Supernet
from uneven.submodels.axes import ATOM, PRODUCT, Axis

State = Mapping[str, Tensor]


def info(*shape: int, classes: int = 10) -> Info:
    return Info(shape, classes, tuple(map(str, range(classes))))


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """The module with every parameter and running statistic away from its default (zeros and ones hide faults)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator)
                fan_in = max(1, tensor[0].numel()) if tensor.dim() > 1 else 1
                tensor.copy_(noise.abs() + 0.5 if "var" in name else noise / fan_in**0.5)
    return model


def random_keep(supernet: Supernet, seed: int) -> dict[int, Tensor]:
    """For each group a random number of random channels, ascending; never all of them where one can go."""
    generator = torch.Generator().manual_seed(seed)
    keep = {}
    for group in supernet.groups:
        k = int(torch.randint(1, max(2, group.size), (), generator=generator))
        keep[group.index] = torch.randperm(group.size, generator=generator)[:k].sort().values
    return keep


def loaded(supernet: Supernet, submodel: ChannelSubmodel, state: State | None = None) -> Network:
    return supernet.network(submodel).load(submodel.gather(supernet.initial if state is None else state))


def zeroed(submodel: ChannelSubmodel, state: State) -> dict[str, Tensor]:
    """Full tensors with the entries that the submodel holds, and zero elsewhere."""
    full = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    for name, values in submodel.gather(state).items():
        submodel.add(name, full[name], values)
    return full


def gap_to_zeroed(submodel: ChannelSubmodel, x: Tensor, training: bool = False) -> float:
    """The largest difference between the small network and the full one with all that was dropped set to zero,
    relative to the largest logit (if that is over 1).

    Zero only without norms, or with batch norm, whose channels do not mix.
    """
    supernet = submodel.supernet
    state = supernet.initial
    small = loaded(supernet, submodel).train(training)(x).detach()
    full = loaded(supernet, supernet.submodel({}), zeroed(submodel, state)).train(training)(x).detach()
    return float((small - full).abs().max() / small.abs().max().clamp(min=1))


def labels(axis: Axis) -> list[frozenset[tuple[Axis, int]]]:
    """For each entry of an axis the channels that it needs, written out from the definition of the expressions."""
    axis = axis.root()
    if axis.kind == ATOM:
        return [frozenset({(axis, i)}) for i in range(axis.size)]
    parts = [labels(part) for part in axis.parts]
    if axis.kind == PRODUCT:
        return [frozenset().union(*choice) for choice in tuples(*parts)]
    return [label for part in parts for label in part]


labels_once = cache(labels)  # for axes that no longer change


def misaligned(submodel: ChannelSubmodel, held: Callable[[str, int], Iterable[int]] | None = None) -> list[str]:
    """Law 5: the members of a channel group that did not keep the group's channels.

    ``held(name, dim)``: the entries of one axis that the submodel selects; by default found out by planting:
    a tensor whose entries are their own positions along the axis goes through `gather`.
    """
    supernet = submodel.supernet
    ask = held or (lambda name, dim: planted(submodel, name, dim))
    kept = {g.atom: set(submodel.keep.get(g.index, torch.arange(g.size)).tolist()) for g in supernet.groups}
    wrong = []
    for name in (*supernet.initial, *supernet.constants):
        for dim, axis in enumerate(supernet.structure.axes[name]):
            expected = [
                entry
                for entry, label in enumerate(labels_once(axis.root()))
                if all(channel in kept[atom] for atom, channel in label if atom in kept)
            ]
            if list(ask(name, dim)) != expected:
                wrong.append(f"{name} axis {dim}")
    return wrong


def planted(submodel: ChannelSubmodel, name: str, dim: int) -> list[int]:
    """The positions along one axis of a tensor that `gather` copies."""
    shape = (submodel.supernet.initial | submodel.supernet.constants)[name].shape
    along = torch.arange(shape[dim], dtype=torch.float64).view(-1, *[1] * (len(shape) - dim - 1))
    found = submodel.gather({name: along.expand(shape)})[name].unsqueeze(-1).movedim(dim, 0).flatten(1)
    assert (found == found[:, :1]).all(), f"{name}: positions along axis {dim} got mixed"
    return [int(i) for i in found[:, 0]]


def differences_at_full_width(model: nn.Module, supernet: Supernet, x: Tensor, summed: bool = False) -> list[str]:
    """What differs, in any bit, between a model and its network of width 1: outputs, gradients, buffers.

    ``summed``: gradients may have been added up in another order, and differ by rounding.
    """
    wrong = []
    for training in (True, False):
        network = loaded(supernet, supernet.prefix(1.0)).train(training)
        model.load_state_dict(supernet.initial, strict=False)
        model.train(training).zero_grad(set_to_none=True)
        outputs = []
        for module in (model, network):
            torch.manual_seed(7)
            outputs.append(module(x))
            (outputs[-1] * torch.linspace(-1, 1, outputs[-1].numel()).view_as(outputs[-1])).sum().backward()
        mode = "training" if training else "evaluation"
        if not torch.equal(*outputs):
            wrong.append(f"output in {mode}")
        weights = network.weights()
        for name, parameter in model.named_parameters():
            if not same(parameter.grad, weights[name].grad, summed):
                wrong.append(f"gradient of {name} in {mode}")
        for name, buffer in model.named_buffers():
            if name in network.tensors and not same(buffer, network.tensors[name]):
                wrong.append(f"{name} in {mode}")
    return wrong


def same(a: Tensor | None, b: Tensor | None, rounded: bool = False) -> bool:
    if a is None or b is None:
        return a is b
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5 * float(a.abs().max())) if rounded else torch.equal(a, b)


def train_step(network: Network, x: Tensor) -> float:
    """One step of SGD; returns the norm of the gradient, and checks that every weight moved that could."""
    network.train()
    before = network.values()
    loss = nn.functional.cross_entropy(network(x).flatten(1), torch.arange(len(x)) % 2)
    loss.backward()
    gradients = [w.grad for w in network.weights().values() if w.grad is not None]
    assert gradients
    assert all(torch.isfinite(g).all() for g in gradients)
    with torch.no_grad():
        for weight in network.weights().values():
            if weight.grad is not None:
                weight.sub_(0.1 * weight.grad)
    moved = any(not torch.equal(before[n], w) for n, w in network.weights().items())
    assert moved
    return float(torch.stack([g.norm() for g in gradients]).norm())
