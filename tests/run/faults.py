"""Faults put into a process at an exact place: code that a test sends to the server runs with these names."""

import os
import resource
import signal
from collections.abc import Callable
from importlib import import_module
from typing import Any


def die() -> None:
    """What a power cut or the kernel's memory killer does: no handler runs."""
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    """What Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)


def no_space() -> None:
    """From here on no file may grow beyond 600 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, resource.RLIM_INFINITY))


def at(
    target: str,
    call: int = 1,
    fault: Callable[[], None] = die,
    *,
    after: bool = False,
    where: Callable[..., bool] = lambda *_, **__: True,
) -> None:
    """Let ``fault`` happen before (or ``after``) call number ``call`` of ``module:Class.function``.

    ``where``: which calls count, from the arguments.
    """
    module, _, path = target.partition(":")
    *outer, name = path.split(".")
    owner: Any = import_module(module)
    for part in outer:
        owner = getattr(owner, part)
    function, seen = getattr(owner, name), 0

    def faulty(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen += where(*args, **kwargs)
        due = seen == call and where(*args, **kwargs)
        if due and not after:
            fault()
        result = function(*args, **kwargs)
        if due and after:
            fault()
        return result

    setattr(owner, name, faulty)
