'''The contract of a method, on one page.

A method answers: which part of the model does each client hold? It has two halves, both plain objects:

- the **server's** half, `Method`: `plan` gives every client of a round its assignment, `merge` puts the
  updates together, `adjust` does what is left to do between rounds;
- the **client's** half, `Client`: `train` turns an assignment, the client's data and its memory into an update.
  It is built from the method's name and options wherever the client runs, so nothing is pickled, ever.

A complete new method is one class. This one gives a client the channels whose position has its own parity:

>>> import torch
>>> import uneven
>>> from uneven.methods import ClientCard, Method, MethodOptions
>>> from uneven.submodels import Submodel
>>>
>>> class Parity(Method):
...     """Even clients hold the channels 0, 2, 4, ... first, odd clients 1, 3, 5, ..."""
...
...     class Options(MethodOptions):
...         flip: bool = False
...         """Exchange the two parities."""
...
...     def submodel(self, t: int, client: ClientCard) -> Submodel:
...         first = (client.id + self.options.flip) % 2
...         keep = {}
...         for group, k in self.supernet.channels(client.width).items():
...             order = torch.arange(self.supernet.groups[group].size)
...             keep[group] = torch.cat([order[first::2], order[1 - first :: 2]])[:k].sort().values
...         return self.supernet.submodel(keep)
...
...     def evaluation_submodel(self, client: ClientCard, t: int) -> Submodel:
...         return self.submodel(t, client)
>>>
>>> result = uneven.run(method=Parity, rounds=1, clients={"count": 10}, cohort=2, data={"train_limit": 200})
>>> sorted(result["per_capacity"][0])
['accuracy', 'bytes', 'capacity', 'clients', 'loss', 'macs', 'memory', 'parameters', 'parameters_held']

In a spec file the same method is ``[method] name = "my_module:Parity"``.
'''

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from uneven.aggregation import OverlapAverage, ServerOptimizer, ServerOptions
from uneven.data import Examples
from uneven.errors import MethodError
from uneven.methods.messages import Assignment, Candidates, Choice, Exchange, Failure, Growth, Update
from uneven.options import Options
from uneven.rng import generator, seeded, subseed
from uneven.submodels import Network, State, Submodel, Supernet
from uneven.submodels.cost import Unit
from uneven.training import (
    Correction,
    Loss,
    Objective,
    Report,
    TrainingOptions,
    mean_loss,
    of_logits,
    train_locally,
)
from uneven.training.losses import cross_entropy
from uneven.weightings import Weighting, weighting

__all__ = [
    "Assignment",
    "Candidates",
    "Choice",
    "Client",
    "ClientCard",
    "Context",
    "Exchange",
    "Failure",
    "Grain",
    "Growth",
    "Method",
    "MethodOptions",
    "Update",
]

Grain = Literal["channel", "parameter"]


class MethodOptions(Options):
    """A method's own options: typed fields, each with a description below it."""


@dataclass(frozen=True)
class ClientCard:
    """What the server knows of a client.

    ``examples``: n_n, of its training split. ``label_counts``: (classes,) int64, of the same. ``capacity``: as
    the spec gives it. ``width``: r_n, the share of every channel axis that the capacity allows. ``size``: k_n,
    the parameters that it allows. ``budget``: what the client may cost, in the unit that methods are matched
    by; None where they are not.
    """

    id: int
    examples: int
    label_counts: Tensor
    capacity: float
    width: float
    size: int
    budget: int | None = None


@dataclass(frozen=True)
class Context:
    """What a method is built for: the model, all the clients, the length and seed of the run, the options.

    ``unit``: what a client's budget counts, for a method that has more ways to spend it than a width.
    """

    supernet: Supernet
    clients: Sequence[ClientCard]
    rounds: int
    seed: int
    training: TrainingOptions = field(default_factory=TrainingOptions)
    server: ServerOptions = field(default_factory=ServerOptions)
    unit: Unit = "params"


