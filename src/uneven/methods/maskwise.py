"""What the methods share that give each client single parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from uneven.methods.base import ClientCard, Context, Grain, Method, MethodOptions
from uneven.submodels import State, Submodel
from uneven.submodels.masks import MaskSubmodel, Scope, choose


class MaskOptions(MethodOptions):
    scope: Scope = "global"
    """The highest scores of all parameters at once, or the same share of each tensor, or of each block (the
    embeddings, each layer of an encoder, the head)."""
    per_output: bool = False
    """Keep at least one weight of each output, whatever the others score."""


class MaskMethod(Method):
    """A method that scores parameters: a client holds the k_n with the highest scores.

    Norms and biases are never dropped and count in k_n. Equal scores go by the larger |x|, then by position.
    """

    Options = MaskOptions

    def __init__(self, context: Context, options: Any) -> None:
        super().__init__(context, options)
        for size in sorted({client.size for client in context.clients}):
            self.choose(self.magnitudes(), size)  # a capacity that is too small is an error now, not in some round

    @classmethod
    def grain(cls, options: Any) -> Grain:
        return "parameter"

    def choose(self, scores: Mapping[str, Tensor], size: int) -> MaskSubmodel:
        """The submodel of the ``size`` parameters that score highest; ``scores`` of every maskable one."""
        scope, per_output = self.options.scope, self.options.per_output
        return choose(self.supernet, scores, size, self.state, scope=scope, per_output=per_output)

    def magnitudes(self) -> State:
        """|x| of every maskable parameter, as the server has it."""
        return {name: self.state[name].abs() for name in self.supernet.maskable}

    def evaluation_submodel(self, client: ClientCard, t: int) -> Submodel:
        return self.choose(self.magnitudes(), client.size)
