"""Diagnostics in whole runs: what they find, that they change nothing, and that they go on after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import uneven
from tests.run.helpers import assert_same_run, lines, one_error, server, sets
from tests.run.test_result import FULL, HALF, sections
from uneven import diagnostics
from uneven.data import Examples, Info
from uneven.diagnostics import comparison
from uneven.diagnostics.masks import masking_errors
from uneven.errors import MethodError, SpecError
from uneven.experiment import Experiment
from uneven.spec import parse

RULES = ("raw", "weighted", "magnitude", "random", "own")
LINEAR = {"name": "mlp", "hidden": []}
MASKS = {"count": 4, "capacities": {"values": [1, 0.6, 1, 0.6], "unit": "params"}}
METHODS: dict[str, dict[str, Any]] = {
    "fedrolex": {},
    "heterofl": {},
    "scaffold": {"method": {"name": "scaffold", "fit": "smallest"}},
    "fedfibos": {"clients": MASKS},
    "fiarse": {"clients": MASKS},
}


def of(method: str, **changes: Any) -> dict[str, Any]:
    return sections(**({"method": {"name": method}} | METHODS[method] | changes))


def without_diagnostics(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("diagnostics", "seconds")}


@pytest.mark.parametrize("method", METHODS)
def test_the_run_is_the_same_bit_for_bit(method: str, tmp_path: Path) -> None:
    """The lines but for what is added, the result, every tensor of the method; MACs metered are of training."""
    off = uneven.run(out=tmp_path / "off", **of(method))
    on = uneven.run(out=tmp_path / "on", **of(method, diagnostics={"every": 1}))
    assert without_diagnostics(on) == without_diagnostics(off)
    ours, theirs = (lines(tmp_path / name / "rounds.jsonl") for name in ("on", "off"))
    assert [without_diagnostics(line) for line in ours] == [without_diagnostics(line) for line in theirs]
    assert all("diagnostics" in line for line in ours)
    assert not any("diagnostics" in line for line in theirs)
    saved, reference = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("on", "off"))
    added = {name for name in saved if name.startswith("diagnostics/")}
    assert saved.keys() - added == reference.keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in reference.items())


def test_off_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made, and no submodel of a round is kept."""
    monkeypatch.setattr(diagnostics.Diagnostics, "__init__", None)
    experiment = Experiment(parse(of("fedfibos")))
    assert experiment.diagnostics is None
    assert experiment.round(1).trained == []
    assert experiment.saved().keys() == experiment.method.saved().keys()


