"""Scores of parameters: rules of x, of the mean gradient g, and of the Fisher information F."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from uneven.errors import MethodError, nearest
from uneven.scores.tally import Gradients
from uneven.submodels import State


@dataclass(frozen=True)
class Rule:
    """A score of one tensor: a formula of x and of what the rule ``reads`` besides."""

    reads: Literal["nothing", "mean", "square", "draws"]
    formula: Callable[[Tensor, Tensor], Tensor]


SCORES: Mapping[str, Rule] = {
    "magnitude": Rule("nothing", lambda x, _: x.abs()),
    "fisher": Rule("square", lambda x, F: F),
    "weighted": Rule("square", lambda x, F: (F.double() * x.double()).square()),
    "gradient_norm": Rule("mean", lambda x, g: g.abs()),
    "taylor": Rule("mean", lambda x, g: (g.double() * x.double()).square()),
    "obd": Rule("square", lambda x, F: F.double() * x.double().square() / 2),
    "random": Rule("draws", lambda x, u: u),
}
"""|x|, F, F^2 x^2, |g|, (g x)^2, F x^2 / 2 and draws from [0, 1). Products of squares are in double precision: in
single, those of a model that fits its data well would be zero."""

NEEDS_GRADIENTS = frozenset(name for name, rule in SCORES.items() if rule.reads in ("mean", "square"))
"""The scores that need a client's data."""


def score(
    rule: str, weights: State, gradients: Gradients | None = None, draws: torch.Generator | None = None
) -> State:
    """The score of every entry of every tensor in ``weights``, in their shapes.

    Args:
        rule: one of `SCORES`.
        weights: the parameters x by name.
        gradients: at x, of the same names; read by the rules of `NEEDS_GRADIENTS` only.
        draws: for the rule ``random``.

    Returns:
        tensors that may be those of ``gradients`` themselves: not to be changed in place.

    Raises:
        MethodError: there is no such rule, what it reads is missing, or a score is NaN.
    """
    if rule not in SCORES:
        raise MethodError(f"score = {rule!r}: {nearest(rule, list(SCORES))}")
    if rule in NEEDS_GRADIENTS and gradients is None:
        raise MethodError(f"score = {rule!r}: needs gradients on a client's data")
    if rule == "random" and draws is None:
        raise MethodError("score = 'random': needs a generator to draw from")
    scores = {}
    for name, x in weights.items():
        read = _read(SCORES[rule], name, x, gradients, draws)
        scores[name] = SCORES[rule].formula(x, read)
        if scores[name].isnan().any():
            cause = (
                "that tensor itself is not finite" if not x.isfinite().all() else "its gradients are not finite"
            )
            raise MethodError(
                f"score = {rule!r}: {int(scores[name].isnan().sum()):,} of {x.numel():,} scores of {name} are not "
                f"numbers (NaN), since {cause}: training.lr is too high, or the data are bad"
            )
    return scores


def _read(rule: Rule, name: str, x: Tensor, gradients: Gradients | None, draws: torch.Generator | None) -> Tensor:
    if rule.reads == "draws":
        return torch.rand(x.shape, generator=draws)
    if gradients is None or rule.reads == "nothing":
        return x
    known = gradients.mean if rule.reads == "mean" else gradients.square
    if name not in known:
        raise MethodError(f"no gradient is known of {name}: this score reads that of every parameter")
    return known[name]
