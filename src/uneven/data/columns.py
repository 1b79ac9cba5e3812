"""Columns in the hub's form to tensors."""

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from uneven.data.rows import Ids, as_numbers, check_classes
from uneven.errors import DataError, nearest

INPUTS = ("img", "image", "x", "text", "title")
LABELS = ("label", "fine_label")
DOMAIN = "domain"
"""Says from which of several folders a row is."""
CLIENTS = (DOMAIN, "user", "publication", "role")


def find(key: str, wanted: str | None, usual: Sequence[str], schema: pa.Schema, where: str, hint: str = "") -> str:
    """The column's name: the one wanted, or else the first of the usual ones that is there.

    ``hint``: what else can be done where there is none.
    """
    if wanted is not None:
        if wanted not in schema.names:
            raise DataError(f"data.{key} = '{wanted}': no such column in {where}; {nearest(wanted, schema.names)}")
        return wanted
    for name in usual:
        if name in schema.names:
            return name
    raise DataError(
        f"{where} has none of the columns {', '.join(usual)}: set data.{key} to one of {', '.join(schema.names)}"
        + hint
    )


def class_names(schema: pa.Schema, column: str) -> tuple[str, ...] | None:
    """The names of the classes that the hub's schema metadata give, if any."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[column]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def files(columns: Sequence[pa.ChunkedArray], name: str) -> list[list[bytes]] | None:
    """The encoded images of one column in each split; None where it holds none."""
    what = f"input column '{name}'"
    found = [_files(_plain(column, what), what) for column in columns]
    splits = [own for own in found if own is not None]
    if len(splits) not in (0, len(found)):
        raise DataError(f"{what} holds images in one of the train and test splits, and none in the other")
    return splits or None


def arrays(column: pa.ChunkedArray, name: str, shape: tuple[int, ...] | None) -> Tensor:
    """(n, *input_shape): lists of numbers as float32, int64 or uint8, in ``shape``."""
    what = f"input column '{name}'"
    return _reshaped(_lists(_plain(column, what), what), shape, what)


def texts(columns: Sequence[pa.ChunkedArray], name: str) -> list[list[str]]:
    """The texts of one column in each split."""
    what = f"input column '{name}'"
    columns = [_plain(column, what) for column in columns]
    if not is_text(columns[-1].type):
        raise DataError(f"{what} holds text in the train split, but {columns[-1].type} in the test split")
    return [column.to_pylist() for column in columns]


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds strings."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return any(f(kind) for f in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def labels(
    columns: Sequence[pa.ChunkedArray], name: str, names: tuple[str, ...] | None
) -> tuple[list[Tensor], tuple[str, ...]]:
    """One (n,) int64 tensor for each column, and the classes' names; strings are numbered in sorted order."""
    columns = [_plain(column, f"label column '{name}'") for column in columns]
    kind = columns[0].type
    if is_text(kind) != is_text(columns[-1].type):
        raise DataError(
            f"label column '{name}' holds {kind} in the train split, {columns[-1].type} in the test split"
        )
    if is_text(kind):
        found = sorted({str(value) for column in columns for value in column.unique().to_pylist()})
        return [_positions(column, found) for column in columns], tuple(found)
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise DataError(f"label column '{name}' holds {kind}: integer classes or strings are needed")
    ys = [torch.from_numpy(column.cast(pa.int64()).to_numpy().copy()) for column in columns]
    return ys, check_classes(ys, names, name)


def ids(column: pa.ChunkedArray, name: str) -> Ids:
    """(n,) natural client ids, integers or strings."""
    column = _plain(column, f"client column '{name}'")
    if pa.types.is_integer(column.type):
        return np.asarray(column.to_numpy())
    if is_text(column.type):
        return np.asarray(column.to_pylist(), dtype=np.str_)
    raise DataError(f"client column '{name}' holds {column.type}: integers or strings are needed")


def numeric(schema: pa.Schema) -> list[str]:
    """The names of the columns that hold one number a row."""
    kinds = (pa.types.is_integer, pa.types.is_floating)
    return [field.name for field in schema if any(is_kind(field.type) for is_kind in kinds)]


def numbers(column: pa.ChunkedArray) -> Tensor:
    """(n,) float64; a missing number is NaN."""
    return torch.from_numpy(column.cast(pa.float64()).to_numpy().copy())


def _plain(column: pa.ChunkedArray, what: str) -> pa.ChunkedArray:
    if len(column) == 0:
        raise DataError(f"{what} has no rows")
    if column.null_count:
        raise DataError(f"{what} has no value in {column.null_count} of {len(column)} rows")
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def _files(column: pa.ChunkedArray, what: str) -> list[bytes] | None:
    """The encoded files of an image column; None where it is no image column."""
    if pa.types.is_struct(column.type):
        if column.type.get_field_index("bytes") < 0:
            raise DataError(f"{what} is a struct without the field 'bytes'")
        column = pc.struct_field(column, "bytes")
        if column.null_count:
            raise DataError(f"{what} holds {column.null_count} images by path only: the files' bytes are needed")
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        return None
    return list(column.to_pylist())


def _lists(column: pa.ChunkedArray, what: str) -> Tensor:
    shape = [len(column)]
    while _is_list(column.type):
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if len(lengths) != 1 or column.null_count:
            raise DataError(f"{what} holds lists of unequal lengths: {sorted(lengths, key=str)[:5]}")
        shape.append(lengths[0])
        column = pc.list_flatten(column)
    kind = column.type
    if len(shape) == 1 or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError(f"{what} holds {kind}: images or lists of numbers are needed")
    if column.null_count:
        raise DataError(f"{what} lacks {column.null_count} numbers")
    return as_numbers(torch.from_numpy(column.to_numpy().reshape(shape).copy()), what)


def _is_list(kind: pa.DataType) -> bool:
    return any(f(kind) for f in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def refuse(key: str, value: tuple[int, ...] | None, kind: str, what: str) -> None:
    """A `DataError` where an option is set that inputs of this kind cannot use."""
    if value is not None:
        raise DataError(f"data.{key} = {list(value)} has no effect on {kind} ({what}): leave it out")


def _reshaped(x: Tensor, shape: tuple[int, ...] | None, what: str) -> Tensor:
    if shape is None:
        return x
    size = x[0].numel()
    if size != torch.Size(shape).numel():
        raise DataError(
            f"data.shape = {list(shape)} has {torch.Size(shape).numel()} numbers, but {what} has {size}"
        )
    return x.reshape(len(x), *shape)


def _positions(column: pa.ChunkedArray, names: list[str]) -> Tensor:
    position = {name: i for i, name in enumerate(names)}
    return torch.tensor([position[str(value)] for value in column.to_pylist()])
