"""Small dense networks out of a full model: the supernet, its channel submodels, and the networks they run.

A channel submodel is one set of kept channels per group. Its tensors are the full model's, index-selected on
every axis; its network is the model's own graph with the integers that depend on the width computed anew. So a
client at width 1/4 holds and computes about 1/16 of the model, with nothing masked.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, fx, nn

from uneven.errors import ModelError
from uneven.submodels.axes import Axis, count, indices
from uneven.submodels.exits import end, logits_of, until
from uneven.submodels.groups import Attention, Group, Policy, Structure, analyse
from uneven.submodels.network import Network, module_tree, rewrite_arguments
from uneven.submodels.rules import Rule, arguments, is_norm, operator_name
from uneven.submodels.trace import State, Traced, trace

Select = slice | Tensor | None  # what one axis keeps: a run of entries, a set of them, or all


class Supernet:
    """The full model, analysed once: its tensors, its channel groups, and the small networks made from it.

    Args:
        model: any module that `torch.export` can trace, ``forward(x) -> logits``.
        example: one input without a batch axis, ``(*input_shape)``, of the dtype that the model reads.
        dynamic: axes of the example that may have any size; by default the length of a sequence of tokens,
            if the model allows it.
        attention: ``head_dim`` keeps all heads and drops the same channels inside each (as the papers do),
            ``heads`` drops whole heads.
        rules: what operators of your own say about axes, ``{"library::name": rule}``.
        frozen: axes that must stay whole, as ``"tensor:axis"``.

    Attributes:
        initial: the module's own parameters and buffers, by name; a tied tensor appears once.
        constants: what never changes, and so never travels: frozen weights, and tables along channels that can
            be dropped. Every network has its own entries of them.
        parameters: the names that are trained and counted in d, in the module's order.
        counters: the names of integer buffers.
        groups: the channel groups, in the model's order.
        exits: how many early exits the model has, see `uneven.submodels.exits`; 0 if it gives one logit a class.
        classes: parameters whose axis is the model's output axis, as ``{name: axis}``.
        running: (mean, variance) buffers of each norm that keeps running statistics.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Tensor,
        *,
        dynamic: Sequence[int] | None = None,
        attention: Attention = "head_dim",
        rules: Mapping[str, Rule] | None = None,
        frozen: Sequence[str] = (),
    ) -> None:
        self.example = example
        self._traced, self.structure = _analysed(model, example, dynamic, Policy(attention, rules or {}, frozen))
        carried = {name: self._traced.constants[name].clone() for name in self.structure.carried}
        self.initial: State = self._traced.parameters | self._traced.buffers
        self.constants: State = self._traced.frozen | carried
        self.parameters = tuple(self._traced.parameters)
        self.counters = tuple(n for n, b in self._traced.buffers.items() if not b.is_floating_point())
        self.groups: tuple[Group, ...] = self.structure.groups
        self._networks: dict[Hashable, Network] = {}
        self._last: dict[Hashable, ChannelSubmodel] = {}
        self._prefixes: dict[tuple[float, int | None], ChannelSubmodel] = {}
        self._macs: dict[Hashable, int] = {}

    @cached_property
    def exits(self) -> int:
        return len(logits_of(self._traced.training))

    @cached_property
    def classes(self) -> dict[str, int]:
        logits = self.structure.output[-1].root()
        axes = ((name, self.structure.axes[name]) for name in self.parameters)
        return {name: dim for name, own in axes for dim, axis in enumerate(own) if axis.root() is logits}

    @cached_property
    def running(self) -> tuple[tuple[str, str], ...]:
        norms = (arguments(n) for n in self._traced.evaluation.nodes if operator_name(n) == "batch_norm")
        nodes = [(norm["running_mean"], norm["running_var"]) for norm in norms]
        pairs = tuple((str(m.target), str(v.target)) for m, v in nodes if isinstance(m, fx.Node))
        if len(set(pairs)) < len(pairs):
            twice = next(pair[0] for pair in pairs if pairs.count(pair) > 1)
            raise ModelError(
                f"{twice} belongs to a batch norm that the model calls twice: its statistics cannot be "
                "recalibrated; give each call a norm of its own"
            )
        return pairs

    @cached_property
    def maskable(self) -> tuple[str, ...]:
        """The parameters of which a mask may drop entries: those of two axes or more that are not a norm's."""
        reads = (n for n in self._traced.training.nodes if is_norm(n))
        of_norms = {str(n.target) for norm in reads for n in norm.all_input_nodes if n.op == "get_attr"}
        return tuple(n for n in self.parameters if self.initial[n].dim() > 1 and n not in of_norms)

    @cached_property
    def size(self) -> int:
        """d, the number of parameters."""
        return sum(self.initial[name].numel() for name in self.parameters)

    def submodel(self, keep: Mapping[int, Tensor], exit: int | None = None) -> ChannelSubmodel:
        """The submodel that keeps the set ``keep[i]``, ``(k,)`` int64, of group i; all of a group not named.

        ``exit``: hold only what runs up to this exit of the model, 1 the first.

        Raises:
            ValueError: no channel is kept, one is kept twice, or there is no such channel, group or exit.
        """
        if exit is not None and not 1 <= exit <= self.exits:
            raise ValueError(f"no exit {exit}: the model has {self.exits or 'none'}")
        chosen = {index: kept.sort().values for index, kept in keep.items()}
        for index, kept in chosen.items():
            if not 0 <= index < len(self.groups):
                raise ValueError(f"no group {index}: the model has groups 0..{len(self.groups) - 1}")
            size = self.groups[index].size
            if not len(kept) or kept[0] < 0 or kept[-1] >= size or (kept[1:] == kept[:-1]).any():
                raise ValueError(
                    f"group {index} keeps {kept.tolist()}: must be distinct channels of 0..{size - 1}"
                )
        return ChannelSubmodel(self, chosen, exit)

    def channels(self, width: float) -> dict[int, int]:
        """k = ceil(r * C) channels of each group of C, at least 1; rounding noise in r * C does not count."""
        return {g.index: max(1, math.ceil(round(width * g.size, 9))) for g in self.groups}

    def prefix(self, width: float, exit: int | None = None) -> ChannelSubmodel:
        """The submodel of the first ceil(r * C) channels of every group; ``exit`` as in `submodel`."""
        key = (width, exit)
        if key not in self._prefixes:
            keep = {i: torch.arange(k) for i, k in self.channels(width).items()}
            self._prefixes[key] = self.submodel(keep, exit)
        return self._prefixes[key]

    def reached(self, exit: int | None) -> frozenset[str]:
        """The tensors that what runs up to an exit reads; all of the model's, where it is None."""
        if exit is None:
            return frozenset(self.structure.axes)
        nodes = (node for g in (self._traced.training, self._traced.evaluation) for node in until(g, exit))
        return frozenset(str(node.target) for node in nodes if node.op == "get_attr")

    def network(self, submodel: ChannelSubmodel, scaler: bool = False) -> Network:
        """The network of the submodel's shapes (cached; load values into it before use).

        ``scaler``: in training, the results of `scaled` calls are divided by the share of their channels that
        is kept (HeteroFL's Scaler).
        """
        key = (submodel.key, scaler)
        if key not in self._networks:
            self._networks[key] = self._build(submodel, scaler)
        elif self._last[key] is not submodel:
            self._networks[key].take(submodel.gather(self.constants))
        self._last[key] = submodel
        return self._networks[key]

    def _build(self, submodel: ChannelSubmodel, scaler: bool) -> Network:
        tensors = submodel.gather(self.initial)
        held = {n: nn.Parameter(t) if n in self._traced.parameters else t.clone() for n, t in tensors.items()}
        constants = submodel.gather(self.constants)
        root = module_tree({**self._traced.constants, **constants, **held})
        training = self._rewrite(self._traced.training, submodel, scaler)
        evaluation = self._rewrite(self._traced.evaluation, submodel)
        return Network(held, fx.GraphModule(root, training), fx.GraphModule(root, evaluation), constants)

    def scaled(self) -> list[fx.Node]:
        """The calls that HeteroFL's Scaler acts on: those of a weight, on channels that can be dropped, whose
        result goes to anything but a norm (a norm would undo the factor)."""
        calls = self.structure.calls
        return [
            node
            for node in self._traced.training.nodes
            if node in calls
            and calls[node].macs is not None
            and calls[node].attention is None
            and isinstance(calls[node].outputs[0], Axis)
            and not all(axis.frozen for axis in calls[node].outputs)  # type: ignore[union-attr]
            and not all(is_norm(user) for user in node.users)
        ]

    def _rewrite(self, graph: fx.Graph, submodel: ChannelSubmodel, scaler: bool = False) -> fx.Graph:
        """The graph up to the exit, with every integer that depends on the width computed from the sizes kept."""
        small, sizes = fx.Graph(), submodel.kept
        copies: dict[fx.Node, fx.Node] = {}
        scaled = set(self.scaled()) if scaler else set()
        for node in until(graph, submodel.exit):
            copy = copies[node] = small.node_copy(node, copies.__getitem__)
            outcome = self.structure.calls.get(node)
            if outcome is not None and outcome.resize is not None:
                rewrite_arguments(copy, outcome.target, outcome.resize(sizes), copies)
            if node in scaled and (share := _share_kept(outcome.outputs, sizes)) < 1:  # type: ignore
                copies[node] = small.call_function(torch.ops.aten.div.Tensor, (copy, share))
        if submodel.exit is not None:
            logits = [copies[node] for node in logits_of(graph)[: submodel.exit]]
            end(small, logits, training=graph is self._traced.training)
        small.lint()
        return small

    def macs(self, submodel: ChannelSubmodel) -> int:
        """Multiply-accumulates of one example's forward pass, over convolutions and matrix products; of all exits,
        as in training."""
        if submodel.key not in self._macs:
            nodes = until(self._traced.evaluation, submodel.exit)
            calls = (self.structure.calls.get(node) for node in nodes)
            counters = [call.macs for call in calls if call is not None and call.macs is not None]
            self._macs[submodel.key] = sum(macs(submodel.kept) for macs in counters)
        return self._macs[submodel.key]


