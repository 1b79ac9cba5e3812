"""Classes of devices: the file, who has which, and the errors of either."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.run.test_result import sections
from uneven.data import Examples, Federation, load
from uneven.devices import Device, DevicesOptions, Fleet, fleet, read_classes
from uneven.errors import SpecError
from uneven.quantities import quantity
from uneven.spec import parse
from uneven.training import TrainingOptions
from uneven.training.local import _batches

TWO = """
[small]
memory = "1.5MB"
macs_per_second = 2e6
down = 1000
up = "0.5K"

[large]
memory = "1GiB"
macs_per_second = "3G"
down = "2MB"
up = "1MB"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "devices.toml"
    path.write_text(TWO)
    return path


def federation(**more: Any) -> Federation:
    spec = parse(sections(**more))
    return load(spec.data, spec.clients.count, spec.seed)


def test_a_file(file: Path) -> None:
    small = Device(memory=1_500_000, macs_per_second=2_000_000, down=1000, up=500)
    large = Device(memory=2**30, macs_per_second=3_000_000_000, down=2_000_000, up=1_000_000)
    assert read_classes(str(file)) == {"small": small, "large": large}


def test_time_by_hand() -> None:
    """3 s of work, 2 s down, 4 s up."""
    device = Device(memory=1, macs_per_second=10, down=5, up=2)
    assert device.seconds(macs=30, down=10, up=8) == 3 + 2 + 4


def test_the_built_in_classes_say_where_they_come_from() -> None:
    classes = read_classes("builtin")
    assert {"laptop", "raspberry-pi-4", "raspberry-pi-zero-2"} < classes.keys()
    text = Path(read_classes.__code__.co_filename).with_name("builtin.toml").read_text()
    for name in classes:
        heading = next(line for line in text.splitlines() if line.startswith(f"[{name}]"))
        assert "#" in heading


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"memory": None}, ["memory: is missing"]),
        ({"up": "-3"}, ["up: -3 must be a positive number like 512MB, 1G or 1.5GiB"]),
        ({"up": "0"}, ["up: 0 must be a positive number like 512MB, 1G or 1.5GiB"]),
        ({"up": "true"}, ["up: True must be a positive number like 512MB, 1G or 1.5GiB"]),
        ({"up": "'-1MB'"}, ["up: '-1MB' must be a positive number like 512MB, 1G or 1.5GiB"]),
        ({"dwn": "3"}, ["dwn = 3: no such key; did you mean 'down'?"]),
        ({"down": None, "dwn": "3"}, ["down: is missing", "dwn = 3: no such key; did you mean 'down'?"]),
    ],
)
def test_one_clear_error_for_each_mistake(file: Path, change: dict[str, str | None], says: list[str]) -> None:
    """By file, class, field and value."""
    lines = {"memory": "'1MB'", "macs_per_second": "1", "down": "1", "up": "1"} | change
    table = "\n".join(f"{key} = {value}" for key, value in lines.items() if value is not None)
    file.write_text(f"[good]\nmemory = 1\nmacs_per_second = 1\ndown = 1\nup = 1\n[phone]\n{table}\n")
    with pytest.raises(SpecError) as caught:
        read_classes(str(file))
    assert caught.value.problems == [f"{file}: phone.{line}" for line in says]


def test_all_mistakes_at_once(file: Path) -> None:
    file.write_text(TWO.replace("1.5MB", "much").replace("1GiB", "-1GiB"))
    with pytest.raises(SpecError) as caught:
        read_classes(str(file))
    assert [line.split(": ")[1] for line in caught.value.problems] == ["small.memory", "large.memory"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        ("[small", "is not TOML"),
        ("", "has no class"),
        ("memory = 3", "memory = 3: must be a table"),
    ],
)
def test_what_is_no_device_file(tmp_path: Path, content: str | None, says: str) -> None:
    path = tmp_path / "devices.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SpecError, match=re.escape(says)):
        read_classes(str(path))


def test_a_home_that_nobody_has() -> None:
    with pytest.raises(SpecError) as caught:
        read_classes("~nosuchuser/x")
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith("devices.file = '~nosuchuser/x': cannot be read: ")
    assert "home" in caught.value.problems[0]


