"""The table and the picture of a federation."""

import io

import pytest
from PIL import Image
from rich.console import Console

from uneven.data import DataOptions, Federation, load
from uneven.data.table import describe, plot, table


@pytest.fixture
def federation(numbered) -> Federation:
    options = DataOptions(
        source=numbered(60, classes=3, labels=["ant", "bee", "cat"]), partition={"kind": "linear"}
    )
    return load(options, 4)


def test_describe_counts_every_example(federation):
    shown = describe(federation)
    assert [(row.name, row.train + row.test) for row in shown.clients] == [
        ("0", 6),
        ("1", 12),
        ("2", 18),
        ("3", 24),
    ]
    assert all(sum(row.counts) == row.train for row in shown.clients)
    assert (shown.labels, shown.input_shape, shown.test) == (("ant", "bee", "cat"), (1,), 5)
    assert "4 clients" in shown.summary()


def printed(federation: Federation) -> str:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as capture:
        console.print(table(describe(federation)))
    return capture.get()


def test_few_classes_are_columns_and_many_are_summed_up(federation, numbered):
    assert "bee" in printed(federation)
    many = load(DataOptions(source=numbered(300, classes=30), partition={"kind": "shards", "shards": 1}), 30)
    assert "classes" in printed(many)


@pytest.mark.parametrize(("n", "classes"), [(60, 3), (120, 15), (300, 30)])
def test_the_picture_is_written_without_a_display(numbered, tmp_path, n, classes):
    fed = load(DataOptions(source=numbered(n, classes=classes), partition={"kind": "iid"}), 7)
    plot(fed, tmp_path / "clients.png")
    with Image.open(tmp_path / "clients.png") as image:
        assert image.width > 800
