"""Splits, limits, and the types that the rest of the library sees."""

import pydantic
import pytest
import torch

from uneven.data import DataOptions, Examples, from_tensors, load
from uneven.errors import DataError

ONE = torch.zeros(1, dtype=torch.int64)


def options(source, **others) -> DataOptions:
    return DataOptions(source=source, **{"partition": {"kind": "iid"}, **others})


def test_uint8_images_become_numbers_between_minus_one_and_one():
    x = torch.tensor([0, 255, 51], dtype=torch.uint8).reshape(3, 1, 1, 1)
    images, classes = Examples(x, torch.tensor([0, 1, 2])).batch(torch.tensor([2, 0, 1]))
    assert images.dtype == torch.float32
    torch.testing.assert_close(images.flatten(), torch.tensor([-0.6, -1.0, 1.0]))
    assert classes.tolist() == [2, 0, 1]
    assert x.flatten().tolist() == [0, 255, 51]


def test_other_inputs_stay_as_they_are():
    x = torch.tensor([[1.5], [2.5]])
    assert torch.equal(Examples(x, torch.tensor([0, 1])).batch(torch.tensor([1]))[0], x[1:])


def test_examples_are_indexed_by_slice_and_by_positions(numbered):
    train = numbered(10).splits.train.examples
    assert len(train[2:5]) == 3
    assert train[torch.tensor([7, 1])].x.flatten().tolist() == [7, 1]


@pytest.mark.parametrize(("share", "size", "test"), [(0.2, 10, 2), (0.01, 10, 1), (0.99, 10, 9), (0.5, 2, 1)])
def test_each_client_keeps_a_share_for_its_own_test(numbered, share, size, test):
    fed = load(options(numbered(size * 3), local_test_share=share), 3)
    assert [len(c.test) for c in fed.clients] == [test] * 3
    assert [len(c.train) for c in fed.clients] == [size - test] * 3


def test_local_splits_are_disjoint_and_random(numbered):
    client = load(options(numbered(100)), 1).clients[0]
    train, test = set(client.train.x.flatten().tolist()), set(client.test.x.flatten().tolist())
    assert not train & test
    assert train | test == set(range(100))
    assert test != set(range(20))


def test_the_global_test_set_is_apart(numbered):
    fed = load(options(numbered(100)), 2)
    assert fed.test.x.flatten().tolist() == [0, 1, 2, 3, 4]  # the source's own, whatever the seed


def test_a_set_without_a_test_split_gets_one():
    x = torch.arange(100).unsqueeze(1)
    source = from_tensors(x, torch.arange(100) % 4)
    fed = load(options(source), 5, seed=1)
    held = set(fed.test.x.flatten().tolist())
    trained = {int(i) for c in fed.clients for split in (c.train, c.test) for i in split.x}
    assert len(held) == 20
    assert held | trained == set(range(100))
    assert not held & trained
    assert len(load(options(source, test_share=0.5), 5).test) == 50
    assert set(load(options(source), 5, seed=2).test.x.flatten().tolist()) != held


def test_a_test_share_that_does_nothing_is_an_error(numbered):
    with pytest.raises(
        DataError, match=r"test_share = 0.2 has no effect: 'in-memory \(100 examples\)' has a test"
    ):
        load(options(numbered(100), test_share=0.2), 2)


def test_the_limit_draws_evenly_over_classes():
    y = torch.cat([torch.zeros(50), torch.ones(5), torch.full((45,), 2)]).long()
    x = torch.arange(100).unsqueeze(1)
    source = from_tensors(x, y, test=(x, y))
    fed = load(options(source, train_limit=25), 1, seed=1)
    client = fed.clients[0]
    counts = torch.bincount(torch.cat([client.train.y, client.test.y]))
    assert counts.tolist() == [10, 5, 10]
    assert len(fed.test) == 100
    with pytest.raises(DataError, match="train_limit = 101: there are only 100"):
        load(options(source, train_limit=101), 1)


def test_one_hundred_clients_by_default(numbered):
    assert len(load(options(numbered(200))).clients) == 100


def test_info_and_names(numbered):
    fed = load(options(numbered(30, classes=3, labels=["a", "b", "c"])), 3)
    assert fed.info.input_shape == (1,)
    assert (fed.info.num_classes, fed.info.labels) == (3, ("a", "b", "c"))
    assert [(c.id, c.name) for c in fed.clients] == [(0, "0"), (1, "1"), (2, "2")]
    assert sum(int(c.label_counts(3).sum()) for c in fed.clients) == sum(len(c.train) for c in fed.clients)


@pytest.mark.parametrize(
    ("x", "y", "others", "message"),
    [
        (torch.zeros(3, 1), torch.zeros(4).long(), {}, "are not"),
        (torch.zeros(3), torch.zeros(3).long(), {}, "are not"),
        (torch.zeros(0, 1), torch.zeros(0).long(), {}, "has no examples"),
        (torch.zeros(3, 1), torch.zeros(3), {}, "integer classes are needed"),
        (torch.zeros(3, 1), torch.tensor([0, -1, 1]), {}, "holds -1"),
        (torch.zeros(3, 1), torch.tensor([0, 1, 2]), {"labels": ["a", "b"]}, "class 2, but only 2"),
        (torch.full((3, 1), torch.nan), torch.zeros(3).long(), {}, "NaN"),
        (torch.zeros(3, 1), torch.zeros(3).long(), {"client": ["a"]}, "one id for each of the 3"),
        (torch.zeros(3, 1), torch.zeros(3).long(), {"client": [0.5, 1, 2]}, "integers or strings"),
        (torch.zeros(3, 1), torch.zeros(3).long(), {"test": (torch.zeros(1, 2), torch.zeros(1))}, "integer"),
        (torch.zeros(3, 1), torch.zeros(1).long().repeat(3), {"test": (torch.zeros(1, 2), ONE)}, "in test"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_together(x, y, others, message):
    with pytest.raises(DataError, match=message):
        from_tensors(x, y, **others)


def test_columns_have_no_effect_on_tensors(numbered):
    with pytest.raises(DataError, match=r"data.label has no effect"):
        load(options(numbered(10), label="label"), 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sorce": "x"},
        {"test_share": 1.0},
        {"local_test_share": 0},
        {"partition": {"kind": "dirichlet", "alpha": 0}},
        {"partition": {"kind": "dirichlet", "alpha": float("inf")}},
        {"partition": {"kind": "dirichlet", "min_size": 1}},
        {"partition": {"kind": "iid", "alpha": 1}},
        {"partition": {"kind": "dirichlit"}},
        {"client": "user"},
        {"shape": [0]},
        {"source": 3},
    ],
)
def test_options_are_checked(wrong):
    with pytest.raises(pydantic.ValidationError):
        DataOptions(**wrong)


def test_every_option_says_what_it_is_for():
    schema = DataOptions.model_json_schema()
    models = [schema, *schema["$defs"].values()]
    fields = {name: field for model in models for name, field in model["properties"].items()}
    assert [name for name, field in fields.items() if name != "kind" and "description" not in field] == []


def test_options_survive_a_round_trip(numbered):
    chosen = DataOptions(shape=[2, 3], partition={"kind": "shards", "shards": 4})
    assert DataOptions(**chosen.model_dump(exclude_none=True)) == chosen
    assert options(numbered(10)).model_dump()["source"] == "in-memory (10 examples)"
