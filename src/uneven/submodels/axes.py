"""The axis algebra: which entries of which tensor axes must be kept or dropped together.

Every axis of every tensor in a model's graph is an *expression*:

- an **atom**, a run of channels about which nothing more is known (yet);
- a **product** of axes, the later factors running faster: ``channel * height * width`` after a flatten,
  ``head * head_dim`` in attention, ``4 * hidden`` in the gates of an LSTM;
- a **sum** of axes laid end to end: a concatenation, or ``q | k | v`` before they are split.

Operators say that two axes are one and the same (`unify`), that an axis must stay whole (`freeze`), or that
axes are laid out anew (`regroup`, `sections`). An atom met by a product or a sum takes on that structure. The
atoms left over that nobody froze are the model's channel groups.

A worked example: a convolution to 8 channels, flattened over 2 x 2 pixels and read by a linear layer.

>>> out_channels, pixels, features = Axis(8), [fixed(2), fixed(2)], Axis(32)
>>> batch = fixed(1)
>>> _, flat = regroup([batch, out_channels, *pixels], [1, 32])
>>> unify(flat, features)                       # the linear layer reads what the convolution wrote
>>> print(features)
8*[2]*[2]
>>> indices(features, {out_channels.root(): torch.tensor([0, 5])}).tolist()
[0, 1, 2, 3, 20, 21, 22, 23]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

ATOM, PRODUCT, SUM = "atom", "product", "sum"
BATCH = "batch"  # the reason why a batch axis stays whole
MIXED = ("do not line up", "mixes its entries", "balanced pieces")  # words of the reasons given for a mix


class Axis:
    """One axis of ``size`` entries. Unified axes share a root; only roots carry a structure."""

    __slots__ = ("dynamic", "each", "kind", "link", "parts", "reason", "size")

    def __init__(self, size: int, reason: str | None = None, dynamic: bool = False) -> None:
        self.size = size
        self.reason = "one entry only" if reason is None and size == 1 else reason
        self.dynamic = dynamic  # a batch or sequence length: whole, and free in size
        self.each = 1 if dynamic and reason == BATCH else size  # the entries that count as one example's
        self.kind = ATOM
        self.parts: list[Axis] = []
        self.link: Axis | None = None

    def root(self) -> Axis:
        axis = self
        while axis.link is not None:
            axis = axis.link
        return axis

    def atoms(self) -> list[Axis]:
        """The atoms that this axis is made of, in layout order (with repeats)."""
        axis = self.root()
        return [axis] if axis.kind == ATOM else [atom for part in axis.parts for atom in part.atoms()]

    @property
    def frozen(self) -> bool:
        """Whether every entry of the axis stays."""
        return all(atom.reason is not None for atom in self.atoms())

    def __str__(self) -> str:
        axis = self.root()
        if axis.kind == ATOM:
            return f"[{axis.size}]" if axis.reason else str(axis.size)
        joined = ("*" if axis.kind == PRODUCT else " + ").join(map(str, axis.parts))
        return joined if axis.kind == PRODUCT else f"({joined})"


def fixed(size: int, reason: str = "its entries have a place of their own") -> Axis:
    """A fresh axis that stays whole."""
    return Axis(size, reason)


def factors(axis: Axis) -> list[Axis]:
    """The factors of a product, outermost first; of anything else, the axis itself."""
    axis = axis.root()
    return [f for part in axis.parts for f in factors(part)] if axis.kind == PRODUCT else [axis]


def terms(axis: Axis) -> list[Axis]:
    """The terms of a sum in order; of anything else, the axis itself."""
    axis = axis.root()
    return [t for part in axis.parts for t in terms(part)] if axis.kind == SUM else [axis]


def product(axes: Sequence[Axis]) -> Axis:
    """The axis over all tuples of entries, the last factor running fastest."""
    parts = [f for axis in axes for f in factors(axis) if f.size != 1 or f.dynamic]
    return _composite(PRODUCT, parts, math.prod(f.size for f in parts)) if parts else fixed(1)


def concat(axes: Sequence[Axis]) -> Axis:
    """The axes laid end to end."""
    parts = [t for axis in axes for t in terms(axis)]
    return _composite(SUM, parts, sum(t.size for t in parts))


def _composite(kind: str, parts: list[Axis], size: int) -> Axis:
    if len(parts) == 1:
        return parts[0]
    axis = Axis(size)
    _structure(axis, kind, parts)
    return axis


def _structure(atom: Axis, kind: str, parts: list[Axis]) -> None:
    """Give an atom a structure; a reason to stay whole passes on to its parts."""
    if atom.reason is not None and atom.size != 1:
        for part in parts:
            freeze(part, atom.reason)
    atom.kind, atom.parts, atom.reason = kind, parts, None


def freeze(axis: Axis, reason: str) -> None:
    """Every entry of the axis stays, for the reason given (the first reason is kept)."""
    for atom in axis.atoms():
        if atom.reason is None:
            atom.reason = reason


def unify(a: Axis, b: Axis) -> None:
    """The two axes have the same entries: whatever one drops, the other drops."""
    a, b = a.root(), b.root()
    if a is b:
        return
    if a.size != b.size:
        raise ValueError(f"axes of {a.size} and {b.size} entries cannot be the same")
    if ATOM in (a.kind, b.kind):
        atom, other = (a, b) if a.kind == ATOM else (b, a)
        if atom.reason is not None:
            freeze(other, atom.reason)
        other.dynamic |= atom.dynamic
        other.each = min(other.each, atom.each)
        atom.link = other
    elif a.kind == b.kind:
        _align(a, b)
    else:
        _unify_sum_with_product(*((a, b) if a.kind == SUM else (b, a)))


def _align(a: Axis, b: Axis) -> None:
    """Unify two products, or two sums, part by part, cutting the longer part where they do not line up."""
    split: Callable[[Axis, int], tuple[Axis, Axis] | None] = _divide if a.kind == PRODUCT else _cut
    parts = factors if a.kind == PRODUCT else terms
    left, right = parts(a), parts(b)
    while left and right:
        x, y = left.pop(0), right.pop(0)
        if x.size != y.size:
            (long, rest), short = ((x, left), y) if x.size > y.size else ((y, right), x)
            pieces = split(long, short.size)
            if pieces is None:
                _freeze_both(a, b)
                return
            rest[:0] = parts(pieces[1])
            x, y = pieces[0], short
        unify(x, y)


def _freeze_both(a: Axis, b: Axis) -> None:
    reason = f"{a} and {b} do not line up"
    freeze(a, reason)
    freeze(b, reason)


def _unify_sum_with_product(total: Axis, prod: Axis) -> None:
    lead, *rest = factors(prod)
    block = product(rest)
    blocks = _equal_blocks(total, lead.size)
    if blocks is None:
        _freeze_both(total, prod)
        return
    freeze(lead, "it counts blocks that are one")
    for other in blocks:
        unify(block, other)


def _equal_blocks(total: Axis, count: int) -> list[Axis] | None:
    """A sum as ``count`` blocks of equal size, or None where its terms cannot be cut so."""
    return None if total.size % count else _pieces(total, [total.size // count] * count)


def _pieces(axis: Axis, sizes: Sequence[int]) -> list[Axis] | None:
    """Consecutive pieces of an axis, or None where it cannot be cut so."""
    pieces, rest = [], axis
    for size in sizes[:-1]:
        cut = _cut(rest, size)
        if cut is None:
            return None
        pieces.append(cut[0])
        rest = cut[1]
    return [*pieces, rest]


def _cut(axis: Axis, size: int) -> tuple[Axis, Axis] | None:
    """The first ``size`` entries of a term and the rest."""
    axis = axis.root()
    if axis.kind == SUM:  # a term that was cut since it was listed
        return _cut_sum(axis, size)
    if axis.kind == ATOM:
        first, rest = Axis(size), Axis(axis.size - size)
        _structure(axis, SUM, [first, rest])
        return first, rest
    lead, *inner = factors(axis)
    block = product(inner)
    if axis.kind != PRODUCT or size % block.size:
        return None
    freeze(lead, "it counts blocks that are split")
    first_count, whole = size // block.size, lead.size
    return (
        product([fixed(first_count), block]),
        product([fixed(whole - first_count), block]),
    )


def _cut_sum(total: Axis, size: int) -> tuple[Axis, Axis] | None:
    first, pending = [], terms(total)
    while size:
        term = pending.pop(0)
        if term.size > size:
            pieces = _cut(term, size)
            if pieces is None:
                return None
            term = pieces[0]
            pending.insert(0, pieces[1])
        first.append(term)
        size -= term.size
    return concat(first), concat(pending)


def _divide(axis: Axis, size: int) -> tuple[Axis, Axis] | None:
    """A factor as ``size`` outer entries times an inner axis, or None where it cannot be."""
    axis = axis.root()
    if axis.size % size:
        return None
    inner = axis.size // size
    if axis.kind == ATOM:
        parts = [Axis(size), Axis(inner)]
        _structure(axis, PRODUCT, parts)
        return parts[0], parts[1]
    if axis.kind == SUM:
        blocks = _equal_blocks(axis, size)
        if blocks is None:
            return None
        for block in blocks[1:]:
            unify(blocks[0], block)
        return fixed(size, "it counts blocks that are one"), blocks[0]
    return _divide_product(axis, size)


def _divide_product(axis: Axis, size: int) -> tuple[Axis, Axis] | None:
    outer: list[Axis] = []
    pending = factors(axis)
    while size > 1:
        lead = pending.pop(0)
        if size % lead.size:
            pieces = _divide(lead, size) if lead.size % size == 0 else None
            if pieces is None:
                return None
            lead = pieces[0]
            pending.insert(0, pieces[1])
        outer.append(lead)
        size //= lead.size
    return product(outer), product(pending)


def regroup(axes: Sequence[Axis], sizes: Sequence[int]) -> list[Axis]:
    """The axes of a reshape to ``sizes``. Where the factors do not line up, everything involved is frozen.

    >>> print(*regroup([Axis(12)], [3, 4]), *regroup([Axis(2), Axis(6)], [12]))
    3 4 2*6
    """
    pending = [f for axis in axes for f in factors(axis) if f.size != 1 or f.dynamic]
    out: list[Axis] = []
    for size in sizes:
        taken: list[Axis] = []
        room = size
        while room > 1:
            lead = pending.pop(0).root() if pending else None
            if lead is not None and room % lead.size:
                shared = math.gcd(room, lead.size)
                pieces = _divide(lead, shared) if shared > 1 else None
                lead, pending = (pieces[0], [pieces[1], *pending]) if pieces else (None, pending)
            if lead is None:
                return _give_up(axes, sizes)
            taken.append(lead)
            room //= lead.size
        out.append(product(taken))
    if any(f.size != 1 for f in pending):  # entries left over: not a reshape at all
        return _give_up(axes, sizes)
    return out


def _give_up(axes: Sequence[Axis], sizes: Sequence[int]) -> list[Axis]:
    reason = f"a reshape of ({', '.join(map(str, axes))}) to {tuple(sizes)} mixes its entries"
    for axis in axes:
        freeze(axis, reason)
    return [fixed(size, reason) for size in sizes]


def sections(axis: Axis, sizes: Sequence[int]) -> list[Axis]:
    """The axes of the pieces when an axis is cut into consecutive pieces.

    An atom becomes a sum of free pieces. A product is cut along its outermost factor: equal pieces are then
    one and the same axis (a channel shuffle ties its halves so). What cannot be cut is frozen.
    """
    if axis.root().kind == PRODUCT:
        return _sections_of_product(axis, sizes)
    pieces = _pieces(axis, sizes)
    return _sections_frozen(axis, sizes) if pieces is None else pieces


def _sections_of_product(axis: Axis, sizes: Sequence[int]) -> list[Axis]:
    halves = _divide(axis, len(sizes)) if len(set(sizes)) == 1 else None
    if halves is None:
        return _sections_frozen(axis, sizes)
    freeze(halves[0], "it counts blocks that are split")
    return [halves[1]] * len(sizes)


def _sections_frozen(axis: Axis, sizes: Sequence[int]) -> list[Axis]:
    reason = f"a stream of {axis} cannot be cut into balanced pieces of {tuple(sizes)}"
    freeze(axis, reason)
    return [fixed(size, reason) for size in sizes]


Keep = Mapping[Axis, Tensor]  # a root atom -> the sorted or rolled entries that it keeps, (k,) int64


def indices(axis: Axis, keep: Keep) -> Tensor:
    """The entries of ``axis`` that stay when each atom keeps what ``keep`` says (all, where it is silent)."""
    axis = axis.root()
    if axis.kind == ATOM:
        kept = keep.get(axis)
        return torch.arange(axis.size) if kept is None else kept
    if axis.kind == SUM:
        starts = [sum(part.size for part in axis.parts[:i]) for i in range(len(axis.parts))]
        pieces = zip(axis.parts, starts, strict=True)
        return torch.cat([indices(part, keep) + start for part, start in pieces])
    index = torch.zeros(1, dtype=torch.int64)
    for part in axis.parts:
        index = (index[:, None] * part.size + indices(part, keep)).reshape(-1)
    return index


def channels_along(axis: Axis, atom: Axis) -> Tensor:
    """Which channel of an atom each entry of an axis belongs to, ``(size,)`` int64; -1 for none.

    >>> channel = Axis(3)
    >>> channels_along(product([channel, fixed(2)]), channel).tolist()
    [0, 0, 1, 1, 2, 2]
    """
    root = axis.root()
    if root.kind == ATOM:
        return torch.arange(root.size) if root is atom.root() else torch.full((root.size,), -1)
    parts = [channels_along(part, atom) for part in root.parts]
    if root.kind == SUM:
        return torch.cat(parts)
    outer = parts[0]
    for inner in parts[1:]:
        outer = torch.maximum(outer[:, None], inner[None]).reshape(-1)
    return outer


def count(axis: Axis, sizes: Mapping[Axis, int]) -> int:
    """How many entries of ``axis`` stay when each atom keeps ``sizes[atom]`` of them; a batch counts 1."""
    axis = axis.root()
    if axis.kind == ATOM:
        return axis.each if axis.dynamic else sizes.get(axis, axis.size)
    kept = [count(part, sizes) for part in axis.parts]
    return sum(kept) if axis.kind == SUM else math.prod(kept)
