"""What the methods share that train the full model: what becomes of clients that cannot hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from uneven.errors import MethodError
from uneven.methods.base import ClientCard, Context, Method, MethodOptions
from uneven.submodels import Submodel


class FullModelOptions(MethodOptions):
    fit: Literal["exclude", "smallest"] | None = None
    """Where capacities differ: train only on the clients that can hold the full model (``exclude``), or shrink
    the model to what the smallest client holds (``smallest``). Required then, and has no effect otherwise."""


class FullModelMethod(Method):
    """All clients of a round train the same model."""

    Options = FullModelOptions

    def resolve(self, context: Context, options: Any) -> Any:
        if context.server.rule == "fill":
            raise MethodError("server.rule = 'fill': has no effect, all clients of a round train the same model")
        widths = {client.width for client in context.clients}
        if len(widths) > 1 and options.fit is None:
            raise MethodError(
                "method.fit is missing: this method trains one model, and capacities differ; "
                "'exclude' trains only on clients of the full width, 'smallest' shrinks the model to the smallest"
            )
        if len(widths) == 1 and options.fit is not None:
            raise MethodError(f"method.fit = {options.fit!r}: has no effect, all clients have one capacity")
        if options.fit == "exclude" and max(widths) < 1:
            raise MethodError(
                f"method.fit = 'exclude': no client has the full width, the largest is {max(widths):g}; "
                "use 'smallest'"
            )
        return options

    @property
    def width(self) -> float:
        """The width of the model that is trained."""
        return 1.0 if self.options.fit == "exclude" else min(c.width for c in self.context.clients)

    def eligible(self) -> Sequence[ClientCard]:
        return [client for client in self.context.clients if client.width >= self.width]

    def submodel(self, t: int, client: ClientCard) -> Submodel:
        return self.supernet.prefix(self.width)

    @property
    def recalibrates(self) -> bool:
        return False  # all train the same network, so running statistics can be averaged

    def evaluation_submodel(self, client: ClientCard, t: int) -> Submodel:
        return self.supernet.prefix(min(client.width, self.width))
