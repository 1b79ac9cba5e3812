"""FedFIbOS: the parameters with the highest Fisher information on the client's own data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field, model_validator

from uneven.aggregation import OverlapAverage
from uneven.data import Examples
from uneven.errors import MethodError
from uneven.methods.base import Assignment, Choice, Client, ClientCard, Context, Grain, Method, Update
from uneven.methods.importance import ImportanceOptions, explored, pick
from uneven.rng import generator
from uneven.scores import NEEDS_GRADIENTS, Gradients, batch_squares, coupled, couples, gradients, score
from uneven.submodels import Network, State, Submodel

EXAMPLES = 512
SCORE = {"raw": "fisher"}  # a rule by its name among the scores, where that differs


class FedFIbOSOptions(ImportanceOptions):
    rule: Literal["raw", "weighted", "magnitude", "gradient_norm", "taylor", "obd", "random"] = "raw"
    """The score: Fisher information F (``raw``), F²x² (``weighted``), and for ablations |x|, |g|, (gx)²
    (``taylor``), ½Fx² (``obd``) or a fresh draw for every client and round (``random``)."""
    scores: Literal["client", "server"] | None = None
    """Who scores: the client, which holds the full model for it, or the server, by squared gradients that
    clients send. Default ``client``; the rules ``magnitude`` and ``random`` need no data: the server has them."""
    examples: int | None = Field(default=None, ge=1)
    """Score on so many of the client's examples at most, the first ones. Default 512."""
    memory: float | None = Field(default=None, ge=0, lt=1)
    """rho: how much of its mean square the server keeps when new ones come. Default 0.9."""
    explore: float | None = Field(default=None, ge=0, le=1)
    """eps_x: the share of a mask that the server draws at random, so that nothing starves. Default 0.1."""

    @model_validator(mode="before")
    @classmethod
    def _has_no_threshold(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "gradient" in given:
            raise ValueError(
                f"gradient = {given['gradient']!r}: FIARSE's gradient needs a threshold on |x|, which a mask by "
                "another score has not; use method 'fiarse'"
            )
        return given

    @property
    def score(self) -> str:
        return SCORE.get(self.rule, self.rule)


def client_scores(network: Network, data: Examples, options: FedFIbOSOptions) -> tuple[State, int]:
    """The score of every parameter of a full network, and the examples that it took."""
    found = gradients(network.eval(), data, limit=options.examples or EXAMPLES)
    weights = {name: weight.detach() for name, weight in network.weights().items()}
    return score(options.score, weights, found), found.examples


class FedFIbOSClient(Client):
    """Scores the full model, keeps the best of it and trains that (or trains what the server chose, and sends the
    squares of its gradients too)."""

    def train(self, assignment: Assignment, data: Examples, memory: State) -> tuple[Update, State]:
        model, part, allowed = assignment.payload["model"], assignment.submodel, assignment.choice
        scored, payload = 0, {}
        if allowed is not None:
            scores, scored = client_scores(self.network(assignment).load(model), data, self.options)
            part = pick(self.supernet, self.options, scores, allowed, model)
            model = part.gather(model)
        network = part.network().load(model)
        if assignment.extra:
            squares, scored = batch_squares(network, data, self.options.examples, self.training.batch_size)
            payload["fisher"] = part.gather(squares)
            network.load(model)
        report = self.fit(network, assignment, data, None)
        update = self.update(assignment, data, report, {"model": network.values(), **payload})
        return replace(update, submodel=None if allowed is None else part, scored=scored), memory


class FedFIbOS(Method):
    """A client holds the k_n parameters with the highest diagonal Fisher information on its own data.

    Paper: FedFIbOS 2026 (arXiv 2609.19559).

    Rule: at the full x_t, F_j = (1/|D|) sum (d log p(y|x; x_t) / d x_j)^2 over the client's examples, with their
    true labels, from per-example gradients. The client keeps TopK(F) (``raw``) or TopK(F^2 x^2) (``weighted``,
    which minimises eps(S) = sum over j not in S of F_j^2 x_j^2), trains x_t on it by masked SGD, and the server
    averages every coordinate over the clients that held it.

    Deviations: norms and biases are held by all and count in k_n; scores are taken without dropout. A capacity is
    evaluated on the mask of the largest |x| (the score needs data, which the server has not), a client's local
    accuracy on its own mask. ``scores = "server"`` is an approximation of ours: clients train the server's masks
    and send squared batch-mean gradients at x * M, and the server keeps Fbar <- rho Fbar + (1 - rho) mean over
    the clients that saw j. ``grain = "channel"`` is ours too: F is summed over a channel's entries in all tensors
    of its group.
    """

    Options = FedFIbOSOptions
    Client = FedFIbOSClient

    def __init__(self, context: Context, options: Any) -> None:
        super().__init__(context, options)
        self.fisher = {n: torch.zeros_like(self.state[n]) for n in self.supernet.parameters if self.extra}
        for client in {client.size: client for client in context.clients}.values():
            self._pick("magnitude", client)  # a capacity that is too small is an error now, not in some round

    @classmethod
    def grain(cls, options: Any) -> Grain:
        grain: Grain = options.grain
        return grain

    def resolve(self, context: Context, options: Any) -> Any:
        needs = options.score in NEEDS_GRADIENTS
        at_client, at_server = needs and options.scores != "server", options.scores == "server"
        ours = [
            ("scores", needs, f"rule '{options.rule}' needs no data"),
            ("examples", needs, "nothing is scored"),
        ]
        ours += [
            (n, at_server, "only the server keeps a mean, with scores = 'server'") for n in ("memory", "explore")
        ]
        problems = [
            f"method.{name} = {getattr(options, name)!r}: has no effect, {why}"
            for name, acts, why in ours
            if getattr(options, name) is not None and not acts
        ]
        if at_server and (options.grain == "channel" or options.rule not in ("raw", "weighted", "obd")):
            problems.append(
                "method.scores = 'server': knows mean squares of parameters; use grain 'parameter' and rule "
                "'raw', 'weighted' or 'obd'"
            )
        norm = couples(context.supernet.prefix(1.0).network()) if at_client else None
        if norm is not None:
            problems.append(f"model: {coupled(norm)}")
        if problems:
            raise MethodError("\n".join(problems))
        defaults = {"scores": "client", "examples": EXAMPLES} if needs else {}
        defaults |= {"memory": 0.9, "explore": 0.1} if at_server else {}
        return options.model_copy(update={n: v for n, v in defaults.items() if getattr(options, n) is None})

    def submodel(self, t: int, client: ClientCard) -> Submodel:
        if self.options.scores == "client":
            return self.supernet.prefix(1.0)
        return self._pick(self.options.score, client, t, client.id)

    def choice(self, client: ClientCard) -> Choice | None:
        return Choice(client.width, client.size) if self.options.scores == "client" else None

    @property
    def extra(self) -> tuple[str, ...]:
        return ("fisher",) if self.options.scores == "server" else ()

    def evaluation_submodel(self, client: ClientCard, t: int) -> Submodel:
        needs_data = self.options.scores == "client"
        return self._pick("magnitude" if needs_data else self.options.score, client, "evaluation", client.size)

    def own_submodel(self, client: ClientCard, t: int, data: Examples) -> Submodel | None:
        choice = self.choice(client)
        if choice is None:
            return None
        network = self.supernet.prefix(1.0).network().load(self.state)
        scores, _ = client_scores(network, data, self.options)
        return pick(self.supernet, self.options, scores, choice, self.state)

    def held(self, client: ClientCard, t: int) -> Submodel:
        return self.submodel(t, client)

    def _pick(self, rule: str, client: ClientCard, *key: int | str) -> Submodel:
        """The server's choice for a client, by a score of what the server knows."""
        weights = {name: self.state[name] for name in self.supernet.parameters}
        draws = generator(self.context.seed, "mask", *key)
        scores = score(rule, weights, Gradients({}, self.fisher, 0), draws)
        allowed = Choice(client.width, client.size)
        if not self.extra or "evaluation" in key:
            return pick(self.supernet, self.options, scores, allowed, self.state)
        return explored(self.supernet, self.options, scores, allowed, self.state, self.options.explore, draws)

    def merge(self, t: int, results: Iterable[tuple[Assignment, Update]]) -> None:
        if not self.extra:
            super().merge(t, results)
            return
        squares = OverlapAverage(self.fisher)

        def noted() -> Iterator[tuple[Assignment, Update]]:
            for assignment, update in results:
                squares.add(assignment.submodel, update.payload["fisher"], 1.0)
                yield assignment, update

        super().merge(t, noted())
        change, _ = squares.result()  # the clients' mean less the server's; zero where nobody looked
        gain = 1 - self.options.memory
        self.fisher = {name: mean + gain * change[name] for name, mean in self.fisher.items()}

    def saved(self) -> State:
        return super().saved() | {f"fisher/{name}": tensor for name, tensor in self.fisher.items()}

    def restore(self, tensors: State) -> None:
        super().restore(tensors)
        self.fisher = {name: tensors[f"fisher/{name}"] for name in self.fisher}
