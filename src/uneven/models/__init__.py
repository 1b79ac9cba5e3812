"""The models that come with uneven, and the user's own by a dotted path.

A model is a function ``f(info, **options) -> nn.Module``: ``info`` says the input's shape and the number of
classes. Nothing else in the library knows an architecture.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError
from torch import nn

from uneven.data import Info
from uneven.data.federation import Task
from uneven.errors import ModelError
from uneven.lookup import find, unknown_options
from uneven.models.encoder import encoder
from uneven.models.gpt2 import gpt2
from uneven.models.recurrent import slimmable_lstm
from uneven.models.resnet import resnet18, resnet_tiny
from uneven.models.shufflenet import shufflenet_v2_x0_5
from uneven.models.simple import cnn, mlp
from uneven.rng import seeded, subseed

MODELS: dict[str, Callable[..., nn.Module]] = {
    function.__name__: function
    for function in (mlp, cnn, resnet18, resnet_tiny, shufflenet_v2_x0_5, encoder, slimmable_lstm, gpt2)
}
READS_TEXT: dict[str, tuple[Task, ...]] = {
    "encoder": ("classify",),
    "slimmable_lstm": ("classify", "next_token"),
    "gpt2": ("next_token",),
}
"""The models that read texts, and what they can be asked."""


def find_model(name: str | Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """The function of a model: one of `MODELS`, ``package.module:function``, or the function itself.

    Raises:
        ModelError: there is none of this name.
    """
    function = find(name, MODELS, "model.name", ModelError) if isinstance(name, str) else name
    if isinstance(function, nn.Module) or not callable(function):
        what = type(function).__name__
        raise ModelError(f"model.name = {name!r}: must be a function that returns the model, not {what}")
    return function


def build(name: str | Callable[..., nn.Module], info: Info, options: Mapping[str, Any], seed: int) -> nn.Module:
    """Build a model, with initial weights drawn from the run's seed.

    ``options`` are the function's own keyword arguments.

    Raises:
        ModelError: no such model, an option that it does not take, or it fails to build.
    """
    function = find_model(name)
    unknown = unknown_options(function, options, "model", given=1)
    if unknown:
        raise ModelError("\n".join(unknown))
    if info.vocab_size is not None and name in MODELS:
        _check_reads(str(name), info.task)
    try:
        with seeded(subseed(seed, "model")):
            model = function(info, **options)
    except ModelError:
        raise
    except ValidationError as error:
        raise ModelError("\n".join(map(_problem, error.errors()))) from error
    except Exception as error:  # a user's function may raise anything
        what = f"{type(error).__name__}: {error}"
        raise ModelError(f"model.name = {name!r}: fails to build with {dict(options)}: {what}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"model.name = {name!r}: must return a torch.nn.Module, not {type(model).__name__}")
    return model


def _check_reads(name: str, task: Task) -> None:
    able = " or ".join(repr(other) for other, tasks in READS_TEXT.items() if task in tasks)
    if name not in READS_TEXT:
        raise ModelError(f"model.name = {name!r}: the inputs are texts, which it does not read; use {able}")
    if task not in READS_TEXT[name]:
        raise ModelError(f"model.name = {name!r}: cannot be used with data.task = {task!r}; use {able}")


def _problem(error: Mapping[str, Any]) -> str:
    key = ".".join(map(str, error["loc"]))
    return f"model.{key} = {error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}"
