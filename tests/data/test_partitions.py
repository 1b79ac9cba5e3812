"""Laws of every partition, and one clear error for each that cannot be made."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from uneven.data import DataOptions, Federation, from_tensors, load
from uneven.errors import DataError

PLANS = [
    {"kind": "iid"},
    {"kind": "dirichlet", "alpha": 0.5},
    {"kind": "dirichlet", "alpha": 0.5, "balanced": True},
    {"kind": "dirichlet", "alpha": 5, "min_size": 15},
    {"kind": "pathological", "classes": 3},
    {"kind": "shards", "shards": 3},
    {"kind": "linear"},
    {"kind": "square"},
]
ids = [" ".join(str(value) for value in plan.values()) for plan in PLANS]


def federation(n: int, plan: dict, count: int | None, seed: int = 0, client=None) -> Federation:
    x = torch.arange(n).unsqueeze(1)
    source = from_tensors(x, torch.arange(n) % 10, test=(x[:5], torch.arange(5)), client=client)
    return load(DataOptions(source=source, partition=plan), count, seed)


def rows(federation: Federation) -> Tensor:
    """The number of every client's every example."""
    return torch.cat([split.x.squeeze(1) for c in federation.clients for split in (c.train, c.test)])


def bits(federation: Federation) -> list[list[int]]:
    return [split.x.squeeze(1).tolist() for c in federation.clients for split in (c.train, c.test)]


@pytest.mark.parametrize("plan", PLANS, ids=ids)
def test_every_example_has_exactly_one_client(plan):
    fed = federation(1207, plan, 11)
    assert len(fed.clients) == 11
    assert torch.equal(rows(fed).sort().values, torch.arange(1207))


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["iid", "shards", "dirichlet", "pathological", "linear"]),
    n=st.integers(20, 300),
    count=st.integers(1, 20),
    seed=st.integers(0, 2**64),
)
def test_a_partition_is_exact_or_an_error(kind, n, count, seed):
    try:
        fed = federation(n, {"kind": kind}, count, seed)
    except DataError as error:
        assert str(count) in str(error)  # noqa: PT017 - not every draw is an error
        return
    assert len(fed.clients) == count
    assert torch.equal(rows(fed).sort().values, torch.arange(n))
    assert all(len(c.train) >= 1 and len(c.test) >= 1 for c in fed.clients)


@pytest.mark.parametrize("plan", PLANS, ids=ids)
def test_the_same_seed_gives_the_same_bits_and_another_does_not(plan):
    once, again, other = (bits(federation(300, plan, 7, seed)) for seed in (3, 3, 4))
    assert once == again
    assert once != other


def test_global_random_state_changes_nothing():
    torch.manual_seed(1)
    once = bits(federation(100, {"kind": "dirichlet"}, 4))
    torch.manual_seed(2)
    assert bits(federation(100, {"kind": "dirichlet"}, 4)) == once


def test_iid_sizes_differ_by_one_at_most():
    sizes = [len(c.train) + len(c.test) for c in federation(607, {"kind": "iid"}, 11).clients]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_pathological_clients_hold_at_most_that_many_classes(classes):
    fed = federation(600, {"kind": "pathological", "classes": classes}, 20)
    held = [set(c.train.y.tolist()) | set(c.test.y.tolist()) for c in fed.clients]
    assert all(len(h) == classes for h in held)
    assert set.union(*held) == set(range(10))


def test_shards_are_of_few_classes_and_the_rest_is_dealt_out():
    fed = federation(603, {"kind": "shards", "shards": 2}, 20)  # 40 shards of 15, and 3 more examples
    assert max(int((c.label_counts(10) > 0).sum()) for c in fed.clients) <= 4
    assert {len(c.train) + len(c.test) for c in fed.clients} == {30, 31}


def test_sizes_grow_as_their_names_say():
    for kind, power in (("linear", 1), ("square", 2)):
        sizes = [len(c.train) + len(c.test) for c in federation(1500, {"kind": kind}, 5).clients]
        units = [k**power for k in range(1, 6)]
        assert sizes[:-1] == [math.floor(1500 * u / sum(units)) for u in units[:-1]]


def test_larger_alpha_is_more_even():
    def spread(alpha: float) -> float:
        fed = federation(2000, {"kind": "dirichlet", "alpha": alpha}, 5)
        return torch.stack([c.label_counts(10) for c in fed.clients]).float().std().item()

    assert spread(0.2) > 2 * spread(1000.0)


