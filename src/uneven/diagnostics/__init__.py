"""What a run measures beside training, and which changes nothing in it: masking errors, Fisher masks, coverage."""

from __future__ import annotations

from uneven.coverage import Coverage
from uneven.data import Federation
from uneven.diagnostics.comparison import Comparison, Trained
from uneven.diagnostics.options import DiagnosticsOptions
from uneven.errors import MethodError, SpecError
from uneven.methods import Method
from uneven.submodels import State
from uneven.tracking import Line


class Diagnostics:
    """Measures the rounds of one run: each after it is done, at the weights that it started from.

    Raises:
        SpecError: no round would be measured.
        MethodError: the model, or a client's capacity, has no masks to compare.
    """

    def __init__(self, options: DiagnosticsOptions, method: Method, federation: Federation) -> None:
        self._options, self._method = options, method
        rounds = method.context.rounds
        if not any(map(options.due, range(1, rounds + 1))):
            raise SpecError([f"diagnostics.every = {options.every}: must be at most rounds = {rounds}"])
        compared = sorted({"masking", "fisher"} & set(options.measured))
        self._coverage = Coverage(method.supernet) if "coverage" in options.measured else None
        try:
            self._comparison = (
                Comparison(compared, options.examples, method.context, federation) if compared else None
            )
        except MethodError as error:
            way_out = "or measure only diagnostics.parts = ['coverage']"
            raise MethodError(f"diagnostics.every = {options.every}: {error}; {way_out}") from error

    def after(self, t: int, trained: Trained) -> Line | None:
        """Count what was trained in round t, and measure it if that is due."""
        if self._coverage is not None:
            for assignment, part in trained:
                self._coverage.add(part, self._method.counted(assignment))
        if not self._options.due(t):
            return None
        line: Line = {}
        if self._comparison is not None:
            line |= self._comparison.round(t, trained)
        if self._coverage is not None:
            line["coverage"] = self._coverage.summary()
        return line

    def saved(self) -> State:
        """What a later round needs, for the checkpoint."""
        counts = {} if self._coverage is None else self._coverage.counts
        sums = {} if self._comparison is None else {"diagnostics/sums": self._comparison.sums}
        return sums | {f"diagnostics/coverage/{name}": count for name, count in counts.items()}

    def restore(self, tensors: State) -> None:
        """Take up what `saved` returned."""
        if self._comparison is not None:
            self._comparison.sums = tensors["diagnostics/sums"]
        if self._coverage is not None:
            counts = self._coverage.counts
            self._coverage.counts = {name: tensors[f"diagnostics/coverage/{name}"] for name in counts}


__all__ = ["Diagnostics", "DiagnosticsOptions"]
