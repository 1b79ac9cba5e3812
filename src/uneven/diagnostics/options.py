"""The ``[diagnostics]`` section of a spec."""

from __future__ import annotations

from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from uneven.options import Many, Options

Part = Literal["masking", "fisher", "coverage", "topology"]


class DiagnosticsOptions(Options):
    """The ``[diagnostics]`` section: what is measured beside training, which it does not change."""

    every: int | None = Field(default=None, ge=1)
    """Measure in every so many rounds. Default: never."""
    parts: Many[Part] | None = None
    """What is measured: the error that masks make in a client's gradient (``masking``), what Fisher information
    says of masks (``fisher``), how often each parameter was trained (``coverage``), and, in those rounds that end
    with an adjustment, what becomes of a topology that all clients share (``topology``). Default: all that the
    method has."""
    examples: int | None = Field(default=None, ge=1)
    """Take gradients on so many of a client's training examples at most, the first ones. Default: on all."""

    @property
    def measured(self) -> tuple[Part, ...]:
        return get_args(Part) if self.parts is None else self.parts

    def due(self, t: int) -> bool:
        """Whether round t is measured."""
        return self.every is not None and t % self.every == 0

    @model_validator(mode="after")
    def _no_dead_options(self) -> Self:
        for name in ("parts", "examples"):
            if getattr(self, name) is not None and self.every is None:
                raise ValueError(f"{name} = {getattr(self, name)!r}: has no effect without diagnostics.every")
        if not self.measured:
            raise ValueError("parts = (): must name at least one of " + ", ".join(get_args(Part)))
        if self.examples is not None and set(self.measured) == {"coverage"}:
            raise ValueError(f"examples = {self.examples}: has no effect where only coverage is measured")
        return self
