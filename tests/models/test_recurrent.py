"""The recurrent network: which units a width keeps, what it computes, and that it reads from left to right."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.submodels.helpers import randomised
from uneven.data import Info
from uneven.errors import ModelError
from uneven.models import build
from uneven.submodels import Supernet

WORDS, LENGTH, E, H = 11, 6, 6, 10
TEXTS = Info((LENGTH,), WORDS, tuple("_?abcdefghi"), WORDS, 0, "words", "next_token")
CLASSES = replace(TEXTS, num_classes=3, labels=("x", "y", "z"), task="classify")
GATES = 4


def model(info: Info = TEXTS, **options: object) -> nn.Module:
    chosen = {"embedding": E, "hidden": H, "layers": 2, **options}
    return randomised(build("slimmable_lstm", info, chosen, seed=0))


@cache
def supernet() -> Supernet:
    return Supernet(model(), torch.zeros(LENGTH, dtype=torch.int64))


def texts(n: int = 3) -> Tensor:
    return torch.randint(2, WORDS, (n, LENGTH), generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize(("layers", "hidden"), [(1, H), (2, H), (3, 4)])
def test_shapes_and_sizes(layers: int, hidden: int) -> None:
    """Four gates of weights from the input and from the state, and two biases; then a linear layer."""
    net = model(layers=layers, hidden=hidden)
    cells = [GATES * hidden * (inputs + hidden + 2) for inputs in [E, *[hidden] * (layers - 1)]]
    assert sum(p.numel() for p in net.parameters()) == WORDS * E + sum(cells) + WORDS * (hidden + 1)
    assert net(texts()).shape == (3, LENGTH, WORDS)
    assert model(CLASSES)(texts()).shape == (3, 3)


def cell(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """An LSTM's states (length, hidden) on x (length, inputs): Hochreiter and Schmidhuber's equations with forget
    gates, in PyTorch's order of gates, input, forget, cell, output."""
    hidden = weights["weight_hh_l0"].shape[1]
    h, c, states = torch.zeros(hidden), torch.zeros(hidden), []
    for step in x:
        z = (
            weights["weight_ih_l0"] @ step
            + weights["bias_ih_l0"]
            + weights["weight_hh_l0"] @ h
            + weights["bias_hh_l0"]
        )
        i, f, g, o = z.split(hidden)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    return torch.stack(states)


def test_it_is_two_cells_and_a_linear_layer() -> None:
    net, x = model(), texts(1)
    state = net.state_dict()
    rows = state["words.weight"][x[0]]
    for layer in range(2):
        prefix = f"layers.{layer}."
        rows = cell(rows, {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)})
    torch.testing.assert_close(net(x)[0], rows @ state["head.weight"].T + state["head.bias"], rtol=1e-5, atol=1e-6)


def test_what_comes_later_changes_nothing() -> None:
    net, x = model().eval(), texts()
    for place in range(1, LENGTH):
        other = x.clone()
        other[:, place:] = 2 + (x[:, place:] - 1) % (WORDS - 2)
        before, after = net(x), net(other)
        assert torch.equal(before[:, :place], after[:, :place])
        assert not torch.equal(before[:, place], after[:, place])


@given(width=st.floats(0.05, 1))
@settings(max_examples=20, deadline=None)
def test_a_width_keeps_the_same_units_of_all_four_gates(width: float) -> None:
    net = supernet()
    groups = {group.name: group for group in net.groups}
    assert {name: group.size for name, group in groups.items()} == {"words": E, "layers.0": H, "layers.1": H}
    e, h = (math.ceil(round(width * size, 9)) for size in (E, H))
    units = torch.arange(H)[-h:]  # any units: the last ones
    part = net.submodel(
        {
            groups["words"].index: torch.arange(e),
            groups["layers.1"].index: units,
            groups["layers.0"].index: torch.arange(h),
        }
    )
    prefix = net.prefix(width)
    assert (len(prefix.keep[groups["words"].index]), len(prefix.keep[groups["layers.0"].index])) == (e, h)
    for chosen, submodel in ((units, part), (torch.arange(h), prefix)):
        rows = (torch.arange(GATES)[:, None] * H + chosen).flatten()
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            full = net.initial[f"layers.1.{name}"]
            columns = {"weight_ih_l0": torch.arange(h), "weight_hh_l0": chosen}
            expected = full[rows][:, columns[name]] if name in columns else full[rows]
            assert torch.equal(submodel.select(f"layers.1.{name}", full), expected)
        assert torch.equal(
            submodel.select("head.weight", net.initial["head.weight"]), net.initial["head.weight"][:, chosen]
        )


