"""How many links each layer keeps at a density: K_l."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from uneven.apportion import apportion
from uneven.errors import MethodError
from uneven.submodels import Supernet
from uneven.submodels.masks import NOTHING_TO_MASK

Layers = Literal["erk", "uniform"]


def links(supernet: Supernet, density: float, layers: Layers = "erk") -> dict[str, int]:
    """K_l of every prunable tensor, so that round(density d) parameters are active in all.

    Biases and norms are never pruned and count. ``erk``: p_l = eps sum(shape) / prod(shape) (Erdos-Renyi kernel,
    Evci et al. 2020, RigL, arXiv 1911.11134, section 3), where a tensor with p_l > 1 is made dense and eps solved
    again; ``uniform``: the same p for all. Whole numbers by largest remainder.

    Raises:
        MethodError: there is nothing to prune, what is never pruned is more than the density allows, or a layer
            would have no link.
    """
    sizes = {name: supernet.initial[name].numel() for name in supernet.maskable}
    weights = {name: _weight(supernet, name, layers) for name in sizes}
    counts = within(weights, sizes, links_in_all(supernet, density))
    empty = [name for name, count in counts.items() if not count]
    if empty:
        raise MethodError(f"method.density = {density:g}: {empty[0]} would have no link; use a higher density")
    return counts


def within(weights: Mapping[str, float], sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """Whole numbers that sum to ``total``, in proportion to weight times size, none above its size.

    One that would be above is its size, and the others share what is left; by largest remainder.

    >>> within({"a": 1.0, "b": 4.0}, {"a": 10, "b": 10}, 15)
    {'a': 5, 'b': 10}
    """
    left, sparse, full = total, list(sizes), dict[str, int]()
    while True:
        whole = math.fsum(weights[name] * sizes[name] for name in sparse)
        more = {name: sizes[name] for name in sparse if left * weights[name] > whole}
        if not more:
            break
        left -= sum(more.values())  # less than what was left: each of them was to have more than it has places
        full |= more
        sparse = [name for name in sparse if name not in full]
    shares = [weights[name] * sizes[name] for name in sparse]
    counts = full | (dict(zip(sparse, apportion(shares, left), strict=True)) if sparse else {})
    return {name: counts[name] for name in sizes}


def links_in_all(supernet: Supernet, density: float) -> int:
    """Sum K_l: round(density d), less what is never pruned.

    Raises:
        MethodError: there is nothing to prune, or what is never pruned is more than the density allows.
    """
    if not supernet.maskable:
        raise MethodError(NOTHING_TO_MASK)
    fixed = supernet.size - sum(supernet.initial[name].numel() for name in supernet.maskable)
    if round(density * supernet.size) < fixed:
        raise MethodError(
            f"method.density = {density:g}: norms and biases, which are never pruned, are already "
            f"{fixed / supernet.size:.3g} of the model"
        )
    return round(density * supernet.size) - fixed


def _weight(supernet: Supernet, name: str, layers: Layers) -> float:
    """p_l up to the factor eps."""
    shape = supernet.initial[name].shape
    return 1.0 if layers == "uniform" else sum(shape) / shape.numel()
