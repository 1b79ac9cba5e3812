"""Mask submodels: any set of coordinates, in tensors that keep their shapes.

What a client gets and sends are the k values that it holds, tensor by tensor; it trains dense tensors that are
exactly zero elsewhere. So a mask saves parameters and bytes, and neither multiply-accumulates nor memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from uneven.apportion import apportion
from uneven.errors import MethodError
from uneven.submodels.channels import Supernet
from uneven.submodels.network import Network
from uneven.submodels.topk import top_k
from uneven.submodels.trace import State

Scope = Literal["global", "tensor", "block"]
NOTHING_TO_MASK = "the model has no tensor of two axes or more: there is nothing to mask"


@dataclass(frozen=True, eq=False)
class MaskSubmodel:
    """Which coordinates one client holds in one round: some entries of some parameters, all of the others.

    ``masks``: parameter name -> bool, of its shape; a parameter not named is held whole, and so is every buffer.
    """

    supernet: Supernet
    masks: dict[str, Tensor]

    @cached_property
    def _positions(self) -> dict[str, Tensor]:
        return {name: mask.reshape(-1).nonzero().squeeze(1).int() for name, mask in self.masks.items()}

    @cached_property
    def size(self) -> int:
        """k_n, the number of parameters held."""
        dropped = sum(mask.numel() - int(mask.sum()) for mask in self.masks.values())
        return self.supernet.size - dropped

    @property
    def key(self) -> Hashable:
        """Equal for all masks: the tensors keep their shapes."""
        return "mask"

    @property
    def macs(self) -> int:
        """Those of the full model: what is masked is computed all the same."""
        return self.supernet.prefix(1.0).macs

    @property
    def index_bytes(self) -> int:
        """One bit for every coordinate of a masked tensor."""
        return -(-sum(mask.numel() for mask in self.masks.values()) // 8)

    @property
    def nbytes(self) -> int:
        """Bytes of a message: every value held, buffers too, and the mask."""
        full = self.supernet.prefix(1.0)
        width = next(iter(self.supernet.initial.values())).element_size()
        return full.nbytes - width * (full.size - self.size) + self.index_bytes

    def network(self, scaler: bool = False) -> MaskedNetwork:
        """The full network, in which what is not held is zero; shared, so load values first."""
        if scaler:
            raise ValueError("a mask drops no channels to scale for")
        return MaskedNetwork(self.supernet.prefix(1.0).network(), self)

    def gather(self, state: Mapping[str, Tensor]) -> State:
        """The values held of every tensor, copied: a vector where it is masked, else all of it."""
        return {name: self.select(name, tensor).clone() for name, tensor in state.items()}

    def select(self, name: str, tensor: Tensor) -> Tensor:
        """The values held of one full tensor, a vector (k_name,) where it is masked."""
        return tensor.reshape(-1).index_select(0, self._positions[name]) if name in self.masks else tensor

    def add(self, name: str, into: Tensor, values: Tensor) -> None:
        """Add values, as `select` gives them, to the held entries of a full tensor, in place."""
        if name in self.masks:
            into.view(-1).index_add_(0, self._positions[name], values)
        else:
            into.add_(values)

    def holds(self, name: str) -> Tensor:
        """Which entries of a parameter are held, bool of its shape."""
        whole = torch.ones(self.supernet.initial[name].shape, dtype=torch.bool)
        return self.masks.get(name, whole)

    def spread(self, name: str, values: Tensor) -> Tensor:
        """A full tensor with values, as `select` gives them, in place, and zero where nothing is held."""
        if name not in self.masks:
            return values
        mask = self.masks[name]
        full = values.new_zeros(mask.numel())
        return full.index_copy_(0, self._positions[name].long(), values).view(mask.shape)


class MaskedNetwork(Network):
    """The full network under a mask: it takes and gives the values held, and keeps all others at zero."""

    def __init__(self, full: Network, submodel: MaskSubmodel) -> None:
        super().__init__(full.tensors, *full.graphs, full.constants)
        self.submodel = submodel
        self._outside = {name: ~mask for name, mask in submodel.masks.items()}

    def load(self, values: State) -> MaskedNetwork:
        return super().load({name: self.submodel.spread(name, value) for name, value in values.items()})

    @torch.no_grad()
    def values(self) -> State:
        return {name: t.detach() for name, t in self.submodel.gather(self.tensors).items()}

    def confine(self) -> None:
        weights = self.weights()
        for name, outside in self._outside.items():
            gradient = weights[name].grad
            if gradient is not None:
                gradient.masked_fill_(outside, 0.0)


def masked(supernet: Supernet, masks: Mapping[str, Tensor]) -> MaskSubmodel:
    """The submodel of these masks, bool and of the parameters' shapes; one that drops nothing is left out.

    Raises:
        ValueError: a mask is of no parameter, or not bool and of its shape.
    """
    for name, mask in masks.items():
        if name not in supernet.parameters:
            raise ValueError(f"no parameter {name!r} to mask")
        if mask.dtype != torch.bool or mask.shape != supernet.initial[name].shape:
            shape = tuple(supernet.initial[name].shape)
            raise ValueError(f"the mask of {name} is {mask.dtype} {tuple(mask.shape)}: must be bool {shape}")
    return MaskSubmodel(supernet, {name: mask for name, mask in masks.items() if not mask.all()})


def choose(
    supernet: Supernet,
    scores: Mapping[str, Tensor],
    k: int,
    ties: Mapping[str, Tensor],
    *,
    scope: Scope = "global",
    per_output: bool = False,
) -> MaskSubmodel:
    """The submodel of k parameters: all that are never dropped, and the highest scores among the maskable.

    Args:
        scores: maskable parameter -> its entries' scores.
        k: parameters held in all, k_n.
        ties: full tensors; among equal scores the larger absolute value here goes first, then the lower position.
        scope: the top k of all at once (``global``), or the same share of each tensor or block of the model.
        per_output: keep the best entry of each index of a tensor's first axis, whatever the others score.

    Raises:
        MethodError: k is too small for what must be kept, or a score is NaN.
    """
    if not supernet.maskable:
        raise MethodError(NOTHING_TO_MASK)
    free = k - (supernet.size - sum(scores[name].numel() for name in supernet.maskable))
    if free < 0:
        raise MethodError(
            f"a capacity of {k:,} of {supernet.size:,} parameters is too small: norms and biases, which are never "
            f"dropped, are {k - free:,}"
        )
    spread = per_output or scope != "global"  # each part has to be worth a weight of each of its tensors
    rivals = parts(supernet, scope)
    sizes = [sum(scores[name].numel() for name in names) for names in rivals]
    masks: dict[str, Tensor] = {}
    for names, budget in zip(rivals, apportion(sizes, free), strict=True):
        part = {name: checked(name, scores[name]) for name in names}
        if per_output:
            part = {name: _best_first(score, ties[name]) for name, score in part.items()}
        needed = sum(len(score) if per_output else 1 for score in part.values()) if spread else 0
        if budget < needed:
            raise MethodError(
                f"a capacity of {k:,} of {supernet.size:,} parameters is too small: it leaves {budget:,} for "
                f"{', '.join(names)}, where at least {needed:,} must be"
            )
        chosen = top_k(list(part.values()), budget, [ties[name] for name in names])
        masks |= dict(zip(names, chosen, strict=True))
    return masked(supernet, masks)


def checked(name: str, score: Tensor) -> Tensor:
    """The scores of a parameter, if they have an order.

    Raises:
        MethodError: one is NaN.
    """
    if score.isnan().any():
        raise MethodError(
            f"the scores of {name} are not numbers (NaN): training.lr is too high, or the data are bad"
        )
    return score


def _best_first(score: Tensor, ties: Tensor) -> Tensor:
    """The scores with the best of each row made infinite."""
    rows, sizes = score.flatten(1), ties.flatten(1).abs()
    best = rows.amax(1, keepdim=True)
    first = torch.where(rows == best, sizes, -1.0).argmax(1, keepdim=True)
    finite = rows.clamp(max=torch.finfo(rows.dtype).max)
    return finite.scatter(1, first, torch.inf).view(score.shape)


def parts(supernet: Supernet, scope: Scope) -> list[list[str]]:
    """The maskable tensors, those together that share one budget."""
    together: dict[str, list[str]] = {}
    for name in supernet.maskable:
        key = {"global": "", "tensor": name, "block": block_of(name)}[scope]
        together.setdefault(key, []).append(name)
    return list(together.values())


def block_of(name: str) -> str:
    """The block of a tensor: its path down to the first number, else without its last two parts.

    >>> block_of("bert.encoder.layer.3.attention.query.weight"), block_of("bert.embeddings.word.weight")
    ('bert.encoder.layer.3', 'bert.embeddings')
    >>> block_of("head.weight")
    'head'
    """
    parts = name.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return ".".join(parts[: number + 1] if number is not None else parts[:-2] or parts[:1])
