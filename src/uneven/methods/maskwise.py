"""What the methods share whose clients hold the single parameters of the largest |x|."""

from __future__ import annotations

from typing import Any

from uneven.methods.base import ClientCard, Context, Grain, Method
from uneven.submodels import MaskSubmodel, State, Submodel


class MaskMethod(Method):
    """A method whose mask follows from the server's state alone, so that all clients of one size share it.

    The least that such a method defines is `choose`. A capacity is evaluated on the mask of the state that is
    evaluated, which is the one that the next round trains.
    """

    def __init__(self, context: Context, options: Any) -> None:
        super().__init__(context, options)
        self._chosen: tuple[State, dict[int, MaskSubmodel]] = (self.state, {})
        for size in sorted({client.size for client in context.clients}):
            self.largest(size)  # a capacity that is too small is an error now, not in some round

    @classmethod
    def grain(cls, options: Any) -> Grain:
        return "parameter"

    def choose(self, size: int) -> MaskSubmodel:
        """The submodel of ``size`` parameters of the server's present state. Must be defined."""
        raise TypeError(f"{type(self).__name__} must define choose(size)")

    def largest(self, size: int) -> MaskSubmodel:
        """What `choose` gives, worked out once for every state and size."""
        if self._chosen[0] is not self.state:
            self._chosen = (self.state, {})
        chosen = self._chosen[1]
        if size not in chosen:
            chosen[size] = self.choose(size)
        return chosen[size]

    def magnitudes(self) -> State:
        """|x| of every maskable parameter, as the server has it."""
        return {name: self.state[name].abs() for name in self.supernet.maskable}

    def submodel(self, t: int, client: ClientCard) -> Submodel:
        return self.largest(client.size)

    def evaluation_submodel(self, client: ClientCard, t: int) -> Submodel:
        return self.largest(client.size)
