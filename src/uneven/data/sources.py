"""Where data comes from: embedded sets, folders of one set or of several domains, files of parquet, the hub."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from uneven.data import columns
from uneven.data.columns import DOMAIN
from uneven.errors import DataError, nearest

EMBEDDED = Path(__file__).parent / "embedded"
_TEST = ("test", "validation")


class Parts(NamedTuple):
    """The splits of a source, opened but not yet read."""

    train: pads.Dataset
    test: pads.Dataset | None
    joined: bool = False
    """Several domains as one, with the column `DOMAIN`."""


class _Files(NamedTuple):
    """The parquet files of one set; without a training or a test split, none of it."""

    train: list[Path]
    test: list[Path]


def open_source(source: str, split: str | None) -> Parts:
    """The splits, as files or as the column ``split`` say it. Raises `DataError` for what is not there."""
    parts = _open(source)
    if split is None:
        return parts
    if parts.test is not None:
        raise DataError(f"data.split = '{split}', but '{source}' has a test split of its own")
    return _by_column(parts, split, source)


def embedded() -> list[str]:
    """The names of the embedded sets."""
    return sorted(folder.name for folder in EMBEDDED.iterdir() if folder.is_dir())


def _by_column(parts: Parts, name: str, source: str) -> Parts:
    data = parts.train
    columns.find("split", name, (), data.schema, f"'{source}'")
    values = {str(v) for v in data.to_table(columns=[name]).column(name).unique().to_pylist()}
    unknown = values - {"train", *_TEST}
    if unknown or "train" not in values:
        raise DataError(
            f"split column '{name}' holds {', '.join(sorted(values))}: train, test, validation are known"
        )
    test = next((kind for kind in _TEST if kind in values), None)

    def rows(kind: str) -> pads.Dataset:
        return data.filter(pc.field(name) == kind)

    return parts._replace(train=rows("train"), test=rows(test) if test else None)


def _open(source: str) -> Parts:
    """The training part and the test part, not yet read."""
    if source.startswith("hub:"):
        return _from_hub(source)
    path = EMBEDDED / source if source in embedded() else Path(source).expanduser()
    if path.is_dir():
        return _from_folder(path, source)
    files = [path] if path.is_file() else sorted(path.parent.glob(path.name)) if "*" in path.name else []
    if not files:
        raise DataError(_unknown(source, path))
    return Parts(_parquet(files), None)


def _from_folder(path: Path, source: str) -> Parts:
    """The set in a folder, else those in its subfolders as one."""
    files = _set(path)
    if files.train:
        return Parts(_parquet(files.train), _parquet(files.test) if files.test else None)
    domains = {folder.name: _set(folder) for folder in sorted(path.iterdir()) if folder.is_dir()}
    domains = {name: files for name, files in domains.items() if files.train or files.test}
    if not any(files.train for files in domains.values()):
        raise DataError(
            f"data.source = '{source}': the folder has no train*.parquet, nor has its subfolder data, "
            "nor any other subfolder"
        )
    return _joined(path, domains, source)


def _joined(path: Path, domains: Mapping[str, _Files], source: str) -> Parts:
    """Several sets as one, whose column `DOMAIN` names the folder of each row."""
    _check_domains(domains, source)
    domain = pads.partitioning(pa.schema([(DOMAIN, pa.string())]))

    def join(files: list[Path]) -> pads.Dataset:
        paths = [str(file) for file in files]
        return pads.dataset(paths, format="parquet", partitioning=domain, partition_base_dir=str(path))

    train, test = ([file for files in split for file in files] for split in zip(*domains.values(), strict=True))
    return Parts(join(train), join(test) if test else None, joined=True)


def _check_domains(domains: Mapping[str, _Files], source: str) -> None:
    """Sets that can be joined: of the same splits, columns and names of classes."""
    for split in _Files._fields:
        lacking = [name for name, files in domains.items() if not getattr(files, split)]
        having = [name for name in domains if name not in lacking]
        if lacking and having:
            raise DataError(
                f"data.source = '{source}': the domain '{lacking[0]}' has no {split}*.parquet, but '{having[0]}' "
                "has: all domains need the same splits"
            )
    schemas = {name: _parquet(files.train).schema for name, files in domains.items()}
    first, *others = schemas
    if DOMAIN in schemas[first].names:
        raise DataError(f"data.source = '{source}': the domain '{first}' has a column '{DOMAIN}': rename it")
    for name in others:
        _check_alike(
            f"data.source = '{source}': the domains '{first}' and '{name}'", schemas[first], schemas[name]
        )


def _check_alike(what: str, one: pa.Schema, other: pa.Schema) -> None:
    if set(one.names) != set(other.names):
        differ = sorted(set(one.names) ^ set(other.names))
        raise DataError(f"{what} need the same columns, but only one has {', '.join(differ)}")
    for column in one.names:
        a, b = columns.class_names(one, column), columns.class_names(other, column)
        if a != b:
            raise DataError(f"{what} need the same classes, but '{column}' has {_listed(a)} and {_listed(b)}")


def _listed(names: tuple[str, ...] | None) -> str:
    return "no names of classes" if names is None else f"the {len(names)} classes {', '.join(names)}"


def _set(path: Path) -> _Files:
    """The files of the set in a folder, or in its subfolder ``data``."""
    found = [
        _Files(_files(folder, "train"), next((files for kind in _TEST if (files := _files(folder, kind))), []))
        for folder in (path, path / "data")
    ]
    return max(found, key=lambda files: (bool(files.train), bool(files.test)))


def _files(folder: Path, kind: str) -> list[Path]:
    """``train.parquet``, ``train-00000-of-00001.parquet``, but not ``training.parquet``."""
    return sorted(p for p in folder.glob(f"{kind}*.parquet") if re.match(rf"{kind}([-_.\d]|$)", p.name))


def _parquet(files: Sequence[Path]) -> pads.Dataset:
    try:
        return pads.dataset([str(file) for file in files], format="parquet")
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"'{files[0]}' cannot be read as parquet: {error}") from error


def _from_hub(source: str) -> Parts:
    import datasets

    try:
        parts = datasets.load_dataset(source.removeprefix("hub:"))
    except Exception as error:  # the hub's client raises a dozen kinds, from DNS to a missing configuration
        raise DataError(f"data.source = '{source}': the hub's data cannot be loaded: {error}") from error
    if "train" not in parts:
        raise DataError(f"data.source = '{source}': no split 'train'; it has {', '.join(parts)}")
    test = next((kind for kind in _TEST if kind in parts), None)
    return Parts(_arrow(parts["train"]), _arrow(parts[test]) if test else None)


def _arrow(part: object) -> pads.Dataset:
    """The table under a ``datasets.Dataset``, its schema metadata naming the classes."""
    table: pa.Table = part.data.table  # type: ignore[attr-defined]
    schema: pa.Schema = part.features.arrow_schema  # type: ignore[attr-defined]
    return pads.dataset(table.replace_schema_metadata(schema.metadata))


def _unknown(source: str, path: Path) -> str:
    known = [*embedded(), *_siblings(path)]
    return (
        f"data.source = '{source}': no embedded set, folder or parquet file of that name (in {Path.cwd()}); "
        + nearest(source, known)
    )


def _siblings(path: Path) -> list[str]:
    """What lies beside a path that does not exist, written as the path was, if it is a place to look."""
    if not path.parent.is_dir():
        return []
    return [str(path.parent / p.name) for p in path.parent.iterdir() if p.is_dir() or p.suffix == ".parquet"]
