"""Every error that a user of uneven can meet, on one page.

``UnevenError`` is what the command line turns into one clear message and exit code 2; anything else that
escapes is a fault of the library.
"""

from collections.abc import Sequence
from difflib import get_close_matches


class UnevenError(Exception):
    """Root of all errors that tell the user what is wrong and what would be right."""


class SpecError(UnevenError):
    """A spec does not hold. Carries every problem found, each a line ``path = value: what would be right``."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class DataError(UnevenError):
    """A data source cannot be read, or a partition cannot be made from it."""


class ModelError(UnevenError):
    """A model cannot be built, exported or analysed; names the operator and the line in the model."""


class MethodError(UnevenError):
    """A method cannot be found, or cannot run with this model, data or capacities."""


class RunError(UnevenError):
    """A run cannot start, go on or be resumed; what was already computed is kept."""


class QuorumError(RunError):
    """Too few clients of a round delivered an accepted update."""


def nearest(name: str, known: Sequence[str]) -> str:
    """``"; did you mean 'x'?"`` for the closest known name, else the list of known names."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean '{close[0]}'?" if close else "known: " + ", ".join(sorted(known))
