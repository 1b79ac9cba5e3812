"""What the rest of the library sees of data: examples, clients, a federation."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

Task = Literal["classify", "next_token"]
NOTHING = -100
"""The target where there is nothing to predict: after the end of a text, and instead of an unknown word."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled examples.

    ``x``: (n, *input_shape), uint8 images with channels first, or float32 or int64 numbers.
    ``y``: (n,) int64 classes; or, for the next token, (n, length) int64: of each position the token that follows
    it, or `NOTHING`.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: Tensor | slice) -> "Examples":
        """The examples at ``index``; a slice shares memory, a tensor of positions copies."""
        return Examples(self.x[index], self.y[index])

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The model-ready ``(x, y)`` at positions ``index`` (b,): uint8 becomes float32 in [-1, 1]."""
        x = self.x[index]
        if x.dtype == torch.uint8:
            x = x.float().div_(255).sub_(0.5).div_(0.5)
        return x, self.y[index]


@dataclass(frozen=True)
class Info:
    """What a model may know of the data."""

    input_shape: tuple[int, ...]
    """Shape of one input, e.g. ``(1, 28, 28)``."""
    num_classes: int
    """How many classes there are to choose from; for the next token, how many tokens."""
    labels: tuple[str, ...]
    """The classes' names, ``num_classes`` of them."""
    vocab_size: int | None = None
    """How many tokens there are, where an input is a text: inputs are then rows of ids 0..vocab_size - 1."""
    pad_id: int | None = None
    """The id of the token that fills short texts up; says nothing, and is to be masked."""
    tokenizer: str | None = None
    """``data.tokenizer``, which a pretrained model compares with its own."""
    task: Task = "classify"
    """What is predicted: a class of each input, or at each position of a text the token that follows."""
    marks: tuple[int, ...] = ()
    """The ids of tokens that are no part of a text: filling, start and end."""


@dataclass(frozen=True, eq=False)
class ClientData:
    """One client's own data: a training and a test split of the same distribution, both never empty.

    The tensors are views of one tensor of all clients: threads, forked and torch.multiprocessing workers
    share it, but pickling or saving a client's tensors carries everybody's (``clone`` them first).
    """

    id: int
    """Position in ``Federation.clients``."""
    name: str
    """The natural id where the data has one, else ``str(id)``."""
    train: Examples
    test: Examples
    attributes: dict[str, float] = field(default_factory=dict)
    """Numeric columns that are constant within each natural client, such as a device's memory."""
    token_counts: Tensor | None = None
    """(vocab_size,) int64: how often each token comes in the training texts, as cut; filling does not count.
    None where the inputs are no texts."""

    def label_counts(self, num_classes: int) -> Tensor:
        """(num_classes,) int64: how many training examples of each class; for the next token, how many targets."""
        return torch.bincount(self.train.y[self.train.y != NOTHING], minlength=num_classes)


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients' data, and a test set apart from theirs."""

    clients: tuple[ClientData, ...]
    test: Examples
    info: Info
