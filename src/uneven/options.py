"""The base of every table of options: typed, frozen, and an unknown key is an error."""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")
Many = Annotated[tuple[T, ...], Field(strict=False)]
"""Several values; a list will do, as TOML has no tuples. The values themselves are not converted."""
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
"""More than nothing, at most all."""


class Options(BaseModel):
    """One table of a spec. Every field has a description; the command line shows them."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )
