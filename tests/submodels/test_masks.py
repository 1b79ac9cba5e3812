"""Mask submodels: what is held, what travels, what is trained; and which mask a score gives."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.submodels.helpers import randomised
from uneven.errors import MethodError
from uneven.submodels import MaskSubmodel, Supernet
from uneven.submodels.masks import Scope, block_of, choose, masked, parts


class Blocks(nn.Module):
    """An entry, two blocks of two layers with a norm of two axes, and a head: 90 parameters, 68 maskable."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((2, 2))  # 4 + 4, of two axes, and never dropped
        self.embed = nn.Linear(4, 4, bias=False)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 4)) for _ in range(2)])
        self.head = nn.Linear(4, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(self.norm(x).flatten(1))
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


MASKABLE = {
    "embed.weight": 16,
    "layers.0.0.weight": 12,
    "layers.0.2.weight": 12,
    "layers.1.0.weight": 12,
    "layers.1.2.weight": 12,
    "head.weight": 4,
}
FIXED = 8 + 2 * (3 + 4)
BLOCKS = [
    ["embed.weight"],
    ["layers.0.0.weight", "layers.0.2.weight"],
    ["layers.1.0.weight", "layers.1.2.weight"],
    ["head.weight"],
]


@cache
def blocks() -> Supernet:
    return Supernet(randomised(Blocks()), torch.zeros(2, 2))


@cache
def batch_norm() -> Supernet:
    """A convolution of 2x1x1x1, a batch norm with its buffers, a linear layer of 2x2 and its bias."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    return Supernet(randomised(model), torch.zeros(1, 1, 1))


def hand() -> MaskSubmodel:
    """Of `batch_norm` the second filter, and the diagonal of the linear layer."""
    conv = torch.tensor([False, True]).view(2, 1, 1, 1)
    return masked(batch_norm(), {"0.weight": conv, "3.weight": torch.eye(2, dtype=torch.bool)})


def test_only_weights_that_are_no_norm_s_are_maskable() -> None:
    net = blocks()
    assert {name: net.initial[name].numel() for name in net.maskable} == MASKABLE
    assert net.size == FIXED + sum(MASKABLE.values())


class TestMaskSubmodel:
    def test_counts_by_hand(self) -> None:
        """1 + 2 of 2 + 4 weights, 2 + 2 of the norm, 2 of the bias; buffers of 2 + 2 floats and an int64."""
        part = hand()
        assert part.size == 9
        assert part.index_bytes == 1  # six bits
        assert part.nbytes == 4 * (9 + 2 + 2) + 8 + 1
        assert part.macs == 2 + 4

    def test_gather_takes_the_values_held(self) -> None:
        net = batch_norm()
        held = hand().gather(net.initial)
        assert held["0.weight"].tolist() == [net.initial["0.weight"].flatten()[1].item()]
        assert held["3.weight"].tolist() == net.initial["3.weight"].diagonal().tolist()
        for name in net.initial.keys() - {"0.weight", "3.weight"}:
            assert torch.equal(held[name], net.initial[name])
            assert held[name].data_ptr() != net.initial[name].data_ptr()

    def test_add_and_spread_put_them_back(self) -> None:
        full, values = torch.full((2, 2), 10.0), torch.tensor([1.0, 2.0])
        assert hand().spread("3.weight", values).tolist() == [[1.0, 0.0], [0.0, 2.0]]
        hand().add("3.weight", full, values)
        assert full.tolist() == [[11.0, 10.0], [10.0, 12.0]]
        bias = torch.ones(2)
        hand().add("3.bias", bias, values)
        assert bias.tolist() == [2.0, 3.0]
        assert hand().spread("3.bias", values) is values

    def test_the_network_is_zero_outside_and_gives_back_what_it_got(self) -> None:
        net, part = batch_norm(), hand()
        held = part.gather(net.initial)
        network = part.network().load(held)
        assert network.tensors["3.weight"].detach().equal(net.initial["3.weight"] * torch.eye(2))
        assert network.values().keys() == held.keys()
        assert all(torch.equal(value, held[name]) for name, value in network.values().items())

    def test_the_network_computes_with_zeros(self) -> None:
        net, part, x = batch_norm(), hand(), torch.randn(5, 1, 1, 1)
        state = net.initial
        h = torch.stack([torch.zeros(5), state["0.weight"].flatten()[1] * x.flatten()], 1)
        mean, var, eps = state["1.running_mean"], state["1.running_var"], 1e-5
        h = (h - mean) / (var + eps).sqrt() * state["1.weight"] + state["1.bias"]
        out = h @ (state["3.weight"] * torch.eye(2)).T + state["3.bias"]
        network = part.network().load(part.gather(state)).eval()
        torch.testing.assert_close(network(x), out)

    def test_two_masks_do_not_disturb_each_other(self) -> None:
        """They run the same tensors: loading is all that it takes to go from one to the other."""
        net, part, whole = batch_norm(), hand(), masked(batch_norm(), {})
        first = part.network().load(part.gather(net.initial))
        whole.network().load(whole.gather(net.initial))
        again = first.load(part.gather(net.initial))
        assert not again.tensors["3.weight"][0, 1]
        assert whole.size == net.size

    def test_confine_zeroes_gradients_outside(self) -> None:
        network = hand().network().load(hand().gather(batch_norm().initial))
        for weight in network.weights().values():
            weight.grad = torch.full_like(weight, torch.nan)
        network.weights()["0.weight"].grad = None  # an unused weight has none
        network.confine()
        assert network.weights()["0.weight"].grad is None
        assert network.weights()["3.weight"].grad.isnan().tolist() == [[True, False], [False, True]]
        assert network.weights()["3.weight"].grad.nan_to_num().eq(0).all()
        assert network.weights()["3.bias"].grad.isnan().all()

    def test_a_mask_that_drops_nothing_is_left_out(self) -> None:
        part = masked(batch_norm(), {"3.weight": torch.ones(2, 2, dtype=torch.bool)})
        assert (part.masks, part.size, part.index_bytes) == ({}, batch_norm().size, 0)

    @pytest.mark.parametrize(
        ("name", "mask", "message"),
        [
            ("4.weight", torch.ones(2, dtype=torch.bool), "no parameter '4.weight'"),
            ("1.running_mean", torch.ones(2, dtype=torch.bool), "no parameter"),
            ("3.weight", torch.ones(2, 2), r"torch\.float32 \(2, 2\): must be bool \(2, 2\)"),
            ("3.weight", torch.ones(4, dtype=torch.bool), r"\(4,\): must be bool \(2, 2\)"),
        ],
    )
    def test_what_is_no_mask(self, name: str, mask: Tensor, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            masked(batch_norm(), {name: mask})

    def test_has_no_scaler(self) -> None:
        with pytest.raises(ValueError, match="no channels to scale for"):
            hand().network(scaler=True)


def by_hand(
    scores: dict[str, Tensor], k: int, ties: dict[str, Tensor], scope: str, rows: bool
) -> dict[str, Tensor] | None:
    """The mask by the rules: parts and their budgets by exact fractions, each row's best, then one sort.

    None where a part cannot have what it must: one for each row, or each tensor where parts have budgets.
    """
    tensors = {"global": [[*MASKABLE]], "tensor": [[name] for name in MASKABLE]}.get(scope) or BLOCKS
    room, free = [sum(MASKABLE[name] for name in names) for names in tensors], k - FIXED
    shares = [Fraction(n * free, sum(room)) for n in room]
    budgets = [int(share) for share in shares]
    by_remainder = sorted(range(len(room)), key=lambda i: (budgets[i] - shares[i], i))
    for i in by_remainder[: free - sum(budgets)]:
        budgets[i] += 1
    masks = {name: torch.zeros_like(score, dtype=torch.bool) for name, score in scores.items()}
    for names, budget in zip(tensors, budgets, strict=True):
        must = sum(len(scores[name]) for name in names) if rows else len(names) * (scope != "global")
        if budget < must:
            return None
        entries = sorted(
            (-float(score), -abs(float(ties[name].flatten()[i])), names.index(name), i)
            for name in names
            for i, score in enumerate(scores[name].flatten())
        )
        places = [(names[tensor], i) for *_, tensor, i in entries]
        row = {(name, i): (name, i // scores[name][0].numel()) for name, i in places}
        best = [*{row[place]: place for place in reversed(places)}.values()] if rows else []
        for name, i in [*dict.fromkeys([*best, *places])][:budget]:
            masks[name].view(-1)[i] = True
    return masks


@settings(max_examples=80)
@given(
    k=st.integers(FIXED, FIXED + sum(MASKABLE.values())),
    scope=st.sampled_from(["global", "tensor", "block"]),
    rows=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_choose_is_what_the_rules_say(k: int, scope: Scope, rows: bool, seed: int) -> None:
    """Scores of few levels, so that ties are many."""
    draws = torch.Generator().manual_seed(seed)
    scores, ties = (
        {name: torch.randint(-3, 4, blocks().initial[name].shape, generator=draws) / 2 for name in MASKABLE}
        for _ in range(2)
    )
    expected = by_hand(scores, k, ties, scope, rows)
    if expected is None:
        with pytest.raises(MethodError, match="too small"):
            choose(blocks(), scores, k, ties, scope=scope, per_output=rows)
        return
    part = choose(blocks(), scores, k, ties, scope=scope, per_output=rows)
    assert part.size == k
    for name, mask in expected.items():
        assert torch.equal(part.masks.get(name, torch.ones_like(mask)), mask), name


def magnitudes(net: Supernet) -> dict[str, Tensor]:
    return {name: net.initial[name].abs() for name in net.maskable}


def test_masks_of_a_larger_budget_hold_those_of_a_smaller() -> None:
    net = blocks()
    held = [choose(net, magnitudes(net), k, net.initial).masks for k in range(FIXED, net.size)]
    for small, large in pairwise(held):
        assert all(not (small[name] & ~mask).any() for name, mask in large.items())


def test_one_of_each_output_at_least() -> None:
    """19 rows in all: with 19 weights each row has its largest, and nothing else is held."""
    net = blocks()
    part = choose(net, magnitudes(net), FIXED + 19, net.initial, per_output=True)
    for name, mask in part.masks.items():
        assert mask.sum(1).tolist() == [1] * len(mask)
        assert torch.equal(mask.float().argmax(1), net.initial[name].abs().argmax(1))


def test_parts_and_blocks() -> None:
    assert parts(blocks(), "global") == [[*MASKABLE]]
    assert parts(blocks(), "tensor") == [[name] for name in MASKABLE]
    assert parts(blocks(), "block") == BLOCKS
    names = {"roberta.encoder.layer.11.output.dense.weight": "roberta.encoder.layer.11"}
    names |= {"transformer.wte.weight": "transformer", "fc.weight": "fc", "layer1.0.conv1.weight": "layer1.0"}
    assert {name: block_of(name) for name in names} == names


@pytest.mark.parametrize(
    ("k", "options", "message"),
    [
        (FIXED - 1, {}, "a capacity of 21 of 90 parameters is too small: norms and biases.* are 22"),
        (FIXED + 5, {"scope": "tensor"}, "it leaves 0 for head.weight, where at least 1 must be"),
        (FIXED + 3, {"scope": "block"}, "it leaves 1 for layers.0.0.weight, layers.0.2.weight, where at least 2"),
        (FIXED + 18, {"per_output": True}, "it leaves 18 for .*, where at least 19"),
    ],
)
def test_too_small_a_capacity(k: int, options: dict[str, object], message: str) -> None:
    with pytest.raises(MethodError, match=message):
        choose(blocks(), magnitudes(blocks()), k, blocks().initial, **options)  # type: ignore[arg-type]


def test_scores_that_are_not_numbers() -> None:
    scores = magnitudes(blocks()) | {"head.weight": torch.full((1, 4), torch.nan)}
    with pytest.raises(MethodError, match=r"scores of head\.weight are not numbers"):
        choose(blocks(), scores, 50, blocks().initial)


def test_a_model_with_nothing_to_mask() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    net = Supernet(Scale(), torch.zeros(3))
    with pytest.raises(MethodError, match="nothing to mask"):
        choose(net, {}, 3, net.initial)
