"""Where clients train. ``auto`` chooses only among engines that give the same bits."""

from uneven.engines.base import Engine, inspect
from uneven.engines.serial import SerialEngine

__all__ = ["Engine", "SerialEngine", "inspect"]
