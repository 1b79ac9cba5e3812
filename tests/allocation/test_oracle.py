"""The oracle: the widths of the highest accuracy under a budget, and how accuracies are measured."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import uneven
from tests.allocation.world import allocate, view
from tests.run.helpers import contents, lines, tiny_data
from uneven.data import from_tensors
from uneven.errors import DataError, SpecError
from uneven.experiment import Experiment
from uneven.run import resume
from uneven.spec import load, parse

WIDTHS = [0.2, 0.5, 0.8]
accuracies = st.integers(1, 5).flatmap(
    lambda k: st.tuples(
        st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3), min_size=k, max_size=k),
        st.lists(st.integers(1, 60), min_size=k, max_size=k),
        st.lists(st.sampled_from([0.3, 0.6, 1.0]), min_size=k, max_size=k),
    )
)


@settings(max_examples=80)
@given(accuracies, st.floats(0.25, 0.55))
def test_no_other_choice_of_widths_is_better(clients: Any, budget: float) -> None:
    """What is left of the budget widens all, so each client ends at the width chosen for it or above."""
    rows, sizes, caps = clients
    rows = [[own / 20 for own in row] for row in rows]
    share = [n / sum(sizes) for n in sizes]
    assume(sum(p * min(cap, 0.8) for p, cap in zip(share, caps, strict=True)) >= budget)
    measured = view(sizes, hidden=(40,), accuracies=rows)
    given = allocate("oracle", measured, widths=WIDTHS, budget=budget, caps=caps)

    def mean(choice: Any) -> float:
        return sum(row[WIDTHS.index(w)] for row, w in zip(rows, choice, strict=True)) / len(rows)

    every = itertools.product(*([w for w in WIDTHS if w <= cap] for cap in caps))
    best = max(
        mean(choice) for choice in every if sum(p * w for p, w in zip(share, choice, strict=True)) <= budget + 1e-9
    )
    assert given.ratios is not None
    assert given.exact == pytest.approx(budget, abs=1e-9)
    reached = [[w for w in WIDTHS if w <= ratio + 1e-6] for ratio in given.ratios]
    assert sum(max(row[: len(own)]) for row, own in zip(rows, reached, strict=True)) / len(rows) >= best - 1e-9


def test_by_hand() -> None:
    """Only the second gains by width: .2, .8 cost exactly the budget."""
    rows = [[0.5, 0.5, 0.5], [0.1, 0.3, 0.9]]
    given = allocate("oracle", view([10, 10], accuracies=rows), widths=WIDTHS)
    assert given.ratios == pytest.approx([0.2, 0.8])
    assert given.columns["accuracy_at_0.5"] == [0.5, 0.3]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"widths": [0.5, 0.2]}, "must ascend"),
        ({"widths": [0.1, 0.5]}, "must ascend from r_min = 0.2"),
        ({"widths": [0.2, 0.9]}, "r_max = 0.8"),
        ({"widths": [0.2, 0.8], "accuracies": [[0.1]]}, "each client needs one for each of the 2 widths"),
        ({"accuracies": [[0.1, 0.2, 1.3, 0.2, 0.2]]}, r"accuracies\.0\.2 = 1\.3"),
    ],
)
def test_wrong_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        parse({"allocation": {"name": "oracle", **options}})


def test_rows_for_other_clients() -> None:
    with pytest.raises(SpecError, match=r"allocation\.accuracies: 1 rows for 2 clients"):
        allocate("oracle", view([1, 1]), widths=[0.2], accuracies=[[0.5]])


def test_widths_that_cost_too_much() -> None:
    with pytest.raises(SpecError, match=r"widths = \[0\.6, 0\.8\]: even the narrowest cost more"):
        allocate("oracle", view([1, 1], accuracies=[[0.5, 0.5]] * 2), widths=[0.6, 0.8])


# The probe.


def sections(n: int = 48, **changes: Any) -> dict[str, Any]:
    """Four natural clients of two classes."""
    draws = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 2
    x = torch.randn(n, 6, generator=draws) + 3 * y[:, None]
    source = from_tensors(x, y, test=(x[:10], y[:10]), client=torch.arange(n) // 2 % 4)
    base: dict[str, Any] = {
        "rounds": 2,
        "cohort": 2,
        "data": {"source": source, "partition": "natural"},
        "model": {"name": "mlp", "hidden": [10]},
        "training": {"epochs": 1, "batch_size": 4, "lr": 0.1},
        "allocation": {"name": "oracle", "widths": WIDTHS},
    }
    return base | changes


def test_accuracies_are_measured_on_training_examples_alone() -> None:
    spec = parse(sections())
    plain = Experiment(spec)
    options = plain.allocation.options
    assert len(options.accuracies) == 4  # type: ignore[attr-defined]
    assert all(len(own) == len(WIDTHS) for own in options.accuracies)  # type: ignore[attr-defined]
    for client in plain.federation.clients:
        client.test.y.fill_(1 - int(client.test.y[0]))  # in place: nothing of it may be read
        client.test.x.fill_(float("nan"))
    again = Experiment(spec, (plain.federation, plain.supernet))
    assert again.allocation.options == options


def test_a_run_writes_accuracies_down_and_goes_on_with_them(tmp_path: Path) -> None:
    folder, data = tmp_path / "run", {"source": tiny_data(), "shape": [1, 8, 8], "partition": "iid"}
    uneven.run(sections(data=data, clients={"count": 4}), out=folder, rounds=1)
    given = load(folder / "spec.toml").allocation_options.accuracies
    assert len(given) == 4
    text = (folder / "spec.toml").read_text()
    first = [[row[f"accuracy_at_{w:g}"] for w in WIDTHS] for row in lines(folder / "clients.jsonl")]
    assert [list(own) for own in given] == first
    other = text.replace(str(first[0][0]), "0.123", 1)
    (folder / "spec.toml").write_text(other.replace("rounds = 1\n", "rounds = 2\n"))
    resume(folder)
    assert lines(folder / "clients.jsonl")[0]["accuracy_at_0.2"] == 0.123, "not measured again"
    assert contents(folder)["result.json"]["rounds"] == 2


def test_what_cannot_be_measured() -> None:
    with pytest.raises(DataError, match="client 0: 1 training examples are too few for allocation 'oracle'"):
        Experiment(parse(sections(n=8))).allocation  # noqa: B018
    close = {"name": "oracle", "widths": [0.2, 0.21, 0.8]}
    with pytest.raises(SpecError, match=r"allocation\.widths = \[0\.2, 0\.21, 0\.8\]: .*no effect"):
        Experiment(parse(sections(model={"name": "mlp", "hidden": [4]}, allocation=close)))
