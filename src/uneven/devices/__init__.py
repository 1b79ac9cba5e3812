"""Devices: what each client's can do, and how long a round takes on them."""

from uneven.devices.fleet import Fleet, classes_of, fleet, read_classes
from uneven.devices.options import BUILTIN, Device, DevicesOptions

__all__ = ["BUILTIN", "Device", "DevicesOptions", "Fleet", "classes_of", "fleet", "read_classes"]
