"""Numbers with a unit's prefix, as ``512MB``."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_FACTORS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def quantity(given: Any) -> int:
    """``512MB``, ``1G``, ``1.5GiB`` as a number: K, M, G, T are powers of 1000, Ki, Mi, Gi of 1024. A number is
    itself.

    >>> quantity("512MB"), quantity("1.5Ki"), quantity(2e9)
    (512000000, 1536, 2000000000)

    Raises:
        ValueError: it is none, or not at least 1; says what would be right.
    """
    number = 0.0
    if isinstance(given, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?|[KMG]i)B?\s*", given)
        number = float(match[1]) * _FACTORS[match[2]] if match else 0.0
    elif isinstance(given, int | float) and not isinstance(given, bool):
        number = given
    if not 1 <= number < math.inf:
        raise ValueError(f"{given!r} must be a positive number like 512MB, 1G or 1.5GiB")
    return round(number)


Quantity = Annotated[int, BeforeValidator(quantity)]
"""A field of options that takes what `quantity` takes."""
