"""FedMef: FedTiny whose links are pressed out before they are dropped, on activations that are stored sparse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from uneven.data import Examples
from uneven.errors import MethodError
from uneven.methods.base import Assignment, ClientCard, Context
from uneven.methods.fedtiny import FedTiny, FedTinyOptions
from uneven.methods.topology_client import SparseClient, part_of
from uneven.rng import generator
from uneven.sparsity import held, strongest
from uneven.sparsity.activations import SparseActivations
from uneven.submodels import Network, Submodel
from uneven.training import Correction, Objective, Report


class FedMefOptions(FedTinyOptions):
    """Options of `FedMef`."""

    candidates: int | None = Field(default=1, ge=1)
    """As FedTiny's. Default 1: the paper does not choose among topologies."""
    extrusion: float | None = Field(default=None, ge=0)
    """lambda, the weight of the penalty on the links that are about to be dropped; 0: no extrusion. Default 1,
    and 0 at density 1, where nothing is dropped."""
    ramp: Literal["linear", "constant"] | None = None
    """How lambda rises over a round's steps: from 0 to its full value, or not at all. Default ``linear``."""
    extrusion_rounds: int | None = Field(default=None, ge=1)
    """In how many rounds up to an adjustment there is a penalty. Default 1: the one that ends with it."""
    activation_density: float = Field(default=0.3, gt=0, le=1)
    """The share of a layer's input that is kept for the backward pass; 1: all of it, and other functions keep what
    they keep too."""


class FedMefClient(SparseClient):
    """Trains with extrusion before an adjustment, and stores its activations sparse."""

    def objective(self, network: Network, assignment: Assignment, data: Examples) -> Objective:
        plain, density = super().objective(network, assignment, data), self.options.activation_density
        if density == 1:
            return plain
        weights = network.weights().values()

        def sparse(x: Tensor, y: Tensor) -> list[Tensor]:
            with SparseActivations(density, weights):
                return list(plain(x, y))

        return sparse

    def fit(
        self,
        network: Network,
        assignment: Assignment,
        data: Examples,
        correct: Correction | None,
        part: tuple[int, int] | None = None,
    ) -> Report:
        low = self.low(network, assignment)
        correct = self.extrude(low, self.training.steps_for(len(data))) if low else correct
        return super().fit(network, assignment, data, correct, part)

    def low(self, network: Network, assignment: Assignment) -> dict[str, Tensor]:
        """Where the links are that the next adjustment would drop as things are; empty where none is near."""
        draws, weights = generator(self.seed, "extrusion", assignment.round), network.weights()
        given = part_of(assignment)
        return {
            name: strongest(-weights[name].detach().abs(), given.holds(name), count, draws)
            for name, count in assignment.going.items()
        }

    def extrude(self, low: Mapping[str, Tensor], steps: int) -> Correction:
        """Adds the gradient of (lambda / 2) sum w^2 over those links, in each of so many steps."""
        done = count(1)

        def press(weights: Mapping[str, torch.nn.Parameter]) -> None:
            step, strength = next(done), self.options.extrusion
            if self.options.ramp == "linear":
                strength *= step / steps
            for name, links in low.items():
                gradient = weights[name].grad
                if gradient is not None:
                    gradient.add_(weights[name].detach() * links, alpha=strength)

        return press


class FedMef(FedTiny):
    """FedTiny, where a penalty moves what the links to be dropped know to the others, in less activation memory.

    Paper: Huang et al. 2024, FedMef, Towards Memory-efficient Federated Dynamic Pruning (arXiv 2403.14737). This
    is a reconstruction from its description: the schedule of lambda, the links that are pressed and how
    activations are stored are choices.

    Rule: in the ``extrusion_rounds`` rounds up to an adjustment a client's loss has (lambda_s / 2) sum w_i^2
    beside it, over the swap_l links of each layer with the lowest |w| at the round's start, those of them that it
    holds; lambda_s rises linearly from 0 to lambda over the round's steps. The adjustment is FedTiny's. Scaled
    activation pruning, in every round: of a layer's input the largest share by |a| is kept for the backward pass,
    scaled so that its norm is that of all; only the gradients of the layers' own weights are changed by it (see
    `uneven.sparsity.activations`).

    Deviations: FedTiny's, save that no topology is chosen at the start unless ``candidates`` says so. The reported
    loss is without the penalty. The memory that a run reports is that of dense activations: what is saved is in
    ``benchmarks/activation_memory.py``. The paper's normalised convolutions are left out: the model is the user's.
    """

    Options = FedMefOptions
    Client = FedMefClient
    NEUTRAL: ClassVar[Mapping[str, Any]] = {"density": 1.0, "extrusion": 0.0, "activation_density": 1.0}

    def resolve(self, context: Context, options: Any) -> Any:
        if options.activation_density < 1:  # a layer computed from its links stores its input whole
            if options.sparse_layers:
                raise MethodError(
                    "method.sparse_layers: what they store is not pruned; use [], or activation_density = 1"
                )
            options = options.model_copy(update={"sparse_layers": ()})
        if options.density == 1 and options.extrusion:
            raise MethodError(f"method.extrusion = {options.extrusion:g}: has no effect at density 1")
        if options.extrusion is None:
            options = options.model_copy(update={"extrusion": 1.0 if options.density < 1 else 0.0})
        names = ("ramp", "extrusion_rounds")
        if options.extrusion == 0:
            for name in names:
                if getattr(options, name) is not None:
                    raise MethodError(
                        f"method.{name} = {getattr(options, name)!r}: has no effect with extrusion 0"
                    )
            return super().resolve(context, options)
        defaults = {"ramp": "linear", "extrusion_rounds": 1}
        given = {name: getattr(options, name) or defaults[name] for name in names}
        return super().resolve(context, options.model_copy(update=given))

    def assignment(self, t: int, client: ClientCard, submodel: Submodel) -> Assignment:
        return replace(super().assignment(t, client, submodel), going=self.going(t, submodel))

    def going(self, t: int, submodel: Submodel) -> dict[str, int]:
        """How many of its smallest links a client is to press; what it does not hold is smaller and goes first."""
        due = next((r for r in range(t, t + (self.options.extrusion_rounds or 0)) if self.options.due(r)), None)
        if due is None:
            return {}
        own, links = held(submodel, self.mask), self.links
        return {name: max(swap - (links[name] - own[name]), 0) for name, swap in self.swaps(due).items()}
