"""The posterior at work: it finds the best links of a bandit, and a rule without a memory does not."""

from __future__ import annotations

import pytest
from benchmarks.bandit import ACTIVE, GAP, LINKS, REPEATS, LastRound, Thompson, regret, slopes


def test_thompson_sampling_learns_and_the_last_round_does_not() -> None:
    """20 links, 5 active, gap .2, lambda = 1, 20 repeats: regret a step over the second 1,000 of 2,000 steps."""
    assert (LINKS, ACTIVE, GAP, REPEATS) == (20, 5, 0.2, 20)
    assert slopes(regret(Thompson(1.0), steps=2000)).mean() < 0.02
    assert slopes(regret(LastRound(), steps=400)).mean() > 0.1


def test_the_first_step_is_a_guess() -> None:
    """5 of 20 at random have 1.25 of the best: a regret of .2 * 3.75; the mean of 20 is within .2 of that."""
    assert regret(Thompson(1.0), steps=1).mean() == pytest.approx(0.75, abs=0.2)


def test_repeats_differ_and_runs_do_not() -> None:
    one, again = (regret(Thompson(1.0), steps=50) for _ in range(2))
    assert (one == again).all()
    assert len(set(one[:, -1].tolist())) > 5
