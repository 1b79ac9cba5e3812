"""The base of every table of options: typed, frozen, and an unknown key is an error."""

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """One table of a spec. Every field has a description; the command line shows them."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
