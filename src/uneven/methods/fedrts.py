"""FedRTS: the shared topology is chosen by Thompson sampling over Beta posteriors of links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from uneven.errors import MethodError
from uneven.methods.base import Assignment, Context, Growth, Update
from uneven.methods.dynamic import DynamicMethod, DynamicOptions
from uneven.rng import subseed
from uneven.sparsity import drop_and_grow, strongest
from uneven.sparsity.posterior import Average, Posterior, restore, saved
from uneven.submodels import State


class FedRTSOptions(DynamicOptions):
    """Options of `FedRTS`."""

    gamma: float | None = Field(default=None, ge=0, le=1)
    """gamma, what the aggregate weighs against the clients' own outcomes. Default 0.5, and 1 with decision
    ``momentum``. With 1 nothing is known of links that are not there, so growth is random."""
    decision: Literal["thompson", "mean", "momentum"] = "thompson"
    """Links are chosen by draws of the posterior, by its mean, or by a momentum average of the outcomes (the
    paper's ablation)."""
    strength: float | None = Field(default=None, gt=0, le=1e6)
    """lambda, what one outcome weighs in the posterior. Default 10."""
    forget: float | None = Field(default=None, gt=0, le=1)
    """What is left of the posterior's evidence at each update. Default 1, all."""
    momentum: float | None = Field(default=None, ge=0, lt=1)
    """Of decision ``momentum``. Default 0.9."""
    evidence: Literal["every_round", "adjust"] = "every_round"
    """When links that are there are observed: in every round up to T_end, or where an adjustment is due."""
    cap_swaps: bool = False
    """Exchange exactly as many links as are scheduled, instead of the top K_l whatever they are."""


class FedRTS(DynamicMethod):
    """A link stays or comes with the probability that it is worth having, by all that was observed so far.

    Paper: FedRTS 2025, Federated Robust Pruning via Combinatorial Thompson Sampling (arXiv 2501.19122).

    Rule: each link i has Beta(alpha_i, beta_i), at first (1, 1). One adjustment: train, aggregate, update the
    posterior with the old topology, draw xi_i ~ Beta(alpha_i, beta_i), take the top K_l of xi in each layer; what
    comes starts at 0. The update is alpha += lambda X, beta += lambda (1 - X), with X = gamma X_agg +
    (1 - gamma) sum p_n X_n. With kappa = K - swap: of a link that is there X_agg is 1 if it is in the top kappa of
    the aggregated |W|, X_n if it is in the client's; of a place without a link X_agg = 1/2, and X_n is 1 if it is
    in the top K - kappa of the client's |G| among those, G the gradient after local training on all its data.
    Clients upload their weights and, where an adjustment is due, the places of the top gradients, no values.

    Deviations: the paper's text leaves open when links are observed (``evidence``), whether evidence fades
    (``forget``) and the momentum of its ablation. After T_end nothing is observed; a layer with swap 0 is not
    drawn again. Of a client that holds a share of the links, the same share of kappa counts, and p_n is taken over
    the clients that hold a link; of one that no client of the round holds, X = X_agg. G is taken with norms as in
    evaluation. Ties go by a seeded draw.
    """

    Options = FedRTSOptions

    def __init__(self, context: Context, options: Any) -> None:
        super().__init__(context, options)
        shapes = {name: mask.shape for name, mask in self.mask.items()}
        self.belief: Posterior | Average = (
            Average(shapes, self.options.momentum)
            if self.options.decision == "momentum"
            else Posterior(shapes, self.options.strength, self.options.forget, self.options.decision == "thompson")
        )

    def resolve(self, context: Context, options: Any) -> Any:
        options = super().resolve(context, options)
        averaged = options.decision == "momentum"
        for name in ("strength", "forget") if averaged else ("momentum",):
            if getattr(options, name) is not None:
                raise MethodError(
                    f"method.{name} = {getattr(options, name)}: has no effect with decision '{options.decision}'"
                )
        defaults = {"gamma": 1.0, "momentum": 0.9} if averaged else {"gamma": 0.5, "strength": 10.0, "forget": 1.0}
        given = {name: value for name, value in options if value is not None}
        return options.model_copy(update={n: v for n, v in defaults.items() if n not in given})

    def growth(self, t: int) -> Growth | None:
        return Growth(self.mask, self.swaps(t)) if self.options.gamma < 1 else None

    def begin(self, t: int) -> None:
        links = self.links
        self._stays = {name: links[name] - swap for name, swap in self.swaps(t).items()}
        self._votes = {name: torch.zeros(mask.shape) for name, mask in self.mask.items()}
        self._weight = {name: torch.zeros(mask.shape) for name, mask in self.mask.items()}

    def observe(self, assignment: Assignment, update: Update) -> None:
        """Adds p_n X_n, up to the sum of the p_n."""
        t, weights = assignment.round, update.payload["model"]
        if not self._observes(t):
            return
        draws = self.draws(f"outcome {assignment.client}", t)
        for name, mask in self.mask.items():
            size = torch.zeros(mask.shape)
            assignment.submodel.add(name, size, weights[name].abs())
            held = torch.zeros(mask.shape)
            assignment.submodel.add(name, held, torch.ones_like(weights[name]))
            here = held > 0
            stays = self._stays[name] * int(here.sum()) // int(mask.sum())
            outcome = strongest(size, here, stays, draws)
            if assignment.growth is not None:
                outcome.view(-1)[update.candidates[name].places] = True
                here = here | ~mask
            self._votes[name] += update.examples * outcome
            self._weight[name] += update.examples * here

    def _observes(self, t: int) -> bool:
        options: FedRTSOptions = self.options
        return t <= self.options.end and (options.evidence == "every_round" or options.due(t))

    def adjust(self, t: int) -> None:
        if self._observes(t) and any(weight.any() for weight in self._weight.values()):
            self._learn(t)
        super().adjust(t)

    def _learn(self, t: int) -> None:
        """The posterior's update, with the topology as it was in the round."""
        gamma, draws = self.options.gamma, self.draws("aggregate", t)
        for name, mask in self.mask.items():
            best = strongest(self.state[name].abs(), mask, self._stays[name], draws)
            aggregate, weight = torch.where(mask, best.float(), 0.5), self._weight[name]
            own = torch.where(weight > 0, self._votes[name] / weight.clamp(min=1), aggregate)
            seen = mask | (weight > 0)
            if gamma == 1 and self.options.due(t):
                seen = torch.ones_like(mask)  # nobody is asked about places without a link: all of them get 1/2
            self.belief.update(name, gamma * aggregate + (1 - gamma) * own, seen)

    def adjusted(self, t: int) -> Mapping[str, Tensor]:
        draws, masks = self.draws("ties", t), {}
        for name, swap in self.swaps(t).items():
            mask = self.mask[name]
            if not swap:
                masks[name] = mask
                continue
            xi = self.belief.score(name, subseed(self.context.seed, "thompson", t, name))
            everywhere = torch.ones_like(mask)
            masks[name] = (
                drop_and_grow(mask, swap, xi, xi, draws)
                if self.options.cap_swaps
                else strongest(xi, everywhere, int(mask.sum()), draws)
            )
        return masks

    def beliefs(self) -> Mapping[str, Tensor]:
        return {name: self.belief.expected(name) for name in self.mask}

    def saved(self) -> State:
        return super().saved() | saved(self.belief)

    def restore(self, tensors: State) -> None:
        super().restore(tensors)
        restore(self.belief, tensors)
