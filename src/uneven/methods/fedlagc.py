"""FedLAGC: a budget for each layer by its importance, and a correction of the local gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from uneven.apportion import apportion
from uneven.data import Examples
from uneven.errors import MethodError
from uneven.methods.base import Assignment, Client, Context, MethodOptions, Update
from uneven.methods.fiarse import sharpen, thresholds
from uneven.methods.maskwise import MaskMethod
from uneven.submodels import MaskSubmodel, Network, State
from uneven.submodels.masks import NOTHING_TO_MASK, checked, masked
from uneven.submodels.topk import top_k
from uneven.training import Correction


class FedLAGCClient(Client):
    """Trains by FIARSE's gradient less h(t) lambda_n; its memory is lambda_n, of full tensors (zero at first)."""

    def train(self, assignment: Assignment, data: Examples, memory: State) -> tuple[Update, State]:
        network = self.network(assignment).load(assignment.payload["model"])
        start = {name: weight.detach().clone() for name, weight in network.weights().items()}
        report = self.fit(network, assignment, data, self.correction(network, assignment, memory))
        beta, lambda_n = self.options.beta, memory or {n: torch.zeros_like(x) for n, x in start.items()}
        new = {n: lambda_n[n] + beta * (x.detach() - start[n]) for n, x in network.weights().items()}
        return self.update(assignment, data, report, {"model": network.values()}), new

    def correction(self, network: Network, assignment: Assignment, memory: State) -> Correction | None:
        thetas = thresholds(assignment, [[name] for name in self.supernet.maskable])
        lambda_n = memory if 4 * assignment.round < self.rounds else {}  # h(t)

        def correct(weights: Mapping[str, nn.Parameter]) -> None:
            sharpen(weights, thetas)
            for name, own in lambda_n.items():
                gradient = weights[name].grad
                if gradient is not None:
                    gradient.sub_(own)

        return correct


class FedLAGC(MaskMethod):
    """A client holds the largest |x| of every layer, of important layers a larger share.

    Paper: Hu 2026, FedLAGC.

    Rule: the first and the last layer, norms and biases are held by all, d~ parameters. Of the others, layer l has
    the score S_l = mean |x|, S~_l = log(1 + S_l) / sum_j log(1 + S_j), and the client holds the share
    rho_l = S~_l (k_n - d~) / sum_j S~_j d_j of it, at most all (what is over goes to the other layers), the
    largest |x|. Its gradient is FIARSE's, with theta of the layer, less h(t) lambda_n, where the mask is 1;
    after the round lambda_n <- lambda_n + beta (x_end - x_start). h(t) = 1 for t < T/4, then 0.

    Deviations: none in the rule, which as given pushes a client further along its own progress: lambda_n points
    where it went, and is taken from a gradient that is taken from x. Rounds count from 1. A layer is a tensor that
    can be masked, the first and the last are so in the model's order. Budgets are rounded by largest remainder;
    layers that all score 0 get equal shares. For ``gradient_norm`` the server has no gradient: it takes how far
    the last round moved the layer's weights, ||x_t - x_(t-1)||, and mean |x| while none has moved.
    """

    class Options(MethodOptions):
        score: Literal["magnitude", "gradient_norm"] = "magnitude"
        """S_l, the importance of a layer: its mean |x|, or the norm of its gradient."""
        keep_edges: bool = True
        """Never drop from the first and the last layer; otherwise they have a budget as all have."""
        beta: float = Field(default=0.1, ge=0)
        """beta, how much of a client's last progress enters its correction; 0 leaves the correction out."""

    Client = FedLAGCClient

    def __init__(self, context: Context, options: Any) -> None:
        self.moved: State = {}  # how far the last round moved each layer
        super().__init__(context, options)
        if self.options.score == "gradient_norm":
            self.moved = {name: torch.zeros(()) for name in self.layers}

    @property
    def layers(self) -> tuple[str, ...]:
        """The parameters that have a budget."""
        return self.supernet.maskable[1:-1] if self.options.keep_edges else self.supernet.maskable

    def choose(self, size: int) -> MaskSubmodel:
        sizes = {name: checked(name, self.state[name].abs()) for name in self.layers}
        scores = self.moved if any(self.moved.values()) else {name: x.mean() for name, x in sizes.items()}
        room = {name: x.numel() for name, x in sizes.items()}
        worth = {name: float(scores[name].log1p()) * room[name] for name in room}
        fixed = self.supernet.size - sum(room.values())  # d~
        self._require(size, fixed)
        budgets = deal(worth, room, size - fixed)
        return masked(self.supernet, {name: top_k([x], budgets[name], [x])[0] for name, x in sizes.items()})

    def _require(self, size: int, fixed: int) -> None:
        if not self.supernet.maskable:
            raise MethodError(NOTHING_TO_MASK)
        least = fixed + max(1, len(self.layers))
        if size < min(least, self.supernet.size):
            edges = "the first and the last layer, " if self.options.keep_edges else ""
            hint = "; method.keep_edges = false drops from those too" if self.options.keep_edges else ""
            raise MethodError(
                f"a capacity of {size:,} of {self.supernet.size:,} parameters is too small: {edges}norms and "
                f"biases, which are never dropped, are {fixed:,}, and every other layer needs a weight{hint}"
            )

    def merge(self, t: int, results: Iterable[tuple[Assignment, Update]]) -> None:
        before = self.state
        super().merge(t, results)
        self.moved = {name: (self.state[name] - before[name]).norm() for name in self.moved}

    def saved(self) -> State:
        return super().saved() | {f"moved/{name}": norm for name, norm in self.moved.items()}

    def restore(self, tensors: State) -> None:
        super().restore(tensors)
        self.moved = {name: tensors[f"moved/{name}"] for name in self.moved}


def deal(worth: Mapping[str, float], room: Mapping[str, int], total: int) -> dict[str, int]:
    """Whole numbers that sum to ``total``, in proportion to worth, none over its room, by largest remainder.

    What is worth nothing gets something, by its room, only where all with any worth are full.

    >>> deal({"a": 6.0, "b": 1.0, "c": 1.0}, {"a": 4, "b": 9, "c": 9}, 8)
    {'a': 4, 'b': 2, 'c': 2}
    """
    dealt: dict[str, int] = {}
    while len(dealt) < len(room):
        rest = [name for name in room if name not in dealt]
        left = total - sum(dealt.values())
        shares = [worth[name] for name in rest]
        if not any(shares):
            shares = [float(room[name]) for name in rest]
        scale = left / sum(shares)
        full = [name for name, share in zip(rest, shares, strict=True) if share * scale >= room[name]]
        dealt |= {n: room[n] for n in full} or dict(zip(rest, apportion(shares, left), strict=True))
    return {name: dealt[name] for name in room}
