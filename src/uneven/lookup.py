"""Things found by name: those that come with uneven, or the user's own as ``package.module:name``."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from uneven.errors import UnevenError, nearest

T = TypeVar("T")


def find(name: str, known: Mapping[str, T], field: str, error: Callable[[str], UnevenError]) -> T:
    """The entry of ``known``, or what a dotted path ``package.module:name`` leads to.

    Modules beside the user are found too: the current folder is searched.

    Raises:
        what ``error`` makes of a message: names the field, the value and the nearest known name.
    """
    if ":" not in name:
        if name not in known:
            raise error(f"{field} = {name!r}: {nearest(name, list(known))} (or 'package.module:name')")
        return known[name]
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except Exception as cause:  # the module is the user's, and may raise anything
        reason = cause if isinstance(cause, ImportError) else f"{type(cause).__name__}: {cause}"
        raise error(f"{field} = {name!r}: cannot import {module_name!r} ({reason})") from cause
    if not hasattr(module, attribute):
        names = [name for name in dir(module) if not name.startswith("_")]
        raise error(f"{field} = {name!r}: no {attribute!r} in it; {nearest(attribute, names)}")
    found: T = getattr(module, attribute)
    return found


def unknown_options(function: Any, options: Mapping[str, Any], field: str, given: int) -> list[str]:
    """A line for each option that a user-chosen function does not take; ``given`` arguments go before them."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return []
    known = list(parameters)[given:]
    return [
        f"{field}.{name} = {value!r}: no such option; "
        + (nearest(name, known) if known else f"{function.__name__} takes none")
        for name, value in options.items()
        if name not in known
    ]
