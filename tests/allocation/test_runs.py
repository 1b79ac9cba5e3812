"""Allocation in whole runs: what is written down, what methods make of it, what the command line shows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import uneven
from tests.run.helpers import assert_same_run, lines, one_error, server, sets
from uneven.data import from_tensors
from uneven.errors import SpecError
from uneven.experiment import Experiment
from uneven.spec import parse
from uneven.submodels.cost import cost

PLAIN = {"heterofl": {}, "federated_dropout": {}, "fedrolex": {}, "slimmable": {}, "fedavg": {"fit": "smallest"}}


def sections(**changes: Any) -> dict[str, Any]:
    """Five clients of unequal sizes; most examples of client c are of class c mod 3."""
    draws = torch.Generator().manual_seed(0)
    client = torch.arange(5).repeat_interleave(torch.tensor([10, 14, 18, 22, 26]))
    y = torch.where(torch.rand(90, generator=draws) < 0.6, client, torch.arange(90)) % 3
    x = torch.randn(90, 6, generator=draws) + y[:, None]
    source = from_tensors(x, y, test=(x[:12], y[:12]), client=client)
    base: dict[str, Any] = {
        "rounds": 2,
        "cohort": 2,
        "data": {"source": source, "partition": "natural"},
        "model": {"name": "mlp", "hidden": [20, 10]},
        "training": {"epochs": 1, "batch_size": 8},
        "allocation": "hasa",
    }
    return base | changes


def mean(numbers: list[float], examples: list[int]) -> float:
    return math.fsum(n * x for n, x in zip(examples, numbers, strict=True)) / sum(examples)


def test_what_a_run_writes_down(tmp_path: Path) -> None:
    result = uneven.run(sections(), out=tmp_path / "run")
    rows = lines(tmp_path / "run" / "clients.jsonl")
    examples = [row["examples"] for row in rows]
    given = result["allocation"]
    assert {key: given[key] for key in ("policy", "cost", "budget")} == {
        "policy": "hasa",
        "cost": "width",
        "budget": 0.5,
    }
    assert given["exact"] == pytest.approx(0.5, abs=1e-9)
    assert given["exact"] == pytest.approx(mean([row["ratio"] for row in rows], examples), abs=1e-12)
    assert given["realised"] == pytest.approx(mean([row["width"] for row in rows], examples), abs=1e-12)
    assert 0.5 - min(examples) / sum(examples) / 20 <= given["realised"] <= 0.5 + 1e-9
    assert all(row["capacity"] == row["width"] for row in rows)
    assert all(0 <= row["score"] <= math.log(2) and row["null"] > 0 for row in rows)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["allocation"] == given


@pytest.mark.parametrize("unit", ["width2", "params", "macs", "bytes", "memory"])
def test_realised_budgets_are_what_the_clients_hold(unit: Any) -> None:
    allocation = {"name": "hasa", "cost": unit, "budget": 0.4}
    experiment = Experiment(parse(sections(allocation=allocation)))
    cards, net = experiment.cards, experiment.supernet

    def share(width: float) -> float:
        if unit == "width2":
            return width**2
        return cost(net.prefix(width), unit, experiment.spec.training) / cost(
            net.prefix(1.0), unit, experiment.spec.training
        )

    held = mean([share(card.width) for card in cards], [card.examples for card in cards])
    result = uneven.run(sections(rounds=1, allocation=allocation))
    assert result["allocation"]["realised"] == pytest.approx(held, abs=1e-12)
    assert 0.38 <= held <= 0.4 + 1e-9
    assert len({card.width for card in cards}) > 1


@pytest.mark.parametrize("method", sorted(PLAIN))
def test_every_method_gets_the_widths(method: str) -> None:
    result = uneven.run(sections(method={"name": method, **PLAIN[method]}))
    assert result["allocation"]["realised"] == pytest.approx(0.5, abs=0.02)
    assert len(result["per_capacity"]) > 1


def test_tiers_report_what_they_realise() -> None:
    """Capacities as given; in channels they round up: of .5, .26 and 20, 10 channels it is .5, .3."""
    clients = {"capacities": [1, 0.5, 0.26, 0.26, 0.26]}
    experiment = Experiment(parse(sections(allocation="tiers", clients=clients)))
    examples = [card.examples for card in experiment.cards]
    given = uneven.run(sections(allocation="tiers", clients=clients, rounds=1))["allocation"]
    assert given == {
        "policy": "tiers",
        "cost": "width",
        "realised": pytest.approx(mean([1, 0.5, 0.3, 0.3, 0.3], examples)),
    }


def test_tiers_in_another_unit_report_it() -> None:
    clients = {"capacities": {"values": [1, 0.5, 0.2, 0.2, 0.2], "unit": "macs"}}
    experiment = Experiment(parse(sections(allocation="tiers", clients=clients)))
    full = experiment.supernet.prefix(1.0).macs
    held = [experiment.supernet.prefix(card.width).macs / full for card in experiment.cards]
    given = uneven.run(sections(allocation="tiers", clients=clients, rounds=1))["allocation"]
    assert given["cost"] == "macs"
    assert given["realised"] == pytest.approx(mean(held, [card.examples for card in experiment.cards]))


# Single parameters.


def test_masks_get_shares_of_the_parameters() -> None:
    allocation = {"name": "hasa", "cost": "params"}
    experiment = Experiment(parse(sections(method="fiarse", allocation=allocation)))
    given, d = experiment.allocation, experiment.supernet.size
    assert given.unit == "params"
    assert [card.size for card in experiment.cards] == [round(c * d) for c in given.capacities]
    assert {abs(c * d - round(c * d)) < 1e-6 for c in given.capacities} == {True}
    assert given.ratios is not None
    assert all(abs(c - r) < 1 / d for c, r in zip(given.capacities, given.ratios, strict=True))
    result = uneven.run(sections(method="fiarse", allocation=allocation, rounds=1))
    assert result["allocation"]["cost"] == "params"
    assert 0.5 - 1 / d <= result["allocation"]["realised"] <= 0.5 + 1e-9


def test_masks_refuse_a_budget_in_widths_and_say_what_to_do() -> None:
    with pytest.raises(
        SpecError, match=r"allocation\.cost = 'width': this method holds single parameters"
    ) as told:
        Experiment(parse(sections(method="fiarse")))
    assert "cost = 'params'" in str(told.value)
    assert "match = 'params'" in str(told.value)
    with pytest.raises(SpecError, match=r"^allocation: .* of the macs cannot be reached by a mask"):
        Experiment(parse(sections(method="fiarse", match="macs")))


def test_match_gives_masks_as_many_parameters_as_the_widths_have() -> None:
    masks = Experiment(parse(sections(method="fiarse", match="params")))
    widths = Experiment(parse(sections(match="params")))
    assert masks.allocation.capacities == widths.allocation.capacities
    assert [card.size for card in masks.cards] == [card.size for card in widths.cards]
    result = uneven.run(sections(method="fiarse", match="params", rounds=1))
    assert result["allocation"]["cost"] == "width"
    assert result["budget"]["mean"] == pytest.approx(1.0)


# The command line.


def test_the_run_folder_runs_again_and_the_budget_is_told(tmp_path: Path) -> None:
    given = sets({"allocation": "hasa", "rounds": 2, "name": "mine"})
    first = server()("run", *given, "--out", "first", cwd=tmp_path)
    assert (first.code, first.err) == (0, "")
    told = [line for line in first.out.splitlines() if line.startswith("allocation hasa: ")]
    assert len(told) == 1
    assert told[0].startswith(
        "allocation hasa: 0.5 of the full model's width asked on average, 0.5000 before rounding"
    )
    again = server()("run", "first/spec.toml", "--out", "second", cwd=tmp_path)
    assert (again.code, again.err) == (0, "")
    assert_same_run(tmp_path / "second", tmp_path / "first")


def test_the_plan_shows_who_gets_how_much(tmp_path: Path) -> None:
    plain = server()("plan", *sets(), cwd=tmp_path)
    assert "what each client gets" not in plain.out
    ended = server()("plan", *sets({"allocation": "hasa", "model.hidden": [30]}), cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(plain.out.splitlines()[0])
    rows = [
        line.split("│")[1:-1]
        for line in ended.out.partition("what each client gets")[2].splitlines()
        if "│" in line
    ]
    assert len(rows) == 6
    examples = [int(row[1]) for row in rows]
    widths = [float(row[5]) for row in rows]
    assert mean(widths, examples) == pytest.approx(0.5, abs=0.01)
    assert "allocation hasa: 0.5 of the full model's width" in ended.out


def test_a_budget_that_cannot_be_met_is_one_error(tmp_path: Path) -> None:
    ended = server()("run", *sets({"allocation": "hasa", "allocation.budget": 0.9}), cwd=tmp_path)
    one_error(ended, "allocation.budget = 0.9: cannot be met", "0.2 to 0.8")
