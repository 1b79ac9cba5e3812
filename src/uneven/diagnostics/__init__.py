"""What a run measures beside training, and which changes nothing in it: masking errors, Fisher masks, coverage,
what becomes of a topology."""

from __future__ import annotations

from uneven.coverage import Coverage
from uneven.data import Federation
from uneven.diagnostics.comparison import Comparison, Trained
from uneven.diagnostics.options import DiagnosticsOptions
from uneven.diagnostics.topology import Topology
from uneven.errors import MethodError, SpecError
from uneven.methods import Assignment, Method, Update
from uneven.methods.dynamic import DynamicMethod
from uneven.submodels import State
from uneven.tracking import Line


class Diagnostics:
    """Measures the rounds of one run: each after it is done, at the weights that it started from.

    Raises:
        SpecError: no round would be measured, or none of what is asked.
        MethodError: the model, or a client's capacity, has no masks to compare.
    """

    def __init__(self, options: DiagnosticsOptions, method: Method, federation: Federation) -> None:
        self._options, self._method = options, method
        rounds = method.context.rounds
        if not any(map(options.due, range(1, rounds + 1))):
            raise SpecError([f"diagnostics.every = {options.every}: must be at most rounds = {rounds}"])
        compared = sorted({"masking", "fisher"} & set(options.measured))
        self._coverage = Coverage(method.supernet) if "coverage" in options.measured else None
        self._topology = _topology(options, method, federation)
        try:
            self._comparison = (
                Comparison(compared, options.examples, method.context, federation) if compared else None
            )
        except MethodError as error:
            others = ["coverage"] if self._topology is None else ["coverage", "topology"]
            way_out = f"or measure only diagnostics.parts = {others}"
            raise MethodError(f"diagnostics.every = {options.every}: {error}; {way_out}") from error

    def heard(self, assignment: Assignment, update: Update) -> None:
        """Take note of an accepted update."""
        if self._topology is not None:
            self._topology.heard(assignment, update)

    def merged(self, t: int) -> None:
        """Take note of the method between the merge of round t and what it adjusts then."""
        if self._topology is not None:
            self._topology.merged(t)

    def after(self, t: int, trained: Trained) -> Line | None:
        """Count what was trained in round t, and measure it if that is due."""
        if self._coverage is not None:
            for assignment, part in trained:
                self._coverage.add(part, self._method.counted(assignment))
        measured = self._options.due(t)
        change = None if self._topology is None else self._topology.after(t, trained, measured)
        if not measured:
            return None
        line: Line = {} if change is None else {"topology": change}
        if self._comparison is not None:
            line |= self._comparison.round(t, trained)
        if self._coverage is not None:
            line["coverage"] = self._coverage.summary()
        return line or None

    def saved(self) -> State:
        """What a later round needs, for the checkpoint."""
        counts = {} if self._coverage is None else self._coverage.counts
        sums = {} if self._comparison is None else {"diagnostics/sums": self._comparison.sums}
        grown = {} if self._topology is None else self._topology.grown
        return (
            sums
            | {f"diagnostics/coverage/{name}": count for name, count in counts.items()}
            | {f"diagnostics/grown/{name}": mask for name, mask in grown.items()}
        )

    def restore(self, tensors: State) -> None:
        """Take up what `saved` returned."""
        if self._comparison is not None:
            self._comparison.sums = tensors["diagnostics/sums"]
        if self._coverage is not None:
            counts = self._coverage.counts
            self._coverage.counts = {name: tensors[f"diagnostics/coverage/{name}"] for name in counts}
        if self._topology is not None:
            grown = self._topology.grown
            self._topology.grown = {name: tensors[f"diagnostics/grown/{name}"] for name in grown}


def _topology(options: DiagnosticsOptions, method: Method, federation: Federation) -> Topology | None:
    if "topology" not in options.measured:
        return None
    asked, rounds = options.parts is not None, range(1, method.context.rounds + 1)
    if not isinstance(method, DynamicMethod):
        if asked:
            raise SpecError(["diagnostics.parts = 'topology': the method adjusts no topology"])
        return None
    if asked and not any(options.due(t) and method.options.due(t) for t in rounds):
        raise SpecError(
            [
                f"diagnostics.every = {options.every}: no round that is measured ends with an adjustment "
                f"(method.every = {method.options.every}, method.end = {method.options.end})"
            ]
        )
    return Topology(options.examples, method, federation)


__all__ = ["Diagnostics", "DiagnosticsOptions"]
