"""What is wrong with a table of options: one line for each value, with its dotted key and what would be right."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ValidationError

from uneven.errors import nearest


def lines(root: type[BaseModel], table: Any, error: ValidationError, prefix: Sequence[str] = ()) -> list[str]:
    """One line for each value that is wrong: not again for the table around it, nor for each of its types."""
    found = [((tuple(problem["loc"]), _path(table, problem)), problem) for problem in error.errors()]
    messages: dict[str, list[str]] = {}
    for places, problem in found:
        if not any(_around(a, b) for others, _ in found for a, b in zip(places, others, strict=True)):
            key, message = _describe(root, table, problem, prefix)
            messages.setdefault(key, []).append(message)
    return [f"{key}: {'; or '.join(parts)}" if key else parts[0] for key, parts in messages.items()]


def _describe(root: type[BaseModel], table: Any, problem: Any, prefix: Sequence[str]) -> tuple[str, str]:
    """The dotted key and the value that are wrong, and what would be right."""
    loc, kind, value = problem["loc"], problem["type"], problem["input"]
    key = ".".join([*prefix, *map(str, _keys_of(table, loc))])
    if kind == "missing":
        return ".".join([*prefix, *map(str, loc)]), "is missing"
    if kind == "value_error":
        return key, problem["msg"].removeprefix("Value error, ")
    if kind == "union_tag_invalid":
        key, value = f"{key}.kind", problem["ctx"]["tag"]
        message = nearest(value, re.findall(r"'(.*?)'", problem["ctx"]["expected_tags"]))
    elif kind == "extra_forbidden":
        message = f"no such key; {nearest(str(loc[-1]), _keys_at(root, loc[:-1]))}"
    elif kind == "model_type":
        message = "must be a table"
    else:
        message = problem["msg"][0].lower() + problem["msg"][1:]
    return f"{key} = {value!r}", message


def _around(place: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(place) < len(other) and other[: len(place)] == place


def _path(table: Any, problem: Any) -> tuple[Any, ...]:
    """Where in the table it is, whichever type it was read as; of a missing key, where it would be."""
    loc = problem["loc"]
    return tuple(loc) if problem["type"] == "missing" else tuple(_keys_of(table, loc))


def _keys_of(table: Any, loc: Sequence[Any]) -> Iterator[Any]:
    """The parts of an error's place that are keys of the spec; the others name one type among several."""
    for part in loc:
        indexed = isinstance(table, list | tuple)
        if part in (range(len(table)) if indexed else table if isinstance(table, Mapping) else ()):
            table = table[part]
            yield part


def _keys_at(root: type[BaseModel], path: Sequence[Any]) -> list[str]:
    """The keys that the table at a path can have."""
    return [name for model in _models_at(root, path) for name in model.model_fields]


def _models_at(root: type[BaseModel], path: Sequence[Any]) -> list[type[BaseModel]]:
    models = [root]
    for part in path:
        fields = [m.model_fields[part] for m in models if part in m.model_fields]
        inside = [inner for field in fields for inner in _models_in(field.annotation)]
        models = inside or [m for m in models if _kind(m) == part] or models
    return models


def _kind(model: type[BaseModel]) -> Any:
    return model.model_fields["kind"].default if "kind" in model.model_fields else None


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType, Annotated):
        for inner in typing.get_args(annotation):
            yield from _models_in(inner)
