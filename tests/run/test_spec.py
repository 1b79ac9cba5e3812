"""Specs: how their parts are laid over each other, and that what is written is what was read."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import uneven
from tests.run.helpers import assert_same_run, server, sets
from uneven.allocation import POLICIES
from uneven.data import from_tensors
from uneven.data.options import Iid
from uneven.errors import SpecError
from uneven.methods import METHODS, Method
from uneven.spec import Spec, load, parse, setting


def over(*texts: str, table: dict[str, Any] | None = None) -> Spec:
    """A spec with ``--set`` texts laid over a table."""
    return parse(table or {}, [setting(text) for text in texts])


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("rounds=3", {"rounds": 3}),
        ("training.lr=0.5", {"training": {"lr": 0.5}}),
        ("training.lr = 1e-3", {"training": {"lr": 0.001}}),
        ("model.norm=batch", {"model": {"norm": "batch"}}),
        ('model.norm="batch"', {"model": {"norm": "batch"}}),
        ("method.scaler=true", {"method": {"scaler": True}}),
        ("model.hidden=[8, 4]", {"model": {"hidden": [8, 4]}}),
        ("data.source=/a b/c=d.parquet", {"data": {"source": "/a b/c=d.parquet"}}),
        ("data.source=hub:uoft-cs/cifar10", {"data": {"source": "hub:uoft-cs/cifar10"}}),
        ('data.partition={kind="iid"}', {"data": {"partition": {"kind": "iid"}}}),
        ("a.b.c.d=[[1], []]", {"a": {"b": {"c": {"d": [[1], []]}}}}),
        ("name=", {"name": ""}),
    ],
)
def test_setting(text: str, table: dict[str, Any]) -> None:
    assert setting(text) == table


def test_defaults_are_the_demo() -> None:
    spec = parse({})
    assert (spec.seed, spec.rounds, spec.cohort, spec.name) == (0, 60, 10, "demo")
    assert spec.data.source == "fashion-mini"
    assert (spec.data.partition.kind, spec.data.partition.alpha) == ("dirichlet", 0.3)  # type: ignore[union-attr]
    assert spec.clients.capacities.levels == (1, 0.5, 0.25, 0.125)
    assert spec.clients.capacities.unit == "width"
    assert (spec.model.name, spec.method.name) == ("cnn", "heterofl")
    assert (spec.training.optimizer, spec.server.optimizer) == ("sgd", "average")
    assert (spec.evaluation.every, spec.engine.name) == (5, "auto")


def test_later_settings_win() -> None:
    assert over("seed=1", "seed=2").seed == 2


def test_numbers_keep_their_kind() -> None:
    assert [type(over(f"cohort={c}").cohort) for c in ("1", "1.0", "0.5")] == [int, float, float]


@pytest.mark.parametrize("texts", [("method=fedprox", "method.mu=0.5"), ("method.name=fedprox", "method.mu=0.5")])
def test_a_name_alone_can_be_gone_on_with(texts: tuple[str, ...]) -> None:
    assert over(*texts).method_options.mu == 0.5


def test_the_options_of_another_method_go_with_it() -> None:
    table = {"method": {"name": "fedprox", "mu": 0.5}}
    assert over("method=scaffold", table=table).method.options == {}
    assert over("method=fedprox", table=table).method.options == {"mu": 0.5}
    assert over("method.mu=0.1", table=table).method.options == {"mu": 0.1}


def test_the_options_of_another_model_go_with_it() -> None:
    table = {"model": {"name": "mlp", "hidden": [8]}}
    assert over("model=cnn", "model.norm=batch", table=table).model.options == {"norm": "batch"}


def test_the_keys_of_another_partition_go_with_it() -> None:
    table = {"data": {"partition": {"kind": "dirichlet", "alpha": 0.1}, "train_limit": 99}}
    data = over("data.partition.kind=shards", table=table).data
    assert (data.partition.model_dump(), data.train_limit) == ({"kind": "shards", "shards": 2}, 99)
    assert over("data.partition.balanced=true", table=table).data.partition.alpha == 0.1  # type: ignore[union-attr]


def test_profile(tmp_path: Path) -> None:
    path = tmp_path / "long.toml"
    path.write_text(
        "rounds = 500\nseed = 3\n[training]\nlr = 0.1\nclip_norm = 2\n"
        "[profile.small]\nrounds = 5\n[profile.small.training]\nlr = 0.2\n"
    )
    assert load(path).rounds == 500
    small = load(path, [{"seed": 4}], "small")
    assert (small.rounds, small.seed, small.training.lr, small.training.clip_norm) == (5, 4, 0.2, 2)
    assert load(path, [{"rounds": 6}], "small").rounds == 6, "what is set wins over the profile"


def test_the_name_is_the_files(tmp_path: Path) -> None:
    path = tmp_path / "cifar.v2.toml"
    path.write_text("")
    assert load(path).name == "cifar.v2"
    path.write_text("name = 'mine'")
    assert load(path).name == "mine"


class Local(Method):
    """A method that no dotted path leads to."""

    def submodel(self, t: int, client: Any) -> Any:
        return self.supernet.prefix(client.width)


def test_python_values_survive_a_spec() -> None:
    """Classes and tensors of a `Spec` get through `run` with other sections laid over it."""

    class Hidden(Local):
        pass

    source = from_tensors(torch.randn(24, 4), torch.arange(24) % 2)
    spec = Spec(method=Hidden, data={"source": source, "partition": Iid()}, model={"name": "mlp", "hidden": [3]})
    result = uneven.run(spec, rounds=1, cohort=2, clients={"count": 4}, training=uneven.Spec().training)
    assert (result["rounds"], result["per_capacity"][0]["parameters"]) == (1, 4 * 3 + 3 + 3 * 2 + 2)
    with pytest.raises(SpecError, match="cohort = 9"):
        uneven.run(spec, cohort=9, clients={"count": 4})


def test_a_path_and_sections(tmp_path: Path) -> None:
    path = tmp_path / "short.toml"
    path.write_text("rounds = 1\ncohort = 2\nclients.count = 4\nmodel = 'mlp'\ndata.train_limit = 40\n")
    assert uneven.run(path, seed=5)["seed"] == 5
    assert uneven.run(str(path))["name"] == "short"


# Round trip.

share = st.floats(0.001, 1)
positive = st.floats(1e-6, 1e6)


def table(required: dict[str, Any], **optional: Any) -> Any:
    return st.fixed_dictionaries(required, optional=optional)


partitions = st.one_of(
    *(st.fixed_dictionaries({"kind": st.just(k)}) for k in ("iid", "linear", "square", "exponential")),
    table({}, alpha=positive, min_size=st.integers(2, 9), balanced=st.booleans()),
    table({"kind": st.just("pathological")}, classes=st.integers(1, 9)),
    table({"kind": st.just("shards")}, shards=st.integers(1, 9)),
    table({"kind": st.just("natural")}, drop_below=st.integers(2, 9)),
)
units = st.sampled_from(["width", "params", "macs", "bytes"])
capacities = st.one_of(
    share,
    st.just(1),
    st.lists(share, min_size=1, max_size=4),
    table({"levels": st.lists(share, min_size=1, max_size=4)}, unit=units),
    table(
        {"levels": st.lists(share, min_size=2, max_size=2), "shares": st.lists(positive, min_size=2, max_size=2)}
    ),
    table({"column": st.text(max_size=8)}),
)
switches = st.sampled_from([True, False, "auto"])
methods = st.one_of(
    st.sampled_from(sorted(METHODS)),
    table({"name": st.just("fedprox")}, mu=positive, fit=st.sampled_from(["exclude", "smallest"])),
    table({}, scaler=switches, static_batch_norm=switches, masked_loss=switches, label_rows=switches),
)
models = st.one_of(
    st.sampled_from(["mlp", "resnet18"]),
    table({"name": st.just("mlp")}, hidden=st.lists(st.integers(1, 9), max_size=3)),
    table({}, norm=st.sampled_from(["group", "batch", "none"]), groups=st.integers(1, 4)),
)
training = st.one_of(
    table(
        {},
        lr=positive,
        momentum=st.floats(0, 0.99),
        weight_decay=positive,
        clip_norm=positive,
        batch_size=st.integers(1, 99),
        epochs=st.integers(1, 9),
        schedule=st.sampled_from(["cosine", "linear"]),
    ),
    table({"optimizer": st.just("adamw")}, steps=st.integers(1, 9)),
    table(
        {"schedule": st.just("step"), "milestones": st.lists(st.integers(1, 9), min_size=1)},
        decay=st.floats(0.01, 0.99),
    ),
)
servers = st.one_of(
    table({"optimizer": st.sampled_from(["adam", "yogi"])}, beta2=st.floats(0, 0.99), tau=positive, lr=positive),
    table({}, weights=st.sampled_from(["even", "examples"])),
)
budgets = {"budget": share, "r_min": st.floats(0.001, 0.5), "r_max": st.floats(0.5, 1)}
policies = st.one_of(
    st.sampled_from(sorted(POLICIES)),
    table({"name": st.sampled_from(["uniform", "size"])}, **budgets, cost=st.sampled_from(["width2", "macs"])),
    table({"name": st.just("hasa")}, **budgets, passes=st.just(2), score=st.just("debiased"), noise=positive),
    table({"name": st.just("uniform")}, caps=st.one_of(st.lists(share, max_size=4), st.text(max_size=8))),
)
tables = table(
    {},
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True),
    seed=st.integers(0, 2**63 - 1),
    rounds=st.integers(1, 10**6),
    cohort=st.one_of(st.integers(1, 1000), share),
    quorum=st.floats(0, 1),
    data=table({}, source=st.text(max_size=20), partition=partitions, shape=st.lists(st.integers(1, 9))),
    clients=table({}, count=st.integers(1, 10**6), capacities=capacities),
    allocation=policies,
    model=models,
    method=methods,
    training=training,
    server=servers,
    evaluation=table({}, every=st.integers(1, 99)),
    checkpoint=table({}, every=st.integers(1, 99)),
).map(lambda spec: spec if spec.get("allocation", "tiers") == "tiers" else _without_capacities(spec))


def _without_capacities(spec: dict[str, Any]) -> dict[str, Any]:
    clients = spec.get("clients", {})
    return {**spec, "clients": {key: value for key, value in clients.items() if key != "capacities"}}


@settings(max_examples=80)
@given(tables)
def test_round_trip(table: dict[str, Any]) -> None:
    spec = parse(table)
    text = spec.to_toml({"versions": {"torch": "2"}})
    again = parse(tomllib.loads(text))
    assert again == spec
    assert again.to_toml({"versions": {"torch": "2"}}) == text


@pytest.mark.parametrize("method", ["heterofl", "scaffold"])
def test_the_spec_of_a_run_folder_runs_again(method: str, tmp_path: Path) -> None:
    """With what was left open filled in, it is the same run; and so is the folder's spec."""
    fit = {"method.fit": "smallest"} if method == "scaffold" else {}
    given = sets({"method.name": method, "rounds": 2, "name": "mine", **fit})
    assert server()("run", *given, "--out", "first", cwd=tmp_path).code == 0
    again = server()("run", "first/spec.toml", "--out", "second", cwd=tmp_path)
    assert (again.code, again.err) == (0, "")
    assert_same_run(tmp_path / "second", tmp_path / "first")
