"""How much of the model each client gets."""

from uneven.allocation.capacities import LEVELS, Capacities, deal

__all__ = ["LEVELS", "Capacities", "deal"]