def test_dirichlet_meets_its_smallest_size():
    fed = federation(600, {"kind": "dirichlet", "alpha": 5, "min_size": 20}, 10)
    assert min(len(c.train) + len(c.test) for c in fed.clients) >= 20


def test_natural_gives_one_client_per_id_in_sorted_order():
    names = [f"user {i % 4}" for i in range(40)]
    fed = federation(40, {"kind": "natural"}, None, client=names)
    assert [c.name for c in fed.clients] == ["user 0", "user 1", "user 2", "user 3"]
    for k, client in enumerate(fed.clients):
        assert {int(i) % 4 for split in (client.train, client.test) for i in split.x} == {k}
    assert torch.equal(rows(fed).sort().values, torch.arange(40))


def test_natural_ids_sort_as_numbers_where_they_are():
    fed = federation(33, {"kind": "natural"}, 11, client=torch.arange(33) % 11)
    assert [c.name for c in fed.clients] == [str(k) for k in range(11)]


def test_natural_leaves_out_small_clients_when_told():
    client = ["a"] * 10 + ["b"] + ["c"] * 9
    with pytest.raises(DataError, match=r"1 natural clients hold fewer than 2 examples \(b\).*drop_below = 2"):
        federation(20, {"kind": "natural"}, None, client=client)
    fed = federation(20, {"kind": "natural", "drop_below": 10}, None, client=client)
    assert [c.name for c in fed.clients] == ["a"]
    with pytest.raises(DataError, match="leaves no client: the largest has 10"):
        federation(20, {"kind": "natural", "drop_below": 11}, None, client=client)


def test_the_largest_client_that_an_error_names_is_that_of_the_data():
    """``drop_below`` goes by what a client has before ``limit``."""
    client = ["a"] * 40 + ["b"] * 20
    plan = {"kind": "natural", "limit": 10}
    with pytest.raises(DataError, match=r"drop_below = 50 leaves no client: the largest has 40$"):
        federation(60, plan | {"drop_below": 50}, None, client=client)
    kept = federation(60, plan | {"drop_below": 40}, None, client=client).clients
    assert [(c.name, len(c.train) + len(c.test)) for c in kept] == [("a", 10)]


def test_natural_count_is_the_datas():
    client = [i % 4 for i in range(40)]
    with pytest.raises(DataError, match="5 clients are asked for, but the natural ids make 4"):
        federation(40, {"kind": "natural"}, 5, client=client)
    with pytest.raises(DataError, match="needs client ids"):
        federation(40, {"kind": "natural"}, None)


PAIR = ["ant"] * 200 + ["bee"] * 100


@pytest.mark.parametrize("alpha", [None, 0.5])
def test_pieces_share_each_natural_client_exactly(alpha):
    plan = {"kind": "natural", "pieces": 3, **({} if alpha is None else {"alpha": alpha})}
    fed = federation(300, plan, None, client=PAIR)
    assert [c.name for c in fed.clients] == ["ant/0", "ant/1", "ant/2", "bee/0", "bee/1", "bee/2"]
    whole = [torch.cat([c.train.x, c.test.x]).flatten() for c in fed.clients]
    assert torch.equal(torch.cat(whole[:3]).sort().values, torch.arange(200))
    assert torch.equal(torch.cat(whole[3:]).sort().values, torch.arange(200, 300))
    if alpha is None:
        assert [len(part) for part in whole] == [67, 67, 66, 34, 33, 33]
    else:
        assert len({len(part) for part in whole[:3]}) > 1


def test_alpha_is_the_concentration_inside_a_natural_client():
    """The largest of 2 shares of Dirichlet(α, α) has mean .5 + Γ(α + .5) / (Γ(α) √π 2α): .75 at 1, .993 at .01.

    The mean over 10 classes of 2,000 examples each; sd of one share at most .25, so .2 is 2.5 sd and more.
    """
    means = []
    for alpha in (0.01, 1, 1000):
        plan = {"kind": "natural", "pieces": 2, "alpha": alpha}
        fed = federation(2000, plan, None, client=["one"] * 2000)
        counts = torch.stack([torch.bincount(torch.cat([c.train.y, c.test.y]), minlength=10) for c in fed.clients])
        means.append(float((counts.max(0).values / counts.sum(0)).mean()))
    assert means == pytest.approx([0.993, 0.75, 0.5], abs=0.2)
    assert means[0] > 0.95
    assert means[2] < 0.52


