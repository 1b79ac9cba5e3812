"""What each operator says about axes: one rule per kind of operator, in the module of its kind."""

from uneven.submodels.rules import convolution, norms, pointwise, products, recurrent, shapes  # noqa: F401
from uneven.submodels.rules.base import (
    RULES,
    Axes,
    Call,
    Outcome,
    Rule,
    Sizes,
    arguments,
    operator_name,
    shape_of,
)
from uneven.submodels.rules.norms import is_norm

__all__ = [
    "RULES",
    "Axes",
    "Call",
    "Outcome",
    "Rule",
    "Sizes",
    "arguments",
    "is_norm",
    "operator_name",
    "shape_of",
]
