"""ScaleFL: small clients hold a narrower and a shallower model, with early exits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from uneven.data import Examples
from uneven.errors import MethodError
from uneven.methods.base import Assignment, Client, ClientCard, Context, Method, MethodOptions
from uneven.options import Count, Many
from uneven.submodels import Network, Submodel
from uneven.submodels.cost import cost, widest
from uneven.training import Objective, of_logits

DEFAULTS = {"distillation": 0.5, "temperature": 3.0, "distill_after": 0.25}


class ScaleFLOptions(MethodOptions):
    exits: bool | Annotated[Many[Count], Field(min_length=1)] = True
    """The exit that each capacity goes up to, the largest capacity first. ``true``: of E exits the e whose width
    is nearest to e / E. ``false``: none, widths alone."""
    distillation: float | None = Field(default=None, ge=0)
    """gamma, the weight of distillation from a client's last exit to its earlier ones; 0 is none. Default 0.5."""
    temperature: float | None = Field(default=None, gt=0)
    """tau, which divides the logits that are distilled. Default 3."""
    distill_after: float | None = Field(default=None, ge=0, le=1)
    """Distil after this share of the rounds. Default 0.25."""

    @model_validator(mode="after")
    def _no_dead_options(self) -> Self:
        off = "exits = false" if self.exits is False else "distillation = 0" if self.distillation == 0 else None
        for name in DEFAULTS:
            value = getattr(self, name)
            if off and value is not None and not off.startswith(name):
                raise ValueError(f"{name} = {value:g}: has no effect with {off}")
        return self


def exit_loss(logits: Tensor, y: Tensor, gamma: float, tau: float) -> Tensor:
    """The loss of all exits, a scalar; ``logits`` (batch, exits, classes), ``y`` (batch,). See `ScaleFL`."""
    exits = logits.shape[1]
    losses = cross_entropy(logits.mT, y[:, None].expand(-1, exits), reduction="none").mean(0)
    if gamma and exits > 1:
        student, teacher = log_softmax(logits[:, :-1] / tau, -1), log_softmax(logits[:, -1:].detach() / tau, -1)
        apart = kl_div(student, teacher.expand_as(student), reduction="none", log_target=True).sum(-1).mean(0)
        losses = torch.cat([losses[:-1] + gamma * tau**2 * apart, losses[-1:]])
    j = torch.arange(1.0, exits + 1)
    return (j * losses).sum() / j.sum()


class ScaleFLClient(Client):
    """Trains all exits that it holds at once."""

    def objective(self, network: Network, assignment: Assignment, data: Examples) -> Objective:
        if self.options.exits is False:
            return super().objective(network, assignment, data)
        distils = assignment.round > round(self.options.distill_after * self.rounds, 9)
        gamma, tau = self.options.distillation if distils else 0.0, self.options.temperature
        return of_logits(network, lambda logits, y: exit_loss(logits, y, gamma, tau))


class ScaleFL(Method):
    """Smaller clients hold a prefix of the channels of the model up to an early exit.

    Paper: Ilhan, Su, Liu 2023, ScaleFL: Resource-Adaptive Federated Learning with Heterogeneous Clients
    (CVPR 2023).

    Rule: a client that goes up to exit L minimises sum_{j <= L} j l_j / (L (L + 1) / 2). l_j is the cross-entropy
    of exit j; for j < L, after a quarter of the rounds, gamma tau^2 KL(p_L || p_j) is added, where p is the
    softmax of logits / tau and no gradient goes through p_L. Every coordinate is averaged over the clients that
    hold it. A submodel is evaluated at its last exit.

    Deviations: reconstructed where the paper could not be had. A capacity's exit is the one at which width and
    depth shrink most alike (an option names it); its width is the largest at which the submodel costs no more
    than the prefix of the whole model that the capacity allows, in the unit that methods are matched by or
    capacities are given in (of a width: in parameters). gamma and tau are ours. The heads are the model's.
    """

    Options = ScaleFLOptions
    Client = ScaleFLClient
    EXITS = True
    NEUTRAL: ClassVar[Mapping[str, Any]] = {"exits": False}

    def __init__(self, context: Context, options: Any) -> None:
        super().__init__(context, options)
        self._levels: dict[tuple[float, float, int | None], Submodel] = {}

    def resolve(self, context: Context, options: Any) -> Any:
        exits, there = options.exits, context.supernet.exits
        levels = len({client.capacity for client in context.clients})
        if exits is False and there:
            raise MethodError(f"method.exits = false: the model has {there} exits; leave model.exits out")
        if exits is not False and not there:
            raise MethodError(
                f"method.exits = {_shown(exits)}: the model has no early exits; use one that has, as resnet18 "
                "with model.exits = true, or false"
            )
        if isinstance(exits, tuple) and (len(exits) != levels or max(exits) > there):
            raise MethodError(
                f"method.exits = {_shown(exits)}: must be one of 1..{there} for each of the {levels} capacities, "
                "the largest first"
            )
        unset = {} if exits is False else {n: v for n, v in DEFAULTS.items() if getattr(options, n) is None}
        return options.model_copy(update=unset)

    def submodel(self, t: int, client: ClientCard) -> Submodel:
        return self.level(client)

    def evaluation_submodel(self, client: ClientCard, t: int) -> Submodel:
        return self.level(client)

    def level(self, client: ClientCard) -> Submodel:
        """The part that a client's capacity is worth."""
        key = (client.capacity, client.width, client.budget)
        if key not in self._levels:
            whole = self.supernet.prefix(client.width)
            self._levels[key] = whole if self.options.exits is False else self._shrunk(client, whole)
        return self._levels[key]

    def _shrunk(self, client: ClientCard, whole: Submodel) -> Submodel:
        """The part up to an exit that costs no more than the budget, by default that of the whole prefix."""
        unit, training = self.context.unit, self.context.training
        limit, exits = client.budget or cost(whole, unit, training), self._exits(client)

        def fits(part: Submodel) -> bool:
            return cost(part, unit, training) <= limit

        widths = {e: widest(self.supernet, fits, e) or client.width for e in exits}  # at which it always fits
        e = min(widths, key=lambda e: (abs(widths[e] - e / self.supernet.exits), -e))
        return self.supernet.prefix(widths[e], e)

    def _exits(self, client: ClientCard) -> list[int]:
        """The exits up to which a client of this capacity may go."""
        if self.options.exits is True:
            return list(range(1, self.supernet.exits + 1))
        larger = {card.capacity for card in self.context.clients if card.capacity > client.capacity}
        return [self.options.exits[len(larger)]]


def _shown(exits: bool | tuple[int, ...]) -> str:
    return str(exits).lower() if isinstance(exits, bool) else f"{list(exits)}"