def _analysed(
    model: nn.Module, example: Tensor, dynamic: Sequence[int] | None, policy: Policy
) -> tuple[Traced, Structure]:
    """Only a model that is refused is traced with its lines, to say where."""
    try:
        traced = trace(model, example, dynamic, lines=False)
        return traced, analyse(traced, policy)
    except ModelError:
        traced = trace(model, example, dynamic)
        return traced, analyse(traced, policy)


def _share_kept(axes: list[Axis], sizes: Mapping[Axis, int]) -> float:
    """The share of a result's channels that is kept."""
    return math.prod(count(axis, sizes) / count(axis, {}) for axis in axes)


@dataclass(frozen=True, eq=False)
class ChannelSubmodel:
    """Which coordinates one client holds in one round: the kept channels of every group.

    ``keep``: group index -> ``(k,)`` int64, the channels kept, ascending; a group not named is kept whole.
    ``exit``: the exit up to which the model is held, None where that is all of it. Of a tensor that comes later no
    entry is held, but counters always are.
    """

    supernet: Supernet
    keep: dict[int, Tensor]
    exit: int | None = None

    @cached_property
    def kept(self) -> dict[Axis, int]:
        """How many channels each group's atom keeps."""
        return {g.atom: len(self.keep.get(g.index, range(g.size))) for g in self.supernet.groups}

    @property
    def key(self) -> Hashable:
        """Equal for submodels of the same shapes, which share one network."""
        return self.exit, *self.kept.values()

    @cached_property
    def size(self) -> int:
        """k_n, the number of parameters held."""
        tensors = ((name, self.supernet.initial[name]) for name in self.supernet.parameters)
        return sum(math.prod(map(_length, self._selects[name], tensor.shape)) for name, tensor in tensors)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one example's forward pass, over convolutions and matrix products."""
        return self.supernet.macs(self)

    def network(self, scaler: bool = False) -> Network:
        """The network that trains this submodel; shared by all of the same shapes, so load values first.

        ``scaler``: with HeteroFL's Scaler in training, see `Supernet.network`.
        """
        return self.supernet.network(self, scaler)

    index_bytes = 0  # which channels: known to both sides, or some hundred bytes

    @cached_property
    def nbytes(self) -> int:
        """Bytes of a message: every tensor held, buffers too."""
        return sum(
            self.select(name, tensor).numel() * tensor.element_size()
            for name, tensor in self.supernet.initial.items()
        )

    @cached_property
    def _atoms(self) -> dict[Axis, Tensor]:
        return {g.atom: self.keep[g.index] for g in self.supernet.groups if g.index in self.keep}

    @cached_property
    def _selects(self) -> dict[str, list[Select]]:
        return self._among({})

    def _among(self, held: Mapping[Axis, Tensor]) -> dict[str, list[Select]]:
        axes, reached, atoms = self.supernet.structure.axes, self.supernet.reached(self.exit), self._atoms
        return {
            n: [_as_select(axis, atoms, held) for axis in own] if n in reached else _NOTHING[: len(own)]
            for n, own in axes.items()
        }

    def gather(self, state: Mapping[str, Tensor]) -> State:
        """The submodel's values out of full tensors, copied, in the shapes that its network has."""
        return {name: self.select(name, tensor).clone() for name, tensor in state.items()}

    def select(self, name: str, tensor: Tensor) -> Tensor:
        """The kept entries of one full tensor; a view of it where every axis keeps a run of entries."""
        return take(tensor, self._selects[name])

    def within(self, outer: ChannelSubmodel) -> dict[str, list[Select]]:
        """Which of a larger submodel's entries this one has, for every axis of every tensor."""
        return self._among(outer._atoms)

    def entries(self, axis: Axis) -> Tensor:
        """The entries that an axis of a full tensor keeps, (k,) int64, ascending."""
        return indices(axis, self._atoms)

    def add(self, name: str, into: Tensor, values: Tensor) -> None:
        """Add values in the submodel's shape to the entries of a full tensor that the submodel holds."""
        selects = self._selects[name]
        if not any(isinstance(select, Tensor) for select in selects):
            self.select(name, into).add_(values)
            return
        runs = [_entries(select, size) for select, size in zip(selects, into.shape, strict=True)]
        grid = [run.view(-1, *[1] * (into.dim() - dim - 1)) for dim, run in enumerate(runs)]
        into.index_put_(tuple(grid), values, accumulate=True)


