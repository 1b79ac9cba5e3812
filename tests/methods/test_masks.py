"""The methods that hold the largest |x|, against values worked out by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor, nn

import uneven
from tests.laws.world import METHOD_FORMS, World, formed, same_bits
from tests.run.helpers import tiny_data
from tests.submodels.helpers import randomised
from uneven.errors import MethodError, SpecError
from uneven.methods import METHODS, Assignment, Client, ClientCard, Context
from uneven.methods.fiarse import sharpen, thresholds
from uneven.submodels import State, Supernet
from uneven.submodels.masks import choose, parts
from uneven.training import TrainingOptions

FULL_BATCH = TrainingOptions(lr=0.5, batch_size=100, steps=1, schedule="constant")
MIXED = [1.0, 0.5, 0.25, 0.5]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def layers(*sizes: int) -> Supernet:
    """Linear layers with ReLU between them, with names 0.weight, 2.weight, ..."""
    linear = [nn.Linear(a, b, bias=False) for a, b in pairwise(sizes)]
    between = [module for layer in linear for module in (layer, nn.ReLU())]
    return Supernet(randomised(nn.Sequential(*between[:-1])), torch.zeros(sizes[0]))


def assigned(net: Supernet, state: State, k: int, **options: Any) -> Assignment:
    """What a client of k parameters is sent."""
    sizes = {name: state[name].abs() for name in net.maskable}
    return Assignment(1, 0, choose(net, sizes, k, state, **options), {"model": state}).gathered()


class TestThreshold:
    NET = layers(2, 3, 2)
    STATE: State = {  # noqa: RUF012
        "0.weight": torch.tensor([[6.0, -5.0], [0.25, 0.125], [4.0, 7.0]]),
        "2.weight": torch.tensor([[-3.0, 2.0, 1.0], [0.5, -0.75, 0.0]]),
    }

    def theta(self, k: int, scope: str = "global", per_output: bool = False) -> dict[str, float]:
        given = assigned(self.NET, self.STATE, k, scope=scope, per_output=per_output)
        return thresholds(given, parts(self.NET, scope), per_output=per_output)

    def test_is_the_smallest_that_is_held(self) -> None:
        assert self.theta(5) == {"0.weight": 3.0, "2.weight": 3.0}
        assert self.theta(3) == {"0.weight": 5.0, "2.weight": 5.0}

    def test_of_each_tensor_where_each_has_a_budget(self) -> None:
        """Three of each; at 11 the first tensor keeps 6 of 6, so that nothing competes there."""
        assert self.theta(6, "tensor") == {"0.weight": 5.0, "2.weight": 1.0}
        assert self.theta(11, "tensor") == {"2.weight": 0.5}

    def test_none_where_all_is_held_or_it_is_zero(self) -> None:
        """At 12 of 12 all is held; among 10 the smallest is .25; of zeros it is 0."""
        assert self.theta(12) == {}
        assert set(self.theta(10).values()) == {0.25}
        zero = {name: torch.zeros_like(tensor) for name, tensor in self.STATE.items()}
        assert thresholds(assigned(self.NET, zero, 4), parts(self.NET, "global")) == {}

    def test_what_an_output_keeps_anyway_does_not_count(self) -> None:
        """The five rows keep 6, .25, 7, 3, .75. With 7 there are 5 and 4 beside them, with 5 nothing."""
        assert set(self.theta(7, per_output=True).values()) == {4.0}
        assert self.theta(5, per_output=True) == {}
        assert set(self.theta(9, per_output=True).values()) == {1.0}

    @settings(max_examples=40)
    @given(k=st.integers(1, 11), scope=st.sampled_from(["global", "tensor"]), seed=st.integers(0, 10**6))
    def test_is_the_kth_largest_of_the_server(self, k: int, scope: str, seed: int) -> None:
        draws = torch.Generator().manual_seed(seed)
        state = {
            name: torch.randn(2 if name[0] == "2" else 3, 2 + (name[0] == "2"), generator=draws)
            for name in self.STATE
        }
        if scope == "tensor":
            k = max(k, 2)
        given = assigned(self.NET, state, k, scope=scope)
        for names in parts(self.NET, scope):
            sizes = torch.cat([state[name].abs().flatten() for name in names]).sort(descending=True).values
            held = sum(given.payload["model"][name].numel() for name in names)
            expected = {} if held == len(sizes) else dict.fromkeys(names, float(sizes[held - 1]))
            found = thresholds(given, [names])
            assert found == expected


class TestFiarseGradient:
    def test_factors_by_hand(self) -> None:
        """theta = .2: 1.5 at it; 1 + 2 * 3 / 16 = 1.375 at three times and a third of it; 1 at 0, far above."""
        x = torch.tensor([0.2, -0.2, 0.6, -0.2 / 3, 0.0, 2e9, 1.8])
        weights = {"a": nn.Parameter(x), "b": nn.Parameter(x.clone()), "unused": nn.Parameter(x.clone())}
        for name in ("a", "b"):
            weights[name].grad = torch.full_like(x, -2.0)
        sharpen(weights, {"a": 0.2, "unused": 0.2})
        close(weights["a"].grad, -2.0 * torch.tensor([1.5, 1.5, 1.375, 1.375, 1.0, 1.0, 1.18]))
        assert weights["b"].grad.tolist() == [-2.0] * 7
        assert weights["unused"].grad is None

    def test_the_smallest_numbers_have_a_factor(self) -> None:
        """Where the squares of |x| and theta are 0 in float32."""
        weight = nn.Parameter(torch.tensor([1e-30, 3e-30]))
        weight.grad = torch.ones(2)
        sharpen({"a": weight}, {"a": 1e-30})
        close(weight.grad, torch.tensor([1.5, 1.375]))

    def test_a_later_step_takes_the_weight_as_it_is_and_the_threshold_as_it_was(self) -> None:
        """Two steps of SGD against one and the plain gradient there; some weights are below theta by then."""
        one, two = (FULL_BATCH.model_copy(update={"steps": steps}) for steps in (1, 2))
        first, second = (World(METHODS["fiarse"], "mlp", [0.5], training=steps) for steps in (one, two))
        ((assignment, middle),) = first.train(first.plan())
        ((_, end),) = second.train(second.plan())
        net, data, part = first.method.supernet, first.federation.clients[0].train, assignment.submodel
        plain = Client(net, FULL_BATCH, None, 5, 0)
        held = {name: middle.payload["model"][name] for name in net.maskable}
        there = Assignment(1, 0, part, {"model": middle.payload["model"]})
        straight = plain.train(there, data, {})[0].payload["model"]
        theta = min(float(assignment.gathered().payload["model"][name].abs().min()) for name in held)
        assert sum(int((x.abs() < 0.99 * theta).sum()) for x in held.values()) > 3
        for name, x in held.items():
            factor = 1 + 2 * x.abs() * theta / (x.abs() + theta) ** 2
            torch.testing.assert_close(
                end.payload["model"][name] - x, factor * (straight[name] - x), rtol=1e-4, atol=1e-6
            )

    def test_each_part_is_trained_with_its_own_threshold(self) -> None:
        """One step of what each tensor holds, against the plain one."""
        world = World(METHODS["fiarse"], "mlp", [0.5], {"scope": "tensor"}, training=FULL_BATCH)
        ((assignment, update),) = world.train(world.plan())
        start, net = assignment.gathered().payload["model"], world.method.supernet
        plain = Client(net, FULL_BATCH, None, 5, 0)
        straight, _ = plain.train(assignment.gathered(), world.federation.clients[0].train, {})
        thetas = {name: start[name].abs().min() for name in net.maskable}
        assert len(set(map(float, thetas.values()))) == 3
        for name, theta in thetas.items():
            x, step = start[name], straight.payload["model"][name] - start[name]
            factor = 1 + 2 * x.abs() * theta / (x.abs() + theta) ** 2
            torch.testing.assert_close(update.payload["model"][name] - x, factor * step, rtol=1e-4, atol=1e-6)

    def test_masked_is_the_plain_gradient(self) -> None:
        world = World(METHODS["fiarse"], "mlp", [0.5], {"gradient": "masked"})
        own = World(METHODS["fiarse"], "mlp", [0.5])
        ((assignment, update),) = world.train(world.plan())
        plain = Client(world.method.supernet, world.method.context.training, None, 5, 0)
        straight, _ = plain.train(assignment.gathered(), world.federation.clients[0].train, {})
        assert same_bits(dict(update.payload["model"]), dict(straight.payload["model"]))
        assert not same_bits(dict(own.train(own.plan())[0][1].payload["model"]), dict(straight.payload["model"]))

    def test_the_factor_of_a_weight_held_for_its_output(self) -> None:
        """A unit's largest weight is a third of theta: its step is 1.375 times the plain, others' 1.5 times."""
        world = World(METHODS["fiarse"], "mlp", [0.5], {"per_output": True}, training=FULL_BATCH)
        net, unit, entry = world.method.supernet, 2, 5
        sizes = {"1.weight": 0.1, "3.weight": 0.2, "5.weight": 0.2}  # theta is .1
        state = world.method.state | {n: size * world.method.state[n].sign() for n, size in sizes.items()}
        state["1.weight"][unit] = 0.02
        state["1.weight"][unit, entry] = 0.1 / 3
        world.method.state = state
        ((assignment, update),) = world.train(world.plan())
        start = assignment.gathered().payload["model"]
        plain = Client(net, FULL_BATCH, None, 5, 0)
        straight, _ = plain.train(assignment.gathered(), world.federation.clients[0].train, {})
        x, own = start["1.weight"], update.payload["model"]["1.weight"]
        step = straight.payload["model"]["1.weight"] - x
        low = x.abs() < 0.09
        assert x[low].tolist() == [pytest.approx(0.1 / 3)]
        assert step[low].abs() > 1e-4
        torch.testing.assert_close(own - x, step * torch.where(low, 1.375, 1.5), rtol=1e-4, atol=1e-6)


class TestOneMaskForAll:
    @pytest.mark.parametrize("form", ["fiarse", "fedlagc"])
    def test_clients_of_one_size_share_it_and_evaluation_has_the_next(self, form: str) -> None:
        """The mask of the state at the start of the round; the same work is not done twice."""
        world = formed(form, "mlp", MIXED)
        one, other = (world.method.submodel(1, world.cards[n]) for n in (1, 3))
        assert one is other
        assert world.method.submodel(1, world.cards[2]).size < one.size
        world.round(1)
        after = world.method.evaluation_submodel(world.cards[1], 1)
        assert after is not one
        assert after is world.method.submodel(2, world.cards[1])

    def test_the_largest_of_what_the_server_has(self) -> None:
        world = formed("fiarse", "mlp", MIXED)
        world.round(1)
        net, state = world.method.supernet, world.method.state
        part = world.method.submodel(2, world.cards[2])
        held = torch.cat([part.select(name, state[name]).abs().flatten() for name in net.maskable])
        every = torch.cat([state[name].abs().flatten() for name in net.maskable])
        assert held.sort().values.tolist() == every.sort().values[-len(held) :].tolist()
        assert len(held) == world.cards[2].size - 22  # biases of 12 + 7 + 3

    def test_updates_are_averaged_over_those_that_hold_a_coordinate(self) -> None:
        """What only the full client holds is its own value; what all hold, the mean of the four."""
        world = formed("fiarse", "mlp", MIXED)
        results = world.round(1)
        name = "1.weight"
        full = {a.client: (a.submodel, u.payload["model"][name]) for a, u in results}
        spread = {n: part.spread(name, values) for n, (part, values) in full.items()}  # type: ignore[attr-defined]
        masks = {n: part.spread(name, torch.ones_like(v)) > 0 for n, (part, v) in full.items()}  # type: ignore[attr-defined]
        count = sum(mask.float() for mask in masks.values())
        assert set(count.unique().tolist()) == {1.0, 3.0, 4.0}
        close(world.method.state[name], sum(spread.values()) / count)


class Scale(nn.Module):
    """A model with nothing to mask."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "sizes", "net", "options", "message"),
        [
            (
                "fiarse",
                (3,),
                (2, 3, 2),
                {"per_output": True},
                "capacity of 3 of 12 parameters is too small.*least 5",
            ),
            ("fiarse", (12, 1), (2, 3, 2), {"scope": "tensor"}, "capacity of 1 of 12 parameters is too small"),
            ("fedlagc", (11,), (2, 3, 3, 2), {}, "first and the last layer, .* are 12, .*keep_edges = false"),
            ("fedlagc", (12,), (2, 3, 3, 2), {}, "and every other layer needs a weight"),
            ("fedlagc", (11,), (2, 3, 2), {}, "first and the last layer, .* are 12"),
            (
                "fedlagc",
                (2,),
                (2, 3, 3, 2),
                {"keep_edges": False},
                "too small: norms and biases, .* are 0, and every",
            ),
        ],
    )
    def test_too_small_a_capacity(
        self, name: str, sizes: tuple[int, ...], net: tuple[int, ...], options: dict[str, Any], message: str
    ) -> None:
        """At once, not in some round; naming what would do."""
        cards = [ClientCard(n, 5, torch.ones(2), 1.0, 1.0, size) for n, size in enumerate(sizes)]
        method = METHODS[name]
        with pytest.raises(MethodError, match=message):
            method(Context(layers(*net), cards, 5, 0), method.Options(**options))

    @pytest.mark.parametrize("name", ["fiarse", "fedlagc"])
    def test_a_model_with_nothing_to_mask(self, name: str) -> None:
        card = ClientCard(0, 5, torch.ones(2), 1.0, 1.0, 3)
        with pytest.raises(MethodError, match="nothing to mask"):
            METHODS[name](Context(Supernet(Scale(), torch.zeros(3)), [card], 5, 0), METHODS[name].Options())

    @pytest.mark.parametrize(
        "form", [form for form, (name, _) in METHOD_FORMS.items() if name in ("fiarse", "fedlagc")]
    )
    def test_weights_that_are_not_numbers(self, form: str) -> None:
        world = formed(form, "mlp", MIXED)
        world.method.state = world.method.state | {"3.weight": torch.full((7, 12), torch.nan)}
        with pytest.raises(MethodError, match=r"scores of 3\.weight are not numbers.*training\.lr is too high"):
            world.plan(1)

    @pytest.mark.parametrize("option", [{"scope": "tensor"}, {"per_output": True}, {"beta": -1.0}])
    def test_options_that_fedlagc_has_not(self, option: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            METHODS["fedlagc"].Options(**option)

    @pytest.mark.parametrize("name", ["fiarse", "fedlagc"])
    def test_a_width_says_nothing_to_a_mask(self, name: str) -> None:
        tiny = {
            "method": name,
            "rounds": 2,
            "cohort": 2,
            "data": {"source": tiny_data(), "shape": [1, 8, 8]},
            "model": {"name": "mlp", "hidden": [8, 8]},
        }
        capacities = {"levels": [1.0, 0.95]}
        with pytest.raises(SpecError, match=r"capacities\.unit = 'width': this method holds single parameters"):
            uneven.run(**tiny, clients={"count": 4, "capacities": capacities})
        result = uneven.run(**tiny, clients={"count": 4, "capacities": {**capacities, "unit": "params"}})
        assert result["failures"] == 0
        sizes = {row["capacity"]: row["parameters"] for row in result["per_capacity"]}
        assert sizes[0.95] == -(-95 * sizes[1.0] // 100)
