"""The ``[devices]`` section of a spec: classes of devices, and which client has which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from uneven.errors import nearest
from uneven.options import Many, Options
from uneven.quantities import Quantity

BUILTIN = "builtin"


class Device(Options):
    """What a class of devices can do. Quantities are numbers, or texts like 512MB, 1G or 1.5GiB."""

    memory: Quantity
    """Bytes that training may take beyond what a process has that is ready for it."""
    macs_per_second: Quantity
    """Multiply-accumulates a second, sustained in training."""
    down: Quantity
    """Bytes a second from the server."""
    up: Quantity
    """Bytes a second to the server."""

    def seconds(self, macs: float, down: float, up: float) -> float:
        """How long a client takes for so many multiply-accumulates and bytes, one after the other."""
        return macs / self.macs_per_second + down / self.down + up / self.up


class DevicesOptions(Options):
    """One of ``shares``, ``clients`` or ``column`` says which client has a device of which class."""

    file: str | None = None
    """A TOML file with a table for each class, or ``builtin``: those that come with uneven. Default ``builtin``,
    unless the spec has ``classes``."""
    classes: dict[str, Device] | None = Field(default=None, min_length=1)
    """The classes themselves, in place of a file; a run writes down those that it read."""
    shares: dict[str, Annotated[float, Field(gt=0)]] | None = Field(default=None, min_length=1)
    """The share of the clients that has each class, dealt out by a seeded permutation."""
    clients: Many[str] | None = Field(default=None, min_length=1)
    """The class of each client."""
    column: str | None = None
    """A numeric column of the data that is one number per natural client: of a class, 0 the first of the file."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        given = [name for name in ("shares", "clients", "column") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of shares, clients or column, not {' and '.join(given) or 'none'}")
        if self.file is not None and self.classes is not None:
            raise ValueError(f"file = {self.file!r} and classes: give one of them")
        return self

    def unknown(self, classes: Mapping[str, Device]) -> list[str]:
        """A line for each class that is named and is not there."""
        named = {"shares": list(self.shares or ()), "clients": list(dict.fromkeys(self.clients or ()))}
        return [
            f"devices.{key}: no class {name!r}; {nearest(name, list(classes))}"
            for key, names in named.items()
            for name in names
            if name not in classes
        ]
