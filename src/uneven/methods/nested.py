"""What the methods share that train several widths of one network: a ladder of prefixes, one inside the other, and
the running statistics of each.

A norm over a batch sees other activations at every width, so that one set of running statistics fits none of them.
Where a method keeps them apart, they are sets of their own beside the model, ``statistics/<width>``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from torch import Tensor

from uneven.aggregation import OverlapAverage
from uneven.data import Examples
from uneven.errors import MethodError
from uneven.methods.base import Assignment, Client, ClientCard, Context, Method, MethodOptions, Update
from uneven.options import Many, Share
from uneven.submodels import Network, State, Submodel, Supernet
from uneven.submodels.channels import Select, take
from uneven.training import Objective

Steps = Sequence[Sequence[float]]  # the widths that each step trains


class NestedOptions(MethodOptions):
    ladder: Many[Share] | None = None
    """Widths to train, those of the clients always among them. Default: those alone."""

    def steps(self, widths: Sequence[float], count: int, key: tuple[int, ...]) -> Steps:
        """The widths of each of a client's steps, in the order in which they run. Must be defined.

        ``widths``: of the ladder up to the client's own, ascending. ``key``: seed, round and client.
        """
        raise TypeError(f"{type(self).__name__} must define steps(widths, count, key)")

    @property
    def apart(self) -> bool:
        """Whether each width has running statistics of its own, if the model has any."""
        return True


def up_to(ladder: Sequence[float], submodel: Submodel) -> Sequence[float]:
    """The widths of the ladder that a prefix holds, ascending; its own is the last."""
    keys = [submodel.supernet.prefix(width).key for width in ladder]
    return ladder[: keys.index(submodel.key) + 1]


def set_of(width: float) -> str:
    """The name of the set of a width's running statistics."""
    return f"statistics/{width}"


class NestedNetwork(Network):
    """The network of a client's own width, and the narrower ones inside it, over the same weights."""

    def __init__(self, supernet: Supernet, widths: Sequence[float], statistics: Mapping[str, State]) -> None:
        """``statistics``: by set, in the shapes of the own width; what is beyond a narrower width stays."""
        own = supernet.prefix(widths[-1])
        network = own.network()
        super().__init__(network.tensors, *network.graphs, network.constants)
        self.statistics = {kind: {n: t.clone() for n, t in state.items()} for kind, state in statistics.items()}
        self._networks = {width: supernet.prefix(width).network() for width in widths}
        self._selects = {width: supernet.prefix(width).within(own) for width in widths}

    def at(self, width: float, x: Tensor) -> Tensor:
        """Logits of one width, ``(batch, classes)``, in the present mode; its gradients reach these weights."""
        selects = self._selects[width]
        tensors = {name: take(tensor, selects[name]) for name, tensor in self.tensors.items()}
        apart = self.statistics.get(set_of(width), {})
        own = {name: take(tensor, selects[name]) for name, tensor in apart.items()}
        logits = self._networks[width].train(self.training).call(tensors | own, x)
        for name, tensor in apart.items():
            _write(tensor, selects[name], own[name])
        return logits


def _write(into: Tensor, selects: Sequence[Select], values: Tensor) -> None:
    """Put values in the places of a vector that they were taken from, if they are not views of it."""
    if isinstance(selects[0], Tensor):
        into.index_copy_(0, selects[0], values)


class NestedClient(Client):
    """In every step trains the widths that the options say, by labels or by the logits of the step's first."""

    def network(self, assignment: Assignment) -> NestedNetwork:
        widths = up_to(self.options.ladder, assignment.submodel)
        statistics = {kind: state for kind, state in assignment.payload.items() if kind != "model"}
        return NestedNetwork(self.supernet, widths, statistics)

    def train(self, assignment: Assignment, data: Examples, memory: State) -> tuple[Update, State]:
        network = self.network(assignment).load(assignment.payload["model"])
        report = self.fit(network, assignment, data, None)
        payload = {"model": network.values(), **network.statistics}
        return self.update(assignment, data, report, payload), memory

    def objective(self, network: Network, assignment: Assignment, data: Examples) -> Objective:
        nested, loss = cast(NestedNetwork, network), self.loss(data)
        widths = up_to(self.options.ladder, assignment.submodel)
        key = (self.seed, assignment.round, assignment.client)
        steps = iter(self.options.steps(widths, self.training.steps_for(len(data)), key))

        def terms(x: Tensor, y: Tensor) -> Iterator[Tensor]:
            first, *others = next(steps)
            logits = nested.at(first, x)
            yield loss(logits, y)
            goal = self.goal(logits.detach(), y)
            for width in others:
                yield loss(nested.at(width, x), goal)

        return terms

    def goal(self, logits: Tensor, y: Tensor) -> Tensor:
        """What a step's other widths are to predict: labels or probabilities. ``logits``: of the first."""
        return y


