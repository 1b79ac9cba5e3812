"""A data set in memory, before clients share it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from uneven.data.federation import Examples
from uneven.data.images import decode
from uneven.errors import DataError

T = TypeVar("T")
Ids = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Rows:
    """n examples with what their rows say of clients: natural ids (n,), and numeric columns (n,) float64."""

    examples: Examples
    client: Ids | None = None
    numbers: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.examples)

    def take(self, index: Tensor) -> "Rows":
        client = None if self.client is None else self.client[index.numpy()]
        return Rows(self.examples[index], client, {name: v[index] for name, v in self.numbers.items()})


@dataclass(frozen=True, eq=False)
class Images:
    """Encoded image files of the column ``what``, the first ``train`` of them of the training split; ``size``: the
    height and width that they are resized to."""

    files: Sequence[bytes]
    train: int
    what: str
    size: tuple[int, int] | None

    def decoded(self, *splits: Examples) -> list[Examples]:
        """Examples whose x are numbers of images, with the images, uint8: those alone are decoded, each once."""
        numbers = torch.unique(torch.cat([split.x for split in splits]))
        rows = torch.where(numbers < self.train, numbers, numbers - self.train).tolist()
        pixels = decode([self.files[n] for n in numbers.tolist()], self.what, self.size, rows)
        return [Examples(pixels[torch.searchsorted(numbers, split.x.flatten())], split.y) for split in splits]


@dataclass(frozen=True, eq=False)
class Splits:
    """A set as its source gives it.

    ``test``: None where the source has no test split. ``labels``: the classes' names, none where the source gives
    no labels; y is then 0. ``texts``: where inputs are texts, all of them; an example's x, ``(1,)``, is then the
    number of its text, until it is known which texts are for training. ``images``: where inputs are images,
    likewise, until it is known which are used.
    """

    train: Rows
    test: Examples | None
    labels: tuple[str, ...]
    texts: tuple[str, ...] | None = None
    images: Images | None = None


@dataclass(frozen=True, eq=False)
class InMemory:
    """A source made by `from_tensors` or `from_texts`."""

    splits: Splits

    def __str__(self) -> str:
        return f"in-memory ({len(self.splits.train)} examples)"


def from_tensors(
    x: Tensor,
    y: Tensor,
    *,
    test: tuple[Tensor, Tensor] | None = None,
    labels: Sequence[str] | None = None,
    client: Sequence[str] | Sequence[int] | Tensor | None = None,
) -> InMemory:
    """A source for ``DataOptions(source=...)`` out of tensors.

    ``x``: (n, *input_shape), uint8 images with channels first, or numbers (kept as float32 or int64).
    ``y``: (n,) integer classes. ``test``: the same for the global test set. ``labels``: the classes' names,
    default "0", "1", ... ``client``: (n,) natural ids. Raises `DataError` where these do not fit together.
    """
    train = _examples(x, y, "the training set")
    held = None if test is None else _examples(*test, "the test set")
    if held is not None and held.x.shape[1:] != train.x.shape[1:]:
        raise DataError(f"inputs are {list(train.x.shape[1:])} in train but {list(held.x.shape[1:])} in test")
    ys = [train.y] if held is None else [train.y, held.y]
    names = check_classes(ys, None if labels is None else tuple(labels), "y")
    rows = Rows(train) if client is None else replace(Rows(train), client=_ids(client, len(train)))
    return InMemory(Splits(rows, held, names))


def from_texts(
    texts: Sequence[str],
    y: Tensor | None = None,
    *,
    test: tuple[Sequence[str], Tensor | None] | None = None,
    labels: Sequence[str] | None = None,
    client: Sequence[str] | Sequence[int] | Tensor | None = None,
) -> InMemory:
    """A source for ``DataOptions(source=...)`` out of n texts; all else as in `from_tensors`.

    ``y`` may be None, in both splits, where the next token is predicted.
    """
    splits = [list(texts)] if test is None else [list(texts), list(test[0])]
    wrong = next((text for split in splits for text in split if not isinstance(text, str)), None)
    if wrong is not None:
        raise DataError(f"a text is {wrong!r}: strings are needed")
    xs, every = numbered(splits)
    ys = [y] if test is None else [y, test[1]]
    given = [one for one in ys if one is not None]
    if len(given) not in (0, len(ys)):
        raise DataError("y is given for one of train and test: give it for both, or for none")
    if not given and labels is not None:
        raise DataError(f"labels = {list(labels)} has no effect without y: leave it out")
    train, *held = zip(xs, given or [unlabelled(len(x)) for x in xs], strict=True)
    memory = from_tensors(*train, test=held[0] if held else None, labels=labels, client=client)
    return InMemory(replace(memory.splits, texts=every, labels=memory.splits.labels if given else ()))


def unlabelled(n: int) -> Tensor:
    """(n,) int64 zeros: the y of examples without labels, which are all alike to what goes by labels."""
    return torch.zeros(n, dtype=torch.int64)


def numbered(splits: Sequence[Sequence[T]]) -> tuple[list[Tensor], tuple[T, ...]]:
    """The numbers ``(n, 1)`` of the texts or images of each split, and all of them in the numbers' order."""
    numbers = torch.arange(sum(map(len, splits))).unsqueeze(1)
    parts = torch.split(numbers, [len(split) for split in splits])
    return list(parts), tuple(chain.from_iterable(splits))


def check_classes(ys: Sequence[Tensor], names: tuple[str, ...] | None, column: str) -> tuple[str, ...]:
    """The classes' names, by default their numbers; `DataError` where one is negative or has no name."""
    lowest = min(int(y.min()) for y in ys)
    highest = max(int(y.max()) for y in ys)
    if lowest < 0:
        raise DataError(f"label column '{column}' holds {lowest}: classes are 0, 1, 2, ...")
    if names is None:
        return tuple(str(i) for i in range(highest + 1))
    if highest >= len(names):
        raise DataError(f"label column '{column}' holds class {highest}, but only {len(names)} classes have names")
    return names


def as_numbers(x: Tensor, what: str) -> Tensor:
    """``x`` in one of the three dtypes that inputs may have; not a number is an error."""
    if x.dtype == torch.uint8:
        return x
    if x.is_floating_point():
        if not bool(torch.isfinite(x).all()):
            raise DataError(f"{what} holds NaN or infinite numbers")
        return x.float()
    if x.is_complex():
        raise DataError(f"{what} holds complex numbers: uint8, float or integer numbers are needed")
    return x.long()


def _examples(x: Tensor, y: Tensor, what: str) -> Examples:
    if len(x) != len(y) or y.ndim != 1 or x.ndim < 2:
        raise DataError(f"{what}: x {list(x.shape)} and y {list(y.shape)} are not (n, *input_shape) and (n,)")
    if len(x) == 0:
        raise DataError(f"{what} has no examples")
    if y.is_floating_point() or y.is_complex():
        raise DataError(f"{what}: y holds {y.dtype}: integer classes are needed")
    return Examples(as_numbers(x, f"{what}: x"), y.long())


def _ids(client: Sequence[str] | Sequence[int] | Tensor, n: int) -> Ids:
    ids = client.numpy() if isinstance(client, Tensor) else np.asarray(client)
    if ids.shape != (n,):
        raise DataError(f"client has shape {list(ids.shape)}: one id for each of the {n} examples is needed")
    if ids.dtype.kind not in "iuU":
        raise DataError(f"client ids are {ids.dtype}: integers or strings are needed")
    return ids
