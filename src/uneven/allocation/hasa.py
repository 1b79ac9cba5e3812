"""HASA: the further a client's data are from everyone's, the wider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from uneven.allocation.base import Columns, PolicyOptions, View
from uneven.allocation.budget import BudgetOptions
from uneven.allocation.divergence import Scorer, Scoring, scored
from uneven.allocation.histograms import Kind
from uneven.allocation.ranked import Ranked


class HasaOptions(BudgetOptions):
    counts: Kind | None = None
    """What is counted of a client's training split: ``tokens``, ``labels``, or ``inputs``, the pixel values of
    images in 16 bins a channel. Default: tokens of texts, else labels."""
    alpha: float = Field(default=1.0, ge=0)
    """Added to every count."""
    score: Literal["js", "debiased"] = "js"
    """The divergence; or less what as many counts drawn from the pool would have on average, since small clients
    diverge by chance."""
    draws: int = Field(default=20, ge=1)
    """Draws from the pool, for the mean score of its own distribution."""
    noise: float | None = Field(default=None, ge=1e-6)
    """ε: Laplace noise on every count of a client, of scale (most counts of one example) / ε, so that all that it
    sends but its size is ε-differentially private by example, for a vocabulary fixed before. Default: none."""

    @model_validator(mode="after")
    def _smoothed(self) -> Self:
        if self.noise is not None and self.alpha == 0:
            raise ValueError("alpha = 0: noise may leave a client no counts, which needs alpha above 0")
        return self


class Hasa(Ranked):
    """The further a client's data are from everyone's, the wider.

    Paper: HASA (2026).

    Rule: c_n are the counts of client n's training split; p_n[v] = (c_n[v] + α) / (Σ c_n + α V), p_g the same
    from the pooled counts; s_n = JS(p_n ‖ p_g) in nats. h_n = (rank(s_n) - 1) / (K - 1), ties at their average
    rank, and the ratio before the budget is r_min + (r_max - r_min) h_n.

    Deviations: α, the bounds and ``passes = 2`` are second-hand. By default the budget is met exactly. The score
    grows as a client's data shrink, even where distributions are the same: its mean under the pool's distribution
    is reported beside it, and ``score = 'debiased'`` subtracts it, which is ours.
    """

    Options: ClassVar[type[PolicyOptions]] = HasaOptions

    def numbers(self, view: View) -> tuple[Sequence[float], Columns]:
        found = view.histograms(self.options.counts)
        self.options = self.options.model_copy(update={"counts": found.kind})
        epsilon = self.options.noise
        noise = 0.0 if epsilon is None else found.per_example / epsilon
        scoring = Scoring(self.options.alpha, self.options.draws, noise, view.seed)
        reports = scored([Scorer(n, counts, scoring) for n, counts in enumerate(found.counts)])
        score, null = [report.score for report in reports], [report.null for report in reports]
        debiased = [s - mean for s, mean in zip(score, null, strict=True)]
        return debiased if self.options.score == "debiased" else score, {"score": score, "null": null}
