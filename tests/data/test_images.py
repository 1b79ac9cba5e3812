"""Images of one size: what resizing does to pixels, and where it cannot be."""

import numpy as np
import pytest
import torch
from PIL import Image

from uneven.data import DataOptions, load
from uneven.data.images import decode
from uneven.errors import DataError, SpecError
from uneven.spec import parse


def files(images, arrays: list[np.ndarray]) -> list[bytes]:
    return images(arrays).field("bytes").to_pylist()


def test_shrinking_averages_all_pixels(images):
    """A half: each pixel is a mean under a triangle over 4 x 4 of a checkerboard, 127.5, not one of its fields."""
    board = np.indices((8, 8)).sum(0) % 2 * 255
    small = decode(files(images, [board.astype(np.uint8)]), "x", (4, 4))
    assert small.shape == (1, 1, 4, 4)
    assert torch.all((small[0, 0, 1:-1, 1:-1].int() - 127).abs() <= 1)


def test_growing_interpolates(images):
    """Centres of 4 new columns in 2 old ones lie at -.25, .25, .75, 1.25: 0, 25, 75, 100 of the way."""
    grown = decode(files(images, [np.array([[0, 100]], np.uint8)]), "x", (1, 4))
    assert grown.flatten().tolist() == [0, 25, 75, 100]


def test_a_size_is_height_and_width(images):
    pair = [np.zeros((9, 3), np.uint8), np.zeros((2, 7, 3), np.uint8)]
    assert decode(files(images, pair), "x", (5, 6)).shape == (2, 3, 5, 6)


def test_its_own_size_changes_no_pixel(images):
    array = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    assert torch.equal(decode(files(images, [array]), "x", (4, 5)), decode(files(images, [array]), "x"))


def test_the_colours_of_a_palette_are_averaged_not_its_entries(images, tmp_path):
    """Entries 0, 1, 2 are red, green and blue: between red (0) and blue (2) is purple, not green."""
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    image.putpixel((1, 0), 2)
    image.save(tmp_path / "p.png")
    (pixel,) = decode([(tmp_path / "p.png").read_bytes()], "x", (1, 1)).flatten(1).tolist()
    assert pixel == pytest.approx([127.5, 0, 127.5], abs=1)


def test_a_single_set_is_resized(images, write):
    source = write("a.parquet", {"image": images([np.zeros((4, 4), np.uint8)] * 30), "label": [0, 1] * 15})
    federation = load(DataOptions(source=source, size=[6, 8], partition={"kind": "iid"}), 3)
    assert federation.info.input_shape == (1, 6, 8)


@pytest.mark.parametrize(
    ("x", "what"), [([[1.0]] * 30, "lists of numbers"), (["a text"] * 30, "texts"), (None, "in-memory")]
)
def test_only_images_are_resized(write, numbered, x, what):
    source = numbered(30) if x is None else write("a.parquet", {"x": x, "label": [0, 1] * 15})
    with pytest.raises(DataError, match=f"data.size.* has no effect on .*{what}"):
        load(DataOptions(source=source, size=8, partition={"kind": "iid"}), 3)


@pytest.mark.parametrize(
    ("size", "says"),
    [(0, "greater than 0"), ([8], "at least 2 items"), ([8, -1], "greater than 0"), ("8", "integer")],
)
def test_a_size_that_is_none(size, says):
    with pytest.raises(SpecError, match=rf"data.size.*{says}"):
        parse({"data": {"size": size}})


def test_only_images_that_are_used_are_decoded(images, write):
    """The image of row k is k everywhere, with label k mod 2. An error where one is used that is none."""
    column = images([np.full((3, 3), k, np.uint8) for k in range(40)])
    wrong = [
        {"bytes": b"no image" if k == 7 else f["bytes"], "path": None} for k, f in enumerate(column.to_pylist())
    ]
    labels = [k % 2 for k in range(40)]
    whole, broken = (
        write(name, {"image": rows, "label": labels})
        for name, rows in (("a.parquet", column), ("b.parquet", wrong))
    )
    errors = 0
    for seed in range(8):
        options = {"train_limit": 12, "test_limit": 3, "partition": {"kind": "iid"}}
        federation = load(DataOptions(source=whole, **options), 3, seed)
        splits = [split for c in federation.clients for split in (c.train, c.test)] + [federation.test]
        used = torch.cat([split.x.flatten(1) for split in splits])
        assert (len(used), len(used.unique())) == (15, 15)
        assert torch.equal(used[:, 0] % 2, torch.cat([split.y for split in splits]))
        assert torch.equal(used, used[:, :1].expand(-1, 9))
        if 7 in used:
            errors += 1
            with pytest.raises(DataError, match="row 7: not an image"):
                load(DataOptions(source=broken, **options), 3, seed)
        else:
            load(DataOptions(source=broken, **options), 3, seed)
    assert 0 < errors < 8
