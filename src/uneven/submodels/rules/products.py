"""Products: linear layers, matrices, einsum, embeddings and attention."""

from __future__ import annotations

from uneven.submodels.axes import Axis, count, freeze, product, unify
from uneven.submodels.rules.base import Axes, Call, Outcome, Sizes, numel, rule, stretch, tie


@rule("linear")
def linear(call: Call) -> Outcome:
    x, w = call.axes("input"), call.axes("weight")
    unify(x[-1], w[1])
    tie(call.axes("bias"), w[0])
    out = [*x[:-1], w[0]]
    return Outcome(out, macs=lambda sizes: numel(out, sizes) * count(w[1], sizes))


@rule("embedding")
def embedding(call: Call) -> Outcome:
    """A row of the table for each index; a table that is a linear layer's weight too ties the two."""
    w = call.axes("weight")
    freeze(w[0], "an entry of a vocabulary")
    return Outcome([*call.axes("indices"), w[1]])


@rule("matmul", "mm", "bmm", "mv", "dot")
def matmul(call: Call) -> Outcome:
    a, b = call.operands()
    return _product(a, b)


@rule("addmm", "baddbmm", "addmv")
def addmm(call: Call) -> Outcome:
    """A product added to something that stretches over it."""
    added, a, b = call.axes("self"), *(call.operands()[-2:])
    outcome = _product(a, b)
    stretch([outcome.outputs, added])  # type: ignore[list-item]
    return outcome


def _product(a: Axes, b: Axes) -> Outcome:
    """(..., m, k) times (..., k, n); without m or n where an operand is a vector."""
    inner = a[-1]
    unify(inner, b[-2] if len(b) > 1 else b[0])
    batch, outer = stretch([a[:-2], b[:-2]]), [*a[-2:-1], *(b[-1:] if len(b) > 1 else [])]
    out = [*batch, *outer]
    return Outcome(
        out,
        macs=lambda sizes: numel(out, sizes) * count(inner, sizes),
        attention=(batch, [inner, *outer]) if _activation(a) and _activation(b) else None,
    )


def _activation(axes: Axes) -> bool:
    return any(atom.dynamic for axis in axes for atom in axis.atoms())


@rule("einsum")
def einsum(call: Call) -> Outcome:
    """The same letter, the same axis; what the dots stand for lines up from the right."""
    equation, tensors = call.args["equation"].replace(" ", ""), call.list_axes("tensors")
    left, arrow, right = equation.partition("->")
    letters: dict[str, Axis] = {}
    operands = [_spread(part, len(axes)) for part, axes in zip(left.split(","), tensors, strict=True)]
    for names, axes in zip(operands, tensors, strict=True):
        for name, axis in zip(names, axes, strict=True):
            (letters[name],) = stretch([[letters[name]], [axis]]) if name in letters else (axis,)
    if not arrow:
        once = sorted(n for n in letters if n.isalpha() and sum(part.count(n) for part in operands) == 1)
        right = "..." * ("..." in left) + "".join(once)
    dots = max(sum(not n.isalpha() for n in names) for names in operands)
    names = _spread(right, dots + sum(c.isalpha() for c in right))
    return Outcome(
        [letters[name] for name in names],
        macs=(lambda sizes: numel(list(letters.values()), sizes)) if len(tensors) > 1 else None,
        attention=_einsum_attention(operands, tensors, letters, names),
    )


def _spread(part: str, rank: int) -> list[str]:
    """One name per axis: ``a...b`` of rank 4 is a, 2, 1, b."""
    before, dots, after = part.partition("...")
    hidden = rank - len(before) - len(after) if dots else 0
    return [*before, *(str(i) for i in range(hidden, 0, -1)), *after]


def _einsum_attention(
    operands: list[list[str]], tensors: list[Axes], letters: dict[str, Axis], out: list[str]
) -> tuple[Axes, Axes] | None:
    if len(tensors) != 2 or not all(map(_activation, tensors)):
        return None
    beside = {name for name in out if all(name in names for names in operands)}
    heads = [axis for name, axis in letters.items() if name in beside]
    return heads, [axis for name, axis in letters.items() if name not in beside]


@rule("scaled_dot_product_attention")
def attention(call: Call) -> Outcome:
    """softmax(q k^T / sqrt(channels)) v per head; with grouped queries, heads = groups * queries.

    The small network divides by the root of the full model's channels, so that what is dropped is as good as
    zero.
    """
    q, k, v, mask = (call.axes(name) for name in ("query", "key", "value", "attn_mask"))
    unify(q[-1], k[-1])
    unify(k[-2], v[-2])
    groups = stretch([k[:-2], v[:-2]])
    if call.args["enable_gqa"] and groups:
        groups[-1] = product([groups[-1], Axis(q[-3].size // groups[-1].size)])
    heads = stretch([q[:-2], groups])
    stretch([[*heads, q[-2], k[-2]], mask])
    channels = q[-1]

    def resize(sizes: Sizes) -> dict[str, float]:
        own = call.args["scale"] is None and count(channels, sizes) != channels.size
        return {"scale": channels.size**-0.5} if own else {}

    def macs(sizes: Sizes) -> int:
        pairs = numel([*heads, q[-2], k[-2]], sizes)
        return pairs * (count(channels, sizes) + count(v[-1], sizes))

    return Outcome([*heads, q[-2], v[-1]], resize, macs, attention=(heads, [channels, v[-1]]))
