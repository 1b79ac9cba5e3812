"""Folders, files, columns and the hub: what is read, and one clear error for each bad input."""

import os

import numpy as np
import pytest
import torch

from uneven.data import DataOptions, Federation, load
from uneven.errors import DataError


def read(source: str, count: int | None = 3, **others) -> Federation:
    return load(DataOptions(source=source, **{"partition": {"kind": "iid"}, **others}), count)


def held(federation: Federation) -> list[int]:
    """The classes of all of the clients' examples, sorted."""
    splits = [split for c in federation.clients for split in (c.train, c.test)]
    return sorted(torch.cat([split.y for split in splits]).tolist())


def test_a_file_a_folder_and_hub_shards(vectors, tmp_path):
    file = vectors("one/train.parquet")
    assert len(read(file).test) == 6  # a fifth of 30
    vectors("one/test.parquet", n=9)
    vectors("one/training.parquet", n=99)
    fed = read(str(tmp_path / "one"))
    assert (len(held(fed)), len(fed.test)) == (30, 9)
    for i in range(2):
        vectors(f"hub/data/train-0000{i}-of-00002.parquet")
    vectors("hub/data/validation-00000-of-00001.parquet", n=12)
    fed = read(str(tmp_path / "hub"))
    assert (len(held(fed)), len(fed.test)) == (60, 12)
    assert len(held(read(str(tmp_path / "hub/data/train-*.parquet")))) == 48


def test_test_files_go_before_validation_files(vectors, tmp_path):
    for name, n in (("train", 30), ("test", 3), ("validation", 6)):
        vectors(f"{name}.parquet", n=n)
    assert len(read(str(tmp_path)).test) == 3


def test_paths_are_against_the_current_folder(vectors, tmp_path, monkeypatch):
    vectors("set/train.parquet")
    monkeypatch.chdir(tmp_path)
    assert len(held(read("set"))) == 24


def test_a_split_column(vectors):
    split = ["train"] * 20 + ["test"] * 6 + ["validation"] * 4
    fed = read(vectors(split_name=split), split="split_name")
    assert (len(held(fed)), len(fed.test)) == (20, 6)
    with pytest.raises(DataError, match="holds dev, train: train, test, validation are known"):
        read(vectors(part=["train"] * 20 + ["dev"] * 10), split="part")
    with pytest.raises(DataError, match=r"'splt': no such column .*; did you mean 'split'"):
        read(vectors(split=split), split="splt")


def test_grey_and_colour_images(images, write):
    grey = [np.full((4, 5), i, np.uint8) for i in range(30)]
    fed = read(write("grey.parquet", {"image": images(grey), "label": [0, 1, 2] * 10}))
    assert fed.info.input_shape == (1, 4, 5)
    assert fed.test.x.dtype == torch.uint8
    colour = [np.full((4, 5, 3), (i, 0, 255), np.uint8) for i in range(30)]
    fed = read(write("colour.parquet", {"img": images(colour), "label": [0, 1, 2] * 10}))
    assert fed.info.input_shape == (3, 4, 5)
    assert fed.test.x[:, 2].unique().tolist() == [255]
    mixed = read(write("mixed.parquet", {"img": images([*grey[:15], *colour[15:]]), "label": [0, 1, 2] * 10}))
    assert mixed.info.input_shape == (3, 4, 5)


def test_images_as_plain_bytes(images, write):
    files = images([np.full((2, 2), i, np.uint8) for i in range(30)]).field("bytes")
    assert read(write("a.parquet", {"image": files, "label": [0, 1] * 15})).info.input_shape == (1, 2, 2)


def test_lists_of_numbers_and_their_shape(write):
    columns = {"x": np.arange(180, dtype=np.float32).reshape(30, 6).tolist(), "label": [0, 1] * 15}
    assert read(write("a.parquet", columns)).info.input_shape == (6,)
    fed = read(write("a.parquet", columns), shape=[2, 3])
    assert fed.info.input_shape == (2, 3)
    assert fed.test.x.dtype == torch.float32
    first = fed.test.x[0].flatten()
    assert torch.equal(first, first[0] + torch.arange(6))
    with pytest.raises(DataError, match=r"data.shape = \[4, 2\] has 8 numbers, but input column 'x' has 6"):
        read(write("a.parquet", columns), shape=[4, 2])