class Client:
    """The client's half of a method: local training on the submodel. Pure: same arguments, same update.

    A method changes what it needs: `network`, `loss`, `objective`, `correction`, or all of `train`.
    """

    def __init__(
        self, supernet: Supernet, training: TrainingOptions, options: Any, rounds: int, seed: int
    ) -> None:
        self.supernet, self.training, self.options = supernet, training, options
        self.rounds, self.seed = rounds, seed

    def train(self, assignment: Assignment, data: Examples, memory: State) -> tuple[Update, State]:
        """Train and return the update, with the client's new memory (kept only if the update is accepted)."""
        network = self.network(assignment).load(assignment.payload["model"])
        report = self.fit(network, assignment, data, self.correction(network, assignment, memory))
        return self.update(assignment, data, report, {"model": network.values()}), memory

    def network(self, assignment: Assignment) -> Network:
        """The network to train."""
        return assignment.submodel.network()

    def loss(self, data: Examples) -> Loss:
        """The loss of logits and labels."""
        return cross_entropy

    def objective(self, network: Network, assignment: Assignment, data: Examples) -> Objective:
        """What each step minimises on its batch; the `loss` of the network's logits, unless told better."""
        return of_logits(network, self.loss(data))

    def correction(self, network: Network, assignment: Assignment, memory: State) -> Correction | None:
        """What is to be done to the gradients after each backward pass."""
        return None

    def fit(
        self,
        network: Network,
        assignment: Assignment,
        data: Examples,
        correct: Correction | None,
        part: tuple[int, int] | None = None,
    ) -> Report:
        """Local training, with every draw from the run's seed, the round and the client.

        ``part``: which part of a training in several, 0 the first, and its steps; each has an optimizer and an
        order of the examples of its own.
        """

        def confined(weights: Mapping[str, torch.nn.Parameter]) -> None:
            if correct is not None:
                correct(weights)
            network.confine()

        training, start = self.training, None
        key: tuple[str | int, ...] = ("train", assignment.round, assignment.client)
        if part is not None:
            training = training.model_copy(update={"epochs": None, "steps": part[1]})
            key = (*key, part[0])
        if assignment.asks_loss and (part is None or part[0] == 0):
            start = mean_loss(network, data, self.loss(data), training)
        lr = self.training.lr_at(assignment.round, self.rounds)
        with seeded(subseed(self.seed, "dropout", *key)):
            draws = generator(self.seed, "order", *key)
            objective = self.objective(network, assignment, data)
            report = train_locally(network, data, training, lr, draws, objective, confined)
        return replace(report, start=start)

    def update(
        self, assignment: Assignment, data: Examples, report: Report, payload: Mapping[str, State]
    ) -> Update:
        sizes = len(data), report.seen
        return Update(assignment.round, assignment.client, payload, *sizes, report.loss, start_loss=report.start)


