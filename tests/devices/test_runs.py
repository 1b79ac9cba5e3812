"""Devices in whole runs: the clock, how much of the model each gets, and what the command line shows."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import uneven
from tests.cli.test_compare import FORKED
from tests.run.helpers import lines, one_error, server, sets
from tests.run.test_result import FULL, HALF, sections
from uneven.data import Examples
from uneven.errors import MethodError, SpecError
from uneven.experiment import Experiment
from uneven.methods import Assignment, Update
from uneven.methods.heterofl import HeteroFL, HeteroFLClient
from uneven.plan import device_memory
from uneven.run import resume
from uneven.spec import parse
from uneven.statistics import reach, reached
from uneven.submodels import State
from uneven.submodels.cost import cost, widths
from uneven.submodels.memory import HEADROOM
from uneven.training import TrainingOptions

FAST = {"memory": "1MB", "macs_per_second": 1000, "down": 100, "up": 50}
SLOW = FAST | {"macs_per_second": 500}
TWO = {"classes": {"fast": FAST, "slow": SLOW}, "clients": ["fast", "slow", "fast", "fast"]}
PLAIN = {"name": "heterofl", "scaler": False, "masked_loss": False, "label_rows": False}


def seconds(parameters: int, macs: float, rate: float, up: bool = True) -> float:
    return macs / rate + 4 * parameters / 100 + up * 4 * parameters / 50


# 12 examples, 2 epochs, three times the forward pass of 5 x 4 + 4 x 3 or half of it.
FULL_MACS, HALF_MACS = 3 * 24 * 32, 3 * 24 * 16
OF_FULL, OF_SLOW_HALF = seconds(FULL, FULL_MACS, 1000), seconds(HALF, HALF_MACS, 500)


def test_a_round_takes_as_long_as_its_slowest_client(tmp_path: Path) -> None:
    """The slow client of half the width has as much to compute, and less to send."""
    assert OF_FULL > OF_SLOW_HALF > seconds(HALF, HALF_MACS, 1000)
    result = uneven.run(out=tmp_path / "r", **sections(method=PLAIN, devices=TWO))
    times = [line["simulated_seconds"] for line in lines(tmp_path / "r" / "rounds.jsonl")]
    assert times == pytest.approx([OF_FULL] * 3)
    assert result["simulated_seconds"] == pytest.approx(3 * OF_FULL)
    assert [row["device"] for row in lines(tmp_path / "r" / "clients.jsonl")] == TWO["clients"]


def test_each_client_alone() -> None:
    """In rounds of one client the time is that client's own."""
    experiment = Experiment(parse(sections(method=PLAIN, devices=TWO, cohort=1, rounds=12)))
    own = [OF_FULL, OF_SLOW_HALF, OF_FULL, seconds(HALF, HALF_MACS, 1000)]
    seen = set()
    for t in range(1, 13):
        log = experiment.round(t)
        seen.add(log.cohort[0])
        assert log.simulated == pytest.approx(own[log.cohort[0]])
    assert len(seen) > 2


def test_scoring_takes_time_too() -> None:
    """A forward pass over 12 examples for the loss at the start."""
    result = uneven.run(**sections(method=PLAIN, devices=TWO, rounds=1, server={"weights": "qffl"}))
    assert result["simulated_seconds"] == pytest.approx(seconds(FULL, FULL_MACS + 12 * 32, 1000))


class Half(HeteroFLClient):
    """Clients 0 and 2, which have the full model, fail."""

    def train(self, assignment: Assignment, data: Examples, memory: State) -> tuple[Update, State]:
        if assignment.client in (0, 2):
            raise RuntimeError("no more power")
        return super().train(assignment, data, memory)


class HalfFail(HeteroFL):
    Client = Half


