"""The oracle: the widths of the highest accuracy under a budget, and how accuracies are measured."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import uneven
from tests.allocation.world import allocate, view
from tests.run.helpers import contents, lines, tiny_data
from uneven.data import Examples, Federation, from_tensors
from uneven.data import load as load_data
from uneven.errors import DataError, SpecError
from uneven.experiment import Experiment, load_model
from uneven.probe import _held_out
from uneven.probe import accuracies as accuracies_of
from uneven.rng import generator
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


ROWS = [[0.5, 0.5, 0.5], [0.1, 0.3, 0.9], [0.2, 0.4, 0.5], [0.3, 0.5, 0.6]]


def test_masks_are_refused_and_told_what_to_do() -> None:
    """Before anything is measured, and also where accuracies are given."""
    says = r"^allocation 'oracle': measures widths, and .*shares of the parameters; set match = 'params'"
    with pytest.raises(SpecError, match=says):  # this view fails when it is asked for accuracies
        allocate("oracle", view([1, 1], parameters=1000), widths=WIDTHS, cost="params")
    given = {"name": "oracle", "widths": WIDTHS, "accuracies": ROWS, "cost": "params"}
    with pytest.raises(SpecError, match=says) as told:
        Experiment(parse(sections(method="fiarse", allocation=given)))
    assert len(told.value.problems) == 1


@pytest.mark.parametrize("cost", ["width", "params"])
def test_masks_that_match_widths_get_as_many_parameters(cost: str) -> None:
    given = {"name": "oracle", "widths": WIDTHS, "accuracies": ROWS, "cost": cost}
    masks = Experiment(parse(sections(method="fiarse", match="params", allocation=given)))
    widths = Experiment(parse(sections(allocation=given)))
    assert masks.allocation.unit == "width"
    assert masks.allocation.capacities == widths.allocation.capacities
    assert [card.size for card in masks.cards] == [masks.supernet.prefix(c.width).size for c in widths.cards]
    assert len({card.size for card in masks.cards}) > 1


# The probe.


def sections(n: int = 48, noise: float = 1.0, **changes: Any) -> dict[str, Any]:
    """Four natural clients of two classes."""
    draws = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 2
    x = noise * torch.randn(n, 6, generator=draws) + 3 * y[:, None]
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


def halves(federation: Federation, seed: int, size: int) -> list[tuple[Examples, Examples]]:
    """What each client's training split is cut to, so many examples of it held out."""
    cut = []
    for client in federation.clients:
        order = torch.randperm(len(client.train), generator=generator(seed, "probe split", client.id))
        cut.append((client.train[order[size:]], client.train[order[:size]]))
    return cut


def test_accuracies_are_those_of_a_slimmable_network_on_what_is_held_out() -> None:
    """Trained here, as an experiment of its own; of 48 training examples of a client .2 is 10."""
    hard = sections(n=240, noise=3.0)
    spec = parse(hard | {"seed": 3})
    federation, net = load_model(spec)
    assert {len(client.train) for client in federation.clients} == {48}
    found = torch.tensor(accuracies_of(spec, federation, net, WIDTHS))

    cut = halves(federation, 3, 10)
    clients = [replace(c, train=train) for c, (train, _) in zip(federation.clients, cut, strict=True)]
    own = hard | {"seed": 3, "clients": {"capacities": 0.8}, "method": {"name": "slimmable", "ladder": WIDTHS}}
    del own["allocation"]
    trained = Experiment(parse(own), (replace(federation, clients=tuple(clients)), net))
    for t in (1, 2):
        trained.round(t)
    by_hand = torch.zeros(4, 3)
    for k, width in enumerate(WIDTHS):
        part = net.prefix(width)
        network = part.network().load(trained.method.values(part)).eval()
        for n, (_, held_out) in enumerate(cut):
            by_hand[n, k] = (network(held_out.x).argmax(1) == held_out.y).float().mean()
    assert found.tolist() == [pytest.approx(row) for row in by_hand.tolist()]
    assert (found[:, 0] != found[:, 2]).any()
    assert (found[:, 1] != found[:, 2]).any()
    assert len(set(found[:, 2].tolist())) > 1


@pytest.mark.parametrize(
    ("n", "share", "held_out"),
    [(48, 0.2, 2), (48, 0.5, 3), (240, 0.2, 10), (40, 0.8, 1), (16, 0.5, 1), (40, 0.01, 1)],
)
def test_what_is_held_out_is_not_trained_on(n: int, share: float, held_out: int) -> None:
    """The two are the client's training split, each row once. Of 40 examples a client has 10, of which .8 leave 2
    to train on: one of them is held out, and one is not."""
    data = sections(n=n)["data"] | {"local_test_share": share}
    spec = parse(sections(n=n, data=data))
    federation = load_data(spec.data)
    for client in federation.clients:
        cut = _held_out(client, spec)
        every = torch.cat([cut.train.x, cut.test.x])
        assert len(cut.test) == held_out
        assert len(every) == len(client.train) == len(every.unique(dim=0))
        assert sorted(every.tolist()) == sorted(client.train.x.tolist())
        assert (cut.id, cut.name) == (client.id, client.name)
        pairs = {tuple(x): int(y) for x, y in zip(client.train.x.tolist(), client.train.y, strict=True)}
        for part in (cut.train, cut.test):
            assert [pairs[tuple(x)] for x in part.x.tolist()] == part.y.tolist()


def test_what_is_held_out_goes_by_the_seed() -> None:
    data = load_data(parse(sections()).data)
    drawn = [_held_out(data.clients[0], parse(sections(seed=seed))).test.x.tolist() for seed in (0, 0, 1, 2, 3)]
    assert drawn[0] == drawn[1]
    assert len({str(own) for own in drawn}) > 1


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
