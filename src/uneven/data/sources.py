"""Where data comes from: embedded sets, folders and files of parquet, the hub."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from uneven.data import columns
from uneven.errors import DataError, nearest

EMBEDDED = Path(__file__).parent / "embedded"
_TEST = ("test", "validation")


class Parts(NamedTuple):
    """The splits of a source, opened but not yet read."""

    train: pads.Dataset
    test: pads.Dataset | None


def open_source(source: str, split: str | None) -> Parts:
    """The splits, as files or as the column ``split`` say it. Raises `DataError` for what is not there."""
    parts = _open(source)
    if split is None:
        return parts
    if parts.test is not None:
        raise DataError(f"data.split = '{split}', but '{source}' has a test split of its own")
    return _by_column(parts.train, split, source)


def embedded() -> list[str]:
    """The names of the embedded sets."""
    return sorted(folder.name for folder in EMBEDDED.iterdir() if folder.is_dir())


def _by_column(data: pads.Dataset, name: str, source: str) -> Parts:
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

    return Parts(rows("train"), rows(test) if test else None)


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
    for folder in (path, path / "data"):
        train = _files(folder, "train")
        if train:
            test = next((files for kind in _TEST if (files := _files(folder, kind))), None)
            return Parts(_parquet(train), _parquet(test) if test else None)
    raise DataError(f"data.source = '{source}': the folder has no train*.parquet, nor has its subfolder data")


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
