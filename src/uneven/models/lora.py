"""Low-rank pairs beside frozen linear layers (Hu et al. 2021, LoRA, arXiv 2106.09685)."""

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from uneven.errors import ModelError
from uneven.options import Many, Options


class Lora(Options):
    """The ``lora`` option of an encoder."""

    rank: int = Field(default=8, ge=1)
    """r, the inner size of each pair. It is a channel group too: a client of width 1/2 holds half of it."""
    alpha: float = Field(default=16.0, gt=0)
    """α: what a pair adds is multiplied by α / r, the full model's r at every width."""
    targets: Many[str] = ("query", "value")
    """The linear layers that get a pair, by the last part of their names."""


class LoraLinear(nn.Module):
    """W x + b + (α / r) B A x: W, b frozen; A ``(r, inputs)`` and B ``(outputs, r)`` trained, B = 0 at first."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.down = nn.Parameter(torch.empty(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        low = nn.functional.linear(x, self.down)
        y: Tensor = self.base(x)
        return y + self.scale * nn.functional.linear(low, self.up)


def add_lora(model: nn.Module, options: Lora) -> None:
    """Freeze a model, and give its target layers a trained pair each, in place.

    Raises:
        ModelError: a target is the name of no linear layer.
    """
    model.requires_grad_(False)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    known = {name.rpartition(".")[2] for name in layers}
    for target in options.targets:
        if target not in known:
            raise ModelError(
                f"model.lora.targets: no linear layer is named {target!r}; there are {', '.join(sorted(known))}"
            )
    for name, layer in layers.items():
        parent, _, last = name.rpartition(".")
        if last in options.targets:
            setattr(model.get_submodule(parent), last, LoraLinear(layer, options.rank, options.alpha))
