"""How much of the model each client gets. One file for each policy; `base` is the contract."""

from uneven.allocation.base import Allocation, Policy, PolicyOptions, View
from uneven.allocation.budget import Budgeted, BudgetOptions, Targets
from uneven.allocation.capacities import LEVELS, Capacities
from uneven.allocation.device import ByDevice
from uneven.allocation.hasa import Hasa
from uneven.allocation.inverse import Inverse
from uneven.allocation.oracle import Oracle
from uneven.allocation.random import Random
from uneven.allocation.size import Size
from uneven.allocation.tiers import Tiers
from uneven.allocation.uniform import Uniform
from uneven.errors import SpecError
from uneven.lookup import find

POLICIES: dict[str, type[Policy]] = {
    "tiers": Tiers,
    "uniform": Uniform,
    "hasa": Hasa,
    "inverse": Inverse,
    "random": Random,
    "size": Size,
    "oracle": Oracle,
    "device": ByDevice,
}


def _wrong(message: str) -> SpecError:
    return SpecError([message])


def policy_class(name: str | type[Policy]) -> type[Policy]:
    """The class of a policy: one of `POLICIES`, or the user's own as ``package.module:Class`` or itself."""
    found = find(name, POLICIES, "allocation.name", _wrong) if isinstance(name, str) else name
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise SpecError([f"allocation.name = {name!r}: must be a class that extends uneven.allocation.Policy"])
    return found


__all__ = [
    "LEVELS",
    "POLICIES",
    "Allocation",
    "BudgetOptions",
    "Budgeted",
    "Capacities",
    "Policy",
    "PolicyOptions",
    "Targets",
    "View",
    "policy_class",
]
