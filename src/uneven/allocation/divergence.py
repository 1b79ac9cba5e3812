"""How far a client's data are from everyone's, scored without showing its counts to anyone.

Each client sends its counts into a sum, which secure aggregation can take without any term being seen. It gets the
sum back, computes its own score, and sends the score and its size:

    client n: c_n ──► Σ c_n (server) ──► client n: s_n = JS(p_n ‖ p_g) ──► server: s_n, n_n

So the server's side, `scored`, sees sums and scores; all that needs a client's own counts is in `Scorer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import rel_entr

from uneven.errors import SpecError
from uneven.rng import subseed

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scoring:
    """How scores are made. ``alpha``: smoothing. ``draws``: of the null. ``noise``: the scale b of the Laplace
    noise on every count, 0 for none. ``seed``: of the run."""

    alpha: float
    draws: int
    noise: float
    seed: int


@dataclass(frozen=True)
class Report:
    """What a client sends: its score s_n in nats, and the mean score of as many counts drawn from the pool."""

    score: float
    null: float


class Scorer:
    """The client's side. Its counts are noised once; all that it sends comes from the noised ones."""

    def __init__(self, client: int, counts: ArrayLike, scoring: Scoring) -> None:
        """``counts``: (V,), not all 0."""
        self._scoring = scoring
        self._noised = _noised(np.asarray(counts), scoring.noise, _draws(scoring, "noise", client))

    def contribution(self) -> Floats:
        """(V,) what it adds to the sum."""
        return self._noised.clip(0)

    def report(self, pooled: Floats) -> Report:
        """Its score against the sum of all contributions, (V,)."""
        everyone = smoothed(pooled, self._scoring.alpha)
        own = smoothed(self.contribution(), self._scoring.alpha)
        return Report(float(js(own, everyone)), float(js(self._drawn(pooled), everyone).mean()))

    def _drawn(self, pooled: Floats) -> Floats:
        """(draws, V) distributions of as many counts as the client has, drawn from the pool, noised like its own.

        The draws depend on the number of counts alone: clients of one size have the same null.
        """
        count, scoring = max(1, round(self._noised.sum())), self._scoring
        draws = _draws(scoring, "null", count)
        counts = draws.multinomial(count, pooled / pooled.sum(), scoring.draws)
        return smoothed(_noised(counts, scoring.noise, draws).clip(0), scoring.alpha)


def scored(clients: Sequence[Scorer]) -> list[Report]:
    """The server's side: sum up, send the sum, collect the reports.

    Raises:
        SpecError: noise has drowned all counts.
    """
    pooled = sum((client.contribution() for client in clients), np.zeros(()))
    if not pooled.any():
        raise SpecError(["allocation.noise: the noise leaves nothing of all counts; use a larger ε, or none"])
    return [client.report(pooled) for client in clients]


def smoothed(counts: Floats, alpha: float) -> Floats:
    """p[v] = (c[v] + alpha) / (sum of c + alpha V), along the last axis."""
    raised = counts + alpha
    return raised / raised.sum(-1, keepdims=True)  # type: ignore[no-any-return]


def js(p: Floats, q: Floats) -> Floats:
    """Jensen-Shannon divergence KL(p ‖ m) / 2 + KL(q ‖ m) / 2 with m = (p + q) / 2, in nats, along the last axis.

    Lin 1991, Divergence measures based on the Shannon entropy, eq. 4.1 with equal weights. In [0, ln 2].
    """
    m = (p + q) / 2
    return (rel_entr(p, m).sum(-1) + rel_entr(q, m).sum(-1)) / 2  # type: ignore[no-any-return]


def _noised(counts: NDArray[np.generic], scale: float, draws: np.random.Generator) -> Floats:
    """Counts with Laplace noise of this scale on each."""
    exact = counts.astype(np.float64)
    return exact if scale == 0 else exact + draws.laplace(0.0, scale, exact.shape)


def _draws(scoring: Scoring, purpose: str, key: int) -> np.random.Generator:
    return np.random.default_rng(subseed(scoring.seed, "allocation", purpose, key))