class NestedMethod(Method):
    """A client holds the prefix of its width and trains the ladder's widths inside it.

    A width that no client holds is not evaluated: the widest that some client holds is, in its place.
    """

    Options = NestedOptions
    Client = NestedClient

    def __init__(self, context: Context, options: Any) -> None:
        super().__init__(context, options)
        names = [name for pair in self.supernet.running for name in pair] if self.options.apart else []
        initial = {name: self.state[name] for name in names}
        self.statistics = {set_of(width): initial for width in self.options.ladder if names}
        self._sets = {self.supernet.prefix(width).key: set_of(width) for width in self.options.ladder}

    def resolve(self, context: Context, options: Any) -> Any:
        """With the ladder of all widths, ascending; of the clients' that come to the same channels only one."""
        own = {client.width for client in context.clients}
        taken = {context.supernet.prefix(width).key: width for width in sorted(own, reverse=True)}
        for width in sorted(set(options.ladder or ()) - own, reverse=True):
            same = taken.setdefault(context.supernet.prefix(width).key, width)
            if width > max(own) or width != same:
                why = f"comes to the channels of {same:g}" if width != same else "is wider than every client"
                raise MethodError(f"method.ladder = {list(options.ladder)}: {width:g} has no effect, it {why}")
        return options.model_copy(update={"ladder": tuple(sorted(taken.values()))})

    def submodel(self, t: int, client: ClientCard) -> Submodel:
        return self.supernet.prefix(client.width)

    def evaluation_submodel(self, client: ClientCard, t: int) -> Submodel:
        return self.supernet.prefix(min(client.width, self.options.ladder[-1]))

    @property
    def recalibrates(self) -> bool:
        return super().recalibrates and not self.statistics

    def values(self, submodel: Submodel) -> State:
        return submodel.gather(self.state | self.statistics.get(self._sets[submodel.key], {}))

    def steps(self, t: int, client: ClientCard) -> Steps:
        """The widths of each of a client's steps in round t, as the client itself has them."""
        widths = up_to(self.options.ladder, self.submodel(t, client))
        count = self.context.training.steps_for(client.examples)
        steps: Steps = self.options.steps(widths, count, (self.context.seed, t, client.id))
        return steps

    def payload(self, t: int, client: ClientCard) -> Mapping[str, State]:
        if not self.statistics:
            return super().payload(t, client)
        trained = sorted({width for widths in self.steps(t, client) for width in widths})
        return {"model": self.state, **{set_of(width): self.statistics[set_of(width)] for width in trained}}

    def macs(self, assignment: Assignment, update: Update) -> float:
        steps = self.steps(assignment.round, self.context.clients[assignment.client])
        return sum(self.supernet.prefix(width).macs for widths in steps for width in widths) / len(steps)

    def merge(self, t: int, results: Iterable[tuple[Assignment, Update]]) -> None:
        """The overlap average, and of each width's statistics over those that trained it. Those of the widest
        are the model's own."""
        averages = {kind: OverlapAverage(state) for kind, state in self.statistics.items()}

        def averaged() -> Iterator[tuple[Assignment, Update]]:
            for assignment, update in results:
                for kind in averages.keys() & assignment.payload.keys():
                    averages[kind].add(assignment.submodel, update.payload[kind], self.weight(update))
                yield assignment, update

        super().merge(t, averaged())
        self.statistics = {kind: self.optimizer.step(self.statistics[kind], averages[kind]) for kind in averages}
        self.state = self.state | self.statistics.get(set_of(self.options.ladder[-1]), {})

    def saved(self) -> State:
        sets = self.statistics.items()
        return super().saved() | {f"{kind}/{name}": t for kind, state in sets for name, t in state.items()}

    def restore(self, tensors: State) -> None:
        super().restore(tensors)
        self.statistics = {k: {n: tensors[f"{k}/{n}"] for n in state} for k, state in self.statistics.items()}
