"""The models that come with uneven, their options, and models of the user's own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from uneven.data import Info
from uneven.errors import ModelError
from uneven.models import MODELS, READS_TEXT, build

GREY = Info((1, 28, 28), 10, tuple("abcdefghij"))
COLOUR = Info((3, 32, 32), 7, tuple("abcdefg"))
NORMED = ["cnn", "resnet18", "resnet_tiny", "shufflenet_v2_x0_5"]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def kinds(model: nn.Module) -> set[type[nn.Module]]:
    return {type(m) for m in model.modules()}


@pytest.mark.parametrize("info", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in READS_TEXT])
def test_every_model_gives_one_logit_for_each_class(name: str, info: Info) -> None:
    model = build(name, info, {}, seed=0).eval()
    with torch.no_grad():
        logits = model(torch.randn(2, *info.input_shape))
    assert logits.shape == (2, info.num_classes)
    assert torch.isfinite(logits).all()
    assert not torch.equal(logits[0], logits[1])


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("mlp", 784 * 200 + 200 + 200 * 100 + 100 + 100 * 10 + 10),
        ("cnn", 25 * 32 + 9 * 32 * 64 + 2 * (32 + 64) + 64 * 7 * 7 * 10 + 10),
        ("resnet18", 11_172_810),
        ("resnet_tiny", 174_970),
        ("shufflenet_v2_x0_5", 351_610),
    ],
)
def test_sizes_on_grey_images(name: str, parameters: int) -> None:
    assert sum(p.numel() for p in build(name, GREY, {}, seed=0).parameters()) == parameters


@pytest.mark.parametrize("name", NORMED)
def test_the_norm_is_an_option(name: str) -> None:
    group, batch, none = (build(name, GREY, {"norm": norm}, seed=0) for norm in ("group", "batch", "none"))
    assert nn.GroupNorm in kinds(group)
    assert nn.BatchNorm2d not in kinds(group)
    assert nn.BatchNorm2d in kinds(batch)
    assert nn.GroupNorm not in kinds(batch)
    assert not {nn.BatchNorm2d, nn.GroupNorm} & kinds(none)
    convolutions = [[m for m in model.modules() if isinstance(m, nn.Conv2d)] for model in (group, batch, none)]
    assert [all(c.bias is None for c in model) for model in convolutions] == [True, True, False]
    assert all(c.bias is not None for c in convolutions[2])  # no norm: the biases take its shift's place


@pytest.mark.parametrize("name", NORMED)
def test_the_groups_of_the_norm_are_an_option(name: str) -> None:
    model = build(name, GREY, {"groups": 4}, seed=0)
    assert {m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)} == {4}
    with pytest.raises(ModelError, match=r"model.groups = 7: must divide every layer's channels"):
        build(name, GREY, {"groups": 7}, seed=0)
    with pytest.raises(ModelError, match=r"model.groups = 0"):
        build(name, GREY, {"groups": 0}, seed=0)


def test_the_hidden_sizes_are_an_option() -> None:
    model = build("mlp", GREY, {"hidden": [30, 20]}, seed=0)
    shapes = [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]
    assert shapes == [(784, 30), (30, 20), (20, 10)]
    flat = build("mlp", GREY, {"hidden": []}, seed=0)
    assert [tuple(p.shape) for p in flat.parameters()] == [(10, 784), (10,)]


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet_tin", {}, r"model.name = 'resnet_tin': did you mean 'resnet_tiny'\?"),
        ("zzz", {}, r"model.name = 'zzz': known: cnn, encoder, gpt2, mlp, resnet18"),
        ("cnn", {"nrom": "batch"}, r"model.nrom = 'batch': no such option; did you mean 'norm'\?"),
        ("mlp", {"norm": "batch"}, r"model.norm = 'batch'.*hidden"),
        ("cnn", {"norm": "layer"}, r"model.norm = 'layer': must be 'group', 'batch' or 'none'"),
        ("mlp", {"hidden": 5}, r"model.name = 'mlp': fails to build with \{'hidden': 5\}"),
        ("mlp", {"hidden": [20, 0]}, r"model.hidden = \[20, 0\]: must be positive"),
        ("mlp", {"hidden": [-1]}, r"model.hidden = \[-1\]: must be positive"),
        ("cnn", {"groups": "two"}, r"model.name = 'cnn': fails to build"),
        ("no_such_package.models:net", {}, r"cannot import 'no_such_package.models'"),
        ("uneven.models:resnet_tinny", {}, r"no 'resnet_tinny' in it; did you mean 'resnet_tiny'\?"),
        (
            "uneven.models:MODELS",
            {},
            r"model.name = 'uneven.models:MODELS': must be a function that returns the model, not dict",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(name: str, options: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build(name, GREY, options, seed=0)


def test_all_unknown_options_are_named_at_once() -> None:
    with pytest.raises(ModelError) as caught:
        build("cnn", GREY, {"nrom": "batch", "grups": 2}, seed=0)
    assert "model.nrom" in str(caught.value)
    assert "model.grups" in str(caught.value)


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(ModelError, match="images of 3x9 are too small"):
        build("cnn", Info((3, 3, 9), 2, ("a", "b")), {}, seed=0)


# ---------------------------------------------------------------- seeds


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet_tiny", "shufflenet_v2_x0_5"])
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    torch.manual_seed(1)
    first = build(name, GREY, {}, seed=3).state_dict()
    torch.manual_seed(2)  # the state of PyTorch's own generator plays no part
    second = build(name, GREY, {}, seed=3).state_dict()
    other = build(name, GREY, {}, seed=4).state_dict()
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert any(not torch.equal(first[n], other[n]) for n in first)


def test_building_leaves_pytorchs_generator_alone() -> None:
    before = torch.random.get_rng_state()
    build("mlp", GREY, {}, seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)


# ---------------------------------------------------------------- the user's own


OWN = """
from torch import nn

def net(info, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.Linear(width, info.num_classes))

def wrong(info):
    return "a string"

def broken(info):
    raise ValueError("not today")

def free(info, **options):
    return net(info, **options)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "ownpackage").mkdir()
    (tmp_path / "ownpackage" / "nets.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.startswith("ownpackage")]:
        del sys.modules[name]


@pytest.mark.usefixtures("own")
def test_a_model_of_the_users_own_by_its_dotted_path() -> None:
    model = build("ownpackage.nets:net", GREY, {"width": 6}, seed=0)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert next(model.parameters()).shape == (6, 784)
    again = build("ownpackage.nets:net", GREY, {"width": 6}, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert build("ownpackage.nets:free", GREY, {"width": 3}, seed=0)(torch.zeros(1, 1, 28, 28)).shape == (1, 10)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ownpackage.nets:nett", {}, r"no 'nett' in it; did you mean 'net'\?"),
        ("ownpackage.nets:net", {"widht": 3}, r"model.widht = 3: no such option; did you mean 'width'\?"),
        ("ownpackage.nets:wrong", {}, r"must return a torch.nn.Module, not str"),
        ("ownpackage.nets:broken", {}, r"fails to build.*not today"),
        ("ownpackage.nots:net", {}, r"cannot import 'ownpackage.nots'"),
    ],
)
def test_what_is_wrong_with_the_users_own_model_is_named(name: str, options: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build(name, GREY, options, seed=0)


def test_a_function_is_a_model_too() -> None:
    model = build(lambda info: nn.Sequential(nn.Flatten(), nn.Linear(784, info.num_classes)), GREY, {}, seed=0)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