def test_pieces_of_one_natural_client_do_not_depend_on_the_others():
    """Nor are two with the same labels cut alike."""

    def pieces(names: list[str], seed: int = 0) -> dict[str, list[int]]:
        plan = {"kind": "natural", "pieces": 2, "alpha": 0.5}
        fed = federation(len(names), plan, None, seed, client=names)
        return {c.name: torch.cat([c.train.x, c.test.x]).flatten().sort().values.tolist() for c in fed.clients}

    alone, both = pieces(["ant"] * 200), pieces(["ant"] * 200 + ["bee"] * 200)
    assert alone == {name: both[name] for name in ("ant/0", "ant/1")}
    assert both["ant/0"] != [row - 200 for row in both["bee/0"]]
    assert alone != pieces(["ant"] * 200, seed=1)


def test_pieces_that_cannot_be():
    with pytest.raises(ValueError, match=r"alpha = 0\.5 has no effect with pieces = 1"):
        DataOptions(partition={"kind": "natural", "alpha": 0.5})
    client = ["a"] * 10 + ["b"] * 5
    with pytest.raises(DataError, match=r"1 natural clients hold fewer than 6 examples \(b\).*drop_below = 6"):
        federation(15, {"kind": "natural", "pieces": 3}, None, client=client)
    plan = {"kind": "natural", "pieces": 3, "drop_below": 6}
    assert [c.name for c in federation(15, plan, None, client=client).clients] == ["a/0", "a/1", "a/2"]
    with pytest.raises(
        DataError, match=r"alpha = 0\.001 gives some of the 30 pieces of natural client 'a' fewer than 2"
    ):
        federation(100, {"kind": "natural", "pieces": 30, "alpha": 0.001}, None, client=["a"] * 100)


@pytest.mark.parametrize(
    ("plan", "n", "count", "message"),
    [
        ({"kind": "iid"}, 50, 60, "60 clients need at least 120 .*there are 50: at most 25 clients"),
        ({"kind": "iid"}, 119, 0, "0 clients: at least 1"),
        ({"kind": "iid"}, 119, 60, "at most 59 clients"),
        ({"kind": "dirichlet", "min_size": 2}, 120, 100, "100 clients need at least 200"),
        ({"kind": "dirichlet", "min_size": 10}, 500, 100, "for 100 clients needs 1000.*at most 5"),
        ({"kind": "dirichlet", "alpha": 0.05}, 600, 50, r"alpha = 0.05 gives some of 50 clients .* would do"),
        ({"kind": "pathological", "classes": 11}, 600, 50, "the training set has only 10 classes"),
        ({"kind": "pathological", "classes": 2}, 600, 3, r"leaves classes to nobody.*with at least 10"),
        ({"kind": "pathological", "classes": 9}, 30, 15, "a class to more of the 15 clients"),
        ({"kind": "shards", "shards": 9}, 600, 100, "makes 900 shards of 600 .* at most 6"),
        ({"kind": "linear"}, 600, 100, "'linear' with 100 clients gives the first .*: at most 24 clients"),
        ({"kind": "square"}, 600, 100, "at most 9 clients"),
        ({"kind": "exponential"}, 6000, 1000, "at most 8 clients"),
    ],
)  # fmt: skip
def test_what_cannot_be_met_says_what_can(plan, n, count, message):
    with pytest.raises(DataError, match=message):
        federation(n, plan, count)


@pytest.mark.parametrize(("kind", "most"), [("linear", 24), ("square", 9), ("exponential", 6)])
def test_the_number_of_clients_that_an_error_names_can_be_met(kind, most):
    with pytest.raises(DataError, match=f"at most {most} clients"):
        federation(600, {"kind": kind}, most + 1)
    assert len(federation(600, {"kind": kind}, most).clients) == most


def test_a_limit_makes_natural_clients_even():
    """At most 12 of each, a draw of its own for each client, whoever else there is; the smaller ones whole."""
    client = ["a"] * 30 + ["b"] * 20 + ["c"] * 7
    plan = {"kind": "natural", "limit": 12}
    fed = federation(57, plan, None, client=client)
    own = [torch.cat([c.train.x, c.test.x]).squeeze(1).sort().values for c in fed.clients]
    assert [len(part) for part in own] == [12, 12, 7]
    assert [int(part.max()) // 30 for part in own[:2]] == [0, 1]
    assert int(own[1].min()) >= 30
    assert own[2].tolist() == list(range(50, 57))
    assert own[0].tolist() != list(range(12))
    assert bits(federation(57, plan, None, client=client)) == bits(fed)
    assert bits(federation(57, plan, None, 1, client=client)) != bits(fed)
    assert [
        len(c.train) + len(c.test) for c in federation(57, plan | {"drop_below": 20}, None, client=client).clients
    ] == [12, 12]
