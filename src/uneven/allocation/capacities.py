"""``clients.capacities``: how much of the model each client can hold, as given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from uneven.options import Many, Options, Share

LEVELS = (1.0, 0.5, 0.25, 0.125)


class Capacities(Options):
    """One of ``levels``, ``values`` or ``column``. A number alone is one level, a list alone is ``values``."""

    levels: Many[Share] | None = Field(default=None, min_length=1)
    """Capacities in (0, 1], dealt to the clients by a seeded permutation."""
    shares: Many[Annotated[float, Field(gt=0)]] | None = None
    """The share of the clients that gets each level. Default: equal shares."""
    values: Many[Share] | None = Field(default=None, min_length=1)
    """One capacity per client."""
    column: str | None = None
    """A numeric column of the data that is one number per natural client."""
    unit: Literal["width", "params", "macs", "bytes", "memory"] = "width"
    """What a capacity is a share of: every channel axis, or the full model's parameters, multiply-accumulates,
    bytes, or predicted training memory."""

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, given: Any) -> Any:
        if isinstance(given, int | float) and not isinstance(given, bool):
            return {"levels": [given]}
        if isinstance(given, Mapping) and not {"levels", "values", "column"} & given.keys():
            return {"levels": LEVELS, **given}
        return {"values": given} if isinstance(given, list | tuple) else given

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        given = [name for name in ("levels", "values", "column") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of levels, values or column, not {' and '.join(given) or 'none'}")
        if self.shares is not None and (self.levels is None or len(self.shares) != len(self.levels)):
            raise ValueError(f"shares = {list(self.shares)}: needs levels, one share for each")
        return self
