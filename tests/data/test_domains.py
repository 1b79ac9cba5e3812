"""Several sets in one folder as one: joined in the order of their names, with one meaning of their columns."""

import numpy as np
import pytest
import torch

from uneven.data import DataOptions, Federation, load
from uneven.errors import DataError

NATURAL = {"kind": "natural"}


def read(source, partition=NATURAL, **others) -> Federation:
    return load(DataOptions(source=str(source), partition=partition, **others))


@pytest.fixture
def domains(vectors, tmp_path):
    """Two sets: 20 vectors of `a`, 30 of `b` (as the hub lays it out), tests of 4 and 6; and other things."""
    vectors("set/b/data/train-00000-of-00001.parquet", n=30, rate=[2.0] * 30, user=["u"] * 30)
    vectors("set/b/data/validation-00000-of-00001.parquet", n=6)
    vectors("set/a/train.parquet", n=20, rate=[1.5] * 20, user=["u"] * 20)
    vectors("set/a/test.parquet", n=4)
    (tmp_path / "set" / "notes").mkdir()
    (tmp_path / "set" / "README.md").write_text("two sets")
    return tmp_path / "set"


def test_each_folder_is_a_natural_client(domains):
    """By default, though the sets have a column `user` too; numbers of a domain are its client's attributes."""
    fed = read(domains)
    assert [(c.name, len(c.train) + len(c.test), c.attributes) for c in fed.clients] == [
        ("a", 20, {"rate": 1.5}),
        ("b", 30, {"rate": 2.0}),
    ]
    assert fed.test.x[:, 0].tolist() == [*range(4), *range(6)]
    rows = torch.cat([split.x[:, 0] for c in fed.clients for split in (c.train, c.test)])
    assert rows.sort().values.tolist() == sorted([*range(20), *range(30)])
    assert [c.name for c in read(domains, client="user").clients] == ["u"]


def test_a_joined_set_is_shared_like_any_other(domains):
    fed = load(DataOptions(source=str(domains), partition={"kind": "iid"}), count=5)
    assert [len(c.train) + len(c.test) for c in fed.clients] == [10] * 5


def test_a_column_says_the_split_in_every_domain(vectors, tmp_path):
    for name in ("a", "b"):
        vectors(f"{name}/train.parquet", part=["train"] * 20 + ["test"] * 10)
    fed = read(tmp_path, split="part")
    assert ([len(c.train) + len(c.test) for c in fed.clients], len(fed.test)) == ([20, 20], 20)
    vectors("c/train.parquet", n=2, part=["train"] * 2)
    with pytest.raises(DataError, match=r"domains 'a' and 'c' need the same classes in 'label', but .* has 2"):
        read(tmp_path, split="part")


def test_domains_without_test_splits(vectors, tmp_path):
    for name in ("a", "b"):
        vectors(f"{name}/train.parquet")
    fed = read(tmp_path, test_share=0.5)
    assert (sum(len(c.train) + len(c.test) for c in fed.clients), len(fed.test)) == (30, 30)


def test_one_test_split_is_lacking(domains):
    (domains / "b/data/validation-00000-of-00001.parquet").unlink()
    with pytest.raises(DataError, match=r"domain 'b' has no test\*.parquet, but 'a' has"):
        read(domains)


def test_one_training_split_is_lacking(domains):
    (domains / "a/train.parquet").unlink()
    with pytest.raises(DataError, match=r"domain 'a' has no train\*.parquet, but 'b' has"):
        read(domains)
    (domains / "b/data/train-00000-of-00001.parquet").unlink()
    with pytest.raises(DataError, match=r"the folder has no train\*.parquet"):
        read(domains)


def test_a_domain_that_is_no_parquet(domains):
    (domains / "b/data/train-00000-of-00001.parquet").write_text("x")
    with pytest.raises(DataError, match=r"b.data.train-.* cannot be read as parquet"):
        read(domains)


@pytest.mark.parametrize(
    ("columns", "names", "message"),
    [
        ({"x": [[1.0]] * 6, "label": [0, 1] * 3, "more": [0] * 6}, ["no", "yes"], "same columns, but .* has more"),
        ({"img": [[1.0]] * 6, "label": [0, 1] * 3}, ["no", "yes"], "same columns, but only one has img, x"),
        (
            {"x": [[1.0]] * 6, "label": [0, 1] * 3},
            ["yes", "no"],
            "the 2 classes no, yes and the 2 classes yes, no",
        ),
        ({"x": [[1.0]] * 6, "label": [0, 1] * 3}, None, "the 2 classes no, yes and no names"),
        ({"x": [[1.0]] * 6, "label": [0, 1] * 3}, ["no", "yes", "?"], "no, yes and the 3 classes no, yes, ?"),
        ({"x": [[1.0]] * 6, "label": ["a", "b"] * 3}, ["no", "yes"], "cannot be read"),
    ],
)
def test_domains_that_do_not_fit_together(write, tmp_path, columns, names, message):
    write("a/train.parquet", {"x": [[1.0]] * 6, "label": [0, 1] * 3}, names=["no", "yes"])
    write("b/train.parquet", columns, names=names)
    with pytest.raises(DataError, match=message.replace("?", r"\?")) as error:
        read(tmp_path)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("other", [[0, 1, 3], [0, 1, 1], ["0", "1", "2"]])
def test_classes_without_names_are_the_same_in_every_domain(write, tmp_path, other):
    classes = ["0", "1", "9"] if isinstance(other[0], str) else [0, 1, 2]
    write("a/train.parquet", {"x": [[1.0]] * 6, "label": classes * 2})
    write("b/train.parquet", {"x": [[1.0]] * 6, "label": classes[::-1] * 2})
    assert read(tmp_path).info.num_classes == 3
    write("c/train.parquet", {"x": [[1.0]] * 6, "label": other * 2})
    with pytest.raises(
        DataError, match="domains 'a' and 'c' need the same classes in 'label', but only one has 2"
    ):
        read(tmp_path)


def test_a_domain_with_a_column_of_that_name(vectors, tmp_path):
    vectors("a/train.parquet", domain=["x"] * 30)
    with pytest.raises(DataError, match="domain 'a' has a column 'domain': rename it"):
        read(tmp_path)


def test_grey_and_colour_domains_of_two_sizes_are_one_input(images, write, tmp_path):
    """A grey domain gets its values in all three channels; a constant image stays so at any size."""
    grey = [np.full((4, 4), i, np.uint8) for i in range(10)]
    colour = [np.full((6, 8, 3), (i, 100, 200), np.uint8) for i in range(10)]
    for split in ("train", "test"):
        write(f"a/{split}.parquet", {"image": images(grey), "label": [0, 1] * 5})
        write(f"b/{split}.parquet", {"image": images(colour), "label": [0, 1] * 5})
    with pytest.raises(DataError, match=r"4x4 \(row 0\) and 8x6 \(row 10\); data.size = 32 would resize all"):
        read(tmp_path)
    fed = read(tmp_path, size=5)
    assert fed.info.input_shape == (3, 5, 5)
    expected = [[i, i, i] for i in range(10)] + [[i, 100, 200] for i in range(10)]
    assert torch.equal(
        fed.test.x, torch.tensor(expected, dtype=torch.uint8)[:, :, None, None].expand(-1, -1, 5, 5)
    )
