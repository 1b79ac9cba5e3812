"""From a source to examples in memory."""

from typing import NamedTuple

import pyarrow as pa
import pyarrow.dataset as pads
from torch import Tensor

from uneven.data import columns
from uneven.data.federation import Examples
from uneven.data.options import DataOptions
from uneven.data.rows import Images, InMemory, Rows, Splits, numbered, unlabelled
from uneven.data.sources import open_source
from uneven.errors import DataError


class _Names(NamedTuple):
    """Which columns are read."""

    x: str
    y: str | None
    client: str | None
    numbers: list[str]


def read(options: DataOptions) -> Splits:
    """All examples of the source. Raises `DataError` that says what is wrong, and what would be right."""
    if isinstance(options.source, InMemory):
        return _from_memory(options, options.source)
    parts = open_source(options.source, options.split)
    where = f"'{options.source}'"
    names = _names(options, parts.train.schema, where)
    if parts.joined and names.y:
        _check_classes(parts.train, names.y, where)
    train = _table(parts.train, [name for name in (*names[:3], *names.numbers) if name], where)
    tables = [train]
    unread = options.validation is not None
    if parts.test is not None and not unread:
        keys = [("input", names.x), *([("label", names.y)] if names.y else [])]
        for key, name in keys:
            columns.find(key, name, (), parts.test.schema, f"the test split of {where}")
        tables.append(_table(parts.test, [name for _, name in keys], where))
    xs, texts, images = _inputs([table.column(names.x) for table in tables], names.x, options)
    ys, classes = _labels(tables, names.y)
    examples = [Examples(x, y) for x, y in zip(xs, ys, strict=True)]
    test = None if parts.test is None else examples[0][:0] if unread else examples[1]
    return Splits(_rows(train, names, examples[0]), test, classes, texts, images)


def _from_memory(options: DataOptions, source: InMemory) -> Splits:
    for key in ("input", "label", "client", "split", "shape", "size"):
        if getattr(options, key) is not None:
            raise DataError(f"data.{key} has no effect on an in-memory source: leave it out")
    return source.splits


def _names(options: DataOptions, schema: pa.Schema, where: str) -> _Names:
    x = columns.find("input", options.input, columns.INPUTS, schema, where)
    y = None
    if options.task == "classify" or options.label is not None:
        hint = ", or data.task to 'next_token'" if columns.is_text(schema.field(x).type) else ""
        y = columns.find("label", options.label, columns.LABELS, schema, where, hint)
    if options.partition.kind != "natural":
        return _Names(x, y, None, [])
    client = columns.find("client", options.client, columns.CLIENTS, schema, where)
    return _Names(x, y, client, [name for name in columns.numeric(schema) if name not in (x, y, client)])


def _inputs(
    parts: list[pa.ChunkedArray], name: str, options: DataOptions
) -> tuple[list[Tensor], tuple[str, ...] | None, Images | None]:
    """The inputs of each split; of texts and images their numbers, and the texts or images."""
    what = f"input column '{name}'"
    if columns.is_text(parts[0].type):
        for key, value in (("shape", options.shape), ("size", options.image_size)):
            columns.refuse(key, value, "texts", what)
        xs, texts = numbered(columns.texts(parts, name))
        return xs, texts, None
    if files := columns.files(parts, name):
        columns.refuse("shape", options.shape, "images", what)
        xs, every = numbered(files)
        return xs, None, Images(every, len(files[0]), what, options.image_size)
    columns.refuse("size", options.image_size, "lists of numbers", what)
    xs = [columns.arrays(column, name, options.shape) for column in parts]
    shapes = [list(x.shape[1:]) for x in xs]
    if shapes[0] != shapes[-1]:
        raise DataError(f"inputs have shape {shapes[0]} in the train split, but {shapes[-1]} in the test split")
    return xs, None, None


def _labels(tables: list[pa.Table], name: str | None) -> tuple[list[Tensor], tuple[str, ...]]:
    """The labels of each split and the classes' names; where there are none, of no class."""
    if name is None:
        return [unlabelled(len(table)) for table in tables], ()
    known = columns.class_names(tables[0].schema, name)
    return columns.labels([table.column(name) for table in tables], name, known)


def _check_classes(train: pads.Dataset, label: str, where: str) -> None:
    """A `DataError` where classes have no names and domains hold others: they may not mean the same."""
    if columns.class_names(train.schema, label) is not None:
        return
    table = _table(train, [columns.DOMAIN, label], where).group_by(columns.DOMAIN).aggregate([(label, "distinct")])
    table = table.sort_by(columns.DOMAIN)  # groups come in any order
    (first, classes), *others = zip(*(column.to_pylist() for column in table.columns), strict=True)
    for domain, found in others:
        if differ := set(found) ^ set(classes):
            raise DataError(
                f"{where}: the domains '{first}' and '{domain}' need the same classes in '{label}', "
                f"but only one has {', '.join(sorted(map(str, differ)))}"
            )


def _rows(table: pa.Table, names: _Names, examples: Examples) -> Rows:
    client = columns.ids(table.column(names.client), names.client) if names.client else None
    return Rows(examples, client, {name: columns.numbers(table.column(name)) for name in names.numbers})


def _table(part: pads.Dataset, names: list[str], where: str) -> pa.Table:
    try:
        return part.to_table(columns=names)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{where} cannot be read: {error}") from error
