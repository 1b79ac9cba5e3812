"""An experiment: the parts made from a spec, and the round loop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from uneven import data, models
from uneven.allocation import Allocation
from uneven.data import Federation
from uneven.device_fit import require_room
from uneven.devices import Fleet, fleet
from uneven.diagnostics import Diagnostics
from uneven.engines import Engine, SerialEngine, inspect
from uneven.errors import ModelError, QuorumError, SpecError
from uneven.evaluation import Evaluation, evaluate
from uneven.fitting import allocate, cards
from uneven.methods import Assignment, ClientCard, Context, Failure, Method, Update
from uneven.rng import generator
from uneven.sparsity import held
from uneven.spec import Spec
from uneven.submodels import State, Submodel, Supernet
from uneven.tracking import Line


@dataclass
class Round:
    """What one round did. Bytes are an estimate: those of the tensors that travel, uncoded. ``simulated``: the
    seconds that it would take on the clients' devices, where these are known."""

    t: int
    cohort: list[int]
    losses: list[float]
    failures: list[Failure]
    bytes_down: list[int]
    bytes_up: list[int]
    macs: int
    scoring_macs: int
    seconds: float
    trained: list[tuple[Assignment, Submodel]] = field(default_factory=list)
    """What each accepted client trained; kept for diagnostics alone."""
    diagnostics: Line | None = None
    simulated: float | None = None


def load_model(spec: Spec) -> tuple[Federation, Supernet]:
    """The data of a spec, and its model, analysed."""
    federation = data.load(spec.data, spec.clients.count, spec.seed)
    model = models.build(spec.model.name, federation.info, spec.model.options, spec.seed)
    example, _ = federation.test.batch(torch.tensor([0]))
    supernet = Supernet(model, example[0], **spec.groups.arguments())
    _check_output([axis.size for axis in supernet.structure.output[1:]], supernet, federation, spec)
    return federation, supernet


def _check_output(sizes: list[int], supernet: Supernet, federation: Federation, spec: Spec) -> None:
    info = federation.info
    classes, what = info.num_classes, f"{info.num_classes} classes"
    wanted = [*([supernet.exits] if supernet.exits else []), classes]
    if info.task == "next_token":
        wanted, what = [*info.input_shape, classes], f"texts of {info.input_shape[0]} of {classes} tokens"
    if sizes != wanted:
        shown, right = (", ".join(map(str, axes)) for axes in (sizes, wanted))
        raise ModelError(
            f"model.name = {spec.names['model']!r}: its output is (batch, {shown}), and the data have {what}: it "
            f"must be (batch, {right})"
        )