def test_a_client_that_fails_took_what_it_was_sent() -> None:
    slow = TWO | {"clients": ["slow", "fast", "slow", "fast"]}
    method = PLAIN | {"name": HalfFail}
    result = uneven.run(**sections(method=method, devices=slow, rounds=1))
    assert result["failures"] == 2
    assert result["simulated_seconds"] == pytest.approx(
        max(seconds(HALF, HALF_MACS, 1000), seconds(FULL, 0, 500, up=False))
    )


def test_no_clock_without_devices(tmp_path: Path) -> None:
    result = uneven.run(out=tmp_path / "r", **sections(method=PLAIN, rounds=1))
    assert "simulated_seconds" not in {**result, **lines(tmp_path / "r" / "rounds.jsonl")[0]}


def test_a_run_goes_on_without_its_device_file(tmp_path: Path) -> None:
    """The classes are in the run's own spec."""
    file = tmp_path / "devices.toml"
    rows = "\n".join(f"{key} = {json.dumps(value)}" for key, value in FAST.items())
    file.write_text(f"[b]\n{rows}\n[a]\n{rows}\n")
    devices = {"file": str(file), "shares": {"a": 1, "b": 1}}
    result = uneven.run(out=tmp_path / "r", **sections(method=PLAIN, devices=devices, data=tiny()))
    file.unlink()
    (tmp_path / "r" / "result.json").unlink()
    assert resume(tmp_path / "r")["simulated_seconds"] == result["simulated_seconds"]
    spec = (tmp_path / "r" / "spec.toml").read_text()
    assert "devices.toml" not in spec
    assert spec.index("[devices.classes.b]") < spec.index("[devices.classes.a]")


def tiny() -> dict[str, Any]:
    from tests.run.helpers import tiny_data

    return {"source": tiny_data(), "shape": [1, 8, 8], "partition": "iid"}


# --- allocation = "device" --------------------------------------------------------------------------------------


def allocated(memory: list[float], **more: Any) -> Experiment:
    """Four clients with so much memory each, on a model of 20 and 10 hidden units."""
    classes = {f"m{i}": FAST | {"memory": m} for i, m in enumerate(memory)}
    base = sections(method=PLAIN, model={"name": "mlp", "hidden": [20, 10]}, clients={"count": 4})
    base |= {"allocation": "device", "devices": {"classes": classes, "clients": [*classes]}}
    return Experiment(parse(base | more))


@pytest.fixture(scope="module")
def takes() -> dict[float, float]:
    """What each width takes, with room for the allocator."""
    net = allocated([1e9] * 4).supernet
    training = TrainingOptions(epochs=2, batch_size=5, lr=0.1)
    return {w: (1 + HEADROOM) * cost(net.prefix(w), "memory", training) for w in widths(net)}


def test_every_client_gets_the_widest_that_its_device_has_memory_for(takes: dict[float, float]) -> None:
    steps = [*takes]
    memory = [math.ceil(takes[w]) for w in (steps[3], steps[8])]
    experiment = allocated([memory[0], memory[1], memory[1] - 1, 1e9])
    assert [card.width for card in experiment.cards] == [steps[3], steps[8], steps[7], 1.0]
    for card, fleet in zip(experiment.cards, experiment.fleet.classes.values(), strict=True):  # type: ignore
        assert takes[card.width] <= fleet.memory


def test_time_is_a_limit_too() -> None:
    """12 examples, 2 epochs: the widest part of 5 a + a b + 3 b multiply-accumulates that is done in time."""
    free = allocated([1e9] * 4)
    net = free.supernet

    def time(width: float) -> float:
        part = net.prefix(width)
        return 3 * 24 * part.macs / 1000 + part.nbytes / 100 + part.nbytes / 50

    limit = time(0.5)
    experiment = allocated([1e9] * 4, allocation={"name": "device", "round_seconds": limit})
    assert {card.width for card in experiment.cards} == {0.5}
    assert experiment.round(1).simulated == pytest.approx(limit)
    less = allocated([1e9] * 4, allocation={"name": "device", "round_seconds": limit - 1e-6})
    assert {card.width for card in less.cards} == {widths(net)[widths(net).index(0.5) - 1]}