def test_lists_keep_their_own_shape_and_integers_stay_integers(write):
    x = np.arange(180).reshape(30, 2, 3).tolist()
    fed = read(write("a.parquet", {"x": x, "label": [0, 1] * 15}))
    assert (fed.info.input_shape, fed.test.x.dtype) == ((2, 3), torch.int64)


def test_names_of_classes_come_from_the_metadata(write):
    x = [[1.0]] * 30
    named = write("a.parquet", {"x": x, "label": [0, 1] * 15}, names=["no", "yes", "perhaps"])
    assert read(named).info.labels == ("no", "yes", "perhaps")
    assert read(write("b.parquet", {"x": x, "label": [0, 3] * 15})).info.labels == ("0", "1", "2", "3")


def test_string_labels_are_numbered_in_sorted_order_over_both_splits(write, tmp_path):
    write("s/train.parquet", {"x": [[1.0]] * 30, "label": ["b", "c", "b"] * 10})
    write("s/test.parquet", {"x": [[1.0]] * 2, "label": ["c", "a"]})
    fed = read(str(tmp_path / "s"))
    assert fed.info.labels == ("a", "b", "c")
    assert fed.test.y.tolist() == [2, 0]
    assert held(fed) == [1] * 20 + [2] * 10


def test_labels_of_two_kinds(write, tmp_path):
    write("s/train.parquet", {"x": [[1.0]] * 30, "label": [0, 1] * 15})
    write("s/test.parquet", {"x": [[1.0]] * 2, "label": ["0", "1"]})
    with pytest.raises(DataError, match="holds int64 in the train split, string in the test split"):
        read(str(tmp_path / "s"))


def test_columns_are_found_by_their_usual_names_or_as_told(write):
    columns = {"image2": [[1.0]] * 30, "fine_label": [0, 1, 2] * 10, "coarse": [0] * 30}
    with pytest.raises(DataError, match=r"none of the columns img, image, .*: set data.input to one of image2"):
        read(write("a.parquet", columns))
    assert read(write("a.parquet", columns), input="image2").info.num_classes == 3
    assert read(write("a.parquet", columns), input="image2", label="coarse").info.num_classes == 1
    with pytest.raises(DataError, match=r"data.input = 'imag2': no such column in .*; did you mean 'image2'"):
        read(write("a.parquet", columns), input="imag2")


def test_natural_clients_and_their_attributes(vectors):
    user = [f"u{i % 3}" for i in range(30)]
    memory = [1.5 * (i % 3) for i in range(30)]
    file = vectors(user=user, memory=memory, heat=list(range(30)))
    fed = read(file, None, partition={"kind": "natural"})
    assert [c.name for c in fed.clients] == ["u0", "u1", "u2"]
    assert [c.attributes for c in fed.clients] == [{"memory": 0.0}, {"memory": 1.5}, {"memory": 3.0}]
    assert read(file).clients[0].attributes == {}
    with pytest.raises(DataError, match=r"none of the columns domain, user, publication, role: set data.client"):
        read(vectors("other.parquet"), None, partition={"kind": "natural"})
    named = read(vectors("third.parquet", person=user), None, client="person", partition={"kind": "natural"})
    assert len(named.clients) == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("fashion-mimi", "'fashion-mimi': no embedded set, folder .*; did you mean 'fashion-mini'?"),
        ("nowhere/at/all", "'nowhere/at/all': no embedded set, folder or parquet file"),
    ],
)
def test_a_source_that_is_not_there(source, message):
    with pytest.raises(DataError, match=message):
        read(source)


def test_a_misspelt_path_names_the_nearest(vectors, tmp_path):
    vectors("digits/train.parquet")
    with pytest.raises(DataError, match=f"did you mean '{tmp_path}{os.sep}digits'"):
        read(str(tmp_path / "digit"))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match=r"the folder has no train\*.parquet"):
        read(str(empty))


