"""FedLAGC's budgets, its layer scores and its correction against values worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.world import World, formed, same_bits
from tests.methods.test_masks import FULL_BATCH, MIXED, close, layers
from uneven.methods import METHODS, Assignment, ClientCard, Context
from uneven.methods.fedlagc import deal
from uneven.submodels import State, Supernet


def budgeted(net: Supernet, options: dict[str, Any], sizes: Sequence[int]) -> Any:
    """FedLAGC on these layers, with a client of each size."""
    method = METHODS["fedlagc"]
    cards = [ClientCard(n, 5, torch.ones(2), 1.0, 1.0, size) for n, size in enumerate(sizes)]
    return method(Context(net, cards, 40, 0), method.Options(**options))


class TestLayerBudgets:
    def test_by_hand(self) -> None:
        """log(1 + S) of 1, 2, 3 times log 2 for tensors of 4, 8, 4 entries: shares of 4, 16, 12 of what is free.

        Of 8: 1, 4, 3. Of 12: 1.5, 6, 4.5, where the last has room for 4: 8 between the others, 1.6 and 6.4."""
        assert self._held(8) == [1, 4, 3]
        assert self._held(12) == [2, 6, 4]
        assert self._held(16) == [4, 8, 4]

    def test_layers_of_zeros_come_last(self) -> None:
        assert self._held(4, {"2.weight": 0.0}) == [1, 0, 3]
        assert self._held(10, {"2.weight": 0.0}) == [4, 2, 4]
        assert self._held(7, dict.fromkeys(("0.weight", "2.weight", "4.weight"), 0.0)) == [2, 3, 2]

    def _held(self, k: int, means: dict[str, float] | None = None) -> list[int]:
        method = budgeted(layers(1, 4, 2, 2), {"keep_edges": False}, [k])
        sizes = {"0.weight": 1.0, "2.weight": 3.0, "4.weight": 7.0} | (means or {})
        method.state = {name: torch.full_like(x, sizes[name]) for name, x in method.state.items()}
        part = method.submodel(1, method.context.clients[0])
        return [part.select(name, x).numel() for name, x in method.state.items()]

    def test_the_largest_of_each_layer(self) -> None:
        """Signs do not count. Mean |x| of the layers in between are 2.5 and 3 / 7: shares log 3.5 * 4 = 5.01 and
        log (10 / 7) * 4 = 1.43 of 4 weights, 3.1 and .9."""
        method = budgeted(layers(1, 2, 2, 2, 1), {}, [8])
        method.state = method.state | {
            "2.weight": torch.tensor([[1.0, -4.0], [3.0, -2.0]]),
            "4.weight": torch.tensor([[0.0, -1.0], [2 / 7, 3 / 7]]),
        }
        part = method.submodel(1, method.context.clients[0])
        assert part.masks["2.weight"].tolist() == [[False, True], [True, True]]
        assert part.masks["4.weight"].tolist() == [[False, True], [False, False]]
        assert part.masks.keys() == {"2.weight", "4.weight"}

    def test_edges_have_a_budget_where_they_are_not_kept(self) -> None:
        """All sizes alike: 9 of 12 weights are three of every four."""
        method = budgeted(layers(1, 4, 1, 4), {"keep_edges": False}, [9])
        method.state = {name: torch.ones_like(x) for name, x in method.state.items()}
        part = method.submodel(1, method.context.clients[0])
        assert [mask.flatten().tolist() for mask in part.masks.values()] == [[True] * 3 + [False]] * 3

    def test_edges_alone_are_a_full_model(self) -> None:
        method = budgeted(layers(2, 3, 2), {}, [12])
        assert method.submodel(1, method.context.clients[0]).size == 12

    @settings(max_examples=60)
    @given(
        room=st.lists(st.integers(1, 40), min_size=1, max_size=6),
        worth=st.lists(st.floats(0, 50), min_size=6, max_size=6),
        share=st.floats(0, 1),
    )
    def test_budgets_fill_what_is_free_and_follow_the_ratio(
        self, room: list[int], worth: list[float], share: float
    ) -> None:
        """Where none is full, each has its exact share up to one; those that are full deserved at least that."""
        total = round(share * sum(room))
        names = [str(i) for i in range(len(room))]
        rooms, worths = dict(zip(names, room, strict=True)), dict(zip(names, worth, strict=False))
        dealt = deal(worths, rooms, total)
        assert [*dealt] == names
        assert sum(dealt.values()) == total
        assert all(0 <= dealt[name] <= rooms[name] for name in names)
        open_ones = [name for name in names if dealt[name] < rooms[name]]
        for a in open_ones:
            for b in names:  # a unit of worth buys as much everywhere, but where there is no room
                if worths[a] and worths[b]:
                    assert dealt[b] / worths[b] <= (dealt[a] + 1) / worths[a] + 1 / worths[b] + 1e-6


class TestGradientNorm:
    def test_layers_are_scored_by_how_far_the_last_round_moved_them(self) -> None:
        world = formed("fedlagc-norms", "mlp", MIXED)
        net, before = world.method.supernet, world.method.state
        worth = {n: float(before[n].abs().mean().log1p()) * before[n].numel() for n in net.maskable}
        assert self._held(world) == deal(worth, {n: before[n].numel() for n in net.maskable}, self._free(world))
        world.round(1)
        state = world.method.state
        moved = {n: (state[n].double() - before[n].double()).square().sum().sqrt() for n in net.maskable}
        worth = {n: float(moved[n].log1p()) * state[n].numel() for n in net.maskable}
        assert self._held(world) == deal(worth, {n: state[n].numel() for n in net.maskable}, self._free(world))

    def _held(self, world: World) -> dict[str, int]:
        part = world.method.submodel(1, world.cards[2])
        return {n: part.select(n, world.method.state[n]).numel() for n in world.method.supernet.maskable}

    def _free(self, world: World) -> int:
        return world.cards[2].size - 22  # biases of 12 + 7 + 3

    def test_a_run_that_goes_on_has_the_same_masks(self) -> None:
        run, other = (formed("fedlagc-norms", "mlp", MIXED) for _ in range(2))
        run.round(1)
        other.method.restore(run.method.saved())
        assert self._held(other) == self._held(run)
        extra = {key for key in other.method.saved() if not key.startswith("model/")}
        assert extra == {"moved/1.weight", "moved/3.weight", "moved/5.weight"}
        plain = formed("fedlagc", "mlp", MIXED)
        plain.round(1)
        assert all(key.startswith("model/") for key in plain.method.saved())


class TestCorrection:
    def test_memory_is_beta_times_the_way_gone(self) -> None:
        """After each round lambda grows by beta (x_end - x_start) where the mask is 1, and stays elsewhere."""
        world = formed("fedlagc", "mlp", [0.5], rounds=40)
        ((assignment, update),) = world.round(1)
        first = world.engine.memories[0]
        self._grown(assignment, update.payload["model"], {n: torch.zeros_like(x) for n, x in first.items()}, first)
        ((assignment, update),) = world.round(2)
        self._grown(assignment, update.payload["model"], first, world.engine.memories[0])

    def _grown(self, assignment: Assignment, end: Any, old: State, new: State) -> None:
        start, part = assignment.gathered().payload["model"], assignment.submodel
        for name, own in new.items():
            change = torch.zeros_like(own)
            part.add(name, change, 0.1 * (end[name] - start[name]))
            assert change.any()
            close(own, old[name] + change)

    @pytest.mark.parametrize(
        ("t", "rounds", "acts"), [(9, 40, True), (10, 40, False), (1, 5, True), (1, 4, False)]
    )
    def test_acts_in_the_first_quarter(self, t: int, rounds: int, acts: bool) -> None:
        """One step of x - lr (g - lambda) there, of x - lr g after; at beta = .1 and .2 alike."""
        world = formed("fedlagc", "mlp", [0.5], rounds=rounds, training=FULL_BATCH)
        net = world.method.supernet
        free = world.train(world.plan(t))[0][1].payload["model"]
        world.engine.memories[0] = {name: torch.full_like(net.initial[name], 0.25) for name in net.parameters}
        corrected = world.train(world.plan(t))[0][1].payload["model"]
        for name in net.parameters:
            close(corrected[name] - free[name], torch.full_like(free[name], 0.5 * 0.25 * acts))

    def test_without_beta_nothing_is_remembered(self) -> None:
        world = formed("fedlagc", "mlp", [0.5], rounds=40)
        still = World(METHODS["fedlagc"], "mlp", [0.5], {"beta": 0}, rounds=40)
        for t in (1, 2):
            world.round(t)
            still.round(t)
        assert not any(own.any() for own in still.engine.memories[0].values())
        assert not same_bits(world.method.state, still.method.state)