def test_a_device_with_no_room_is_named(takes: dict[float, float]) -> None:
    least = math.ceil(min(takes.values()))
    with pytest.raises(
        SpecError, match=r"allocation: client 2, a m2, has .* MB, and even the narrowest part takes"
    ):
        allocated([1e9, least, least - 1, 1e9])
    slow = {"name": "device", "round_seconds": 1}
    with pytest.raises(SpecError, match=r"client 0, a m0, has 1e\+03 MB and 1 s, .* takes .* MB and \d"):
        allocated([1e9] * 4, allocation=slow)


def test_what_devices_cannot_say() -> None:
    with pytest.raises(SpecError, match=r"no section \[devices\]"):
        allocated([1e9] * 4, devices=None)
    for more in ({}, {"match": "params"}):
        with pytest.raises(SpecError, match="this method holds single parameters"):
            allocated([1e9] * 4, method="fiarse", **more)


def test_what_clients_hold_beside_what_they_train_must_fit(takes: dict[float, float]) -> None:
    """FedFIbOS's clients score the full model; where the server chooses, they hold no more than they train."""
    memory = [math.ceil(takes[0.5])] * 4
    scored = {"name": "fedfibos", "grain": "channel"}
    with pytest.raises(MethodError, match=r"client 0, a m0, has .* MB; its width fits, but .* hold more"):
        allocated(memory, method=scored)
    assert allocated(memory, method=scored | {"rule": "magnitude"}).cards[0].width == 0.5
    assert allocated([1e9] * 4, method=scored).cards[0].width == 1


def test_devices_cap_a_budget(takes: dict[float, float]) -> None:
    memory = [math.ceil(takes[w]) for w in (0.25, 0.5)]
    budget = {"name": "uniform", "budget": 0.5, "caps": "devices"}
    experiment = allocated([memory[0], memory[1], 1e9, 1e9], allocation=budget)
    assert experiment.allocation.ratios == pytest.approx([0.25, 0.5, 0.625, 0.625])
    with pytest.raises(SpecError, match=r"allocation.caps: client 0 can hold 0.05, less than r_min = 0.2"):
        allocated([math.ceil(takes[0.05]), 1e9, 1e9, 1e9], allocation=budget)


# --- the command line -------------------------------------------------------------------------------------------


def on_devices(**shares: float) -> list[str]:
    keys = {f"devices.classes.{name}.{key}": value for name in shares for key, value in FAST.items()}
    return sets(keys | {f"devices.shares.{name}": share for name, share in shares.items()})


def test_plan_shows_the_widest_for_each_class(tmp_path: Path) -> None:
    """And ``--device`` takes the memory of one of them as the limit."""
    arguments = [*on_devices(big=2, small=1), "--set", "devices.classes.small.memory=7KB", "--device", "small"]
    shown = server()("plan", *arguments, cwd=tmp_path).out
    assert re.search(r"│ big +│ +4 │ +1 │ +1 │", shown), shown
    width = re.search(r"│ small +│ +2 │ +0\.007 │ +(\S+) │ +(\S+) │", shown)
    assert width is not None, shown
    assert float(width[1]) < 1
    assert float(width[2]) <= 0.007
    assert f"the widest that fits (memory at most that of small): {width[1]}\n" in shown
    both = server()("plan", *sets(), "--device", "laptop", "--memory", "1MB", cwd=tmp_path)
    one_error(both, "--device", "no --memory")


