"""Operators that act on every entry, or along axes that stay whole; tensors made in the graph; reductions."""

from __future__ import annotations

from torch import Tensor

from uneven.submodels.axes import Axis, count, fixed, sections, unify
from uneven.submodels.rules.base import PLACE, Call, Outcome, as_list, rule, stretch


@rule(
    *("relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "sigmoid", "tanh", "softplus"),
    *("hardtanh", "hardswish", "hardsigmoid", "hardshrink", "softshrink", "softsign", "log_sigmoid", "threshold"),
    *("abs", "neg", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "square", "sign", "round"),
    *("floor", "ceil", "sin", "cos", "erf", "logical_not", "bitwise_not", "isnan", "isinf", "nan_to_num"),
    *("dropout", "feature_dropout", "alpha_dropout", "contiguous", "clone", "detach", "alias", "lift_fresh_copy"),
    *("to", "_to_copy", "type_as", "float", "zero", "fill", "zeros_like", "ones_like", "full_like", "empty_like"),
    *("rand_like", "randn_like"),
    *("softmax", "log_softmax"),  # over the channels that are kept, as a norm
)
def pointwise(call: Call) -> Outcome:
    return Outcome(list(call.axes("self") or call.axes("input")))


@rule(
    *("add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum", "clamp", "clamp_min", "clamp_max", "atan2"),
    *("fmod", "remainder", "floor_divide", "true_divide", "lerp", "addcmul", "addcdiv", "where", "masked_fill"),
    *("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "__and__", "__or__"),
    *("bitwise_and", "bitwise_or", "copy", "expand_as"),
)
def broadcast(call: Call) -> Outcome:
    return Outcome(stretch(call.operands()))


@rule("prelu")
def prelu(call: Call) -> Outcome:
    x, slopes = call.axes("self"), call.axes("weight")
    if slopes[0].size > 1:
        unify(slopes[0], x[1])
    return Outcome(list(x))


@rule("glu")
def glu(call: Call) -> Outcome:
    """One half gates the other: both keep the same."""
    x, dim = call.axes("self"), call.args["dim"] % len(call.axes("self"))
    value, gate = sections(x[dim], [x[dim].size // 2] * 2)
    unify(value, gate)
    return Outcome([*x[:dim], value, *x[dim + 1 :]])


@rule("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty", "rand", "randn")
def filled(call: Call) -> Outcome:
    """A tensor made in the graph has no entries of its own: it takes the size of whatever it meets."""
    out = [call.fresh(i, None) for i in range(len(call.sizes))]
    sizes_of = list(zip(call.args["size"], out, strict=True))
    return Outcome(
        out, lambda sizes: {"size": [old if axis.root().dynamic else count(axis, sizes) for old, axis in sizes_of]}
    )


@rule("arange", "linspace", "eye", "scalar_tensor")
def positions(call: Call) -> Outcome:
    return Outcome([call.fresh(i, PLACE) for i in range(len(call.sizes))])


@rule("cumsum", "cumprod", "flip", "roll", "sort", "argsort", "logcumsumexp")
def along(call: Call) -> Outcome:
    """Entries in an order: nothing can be said of the axis along which they are, unless it stays whole."""
    x = call.axes("self")
    dims = call.args["dims"] if "dims" in call.args else call.args["dim"]
    whole = [x[d] for d in as_list(dims)] or x
    several = not isinstance(call.node.meta["val"], Tensor)
    return Outcome([list(x), list(x)] if several else list(x), whole=whole)


@rule("triu", "tril")
def triangle(call: Call) -> Outcome:
    return Outcome(list(call.axes("self")), whole=call.axes("self")[-2:])


@rule(
    "mean", "sum", "amax", "amin", "var", "std", "var_mean", "std_mean", "logsumexp", "norm", "linalg_vector_norm"
)
@rule("all", "any", "prod")
def reduce(call: Call) -> Outcome:
    """Over the channels that are kept, where it is over channels."""
    out = _reduced(call)
    return Outcome(out if isinstance(call.node.meta["val"], Tensor) else [out, list(out)])


@rule("argmax", "argmin", "max", "min", "median")
def select_one(call: Call) -> Outcome:
    """The greatest of the entries, and which it is."""
    x, several = call.axes("self"), not isinstance(call.node.meta["val"], Tensor)
    if call.axes("other"):
        return broadcast(call)
    dim = call.args.get("dim")
    out = _reduced(call)
    return Outcome([out, list(out)] if several else out, whole=x if dim is None else [x[dim]])


def _reduced(call: Call) -> list[Axis]:
    x, dims = call.axes("self"), call.args.get("dim")
    gone = range(len(x)) if dims is None or dims == [] else [d % len(x) for d in as_list(dims)]
    kept = [fixed(1) if i in gone else axis for i, axis in enumerate(x)]
    return [axis for i, axis in enumerate(kept) if call.args.get("keepdim") or i not in gone]
