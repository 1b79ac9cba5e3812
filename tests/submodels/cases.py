"""What a collection of tiny models is made of: a model, its groups by hand, and how it is prepared."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.submodels.helpers import randomised
from uneven.submodels import Supernet


class Model(nn.Module):
    """Submodules by name, and a forward function that reads them."""

    def __init__(self, forward: Callable[["Model", Tensor], Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


@dataclass(frozen=True)
class Case:
    """A model, and its groups as ``(size, "tensor.axis tensor.axis ...")``.

    ``mixes``: the channels mix in some other way than through weights (a norm over channels, say), so that
    a network without some of them differs from one in which they are zero.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    groups: list[tuple[int, str]]
    mixes: bool = False


def registering(cases: dict[str, Case]) -> Callable[..., Callable[[Callable[[], nn.Module]], None]]:
    """The decorator that enters a function's model into a collection, under the function's name."""

    def case(
        shape: tuple[int, ...], *groups: tuple[int, str], mixes: bool = False
    ) -> Callable[[Callable[[], nn.Module]], None]:
        def register(build: Callable[[], nn.Module]) -> None:
            cases[build.__name__] = Case(build, shape, list(groups), mixes)

        return register

    return case


def prepare(case: Case) -> tuple[nn.Module, Supernet, Tensor]:
    """The model with random weights, its supernet, and a batch of five."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = randomised(case.build())
        x = torch.randn(5, *case.shape)
    return model, Supernet(model, torch.zeros(case.shape)), x