@pytest.mark.parametrize(("memory", "width"), [("1MB", r"1 │ +\S+"), ("7KB", r"none │ +")])
def test_plan_of_a_method_that_saves_no_memory(memory: str, width: str, tmp_path: Path) -> None:
    """Single parameters take the full model's."""
    keys = {"devices.classes.small.memory": memory, "method": "fiarse", "clients.capacities.unit": "params"}
    shown = server()("plan", *on_devices(small=1), *sets(keys), cwd=tmp_path).out
    assert re.search(rf"│ small +│ +6 │ +\S+ │ +{width}", shown), shown


def test_memory_of_a_class() -> None:
    """The spec's own classes, or those that come with uneven."""
    own = parse({"devices": {"classes": {"big": FAST}, "shares": {"big": 1}}})
    assert device_memory(own, "big") == 1_000_000
    with pytest.raises(SpecError, match="--device 'laptop': known: big"):
        device_memory(own, "laptop")
    assert device_memory(parse({}), "raspberry-pi-zero-2") == 150_000_000


def test_plan_shows_what_each_client_gets(tmp_path: Path) -> None:
    keys = {"devices.classes.small.memory": "7KB", "allocation": "device", "clients.capacities": None}
    shown = server()("plan", *on_devices(small=1), *sets(keys), cwd=tmp_path)
    assert shown.code == 0, shown
    assert "what each client gets" in shown.out


def line(t: int, accuracy: float | None, **more: Any) -> dict[str, Any]:
    evaluation = {} if accuracy is None else {"evaluation": {"accuracy": accuracy}}
    return {"round": t, "bytes": {"down": 10, "up": 5}, **evaluation, **more}


def test_what_it_takes_to_reach_a_target() -> None:
    """Rounds 1 to 3 of 15 bytes each and 1, 2 and 4 seconds; only rounds 2 and 3 are evaluated."""
    timed = [
        line(1, None, simulated_seconds=1.0),
        line(2, 0.5, simulated_seconds=2.0),
        line(3, 0.6, simulated_seconds=4.0),
    ]
    assert reach(timed, 0.6) == {"rounds": 3, "bytes": 45, "simulated_seconds": 7.0}
    assert reach(timed, 0.4) == {"rounds": 2, "bytes": 30, "simulated_seconds": 3.0}
    assert reach(timed, 0.61) is None
    assert reach([line(1, 0.9)], 0.5) == {"rounds": 1, "bytes": 15}
    found = reached({0: timed, 3: timed[:1], 5: [line(1, 0.7, simulated_seconds=5.0)]}, 0.6)
    assert (found["seeds"], found["of"]) == ([0, 5], 3)
    assert found["rounds"]["values"] == [3, 1]
    assert found["simulated_seconds"]["mean"] == 6
    assert reached({0: timed}, 0.9) == {"seeds": [], "of": 1}


def test_compare_by_time_to_accuracy(tmp_path: Path) -> None:
    arguments = ("--methods", "heterofl,fedrolex", "--seeds", "0-1", "--out", "c", "--target")
    ended = server()("compare", *on_devices(big=1), *arguments, "0.2", cwd=tmp_path, before=FORKED)
    assert (ended.code, ended.err) == (0, ""), ended
    table = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert table["target"] == 0.2
    for row in table["rows"]:
        for k, seed in enumerate(row["target"]["seeds"]):
            rounds = lines(tmp_path / "c" / row["method"] / f"seed-{seed}" / "rounds.jsonl")
            need = next(r["round"] for r in rounds if "evaluation" in r and r["evaluation"]["accuracy"] >= 0.2)
            assert row["target"]["rounds"]["values"][k] == need
            assert row["target"]["simulated_seconds"]["values"][k] == pytest.approx(
                sum(r["simulated_seconds"] for r in rounds[:need])
            )
    assert "to 20 % accuracy of the full model" in ended.out
    assert "simulated" in ended.out
    none = server()("compare", *on_devices(big=1), *arguments, "1", cwd=tmp_path, before=FORKED)
    assert "0 of 2" in none.out
    one_error(server()("compare", *sets(), *arguments, "60", cwd=tmp_path), "--target 60", "0.6")