class Experiment:
    """One run in memory: data, model, method, engine. Tracking and checkpoints are in `uneven.tracking`.

    Raises:
        UnevenError: the spec, the data, the model and the method do not go together; says how.
    """

    def __init__(self, spec: Spec, loaded: tuple[Federation, Supernet] | None = None) -> None:
        """``loaded``: data and model, where they are not those that `load_model` gives."""
        self.spec = spec
        self.federation, self.supernet = loaded or load_model(spec)
        own = self.allocation.unit
        unit = spec.match or ("params" if own == "width" else own)
        context = Context(self.supernet, self.cards, spec.rounds, spec.seed, spec.training, spec.server, unit)
        self.method: Method = spec.method_class(context, spec.method_options)
        if self.fleet is not None:
            require_room(spec, self.method, self.fleet)
        half = self.method.Client(self.supernet, spec.training, self.method.options, spec.rounds, spec.seed)
        self.engine: Engine = SerialEngine(half, self.federation)
        self.cohort_size(self.method.eligible())
        measures = spec.diagnostics.every is not None
        self.diagnostics = Diagnostics(spec.diagnostics, self.method, self.federation) if measures else None

    @cached_property
    def fleet(self) -> Fleet | None:
        """The clients' devices, where the spec names them."""
        options = self.spec.devices
        return None if options is None else fleet(options, self.federation, self.spec.seed)

    @cached_property
    def allocation(self) -> Allocation:
        """How much of the model each client gets."""
        return allocate(self.spec, self.federation, self.supernet)

    @cached_property
    def cards(self) -> list[ClientCard]:
        """What the server knows of every client."""
        return cards(self.spec, self.federation, self.supernet, self.allocation)

    def cohort_size(self, eligible: Sequence[ClientCard]) -> int:
        cohort = self.spec.cohort
        size = cohort if isinstance(cohort, int) else max(1, math.ceil(round(cohort * len(eligible), 9)))
        if size > len(eligible):
            raise SpecError(
                [f"cohort = {cohort}: only {len(eligible)} of {len(self.cards)} clients can take part"]
            )
        return size

    def cohort(self, t: int) -> list[ClientCard]:
        """The clients of round t: a uniform draw without replacement, seeded by (seed, t)."""
        eligible = self.method.eligible()
        order = torch.randperm(len(eligible), generator=generator(self.spec.seed, "cohort", t))
        return [eligible[i] for i in order[: self.cohort_size(eligible)].tolist()]

    def round(self, t: int) -> Round:
        """Plan, train, merge, adjust.

        Raises:
            QuorumError: too few updates were accepted; the state is as before the round.
        """
        start = time.perf_counter()
        assignments = self.method.plan(t, self.cohort(t))
        log = Round(t, [a.client for a in assignments], [], [], [], [], 0, 0, 0.0)
        self.method.merge(t, self._accepted(assignments, log))
        if self.diagnostics is not None:
            self.diagnostics.merged(t)
        self.method.adjust(t)
        failed = {failure.client for failure in log.failures}
        self.engine.commit(client for client in log.cohort if client not in failed)
        log.seconds = time.perf_counter() - start
        if self.diagnostics is not None:
            log.diagnostics = self.diagnostics.after(t, log.trained)
        return log

    def _accepted(self, assignments: Sequence[Assignment], log: Round) -> Iterator[tuple[Assignment, Update]]:
        """The good updates as they come; at the end, whether there were enough of them."""
        for assignment, result in self.engine.train(assignments):
            checked = inspect(assignment, result)
            self._meter(assignment, checked, log)
            if isinstance(checked, Failure):
                log.failures.append(checked)
                continue
            log.losses.append(checked.loss)
            if self.diagnostics is not None:
                log.trained.append((assignment, assignment.trained(checked)))
                self.diagnostics.heard(assignment, checked)
            yield assignment, checked
        self._require_quorum(log)

    def _meter(self, assignment: Assignment, result: Update | Failure, log: Round) -> None:
        """Count what a client's part in the round cost; of one that failed, what it was sent."""
        down, up, macs, scoring = _bytes_down(assignment), 0, 0, 0
        if isinstance(result, Update):
            up = _bytes_up(assignment, result)
            macs = round(3 * self.method.macs(assignment, result) * result.seen)
            scoring = 3 * assignment.submodel.macs * result.scored
            if assignment.asks_loss:
                scoring += assignment.trained(result).macs * result.examples
        log.bytes_down.append(down)
        log.bytes_up.append(up)
        log.macs += macs
        log.scoring_macs += scoring
        if self.fleet is not None:  # the server waits for the slowest
            seconds = self.fleet[assignment.client].seconds(macs + scoring, down, up)
            log.simulated = max(log.simulated or 0.0, seconds)

    def _require_quorum(self, log: Round) -> None:
        needed = math.ceil(round(self.spec.quorum * len(log.cohort), 9))
        accepted = len(log.cohort) - len(log.failures)
        if accepted < max(needed, 1):
            first = log.failures[0]
            raise QuorumError(
                f"round {log.t}: {accepted} of {len(log.cohort)} updates were accepted, quorum = "
                f"{self.spec.quorum:g} needs {max(needed, 1)}; {self.spec.names['method']}, client "
                f"{first.client}: {first.reason}"
            )

    def evaluate(self, t: int) -> Evaluation:
        """Evaluate the state after round t."""
        return evaluate(self.method, self.federation, self.cards, t)

    def saved(self) -> State:
        """Every tensor that a later round needs, for the checkpoint."""
        return self.method.saved() | (self.diagnostics.saved() if self.diagnostics is not None else {})

    def restore(self, tensors: State) -> None:
        """Take up what `saved` returned."""
        self.method.restore(tensors)
        if self.diagnostics is not None:
            self.diagnostics.restore(tensors)

    def is_due(self, t: int) -> bool:
        """Whether round t is followed by an evaluation."""
        return t % self.spec.evaluation.every == 0 or t == self.spec.rounds


def _bytes_down(assignment: Assignment) -> int:
    submodel = assignment.submodel
    tensors = [(name, t) for state in assignment.payload.values() for name, t in state.items()]
    values = sum(submodel.select(name, tensor).numel() * tensor.element_size() for name, tensor in tensors)
    return values + (submodel.index_bytes if assignment.index_bytes is None else assignment.index_bytes)


def _bytes_up(assignment: Assignment, update: Update) -> int:
    states = [*update.payload.values(), update.answers]
    values = sum(t.numel() * t.element_size() for state in states for t in state.values())
    growth = assignment.growth
    named = sum(growth.nbytes(name) for name in update.candidates) if growth is not None else 0
    return values + _choice_bytes(assignment, update) + math.ceil(named)


def _choice_bytes(assignment: Assignment, update: Update) -> int:
    """What it takes to say which part the client chose."""
    exchange, submodel = assignment.exchange, assignment.submodel
    if exchange is None:
        return update.submodel.index_bytes if update.submodel is not None else 0
    own = held(submodel, exchange.masks)
    return math.ceil(math.fsum(exchange.nbytes(name, count) for name, count in own.items()))
