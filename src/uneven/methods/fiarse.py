"""FIARSE: the parameters of the largest magnitude, trained by a gradient that sees the threshold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, cast

import torch
from torch import Tensor, nn

from uneven.methods.base import Assignment, Client, MethodOptions
from uneven.methods.maskwise import MaskMethod
from uneven.submodels import MaskSubmodel, Network, State
from uneven.submodels.masks import Scope, choose, parts
from uneven.training import Correction


def thresholds(
    assignment: Assignment, among: Iterable[Iterable[str]], *, per_output: bool = False
) -> dict[str, float]:
    """theta of every maskable parameter, from what the client holds: the smallest |x| that made it into the mask.

    Args:
        among: the parameters that compete with each other, and share a theta.
        per_output: the best entry of each output was held whatever it is, and says nothing of theta.

    Those without a threshold are left out: nothing of theirs is dropped, nothing competed, or it is 0.
    """
    submodel, values = cast(MaskSubmodel, assignment.submodel), assignment.payload["model"]
    thetas: dict[str, float] = {}
    for names in map(list, among):
        held = {name: values[name].abs() for name in names}
        if per_output:
            held = {name: _without_best(submodel, name, sizes) for name, sizes in held.items()}
        theta = min((float(sizes.min()) for sizes in held.values() if sizes.numel()), default=0.0)
        if theta > 0 and not submodel.masks.keys().isdisjoint(names):
            thetas |= dict.fromkeys(names, theta)
    return thetas


def _without_best(submodel: MaskSubmodel, name: str, sizes: Tensor) -> Tensor:
    """Of the |x| held of a tensor, (k_name,), all but the largest of each index of its first axis."""
    full = submodel.spread(name, sizes).flatten(1)
    mask = submodel.masks.get(name, torch.ones_like(full, dtype=torch.bool)).view_as(full)
    best = full.masked_fill(~mask, -1.0).argmax(1, keepdim=True)
    return full[mask.scatter(1, best, False)]


def sharpen(weights: Mapping[str, nn.Parameter], thetas: Mapping[str, float]) -> None:
    """g <- g (1 + 2 |x| theta / (|x| + theta)^2), in place, with x as it is now: 1.5 g at |x| = theta."""
    for name, theta in thetas.items():
        gradient = weights[name].grad
        if gradient is not None:  # an unused weight has none, and stays
            size = weights[name].detach().abs()
            share = size / (size + theta)  # the squares of small numbers would be 0
            gradient.addcmul_(gradient * share, 1 - share, value=2)


class FiarseClient(Client):
    """Trains by FIARSE's gradient on what it holds."""

    def correction(self, network: Network, assignment: Assignment, memory: State) -> Correction | None:
        if self.options.gradient == "masked":
            return None
        among = parts(self.supernet, self.options.scope)
        thetas = thresholds(assignment, among, per_output=self.options.per_output)
        return lambda weights: sharpen(weights, thetas)


class Fiarse(MaskMethod):
    """A client holds the k_n parameters of the largest |x|, and its gradient grows towards the threshold.

    Paper: Wu et al. 2024, FIARSE: Model-Heterogeneous Federated Learning via Importance-Aware Submodel
    Extraction (arXiv 2408.15821).

    Rule: M_n = the top k_n of |x| in the server's state at the start of the round, theta_n the smallest |x| in
    it. Local steps go along g (1 + 2 |x| theta / (|x| + theta)^2) where M_n = 1, with the |x| of the step, and
    along 0 elsewhere. The factor is in [1, 1.5]; it is 1 where k_n = d or theta = 0. Every coordinate is averaged
    over the clients that hold it.

    Deviations: norms and biases are held by all, count in k_n, and have factor 1. Where several parts of the model
    have a budget each (``scope``), each has its own theta. Entries that are held only as their output's best
    (``per_output``) passed no threshold, so theta is the smallest |x| of the others. Clients work theta out from
    what they hold; it is not sent.
    """

    class Options(MethodOptions):
        scope: Scope = "global"
        """The largest |x| of the whole model (``global``), or the same share of each tensor, or of each block
        (embeddings, a layer of an encoder, the head)."""
        per_output: bool = False
        """Keep at least one weight of each output, however small."""
        gradient: Literal["fiarse", "masked"] = "fiarse"
        """The method's own gradient, or the plain one where the mask is 1."""

    Client = FiarseClient

    def choose(self, size: int) -> MaskSubmodel:
        scope, per_output = self.options.scope, self.options.per_output
        return choose(self.supernet, self.magnitudes(), size, self.state, scope=scope, per_output=per_output)
