"""As much as each client's device can take."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from uneven.allocation.base import Allocation, Policy, PolicyOptions, View


class DeviceOptions(PolicyOptions):
    round_seconds: float | None = Field(default=None, gt=0)
    """How long a client's part in a round may take on its device, transfers included. Default: no limit."""


class ByDevice(Policy):
    """Every client gets the widest part of the model that its device, from ``[devices]``, has memory for.

    Rule: memory is what a training step takes, predicted, with room for the allocator
    (`uneven.submodels.memory.HEADROOM`). With a limit on time also 3 MACs seen / macs_per_second + bytes / down +
    bytes / up must keep to it, where ``seen`` are the examples that the client goes through in a round, and bytes
    those of the part itself.
    """

    Options: ClassVar[type[PolicyOptions]] = DeviceOptions

    def allocate(self, view: View) -> Allocation:
        return Allocation(view.device_widths(self.options.round_seconds), "width", self.options, "memory")
