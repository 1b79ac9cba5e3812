"""Small models, each with a way of using its parameters that is its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from tests.submodels.helpers import randomised
from uneven.data import Examples
from uneven.submodels import Network, Supernet

CLASSES, WORDS = 3, 7
IMAGE, ROW, TEXT = torch.zeros(2, 6, 6), torch.zeros(4), torch.ones(5, dtype=torch.int64)


class Text(nn.Module):
    """Words (of which 0 teaches nothing) and places, which are the same for all; linear layers at every token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 4, padding_idx=0), nn.Embedding(5, 4)
        self.register_buffer("place", torch.arange(5)[None])
        self.norm, self.inner, self.head = nn.LayerNorm(4), nn.Linear(4, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.words(x) + self.places(self.place))
        return self.head(self.inner(hidden).tanh_().mean(1))  # type: ignore[no-any-return]


class TokensFirst(nn.Module):
    """A linear layer with the batch along its second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner, self.head = nn.Embedding(WORDS, 4), nn.Linear(4, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(self.words(x).transpose(0, 1))).mean(0))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """A parameter that no layer holds, and fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 4), nn.Parameter(torch.zeros(5, 4))
        self.q, self.k, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = (self.words(x) + self.places)[:, None]
        mixed = nn.functional.scaled_dot_product_attention(self.q(hidden), self.k(hidden), hidden)
        return self.head(mixed[:, 0].mean(1))  # type: ignore[no-any-return]


class Tied(nn.Module):
    """Logits over words by the words' own rows."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(CLASSES, 4), nn.Linear(4, CLASSES, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(x % CLASSES)).mean(1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(WORDS, 4), nn.LSTM(4, 4, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(x))[0][:, -1])  # type: ignore[no-any-return]


class Written(nn.Module):
    """Logits written into a tensor that starts out the same for all: nothing that `vmap` can do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(4, CLASSES), nn.Parameter(torch.ones(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        logits = torch.zeros(x.shape[0], CLASSES)
        return logits.add_(self.inner(x) * self.scale)


class Norms(nn.Module):
    """Every norm, in the forms that it has: over images, rows and single entries."""

    def __init__(self) -> None:
        super().__init__()
        self.of_images = nn.Sequential(
            *(nn.GroupNorm(1, 2), nn.InstanceNorm2d(2, affine=True), nn.BatchNorm2d(2), nn.LayerNorm([6, 6]))
        )
        self.of_rows = nn.Sequential(nn.Linear(72, 4), nn.BatchNorm1d(4), nn.RMSNorm(4), nn.GroupNorm(2, 4))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.of_rows(self.of_images(x).flatten(1)))  # type: ignore[no-any-return]


def rows() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, CLASSES, bias=False))


def images() -> nn.Module:
    """Convolutions with stride, dilation, groups and bias, then norms, and layers that work in place."""
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1, bias=False), nn.GroupNorm(2, 4)),
        *(nn.ReLU(inplace=True), nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2), nn.Tanh()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(6, CLASSES)),
    )


def signals() -> nn.Module:
    """Convolutions along one axis and along three."""
    return nn.Sequential(
        *(nn.Flatten(2), nn.Conv1d(2, 4, 3), nn.Tanh(), nn.Unflatten(2, (2, 17, 1)), nn.Conv3d(4, 3, (2, 3, 1))),
        *(nn.Flatten(2), nn.AdaptiveAvgPool1d(1), nn.Flatten()),
    )


def same_padding() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding="same"), nn.Tanh(), nn.Flatten(), nn.Linear(108, CLASSES))


@dataclass(frozen=True)
class Case:
    """A model with the way that ``auto`` takes; ``not_layers``: what `layers` says, where it cannot."""

    model: Callable[[], nn.Module]
    example: Tensor
    auto: str
    not_layers: str = ""


CASES = {
    "rows": Case(rows, ROW, "layers"),
    "images": Case(images, IMAGE, "layers"),
    "signals": Case(signals, IMAGE, "layers"),
    "norms": Case(Norms, IMAGE, "layers"),
    "text": Case(Text, TEXT, "layers"),
    "tokens first": Case(TokensFirst, TEXT, "vmap", "inner.weight is used by linear in an unusual way"),
    "same padding": Case(same_padding, IMAGE, "vmap", "0.weight is used by conv2d in an unusual way"),
    "attention": Case(Attention, TEXT, "vmap", "places is used by add"),
    "tied": Case(Tied, TEXT, "vmap", "words.weight is used more than once"),
    "recurrent": Case(Recurrent, TEXT, "loop", "lstm.weight_ih_l0 is used by lstm"),
    "written": Case(Written, ROW, "loop", "scale is used by mul"),
}


@cache
def supernet(name: str) -> Supernet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Supernet(randomised(CASES[name].model()), CASES[name].example)


def loaded(name: str) -> Network:
    return supernet(name).prefix(1.0).network().load(supernet(name).initial)


def examples(name: str, count: int = 7, seed: int = 0) -> Examples:
    draws, shape = torch.Generator().manual_seed(seed), (count, *CASES[name].example.shape)
    tokens = not CASES[name].example.is_floating_point()
    x = torch.randint(WORDS, shape, generator=draws) if tokens else torch.randn(shape, generator=draws)
    return Examples(x, torch.randint(CLASSES, (count,), generator=draws))