def without(state: dict[str, Tensor], kept: dict[str, list[int]]) -> dict[str, Tensor]:
    """A full model's tensors with the weights of the units that are not kept at zero: such a unit has its gates at
    1/2 and tanh(0) = 0 to take in, so that it stays at 0."""
    state = {name: tensor.clone() for name, tensor in state.items()}
    drop = {
        group: [i for i in range(size) if i not in kept[group]]
        for group, size in (("words", E), ("0", H), ("1", H))
    }
    state["words.weight"][:, drop["words"]] = 0
    for layer in ("0", "1"):
        rows = [gate * H + unit for gate in range(GATES) for unit in drop[layer]]
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            state[f"layers.{layer}.{name}"][rows] = 0
    return state


@pytest.mark.parametrize("units", [range(5), range(5, 10), [0, 3, 4, 7, 9]])
def test_half_the_width_computes_what_the_full_model_without_the_other_units_does(units: list[int]) -> None:
    net, x = supernet(), texts()
    groups = {group.name: group.index for group in net.groups}
    kept = {"words": [1, 2, 5], "0": list(units), "1": list(range(H // 2))}
    part = net.submodel(
        {groups[n]: torch.tensor(kept[k]) for n, k in (("words", "words"), ("layers.0", "0"), ("layers.1", "1"))}
    )
    small = part.network().load(part.gather(net.initial)).eval()
    whole = model()
    whole.load_state_dict(without(dict(net.initial), kept))
    torch.testing.assert_close(small(x), whole(x), rtol=0, atol=1e-6)


def test_a_class_is_read_off_the_last_token() -> None:
    """What fills a text up changes nothing; an empty text has no state."""
    net, x = model(CLASSES).eval(), texts(4)
    lengths = [1, 3, LENGTH, 0]
    for row, length in zip(x, lengths, strict=True):
        row[length:] = 0
    states = net.words(x)
    for layer in net.layers:
        states = layer(states)[0]
    last = torch.stack([states[i, n - 1] if n else torch.zeros(H) for i, n in enumerate(lengths)])
    torch.testing.assert_close(net(x), net.head(last))


def test_dropout_is_of_training_alone() -> None:
    net, x = model(dropout=0.5), texts()
    assert torch.equal(net.eval()(x), model()(x))
    assert not torch.equal(net.train()(x), net(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, r"model.layers = 0: input should be greater than or equal to 1"),
        ({"hidden": 0}, r"model.hidden = 0"),
        ({"dropout": 1.0}, r"model.dropout = 1.0"),
        ({"units": 3}, r"units"),
    ],
)
def test_options_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build("slimmable_lstm", TEXTS, options, seed=0)


def test_models_and_tasks_that_do_not_go_together() -> None:
    with pytest.raises(ModelError, match=r"model.name = 'slimmable_lstm': reads texts, and the inputs are none"):
        build("slimmable_lstm", Info((1, 8, 8), 2, ("a", "b")), {}, seed=0)
    with pytest.raises(
        ModelError, match=r"'encoder': cannot be used with data.task = 'next_token'; use 'slimmable_lstm'"
    ):
        build("encoder", TEXTS, {}, seed=0)
    with pytest.raises(
        ModelError, match=r"'cnn': the inputs are texts, which it does not read; use .*'slimmable_lstm'"
    ):
        build("cnn", TEXTS, {}, seed=0)
