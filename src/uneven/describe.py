"""Methods described from their own docstrings and options, so that what is shown is what runs."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from rich.table import Table

from uneven.methods import METHODS, method_class


def all_methods() -> Table:
    """Every method with what it does in one line."""
    table = Table("method", "what a client trains", "paper")
    for name, method in METHODS.items():
        text = inspect.getdoc(method) or ""
        table.add_row(name, text.splitlines()[0], _section(text, "Paper"))
    return table


def method(name: str) -> tuple[str, Table]:
    """One method's description, and its options with their defaults."""
    found = method_class(name)
    options = Table("option", "default", "meaning", title="options", title_justify="left")
    for key, field in found.Options.model_fields.items():
        options.add_row(key, _default(field), " ".join((field.description or "").replace("``", "").split()))
    paragraphs = (inspect.getdoc(found) or "").split("\n\n")
    return "\n\n".join([name, *(" ".join(p.replace("``", "").split()) for p in paragraphs), ""]), options


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if value is PydanticUndefined:
        return "required"
    return str(value).lower() if value is None or isinstance(value, bool) else f"{value}"


def _section(text: str, title: str) -> str:
    """The paragraph of a docstring that starts with a title."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith(f"{title}:"):
            return " ".join(paragraph.removeprefix(f"{title}:").split())
    return ""
