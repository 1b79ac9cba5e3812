"""Norms: statistics over the channels that are kept, with a scale and a shift for each."""

from __future__ import annotations

from torch import fx

from uneven.submodels.axes import Axis, count, fixed, product, unify
from uneven.submodels.rules.base import Call, Outcome, operator_name, rule, tie


@rule("batch_norm", "instance_norm")
def batch_norm(call: Call) -> Outcome:
    """Each channel by itself."""
    x = call.axes("input")
    for name in ("weight", "bias", "running_mean", "running_var"):
        tie(call.axes(name), x[1])
    return Outcome(list(x))


@rule("group_norm")
def group_norm(call: Call) -> Outcome:
    """Channels are G * (C / G): every group keeps the same entries, so that its statistics stay its own."""
    x, groups = call.axes("input"), call.args["num_groups"]
    lead = fixed(groups, "groups of a norm")
    unify(x[1], product([lead, Axis(x[1].size // groups)]))
    for name in ("weight", "bias"):
        tie(call.axes(name), x[1])
    return Outcome(list(x))


@rule("layer_norm", "rms_norm")
def layer_norm(call: Call) -> Outcome:
    x = call.axes("input")
    normalised = x[-len(call.args["normalized_shape"]) :]
    for name in ("weight", "bias"):
        for own, axis in zip(call.axes(name), normalised, strict=False):
            unify(own, axis)
    return Outcome(list(x), resize=lambda sizes: {"normalized_shape": [count(axis, sizes) for axis in normalised]})


def is_norm(node: fx.Node) -> bool:
    """Whether a call divides by the spread of its input, and so undoes any factor on it."""
    return operator_name(node) in {"batch_norm", "instance_norm", "group_norm", "layer_norm", "rms_norm"}
