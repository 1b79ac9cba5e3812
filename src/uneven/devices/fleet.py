"""The devices of all clients of a run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from uneven.apportion import dealt
from uneven.data import Federation
from uneven.devices.options import BUILTIN, Device, DevicesOptions
from uneven.errors import SpecError
from uneven.problems import lines
from uneven.rng import generator

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Fleet:
    """The classes of devices, and the name of each client's class, in the clients' order."""

    classes: Mapping[str, Device]
    names: Sequence[str]

    def __getitem__(self, client: int) -> Device:
        return self.classes[self.names[client]]


def read_classes(file: str) -> dict[str, Device]:
    """The classes of a device file, or of ``builtin``.

    Raises:
        SpecError: it cannot be read, or something in it is missing or wrong; every problem, by file, class, field.
    """
    try:
        path = HERE / "builtin.toml" if file == BUILTIN else Path(file).expanduser()
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, RuntimeError) as error:  # the latter of a home that nobody has
        why = error.strerror if isinstance(error, OSError) else error
        raise SpecError([f"devices.file = {file!r}: cannot be read: {why}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError([f"devices.file = {file!r}: is not TOML: {error}"]) from error
    if not tables:
        raise SpecError([f"devices.file = {file!r}: has no class; give each a table, as [phone]"])
    classes: dict[str, Device] = {}
    problems: list[str] = []
    for name, table in tables.items():
        try:
            classes[name] = Device.model_validate(table)
        except ValidationError as error:
            problems += [f"{file}: {line}" for line in lines(Device, table, error, (name,))]
    if problems:
        raise SpecError(problems)
    return classes


def classes_of(options: DevicesOptions) -> Mapping[str, Device]:
    """The classes that a spec means: its own, or those of a file; see `read_classes`."""
    return options.classes if options.classes is not None else read_classes(options.file or BUILTIN)


def fleet(options: DevicesOptions, federation: Federation, seed: int) -> Fleet:
    """Every client's device.

    Raises:
        SpecError: the classes cannot be read, one that is named is not among them, or the clients are others.
    """
    classes = classes_of(options)
    problems = options.unknown(classes)
    if problems:
        raise SpecError(problems)
    clients = federation.clients
    if options.clients is not None:
        if len(options.clients) != len(clients):
            raise SpecError([f"devices.clients: {len(options.clients)} classes for {len(clients)} clients"])
        return Fleet(classes, options.clients)
    if options.column is not None:
        return Fleet(classes, _from_column(options.column, list(classes), federation))
    assert options.shares is not None
    draws = generator(seed, "devices")
    return Fleet(classes, dealt(list(options.shares), list(options.shares.values()), len(clients), draws))


def _from_column(column: str, names: Sequence[str], federation: Federation) -> list[str]:
    found = [(client.name, client.attributes.get(column)) for client in federation.clients]
    numbers = dict(enumerate(names))
    bad = [(name, number) for name, number in found if number not in numbers]
    if bad:
        name, number = bad[0]
        has = "has no one number there" if number is None else f"has {number:g}"
        raise SpecError(
            [f"devices.column = {column!r}: client {name} {has}; 0 to {len(names) - 1} are the classes {names}"]
        )
    return [numbers[int(number)] for _, number in found if number is not None]
