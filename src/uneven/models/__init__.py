"""The models that come with uneven, and the user's own by a dotted path.

A model is a function ``f(info, **options) -> nn.Module``: ``info`` says the input's shape and the number of
classes. Nothing else in the library knows an architecture.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from uneven.data import Info
from uneven.errors import ModelError
from uneven.lookup import call_with_options, find
from uneven.models.resnet import resnet18, resnet_tiny
from uneven.models.shufflenet import shufflenet_v2_x0_5
from uneven.models.simple import cnn, mlp
from uneven.rng import seeded, subseed

MODELS: dict[str, Callable[..., nn.Module]] = {
    function.__name__: function for function in (mlp, cnn, resnet18, resnet_tiny, shufflenet_v2_x0_5)
}


def build(name: str, info: Info, options: Mapping[str, Any], seed: int) -> nn.Module:
    """Build a model, with initial weights drawn from the run's seed.

    Args:
        name: one of `MODELS`, or ``package.module:function``.
        options: the function's own keyword arguments.

    Raises:
        ModelError: no such model, an option that it does not take, or it fails to build.
    """
    function = find(name, MODELS, "model.name", ModelError)
    with seeded(subseed(seed, "model")):
        model = call_with_options(function, (info,), options, "model", ModelError)
    if not isinstance(model, nn.Module):
        raise ModelError(f"model.name = {name!r}: must return a torch.nn.Module, not {type(model).__name__}")
    return model
