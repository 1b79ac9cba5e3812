"""The ``[training]`` section of a spec: one client's local work in a round."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from uneven.options import Many, Options


class TrainingOptions(Options):
    """Local training. Optimizers start afresh each round; batches are of nearly equal size, none is dropped."""

    optimizer: Literal["sgd", "adamw"] = "sgd"
    """``sgd``, or AdamW with betas 0.9 and 0.999."""
    lr: float = Field(default=0.05, gt=0)
    """Learning rate η of the first round."""
    momentum: float | None = Field(default=None, ge=0, lt=1)
    """Momentum of SGD. Default 0."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay: coupled (L2) in SGD, decoupled in AdamW."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Clip the gradient's global norm to this. Default: no clipping."""
    batch_size: int = Field(default=8, ge=1)
    """Examples a step, at most."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the client's data a round. Default 5, unless ``steps`` is given."""
    steps: int | None = Field(default=None, ge=1)
    """Steps a round, instead of epochs."""
    schedule: Literal["constant", "cosine", "linear", "step"] = "cosine"
    """The learning rate over rounds: constant, to 0 by a half cosine or a line, or in steps."""
    milestones: Many[int] | None = None
    """Rounds after which schedule ``step`` multiplies the learning rate by ``decay``."""
    decay: float | None = Field(default=None, gt=0, lt=1)
    """The factor of schedule ``step``. Default 0.1."""

    @model_validator(mode="after")
    def _no_dead_options(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"epochs = {self.epochs} and steps = {self.steps}: give one of them")
        if self.optimizer != "sgd" and self.momentum is not None:
            raise ValueError(f"momentum = {self.momentum}: has no effect with optimizer '{self.optimizer}'")
        stepped = self.schedule == "step"
        if stepped and not self.milestones:
            raise ValueError("schedule = 'step': needs milestones, a list of rounds")
        if not stepped and (self.milestones is not None or self.decay is not None):
            raise ValueError(f"milestones and decay have no effect with schedule '{self.schedule}'")
        return self

    def steps_for(self, examples: int) -> int:
        """Steps of one round for a client with so many training examples."""
        return self.steps or (self.epochs or 5) * math.ceil(examples / self.batch_size)

    def seen_in(self, examples: int) -> int:
        """Examples that such a client goes through in one round, over all its steps."""
        pieces = math.ceil(examples / self.batch_size)  # of nearly equal size, the larger ones first
        passes, rest = divmod(self.steps_for(examples), pieces)
        return passes * examples + rest * (examples // pieces) + min(rest, examples % pieces)

    def lr_at(self, t: int, rounds: int) -> float:
        """The learning rate of round t, 1 <= t <= rounds."""
        done = (t - 1) / rounds
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * done)) / 2
        if self.schedule == "linear":
            return self.lr * (1 - done)
        passed = sum(t > milestone for milestone in self.milestones or ())
        return self.lr * (self.decay or 0.1) ** passed