def test_a_file_that_is_no_parquet(tmp_path):
    (tmp_path / "train.parquet").write_text("label,x")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        read(str(tmp_path))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.5] * 30, "'label' holds double: integer classes or strings"),
        ([0, -1, 1] * 10, "'label' holds -1: classes are"),
        ([0, None, 1] * 10, "'label' has no value in 10 of 30 rows"),
    ],
)
def test_labels_that_are_none(write, labels, message):
    with pytest.raises(DataError, match=message):
        read(write("a.parquet", {"x": [[1.0]] * 30, "label": labels}))


def test_a_class_without_a_name(write):
    with pytest.raises(DataError, match="holds class 2, but only 2 classes have names"):
        read(write("a.parquet", {"x": [[1.0]] * 30, "label": [0, 1, 2] * 10}, names=["a", "b"]))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([1.0] * 30, "holds double: images or lists of numbers"),
        ([[1.0], [1.0, 2.0]] * 15, r"lists of unequal lengths: \[1, 2\]"),
        ([[1.0], [None]] * 15, "lacks 15 numbers"),
        ([[1.0], None] * 15, "has no value in 15 of 30 rows"),
        ([[1.0], [float("inf")]] * 15, "NaN or infinite"),
        ([b"no image"] * 30, "row 0: not an image file"),
        ([{"bytes": None, "path": "a.png"}] * 30, "images by path only"),
        ([{"path": "a.png"}] * 30, "without the field 'bytes'"),
    ],
)
def test_inputs_that_are_none(write, x, message):
    with pytest.raises(DataError, match=message):
        read(write("a.parquet", {"x": x, "label": [0, 1] * 15}))


def test_images_that_do_not_fit(images, write):
    def both(*arrays: np.ndarray) -> str:
        return write("a.parquet", {"image": images([*arrays] * 15), "label": [0, 1] * 15})

    small = np.zeros((4, 4), np.uint8)
    with pytest.raises(DataError, match=r"unequal sizes: 4x4 \(row 0\) and 5x6 \(row 1\)"):
        read(both(small, np.zeros((6, 5), np.uint8)))
    with pytest.raises(DataError, match="row 1: an image of mode RGBA"):
        read(both(small, np.zeros((4, 4, 4), np.uint8)))
    with pytest.raises(DataError, match="row 1: an image of mode I;16"):
        read(both(small, np.zeros((4, 4), np.uint16)))
    with pytest.raises(DataError, match="no effect on images"):
        load(DataOptions(source=both(small, small), shape=[16]))


def test_a_damaged_image(images, write):
    noise = np.random.default_rng(0).integers(0, 255, (16, 16), np.uint8)
    whole = images([noise]).field("bytes")[0].as_py()
    with pytest.raises(DataError, match="row 1: a damaged image"):
        read(write("a.parquet", {"image": [whole, whole[:150]] * 15, "label": [0, 1] * 15}))


def test_splits_that_do_not_fit_together(write, vectors, tmp_path):
    vectors("a/train.parquet")
    write("a/test.parquet", {"x": [[1.0]] * 3, "label": [0, 1, 2]})
    with pytest.raises(DataError, match=r"shape \[4\] in the train split, but \[1\] in the test split"):
        read(str(tmp_path / "a"))
    write("a/test.parquet", {"x": [[1.0] * 4] * 3})
    with pytest.raises(DataError, match=r"data.label = 'label': no such column in the test split"):
        read(str(tmp_path / "a"))


def test_the_hubs_loader_reads_class_names_and_splits(write, tmp_path, monkeypatch):
    """The hub's client reads a local folder just as it reads its own sets."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    names = ["no", "yes"]
    write("set/train.parquet", {"x": [[1.0]] * 30, "label": [0, 1] * 15}, names=names)
    write("set/test.parquet", {"x": [[1.0]] * 4, "label": [0, 1] * 2}, names=names)
    fed = read(f"hub:{tmp_path / 'set'}")
    assert (fed.info.labels, len(held(fed)), len(fed.test)) == (("no", "yes"), 30, 4)


def test_the_hub_out_of_reach(monkeypatch):
    import datasets

    def unreachable(name: str) -> None:
        raise ConnectionError(f"Couldn't reach '{name}' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DataError, match=r"'hub:some/set': .* cannot be loaded: Couldn't reach 'some/set'"):
        read("hub:some/set")