def test_shares_are_dealt_by_seed(file: Path) -> None:
    """Of 7 clients 2/3 and 1/3: 5 and 2 (4.67, 2.33)."""
    options = DevicesOptions(file=str(file), shares={"small": 2, "large": 1})
    data = federation(clients={"count": 7, "capacities": 1}, cohort=2)
    owned = fleet(options, data, 0)
    assert sorted(owned.names) == ["large"] * 2 + ["small"] * 5
    assert owned == fleet(options, data, 0)
    assert len({tuple(fleet(options, data, seed).names) for seed in range(5)}) > 1


def test_each_client_by_name(file: Path) -> None:
    owned = fleet(DevicesOptions(file=str(file), clients=("large", "small", "small", "large")), federation(), 0)
    assert owned[0] is owned.classes["large"]
    assert owned[1] is owned.classes["small"]


def from_column(file: Path, numbers: list[float]) -> Fleet:
    data = federation()
    pairs = zip(data.clients, numbers, strict=True)
    clients = tuple(replace(client, attributes={"device": number}) for client, number in pairs)
    return fleet(DevicesOptions(file=str(file), column="device"), replace(data, clients=clients), 0)


def test_a_column_of_the_data(file: Path) -> None:
    assert from_column(file, [1, 0, 0, 1]).names == ["large", "small", "small", "large"]
    for number in ("2", "0.5", "-1"):
        says = rf"devices.column = 'device': client 2 has {number}; 0 to 1 are the classes \['small', 'large'\]"
        with pytest.raises(SpecError, match=says):
            from_column(file, [1, 0, float(number), 1])
    with pytest.raises(SpecError, match=r"devices.column = 'device': client 0 has no one number there"):
        fleet(DevicesOptions(file=str(file), column="device"), federation(), 0)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({}, "devices: give one of shares, clients or column, not none"),
        ({"shares": {"laptop": 1}, "column": "x"}, "give one of shares, clients or column, not shares and column"),
        ({"shares": {"laptop": 0}}, "devices.shares.laptop = 0"),
        ({"shares": {}}, "devices.shares = {}"),
        ({"shares": {"laptop": math.inf}}, "devices.shares.laptop = inf: input should be a finite number"),
        ({"shares": {"laptop": 1, "x": math.nan}}, "devices.shares.x = nan: input should be a finite number"),
        ({"file": "builtin", "classes": {"a": {}}, "shares": {"a": 1}}, "devices.classes.a.memory: is missing"),
        (
            {"classes": {"a": {"memory": 1, "macs_per_second": 1, "down": "x", "up": 1}}, "shares": {"a": 1}},
            "devices.classes.a.down: 'x' must be a positive number",
        ),
        ({"shares": {"laptop": 1}, "speed": 3}, "devices.speed = 3: no such key"),
    ],
)
def test_a_section_that_does_not_hold(section: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=re.escape(says)):
        parse({"devices": section})


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"shares": {"labtop": 1}}, "devices.shares: no class 'labtop'; did you mean 'laptop'?"),
        ({"clients": ["laptop", "fon", "laptop", "fon"]}, "devices.clients: no class 'fon'"),
        ({"clients": ["laptop"]}, "devices.clients: 1 classes for 4 clients"),
    ],
)
def test_classes_and_clients_that_are_not_there(section: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=re.escape(says)):
        fleet(DevicesOptions(**section), federation(), 0)


@given(examples=st.integers(1, 40), size=st.integers(1, 12), steps=st.integers(1, 30), epochs=st.booleans())
def test_examples_gone_through_in_a_round(examples: int, size: int, steps: int, epochs: bool) -> None:
    """As many as the batches of local training hold."""
    count = {"epochs": steps % 4 + 1} if epochs else {"steps": steps}
    options = TrainingOptions(batch_size=size, **count)
    data = Examples(torch.zeros(examples, 1), torch.zeros(examples, dtype=torch.int64))
    batches = _batches(data, size, options.steps_for(examples), torch.Generator())
    assert options.seen_in(examples) == sum(len(y) for _, y in batches)


def test_quantities() -> None:
    assert [quantity(q) for q in ("5", "2K", "1.5MB", " 2GiB ", 7, 2.5e6)] == [
        5,
        2000,
        1_500_000,
        2**31,
        7,
        2_500_000,
    ]
    assert [quantity(q) for q in (1.9, "1.9", 1.4, "0.0016K")] == [2, 2, 1, 2]
    for bad in ("", "0", "-1MB", "1Z", "MB", 0, -1, 0.5, float("nan"), float("inf"), True, None, [1]):
        with pytest.raises(ValueError, match="must be a positive number like 512MB"):
            quantity(bad)
