"""Supernets of the models that come with uneven, analysed once for all tests here."""

from collections.abc import Callable
from functools import cache

import pytest
import torch

from tests.submodels.helpers import info, randomised
from uneven.models import MODELS
from uneven.submodels import Supernet


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def analysed() -> Callable[..., Supernet]:
    """``analysed(name, norm)``: the supernet of a model on small colour images, with random tensors."""

    @cache
    def build(name: str, norm: str | None = None, size: int = 16) -> Supernet:
        shape = (3, size, size)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = MODELS[name](info(*shape), **({"norm": norm} if norm else {}))
        return Supernet(randomised(model), torch.zeros(shape))

    return build
