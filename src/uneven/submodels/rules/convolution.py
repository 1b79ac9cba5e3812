"""Convolutions, pooling and interpolation: channels against positions in space or time."""

from __future__ import annotations

from uneven.submodels.axes import Axis, count, fixed, freeze, product, regroup, unify
from uneven.submodels.rules.base import SPATIAL, Axes, Call, Outcome, numel, operator_name, rule, tie


@rule("conv1d", "conv2d", "conv3d")
def convolution(call: Call) -> Outcome:
    """Grouped: input = G * a, weight = (G * b, a, *kernel), output = G * b. G drops only in a depthwise one."""
    w, groups = call.axes("weight"), call.args["groups"]
    lead = Axis(groups)
    unify(w[0], product([lead, Axis(w[0].size // groups)]))
    return _convolution(call, lead, product([lead, w[1]]), w[0], w[1].size > 1)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(call: Call) -> Outcome:
    """Grouped: input = G * a, weight = (G * a, b, *kernel), output = G * b."""
    w, groups = call.axes("weight"), call.args["groups"]
    lead = Axis(groups)
    unify(w[0], product([lead, Axis(w[0].size // groups)]))
    outcome = _convolution(call, lead, w[0], product([lead, w[1]]), w[0].size > groups)
    x = call.axes("input")
    outcome.macs = lambda sizes: numel(x, sizes) * numel(w[1:], sizes)
    return outcome


def _convolution(call: Call, lead: Axis, inputs: Axis, outputs: Axis, grouped: bool) -> Outcome:
    x, w = call.axes("input"), call.axes("weight")
    channel = len(x) - len(w) + 1  # 0 where the input has no batch axis
    unify(x[channel], inputs)
    if grouped:
        freeze(lead, "groups of a convolution")
    for axis in w[2:]:
        freeze(axis, "a kernel's positions")
    for axis in x[channel + 1 :]:
        freeze(axis, SPATIAL)
    tie(call.axes("bias"), outputs)
    out = [*x[:channel], outputs, *(call.fresh(i) for i in range(channel + 1, len(x)))]
    return Outcome(
        out,
        resize=lambda sizes: {"groups": count(lead, sizes)} if lead.size > 1 else {},
        macs=lambda sizes: numel(out, sizes) * numel(w[1:], sizes),
    )


@rule("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d")
@rule(*(f"adaptive_{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)))
@rule(*(f"max_pool{n}d_with_indices" for n in (1, 2, 3)))
def pool(call: Call) -> Outcome:
    spatial = int(operator_name(call.node).partition("pool")[2][0])  # 1 in adaptive_avg_pool1d
    out = _over_space(call, call.axes("self"), spatial)
    several = not hasattr(call.node.meta["val"], "shape")  # with indices: two results
    return Outcome([out, out] if several else out)


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d")
@rule("upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d")
@rule(*(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)), "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
@rule(*(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)))
def interpolate(call: Call) -> Outcome:
    """Positions come of positions; a channel is filled from itself."""
    x = call.axes("self") or call.axes("input")
    digit = next(c for c in operator_name(call.node) if c.isdigit())
    return Outcome(_over_space(call, x, int(digit)))


def _over_space(call: Call, x: Axes, spatial: int) -> Axes:
    for axis in x[-spatial:]:
        freeze(axis, SPATIAL)
    return [*x[:-spatial], *(call.fresh(i) for i in range(len(x) - spatial, len(x)))]


@rule("pixel_shuffle")
def pixel_shuffle(call: Call) -> Outcome:
    """(channels * r * r, h, w) to (channels, h * r, w * r)."""
    x, r = call.axes("self"), call.args["upscale_factor"]
    channels, down, right = regroup([x[-3]], [x[-3].size // r**2, r, r])
    freeze(product([down, right, *x[-2:]]), SPATIAL)
    return Outcome([*x[:-3], channels, call.fresh(len(x) - 2), call.fresh(len(x) - 1)])


@rule("pixel_unshuffle")
def pixel_unshuffle(call: Call) -> Outcome:
    """(channels, h * r, w * r) to (channels * r * r, h, w)."""
    x, r = call.axes("self"), call.args["downscale_factor"]
    freeze(product(x[-2:]), SPATIAL)
    channels = product([x[-3], fixed(r * r, SPATIAL)])
    return Outcome([*x[:-3], channels, call.fresh(len(x) - 2), call.fresh(len(x) - 1)])