_NOTHING: list[Select] = [slice(0, 0)]  # of a tensor's first axis


def take(tensor: Tensor, selects: Sequence[Select]) -> Tensor:
    """The entries that each axis keeps; a view where all of them keep runs."""
    for dim, select in enumerate(selects):
        if isinstance(select, slice):
            tensor = tensor.narrow(dim, select.start, select.stop - select.start)
        elif select is not None:
            tensor = tensor.index_select(dim, select)
    return tensor


def _as_select(axis: Axis, keep: Mapping[Axis, Tensor], held: Mapping[Axis, Tensor]) -> Select:
    """What an axis keeps of the entries held, as a slice where they are consecutive."""
    if not any(atom in keep for atom in axis.atoms()):
        return None
    whole, kept = indices(axis, held), indices(axis, keep)
    if len(kept) == len(whole):
        return None
    kept = torch.searchsorted(whole, kept)
    start = int(kept[0])
    if torch.equal(kept, torch.arange(start, start + len(kept))):
        return slice(start, start + len(kept))
    return kept


def _length(select: Select, full: int) -> int:
    if select is None:
        return full
    return select.stop - select.start if isinstance(select, slice) else len(select)


def _entries(select: Select, full: int) -> Tensor:
    if isinstance(select, Tensor):
        return select
    return torch.arange(full) if select is None else torch.arange(select.start, select.stop)