def flat(state: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([state[name].reshape(-1) for name in ("1.weight", "1.bias")])


def by_formula(state: dict[str, torch.Tensor], data: Examples) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient and Fisher information of a linear model, as vectors: of each example (p - y) x^T and p - y."""
    logits = data.x @ state["1.weight"].T + state["1.bias"]
    error = torch.softmax(logits, 1) - torch.nn.functional.one_hot(data.y, 3)
    each = torch.cat([(error[:, :, None] * data.x[:, None]).flatten(1), error], 1).double()
    return each.mean(0), each.square().mean(0)


def test_a_round_by_formula() -> None:
    """FIARSE on a linear model of 5 inputs and 3 classes, at the weights that the round started from.

    15 weights and 3 biases. Capacity 0.6 is ceil(0.6 * 18) = 11 parameters, 8 of them weights, which are chosen;
    FIARSE's own mask is that of the largest |x|.
    """
    experiment = Experiment(parse(of("fiarse", model=LINEAR, diagnostics={"every": 1})))
    x = dict(experiment.method.state)
    line = experiment.round(1).diagnostics
    assert line is not None
    assert not torch.equal(experiment.method.state["1.weight"], x["1.weight"])
    worst = {"raw": 0.0, "weighted": 0.0, "magnitude": 0.0}
    for row in line["clients"]:
        data = experiment.federation.clients[row["client"]].train
        k = {1.0: 15, 0.6: 8}[experiment.cards[row["client"]].capacity]
        assert (row["size"], row["own_size"]) == (k + 3, k + 3)
        g, fisher = by_formula(x, data)
        terms = (fisher * flat(x)).square()[:15]
        scores = {"raw": fisher[:15], "weighted": terms, "magnitude": flat(x)[:15].abs()}
        chosen = {}
        for rule, score in scores.items():
            inside = torch.zeros(18, dtype=torch.bool)
            inside[score.topk(k).indices] = True
            inside[15:] = True
            chosen[rule] = inside[:15]
            there = (flat(x) * inside).split([15, 3])
            masked = {"1.weight": there[0].view(3, 5), "1.bias": there[1]}
            lost = (g - by_formula(masked, data)[0]).square()
            errors = {"error": (lost * inside).sum().item(), "full_error": lost.sum().item()}
            for key, value in errors.items():
                assert row["masking"][key][rule] == pytest.approx(value, rel=1e-3, abs=1e-9)
            assert row["fisher"]["epsilon"][rule] == pytest.approx(terms[~inside[:15]].sum().item(), rel=1e-3)
            worst[rule] = max(worst[rule], errors["error"])
        assert row["masking"]["error"]["own"] == row["masking"]["error"]["magnitude"]
        shared = int((chosen["raw"] & chosen["weighted"]).sum()) / k
        assert row["fisher"]["overlap"]["raw_weighted"] == pytest.approx(shared)
    norm = flat(x).double().square().sum().item()
    assert line["bound"]["norm2"] == pytest.approx(norm)
    for rule, value in worst.items():
        assert line["bound"]["delta2"][rule] == pytest.approx(value / norm, rel=1e-3)


def test_fedfibos_own_mask_is_raw() -> None:
    experiment = Experiment(parse(of("fedfibos", diagnostics={"every": 1})))
    line = experiment.round(1).diagnostics
    assert line is not None
    for row in line["clients"]:
        assert row["own_size"] == row["size"] == {1.0: FULL, 0.6: 24}[experiment.cards[row["client"]].capacity]
        assert row["masking"]["error"]["own"] == row["masking"]["error"]["raw"]
        if row["size"] < FULL:
            assert row["masking"]["error"]["own"] != row["masking"]["error"]["magnitude"]


def test_a_channel_submodel_is_the_tensors_with_zeros() -> None:
    """The error of a window of channels, by autograd on the full network; the first window is the prefix."""
    experiment = Experiment(parse(of("fedrolex", diagnostics={"every": 1})))
    x = dict(experiment.method.state)
    line = experiment.round(1).diagnostics
    assert line is not None
    inside = {name: torch.zeros_like(value) for name, value in x.items()}
    for name, index in {"1.weight": (slice(2),), "1.bias": (slice(2),), "3.weight": (slice(3), slice(2))}.items():
        inside[name][index] = 1
    inside["3.bias"][:] = 1
    network = experiment.supernet.prefix(1.0).network()
    for row in line["clients"]:
        data, error, own = experiment.federation.clients[row["client"]].train, 0.0, row["own_size"]
        if own == HALF:
            gradients = []
            for at in (x, {name: value * inside[name] for name, value in x.items()}):
                network.load(at)
                loss = torch.nn.functional.cross_entropy(network(data.x), data.y)
                gradients.append(torch.autograd.grad(loss, list(network.weights().values())))
            pairs = zip(network.weights(), *gradients, strict=True)
            error = sum(((g - h) * inside[name]).square().sum().item() for name, g, h in pairs)
        assert own in (FULL, HALF)
        assert row["masking"]["error"]["own"] == pytest.approx(error, rel=1e-4)


def test_means_and_the_running_sum() -> None:
    """Every second of four rounds: the sum of max_n e_n over the rounds that were measured."""
    experiment = Experiment(parse(of("fedrolex", rounds=4, diagnostics={"every": 2})))
    found = [experiment.round(t).diagnostics for t in range(1, 5)]
    assert found[0] is found[2] is None
    total = dict.fromkeys(RULES, 0.0)
    for line in (found[1], found[3]):
        assert line is not None
        errors = [row["masking"]["error"] for row in line["clients"]]
        assert tuple(errors[0]) == RULES
        for rule in RULES:
            each = [error[rule] for error in errors]
            total[rule] += max(each)
            assert line["bound"]["delta2"][rule] * line["bound"]["norm2"] == pytest.approx(max(each))
            assert line["mean"]["masking"]["error"][rule] == pytest.approx(sum(each) / 4)
        assert line["bound"]["measured_sum"] == pytest.approx(total)
        holds = [row["fisher"]["dominant"] for row in line["clients"]]
        assert line["mean"]["fisher"]["dominant"] == sum(holds) / 4


def test_masks_from_few_examples_and_of_the_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client has 15 - 3 = 12 training examples or so: from 2, 8 and 20 of them, the last is left out."""
    monkeypatch.setattr(comparison, "EXAMPLES", (2, 8, 20))
    experiment = Experiment(parse(of("fiarse", model=LINEAR, diagnostics={"every": 1, "parts": ["fisher"]})))
    x = dict(experiment.method.state)
    line = experiment.round(1).diagnostics
    assert line is not None
    assert line.keys() == {"clients", "mean", "macs"}
    data = [experiment.federation.clients[row["client"]].train for row in line["clients"]]
    assert all(8 < len(own) < 20 for own in data)

    def top(fisher: torch.Tensor, k: int) -> set[int]:
        return set(fisher[:15].topk(k).indices.tolist())

    cohort = torch.stack([by_formula(x, own)[1] for own in data]).mean(0)
    shares = set()
    for row, own in zip(line["clients"], data, strict=True):
        k, raw = row["size"] - 3, top(by_formula(x, own)[1], row["size"] - 3)
        few = {str(n): len(top(by_formula(x, own[:n])[1], k) & raw) / k for n in (2, 8)}
        assert row["fisher"]["examples"] == pytest.approx(few)
        assert row["fisher"]["cohort"] == pytest.approx(len(top(cohort, k) & raw) / k)
        shares |= {*few.values(), row["fisher"]["cohort"]}
    assert len(shares) > 1
    assert line["macs"] == 3 * experiment.supernet.prefix(1.0).macs * sum(map(len, data))


def test_a_limit_on_examples() -> None:
    """From the first 4 examples of each client; with MACs of Fisher, of x, and of five masks."""
    experiment = Experiment(parse(of("fiarse", model=LINEAR, diagnostics={"every": 1, "examples": 4})))
    x = dict(experiment.method.state)
    line = experiment.round(1).diagnostics
    assert line is not None
    assert line["macs"] == 3 * 15 * 7 * 4 * 4
    for row in line["clients"]:
        _, fisher = by_formula(x, experiment.federation.clients[row["client"]].train[:4])
        terms, k = (fisher * flat(x)).square()[:15], row["size"] - 3
        least = terms.sort().values[: 15 - k].sum().item()
        assert row["fisher"]["epsilon"]["weighted"] == pytest.approx(least, rel=1e-3)


def test_random_masks_differ_by_client_and_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four clients of one size in two rounds; another run draws the same."""
    seen: list[tuple[bool, ...]] = []

    def noted(network: Any, x: Any, data: Any, masks: dict[str, dict[str, torch.Tensor]]) -> Any:
        seen.append(tuple(masks["random"]["1.weight"].flatten().tolist()))
        return masking_errors(network, x, data, masks)

    monkeypatch.setattr(comparison, "masking_errors", noted)
    for _ in range(2):
        clients = {"count": 4, "capacities": 0.5}
        experiment = Experiment(parse(of("fedrolex", clients=clients, diagnostics={"every": 1})))
        for t in (1, 2):
            experiment.round(t)
    assert len(set(seen[:8])) == 8
    assert seen[8:] == seen[:8]


def test_scores_that_are_no_numbers_end_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise MethodError("the scores of 1.weight are not numbers (NaN)")

    experiment = Experiment(parse(of("fedrolex", diagnostics={"every": 1})))
    monkeypatch.setattr(comparison, "mask", fails)
    line = experiment.round(1).diagnostics
    assert line is not None
    assert line["mean"] is None
    assert "bound" not in line
    assert all(row["problem"].startswith("the scores of 1.weight") for row in line["clients"])
    assert not any(row.keys() & {"masking", "fisher"} for row in line["clients"])


def test_resumed_it_writes_the_same_lines(tmp_path: Path) -> None:
    """A checkpoint every third round, killed in round 5: counts and sums go on from round 3."""
    arguments = sets({"method.name": "fedrolex", "rounds": 6, "diagnostics.every": 2, "checkpoint.every": 3})
    assert server()("run", *arguments, "--out", "whole", cwd=tmp_path).code == 0
    fault = "at('uneven.methods.base:Method.merge', 5)"
    killed = server()("run", *arguments, "--out", "cut", cwd=tmp_path, before=fault)
    assert killed.killed, killed
    ended = server()("run", "--resume", "cut", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, ""), ended
    assert_same_run(tmp_path / "cut", tmp_path / "whole")
    told = [line.get("diagnostics") for line in lines(tmp_path / "whole" / "rounds.jsonl")]
    assert [t for t, line in enumerate(told, 1) if line is not None] == [2, 4, 6]
    assert told[5]["coverage"] != told[1]["coverage"]


def test_the_command_refuses_batch_norm(tmp_path: Path) -> None:
    batch_norm = {"model.name": "cnn", "model.hidden": None, "model.norm": "batch", "diagnostics.every": 1}
    ended = server()("run", *sets(batch_norm), "--out", "one", cwd=tmp_path)
    one_error(ended, "diagnostics.every = 1", "batch norm", "group norm", "diagnostics.parts = ['coverage']")
    assert not (tmp_path / "one").exists()
    ended = server()("run", *sets(batch_norm, {"diagnostics.parts": ["coverage"]}), "--out", "one", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, ""), ended


def forgetful(info: Info) -> nn.Module:
    """A model whose norm keeps no statistics, and takes those of the batch in evaluation too."""
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    return nn.Sequential(nn.Linear(5, 4), norm, nn.ReLU(), nn.Linear(4, info.num_classes))


def test_a_norm_without_statistics_is_refused_too() -> None:
    with pytest.raises(MethodError, match=r"diagnostics.every = 1: masks .* the batch norm 1 couples them"):
        Experiment(parse(of("fedrolex", model={"name": forgetful}, diagnostics={"every": 1})))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"every": 0}, "diagnostics.every = 0: input should be greater than or equal to 1"),
        ({"every": 1, "parts": []}, "parts = (): must name at least one of masking, fisher, coverage"),
        ({"every": 1, "parts": ["cover"]}, "diagnostics.parts.0 = 'cover': input should be 'masking', 'fisher'"),
        ({"parts": ["coverage"]}, "parts = ('coverage',): has no effect without diagnostics.every"),
        ({"examples": 3}, "examples = 3: has no effect without diagnostics.every"),
        ({"every": 1, "parts": ["coverage"], "examples": 3}, "examples = 3: has no effect where only coverage"),
    ],
)
def test_options_that_do_nothing(table: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as error:
        parse(sections(diagnostics=table))
    assert says in str(error.value)


def test_a_run_too_short_to_be_measured() -> None:
    with pytest.raises(SpecError, match=r"diagnostics.every = 4: must be at most rounds = 3"):
        Experiment(parse(sections(diagnostics={"every": 4})))
    Experiment(parse(sections(diagnostics={"every": 3})))


def test_a_capacity_too_small_for_a_mask() -> None:
    """Width 1/16 of 8 channels is 5 + 1 + 3 + 3 = 12 parameters, and 11 are biases; of 16 there are 19."""
    clients = {"count": 4, "capacities": 0.0625}
    Experiment(parse(sections(model={"name": "mlp", "hidden": [8]}, clients=clients, diagnostics={"every": 1})))
    with pytest.raises(MethodError, match=r"diagnostics.every = 1: a capacity of 12 of 147 .* \['coverage'\]"):
        Experiment(
            parse(sections(model={"name": "mlp", "hidden": [16]}, clients=clients, diagnostics={"every": 1}))
        )
