"""How the server puts updates together: averages, streaming, and optimizers on their delta.

Per coordinate c, over the clients that held it (HeteroFL, Diao et al. 2021, equation 3; FedRolex; and others):

    x_c <- x_c + eta_s * sum_{n: c in M_n} a_n (x_{n,c} - x_c) / sum_{n: c in M_n} a_n

That is the overlap average. Under the fill rule (HASA's first protocol) the divisor is the sum of a_n over all
updates of the round: what a client did not hold counts as unchanged; with a_n = n_n (``weights`` "examples") it is
x_c + sum p_n (x_{n,c} - x_c), p_n = n_n / sum n_i. Membership is the submodel's, never "the
delta is non-zero"; an update of weight 0 is of nothing. Memory is O(d), whatever the cohort.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from uneven.options import Options
from uneven.submodels import State, Submodel


class ServerOptions(Options):
    """The ``[server]`` section of a spec: what becomes of the clients' average."""

    optimizer: Literal["average", "momentum", "adam", "yogi"] = "average"
    """``average`` takes the mean as it is; the others step along it (Reddi et al. 2021, arXiv 2003.00295)."""
    rule: Literal["overlap", "fill"] = "overlap"
    """What a coordinate is averaged over: the clients that held it, or all of the round, where those that did not
    hold it count as having left it unchanged (``fill``)."""
    weights: Literal["even", "examples", "qffl", "afl"] = "even"
    """a_n, a client's weight in the average: 1, its number of training examples, or by its loss
    (`uneven.weightings`)."""
    q: float | None = Field(default=None, ge=0)
    """q of ``qffl``, how much a client's loss counts; at 0 weights are examples. Default 1."""
    weights_lr: float | None = Field(default=None, gt=0)
    """eta_lambda of ``afl``, the step of the weights along the losses. Default 0.1."""
    lr: float | None = Field(default=None, gt=0)
    """Server learning rate eta_s. Default 1, and 0.01 for adam and yogi."""
    momentum: float | None = Field(default=None, ge=0, lt=1)
    """beta of ``momentum``, beta_1 of ``adam`` and ``yogi``. Default 0.9."""
    beta2: float | None = Field(default=None, ge=0, lt=1)
    """beta_2 of ``adam`` and ``yogi``. Default 0.99."""
    tau: float | None = Field(default=None, gt=0)
    """Added to the root of the second moment in ``adam`` and ``yogi``. Default 0.001."""

    @model_validator(mode="after")
    def _no_dead_options(self) -> Self:
        used = {"average": (), "momentum": ("momentum",)}.get(self.optimizer, ("momentum", "beta2", "tau"))
        for name in ("momentum", "beta2", "tau"):
            if getattr(self, name) is not None and name not in used:
                raise ValueError(
                    f"{name} = {getattr(self, name)}: has no effect with optimizer '{self.optimizer}'"
                )
        for name, weights in (("q", "qffl"), ("weights_lr", "afl")):
            if getattr(self, name) is not None and self.weights != weights:
                raise ValueError(f"{name} = {getattr(self, name):g}: has no effect with weights '{self.weights}'")
        return self


class OverlapAverage:
    """A streaming weighted mean of updates, per coordinate over those that held it."""

    def __init__(self, start: State, filled: Collection[str] = ()) -> None:
        """
        Args:
            start: the full tensors that the clients' submodels were taken from; not changed.
            filled: tensors whose mean is over all updates, of which those that did not hold a coordinate left it
                unchanged.
        """
        self._start, self._filled, self._total = start, frozenset(filled), 0.0
        self._float = [name for name, tensor in start.items() if tensor.is_floating_point()]
        self._sum = {name: torch.zeros_like(start[name]) for name in self._float}
        self._weight = {name: torch.zeros_like(start[name]) for name in self._float}
        self._whole = {n: t.clone() for n, t in start.items() if not t.is_floating_point()}

    def add(
        self, submodel: Submodel, values: State, weight: float, counted: Mapping[str, Tensor] | None = None
    ) -> None:
        """Add one client's values, in its submodel's shapes, with weight a_n.

        ``counted``: for some tensors, which of the values count (0 or 1, broadcast against the values); those
        that do not are treated as not held.
        """
        if weight == 0:
            return
        counted = counted or {}
        self._total += weight
        for name in self._float:
            before = submodel.select(name, self._start[name])
            # What is as it was has no delta, also where it is infinite (the masks of attention).
            delta = torch.where(values[name] == before, 0.0, values[name] - before)
            own = torch.full_like(delta, weight) * counted.get(name, 1.0)
            submodel.add(name, self._sum[name], delta * own)
            submodel.add(name, self._weight[name], own)
        for name, number in self._whole.items():
            if number.dim() == 0:  # a counter; tables of positions and the like stay as they are
                number.copy_(torch.maximum(number, values[name]))

    def result(self) -> tuple[State, State]:
        """The mean delta of every float tensor, and where it is held (bool); zero where it is not."""
        held = {name: weight > 0 for name, weight in self._weight.items()}
        over = {n: w.new_tensor(self._total) if n in self._filled else w for n, w in self._weight.items()}
        delta = {n: self._sum[n] / torch.where(held[n], over[n], 1.0) for n in self._float}
        return delta, held

    @property
    def whole_numbers(self) -> State:
        """Integer buffers: of a counter the maximum over the updates, others as they were."""
        return self._whole


class ServerOptimizer:
    """Steps the server's state along an average. Acts, and changes its own state, only where something is held.

    ``moments``: the optimizer's own tensors, by ``first/<name>`` and ``second/<name>``.
    """

    def __init__(self, options: ServerOptions, state: State, trained: tuple[str, ...]) -> None:
        adaptive = options.optimizer in ("adam", "yogi")
        self._options, self._trained = options, frozenset(trained)
        self._lr = options.lr if options.lr is not None else 0.01 if adaptive else 1.0
        self._beta1 = 0.9 if options.momentum is None else options.momentum
        self._beta2 = 0.99 if options.beta2 is None else options.beta2
        self._tau = 1e-3 if options.tau is None else options.tau
        kinds = ["first"] * (options.optimizer != "average") + ["second"] * adaptive
        self.moments = {f"{k}/{n}": torch.zeros_like(state[n]) for k in kinds for n in trained}

    def step(self, state: State, average: OverlapAverage) -> State:
        """The new state: parameters by the optimizer, running statistics by their mean, counters by maximum."""
        delta, held = average.result()
        new = dict(average.whole_numbers)
        for name, change in delta.items():
            step = self._step(name, change, held[name]) if name in self._trained else change
            new[name] = torch.where(held[name], state[name] + step, state[name])
        return {name: new[name] for name in state}

    def _step(self, name: str, delta: Tensor, held: Tensor) -> Tensor:
        if self._options.optimizer == "average":
            return self._lr * delta
        if self._options.optimizer == "momentum":
            return self._lr * self._update(f"first/{name}", lambda m: self._beta1 * m + delta, held)
        first = self._update(f"first/{name}", lambda m: self._beta1 * m + (1 - self._beta1) * delta, held)
        second = self._update(f"second/{name}", lambda v: self._second(v, delta.square()), held)
        return self._lr * first / (second.sqrt() + self._tau)

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        if self._options.optimizer == "yogi":
            return v - (1 - self._beta2) * square * torch.sign(v - square)
        return self._beta2 * v + (1 - self._beta2) * square

    def _update(self, key: str, rule: Any, held: Tensor) -> Tensor:
        self.moments[key] = torch.where(held, rule(self.moments[key]), self.moments[key])
        return self.moments[key]