class Method:
    """The server's half of a method. The least that a new one defines is `submodel`.

    Attributes:
        options: of the class's own ``Options``, as `resolve` left them.
        state: the global model, by tensor name. Replaced by `merge`, never changed in place.
    """

    Options: ClassVar[type[MethodOptions]] = MethodOptions
    Client: ClassVar[type[Client]] = Client
    NEUTRAL: ClassVar[Mapping[str, Any]] = {}
    """The options under which, at capacity 1, the method is FedAvg (law 1)."""
    EXEMPT: ClassVar[Mapping[int, str]] = {}
    """The laws of `tests/laws` that do not apply, by number, each with the reason and what is tested instead."""
    EXITS: ClassVar[bool] = False
    """Whether the method trains the early exits of a model that has them; where not, such a model is refused."""

    def __init__(self, context: Context, options: MethodOptions) -> None:
        self.context, self.supernet = context, context.supernet
        if self.supernet.exits and not self.EXITS:
            raise MethodError(
                f"the model has {self.supernet.exits} early exits, and this method trains one output: use "
                "method.name = 'scalefl', or leave model.exits out"
            )
        self.options: Any = self.resolve(context, options)
        self.state: State = dict(context.supernet.initial)
        self.optimizer = ServerOptimizer(context.server, self.state, context.supernet.parameters)

    def resolve(self, context: Context, options: MethodOptions) -> MethodOptions:
        """Options with every ``auto`` decided; raises `MethodError` where the method cannot run like this."""
        return options

    @classmethod
    def grain(cls, options: Any) -> Grain:
        """What a capacity is spent on: whole channels, or single parameters."""
        return "channel"

    def submodel(self, t: int, client: ClientCard) -> Submodel:
        """Which part of the model the client holds in round t. Must be defined."""
        raise TypeError(f"{type(self).__name__} must define submodel(t, client)")

    def evaluation_submodel(self, client: ClientCard, t: int) -> Submodel:
        """What is evaluated after round t for clients of this one's capacity: the prefix, unless told better."""
        return self.supernet.prefix(client.width)

    def own_submodel(self, client: ClientCard, t: int, data: Examples) -> Submodel | None:
        """What a client evaluates on its own test split after round t, if it chooses that by its training data."""
        return None

    def held(self, client: ClientCard, t: int) -> Submodel:
        """The largest part that a client has on its device, where it chooses what it trains out of more."""
        return self.evaluation_submodel(client, t)

    def eligible(self) -> Sequence[ClientCard]:
        """The clients that cohorts are drawn from."""
        return self.context.clients

    def payload(self, t: int, client: ClientCard) -> Mapping[str, State]:
        """The full tensors of which the client gets its part."""
        return {"model": self.state}

    @property
    def extra(self) -> tuple[str, ...]:
        """Names of sets that clients send beside the payload's, one tensor for every parameter they train."""
        return ()

    def choice(self, client: ClientCard) -> Choice | None:
        """How much of its submodel the client may train, where it chooses that itself."""
        return None

    def plan(self, t: int, cohort: Sequence[ClientCard]) -> list[Assignment]:
        """The round's assignments, the longest work first (ties by client), which is also the order of merging."""
        plans = [(c, self.submodel(t, c)) for c in cohort]
        plans.sort(key=lambda plan: (-self._work(*plan), plan[0].id))
        asks = self.weighting.asks_loss
        return [replace(self.assignment(t, c, submodel), asks_loss=asks) for c, submodel in plans]

    def assignment(self, t: int, client: ClientCard, submodel: Submodel) -> Assignment:
        """What the client is told to do with the submodel that it gets."""
        return Assignment(t, client.id, submodel, self.payload(t, client), self.extra, self.choice(client))

    def _work(self, client: ClientCard, submodel: Submodel) -> int:
        return submodel.macs * self.context.training.steps_for(client.examples)

    def merge(self, t: int, results: Iterable[tuple[Assignment, Update]]) -> None:
        """Put the accepted updates together as they come. Nothing changes until the last one is in."""
        filled = self.supernet.parameters if self.context.server.rule == "fill" else ()
        average, losses = OverlapAverage(self.state, filled), dict[int, float]()
        for assignment, update in results:
            counted = self.counted(assignment)
            average.add(assignment.trained(update), update.payload["model"], self.weight(update), counted)
            if update.start_loss is not None:
                losses[update.client] = update.start_loss
        self.state = self.optimizer.step(self.state, average)
        self.weighting.learn(losses)

    @cached_property
    def weighting(self) -> Weighting:
        """How much each client counts in the average."""
        return weighting(self.context.server, [client.id for client in self.eligible()])

    def weight(self, update: Update) -> float:
        """a_n, the update's weight in the average."""
        return self.weighting.weight(update.client, update.examples, update.start_loss)

    def macs(self, assignment: Assignment, update: Update) -> float:
        """Multiply-accumulates of the forward passes of one example in the client's training."""
        return assignment.trained(update).macs

    def counted(self, assignment: Assignment) -> Mapping[str, Tensor]:
        """For some tensors, which of the client's values count; see `OverlapAverage.add`."""
        return {}

    def values(self, submodel: Submodel) -> State:
        """What a network of this submodel is evaluated with."""
        return submodel.gather(self.state)

    def adjust(self, t: int) -> None:
        """What is left to do after round t."""

    @property
    def recalibrates(self) -> bool:
        """Whether running statistics are filled by one pass over training examples before an evaluation.

        By default wherever the model keeps any: a method whose submodels move would average those of different
        networks. One with nested submodels may keep them.
        """
        return bool(self.supernet.running)

    def saved(self) -> State:
        """Every tensor that a later round needs, for the checkpoint."""
        tensors = {f"model/{name}": tensor for name, tensor in self.state.items()}
        tensors |= {f"optimizer/{name}": tensor for name, tensor in self.optimizer.moments.items()}
        return tensors | {f"weighting/{name}": tensor for name, tensor in self.weighting.state.items()}

    def restore(self, tensors: State) -> None:
        """Take up what `saved` returned."""
        self.state = {name: tensors[f"model/{name}"] for name in self.state}
        self.optimizer.moments = {n: tensors[f"optimizer/{n}"] for n in self.optimizer.moments}
        self.weighting.state = {n: tensors[f"weighting/{n}"] for n in self.weighting.state}
