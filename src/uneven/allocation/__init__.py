"""How much of the model each client gets."""

from uneven.allocation.capacities import Capacities, apportion, deal

__all__ = ["Capacities", "apportion", "deal"]
