"""Operators that lay axes out anew: reshape, permute, cut, join, pick, repeat."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from uneven.submodels.axes import Axis, concat, count, fixed, freeze, product, regroup, sections, unify
from uneven.submodels.rules.base import (
    PLACE,
    SPATIAL,
    Axes,
    Call,
    Outcome,
    Sizes,
    as_list,
    rule,
    shape_of,
    single,
    stretch,
)

PICKED = "its entries are picked by their places"


@rule("view", "reshape", "flatten", "unflatten", "_unsafe_view", "view_as", "reshape_as")
def reshape(call: Call) -> Outcome:
    x = call.axes("self")
    if call.args.get("dtype") is not None:
        for axis in x:
            freeze(axis, "a view as another type")
        return Outcome([call.fresh(i, "a view as another type") for i in range(len(call.sizes))])
    out = regroup(x, call.sizes)
    for i, axis in enumerate(out):
        if call.dynamic(i) and not _dynamic(axis):  # given up
            out[i] = call.fresh(i, next(atom.reason for atom in axis.atoms()))
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
    if not _dynamic(axis):
        return count(axis, sizes)  # also where it was -1: a batch size times channels may need the only -1
    return old if axis.frozen else -1  # the graph computes such a size from the full model's channels


def _dynamic(axis: Axis) -> bool:
    return any(atom.dynamic for atom in axis.atoms())


@rule("transpose", "swapaxes", "swapdims")
def transpose(call: Call) -> Outcome:
    x = list(call.axes("self"))
    i, j = (call.args[name] for name in (("dim0", "dim1") if "dim0" in call.args else ("axis0", "axis1")))
    x[i], x[j] = x[j], x[i]
    return Outcome(x)


@rule("t", "numpy_T", "mT", "matrix_H", "mH")
def matrix_transpose(call: Call) -> Outcome:
    x = call.axes("self")
    return Outcome([*x[:-2], *x[:-3:-1]])


@rule("permute")
def permute(call: Call) -> Outcome:
    x = call.axes("self")
    return Outcome([x[i] for i in call.args["dims"]])


@rule("movedim", "moveaxis")
def movedim(call: Call) -> Outcome:
    x = call.axes("self")
    source, target = ([i % len(x) for i in as_list(call.args[n])] for n in ("source", "destination"))
    moved = dict(zip(target, source, strict=True))
    others = (i for i in range(len(x)) if i not in source)
    return Outcome([x[moved[i] if i in moved else next(others)] for i in range(len(x))])


@rule("expand", "broadcast_to")
def expand(call: Call) -> Outcome:
    """Axes of one entry stretch to the size given, or to that of whatever they meet; others stay (-1)."""
    x, new = call.axes("self"), len(call.sizes) - len(call.axes("self"))
    stretched = [call.fresh(i, None) for i in range(new)]
    stretched += [call.fresh(new + i, None) if single(axis) else axis for i, axis in enumerate(x)]

    def given(i: int, sizes: Sizes) -> Any:
        if i >= new and not single(x[i - new]):
            return -1
        return call.args["size"][i] if call.dynamic(i) else count(stretched[i], sizes)

    return Outcome(stretched, resize=lambda sizes: {"size": [given(i, sizes) for i in range(len(stretched))]})


@rule("repeat", "tile")
def repeat(call: Call) -> Outcome:
    """Copies end to end: entry ``copy * size + i``."""
    name = "repeats" if "repeats" in call.args else "dims"
    rank = len(call.sizes)
    x = [fixed(1)] * (rank - len(call.axes("self"))) + call.axes("self")
    times = [1] * (rank - len(call.args[name])) + list(call.args[name])
    copies = [Axis(1) if t == 1 else _copies(call, i, x[i], t) for i, t in enumerate(times)]
    out = [copy if single(axis) else product([copy, axis]) for copy, axis in zip(copies, x, strict=True)]
    new = list(zip(times, copies, strict=True))
    return Outcome(out, lambda sizes: {name: [t if isinstance(t, fx.Node) else count(c, sizes) for t, c in new]})


def _copies(call: Call, dim: int, axis: Axis, times: Any) -> Axis:
    number, varies = call.sizes[dim] // axis.size, isinstance(times, fx.Node)
    return call.fresh(dim, None) if single(axis) else Axis(number, "a length" if varies else None, varies)


@rule("repeat_interleave")
def repeat_interleave(call: Call) -> Outcome:
    """Each entry several times: entry ``i * copies + copy``."""
    x, dim, times = list(call.axes("self")), call.args["dim"], call.args["repeats"]
    if dim is None or not isinstance(times, int):
        raise ValueError("repeats must be a number, and dim be given")
    copies = Axis(times)
    x[dim] = copies if single(x[dim]) else product([x[dim], copies])
    return Outcome(x, resize=lambda sizes: {"repeats": count(copies, sizes), "output_size": None})


@rule("unsqueeze")
def unsqueeze(call: Call) -> Outcome:
    x, dim = list(call.axes("self")), call.args["dim"]
    x.insert(dim if dim >= 0 else len(x) + 1 + dim, fixed(1))
    return Outcome(x)


@rule("squeeze")
def squeeze(call: Call) -> Outcome:
    """The small network is told which axes go: a width of one channel must not make its axis one of them."""
    x, dims = call.axes("self"), call.args.get("dim")
    chosen = range(len(x)) if dims is None else [d % len(x) for d in as_list(dims)]
    gone = [i for i in chosen if single(x[i])]
    return Outcome(
        [axis for i, axis in enumerate(x) if i not in gone],
        resize=lambda _: {"self": call.args["self"], "dim": gone},
        target=torch.ops.aten.squeeze.dims,
    )


@rule("cat", "concat", "concatenate")
def concatenate(call: Call) -> Outcome:
    tensors, dim = call.list_axes("tensors"), call.args["dim"]
    out = list(tensors[0])
    for axes in tensors[1:]:
        for i, axis in enumerate(axes):
            if i != dim % len(out):
                unify(out[i], axis)
    out[dim] = concat([axes[dim] for axes in tensors])
    return Outcome(out)


@rule("stack")
def stack(call: Call) -> Outcome:
    tensors, dim = call.list_axes("tensors"), call.args["dim"]
    out = list(tensors[0])
    for axes in tensors[1:]:
        for own, axis in zip(out, axes, strict=True):
            unify(own, axis)
    out.insert(dim if dim >= 0 else len(out) + 1 + dim, fixed(len(tensors), PLACE))
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


@rule("slice", "narrow")
def slice_(call: Call) -> Outcome:
    """A run of channels is a term of their sum; every second one, a factor of their product."""
    x, dim = list(call.axes("self")), call.args["dim"] % len(call.axes("self"))
    step = call.args.get("step", 1)
    if _untouched(call.args) and step == 1:
        return Outcome(x)
    size, axis = call.sizes[dim], x[dim]
    if axis.frozen or call.dynamic(dim) or not isinstance(call.args["start"] or 0, int):
        freeze(axis, PICKED)
        x[dim] = call.fresh(dim, PICKED)
        return Outcome(x)
    start = call.args["start"] or 0
    start = min(start if start >= 0 else start + axis.size, axis.size)
    if step > 1:
        return Outcome([*x[:dim], _every(axis, start, step), *x[dim + 1 :]])
    cuts = [start, size, axis.size - start - size]
    pieces = iter(sections(axis, [c for c in cuts if c]))
    before, x[dim] = next(pieces) if start else None, next(pieces)
    end = "length" if "length" in call.args else "end"

    def resize(sizes: Sizes) -> dict[str, Any]:
        first = count(before, sizes) if before is not None else 0
        return {"start": first, end: count(x[dim], sizes) + (first if end == "end" else 0)}

    return Outcome(x, resize)


def _untouched(args: dict[str, Any]) -> bool:
    end = args.get("end", 0)
    return args["start"] in (None, 0) and (end is None or (isinstance(end, int) and end >= 2**62))


def _every(axis: Axis, start: int, step: int) -> Axis:
    if axis.size % step or start >= step:
        freeze(axis, PICKED)
        return fixed(len(range(start, axis.size, step)), PICKED)
    outer, inner = regroup([axis], [axis.size // step, step])
    freeze(inner, PICKED)
    return outer


@rule("select")
def select(call: Call) -> Outcome:
    x, dim = list(call.axes("self")), call.args["dim"]
    freeze(x[dim], PICKED)
    del x[dim]
    return Outcome(x)


@rule("unbind")
def unbind(call: Call) -> Outcome:
    x, dim = list(call.axes("self")), call.args["dim"]
    freeze(x[dim], PICKED)
    number = x.pop(dim).size
    return Outcome([list(x) for _ in range(number)])


@rule("index")
def index(call: Call) -> Outcome:
    """Positions picked by tensors: their axes stand where the first of neighbours was picked from, else first."""
    x, indices = call.axes("self"), call.args["indices"]
    places = [i for i, given in enumerate(indices) if given is not None]
    for i in places:
        freeze(x[i], PICKED)
    picked = stretch(call.list_axes("indices"))
    rest = [axis for i, axis in enumerate(x) if i not in places]
    at = places[0] if places[-1] - places[0] + 1 == len(places) else 0
    return Outcome([*rest[:at], *picked, *rest[at:]])


@rule("index_select")
def index_select(call: Call) -> Outcome:
    x, dim = list(call.axes("self")), call.args["dim"]
    freeze(x[dim], PICKED)
    x[dim] = call.axes("index")[0]
    return Outcome(x)


@rule("gather", "take_along_dim")
def gather(call: Call) -> Outcome:
    """Along one axis by position; the other axes of the index are (the first entries of) the tensor's."""
    x, by = call.axes("self"), list(call.axes("index"))
    dim = call.args["dim"] % len(x)
    freeze(x[dim], PICKED)
    for i, (axis, own) in enumerate(zip(x, by, strict=True)):
        if i != dim and axis.size == own.size:
            unify(axis, own)
        elif i != dim:
            freeze(axis, PICKED)
    return Outcome(by)


@rule("pad", "constant_pad_nd")
def pad(call: Call) -> Outcome:
    """Constants before and after: a sum, whose ends take the size of whatever they meet."""
    x, given = list(call.axes("self")), call.args["pad"]
    constant = call.args.get("mode", "constant") == "constant"
    ends: list[tuple[Any, Any]] = []
    for i, (before, after) in enumerate(zip(given[::2], given[1::2], strict=True)):
        dim = len(x) - 1 - i
        free = constant and not x[dim].frozen and min(before, after) >= 0
        if (before, after) != (0, 0) and not free:
            freeze(x[dim], SPATIAL)
            x[dim] = call.fresh(dim)
        elif free:
            pair = Axis(before), Axis(after)
            x[dim] = concat([axis for axis in (pair[0], x[dim], pair[1]) if axis.size])
            ends.append(pair)
            continue
        ends.append((before, after))
    return Outcome(x, lambda sizes: {"pad": [_end(e, sizes) for pair in ends for e in pair]})


def _end(end: Any, sizes: Sizes) -> Any:
    return count(end, sizes) if isinstance(end, Axis) else end
