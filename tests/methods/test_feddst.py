"""FedDST by hand: a client's exchange within its training, and what the server makes of several."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.methods.sparse import LINKS, client, data, gradient, holding, made, mask_of, places, plan, update
from uneven.engines import inspect
from uneven.errors import MethodError
from uneven.methods import Failure
from uneven.methods.feddst import FedDST
from uneven.sparsity.kernel import SparseNetwork
from uneven.training import TrainingOptions

TWO_STEPS = TrainingOptions(lr=0.1, batch_size=10, steps=2, schedule="constant")


def merged(method: FedDST, t: int, one: dict[int, float], other: dict[int, float]) -> None:
    pairs = [(a, holding(a, values)) for a, values in zip(plan(method, t), (one, other), strict=True)]
    assert all(inspect(a, found) is found for a, found in pairs)
    method.merge(t, pairs)
    method.adjust(t)


def exchanged(weight: torch.Tensor, examples: object, links: torch.Tensor) -> torch.Tensor:
    """The two smallest of 6 links go, the two free places of the largest gradient come."""
    small = sorted(links.flatten().nonzero().flatten().tolist(), key=lambda i: abs(weight.flatten()[i]))[:2]
    free = (~links).flatten().nonzero().flatten().tolist()
    whole = gradient(weight, examples).flatten()  # type: ignore[arg-type]
    large = sorted(free, key=lambda i: -abs(whole[i]))[:2]
    kept = set(links.flatten().nonzero().flatten().tolist()) - set(small) | set(large)
    return mask_of(sorted(kept))


def test_a_client_exchanges_links_between_its_steps() -> None:
    """Two steps of gradient descent by a closed formula, the exchange after the first."""
    method, examples = made("feddst"), data()
    method.state = {"weight": torch.randn(2, 5, generator=torch.Generator().manual_seed(1)) * LINKS}
    assignment = plan(method, 2)[1]
    assert assignment.exchange is not None
    assert assignment.exchange.counts == {"weight": 2}
    found, _ = client(method, TWO_STEPS).train(assignment.gathered(), examples, {})
    assert inspect(assignment, found) is found
    weight = method.state["weight"] - 0.1 * gradient(method.state["weight"], examples) * LINKS
    links = exchanged(weight, examples, LINKS)
    assert not torch.equal(links, LINKS)
    weight = weight * links
    weight = weight - 0.1 * gradient(weight, examples) * links
    assert found.submodel is not None
    assert torch.equal(found.submodel.masks["weight"], links)  # type: ignore[attr-defined]
    torch.testing.assert_close(found.payload["model"]["weight"], weight[links])
    assert found.seen == 2 * len(examples)
    assert found.scored == len(examples)
    torch.testing.assert_close(method.state["weight"] * ~LINKS, torch.zeros(2, 5))


def test_both_halves_of_its_training_go_by_the_links(monkeypatch: pytest.MonkeyPatch) -> None:
    method, trained = made("feddst", sparse_layers=["weight"]), []
    half = client(method, TWO_STEPS)
    fit = half.fit
    monkeypatch.setattr(half, "fit", lambda network, *rest: trained.append(type(network)) or fit(network, *rest))
    half.train(plan(method, 2)[1].gathered(), data(), {})
    assert trained == [SparseNetwork, SparseNetwork]


@pytest.mark.parametrize(("before", "early"), [(0.01, 1), (0.5, 3), (0.67, 4), (0.9, 5)])
def test_when_in_its_training_a_client_exchanges(before: float, early: int) -> None:
    """After the share of its 5 steps, rounded up: the exchange is that of the weights which so many steps give."""
    method, examples = made("feddst", before=before), data()
    method.state = {"weight": torch.randn(2, 5, generator=torch.Generator().manual_seed(1)) * LINKS}
    training = TrainingOptions(lr=0.5, batch_size=10, steps=5, schedule="constant")
    found, _ = client(method, training).train(plan(method, 2)[0].gathered(), examples, {})
    weight = method.state["weight"]
    for _ in range(early):
        weight = weight - 0.5 * gradient(weight, examples) * LINKS
    weight = weight * (links := exchanged(weight, examples, LINKS))
    for _ in range(5 - early):
        weight = weight - 0.5 * gradient(weight, examples) * links
    torch.testing.assert_close(found.payload["model"]["weight"], weight[links])


def test_one_step_is_before_the_exchange() -> None:
    method, examples = made("feddst"), data()
    training = TrainingOptions(lr=0.5, batch_size=10, steps=1, schedule="constant")
    found, _ = client(method, training).train(plan(method, 2)[0].gathered(), examples, {})
    assert found.submodel is not None
    assert (found.payload["model"]["weight"] == 0).sum() >= 2  # what came has not been trained
    assert found.seen == len(examples)


def test_in_other_rounds_a_client_trains_the_topology() -> None:
    method = made("feddst")
    for t in (1, 3, 7, 8):
        assignment = plan(method, t)[0]
        assert assignment.exchange is None
        assert assignment.choice is None
        found, _ = client(method, TWO_STEPS).train(assignment.gathered(), data(), {})
        assert found.submodel is None


def test_each_weight_is_averaged_over_its_holders_and_the_largest_stay() -> None:
    """Links 0 to 5. One gives up 4 and 5 for 6 and 7, the other 3 and 5 for 7 and 8. Means: 0: 3, 1: -2, 2: 1.5,
    3: .5 (one holds it), 4: -1 (the other), 5: nobody, 6: 4, 7: (1 - 2) / 2, 8: .6; the largest six are 0, 1, 2,
    4, 6 and 8."""
    method = made("feddst")
    one = {0: 2.0, 1: -3.0, 2: 1.0, 3: 0.5, 6: 4.0, 7: 1.0}
    other = {0: 4.0, 1: -1.0, 2: 2.0, 4: -1.0, 7: -2.0, 8: 0.6}
    merged(method, 2, one, other)
    assert places(method) == {0, 1, 2, 4, 6, 8}
    mean = [3.0, -2.0, 1.5, 0.0, -1.0, 0.0, 4.0, 0.0, 0.6, 0.0]
    assert method.state["weight"].flatten().tolist() == pytest.approx(mean)


def test_what_all_gave_up_goes_before_any_other() -> None:
    """Link 0 was 100, which is what the server has of it; 9 has just come, at nearly nothing."""
    method = made("feddst", change=1 / 6)
    method.state = {"weight": torch.full((2, 5), 100.0) * LINKS}
    both = dict.fromkeys((1, 2, 3, 4, 5), 1.0)
    merged(method, 2, {**both, 9: 1e-6}, {**both, 9: -2e-6})
    assert places(method) == {1, 2, 3, 4, 5, 9}


@pytest.mark.parametrize("name", ["feddst", "fedsgc"])
def test_a_client_that_exchanges_nothing_still_holds_its_links(name: str) -> None:
    """One link of 6 is exchanged, so of a client of 3 links, 0 to 2, int(1/2): none. One gives up 0 for 6; the
    other has 0 at 50, the largest of all. Of the seven places 5 is the smallest."""
    method: FedDST = made(name, sizes=(10, 5), change=1 / 6)
    method.state = {"weight": torch.tensor([[6.0, 5, 4, 3, 2], [1, 0, 0, 0, 0]])}
    one, other = plan(method, 2)
    assert other.exchange is None
    gives = holding(one, {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 0.5, 6: 6.0})
    keeps = update(other, [50.0, 1.0, 2.0])
    assert inspect(one, gives) is gives
    assert inspect(other, keeps) is keeps
    method.merge(2, [(one, gives), (other, keeps)])
    method.adjust(2)
    assert places(method) == {0, 1, 2, 3, 4, 6}
    assert method.state["weight"].flatten().tolist() == pytest.approx([50, 1, 2, 3, 4, 0, 6, 0, 0, 0])


@pytest.mark.parametrize("name", ["feddst", "fedsgc"])
def test_clients_too_small_to_exchange_a_link(name: str) -> None:
    """Who holds 3 of 6 links exchanges 3 / 6 of 2; who holds 2 none."""
    made(name, sizes=(5, 4))
    with pytest.raises(MethodError, match=r"change = 0.333333: the largest client holds 2 parameters, so few"):
        made(name, sizes=(4, 4))


def test_a_link_that_nobody_had_this_round_stays_a_candidate() -> None:
    """A client of capacity .5 holds 3 links; those that no client of the round holds keep their weights."""
    method = made("feddst", sizes=(5, 5))
    method.state = {"weight": torch.tensor([[6.0, 5, 4, 3, 2], [1, 0, 0, 0, 0]])}
    plans = plan(method, 2)
    for assignment in plans:
        assert assignment.submodel.size == 3  # int(.5 * 6) links, of the largest weights
        assert assignment.exchange is not None
        assert assignment.exchange.counts == {"weight": 1}  # half of 2
    merged(method, 2, {0: 6.0, 1: 5.0, 6: 9.0}, {0: 6.0, 1: 5.0, 7: 0.5})
    assert places(method) == {0, 1, 3, 4, 5, 6}  # 2 was given up by all; 7 is the smallest
    assert method.state["weight"].flatten().tolist() == [6, 5, 0, 3, 2, 1, 9, 0, 0, 0]


def test_what_a_client_may_not_exchange() -> None:
    method = made("feddst")
    assignment = plan(method, 2)[0]
    good = dict.fromkeys((0, 1, 2, 3, 6, 7), 1.0)
    assert not isinstance(inspect(assignment, holding(assignment, good)), Failure)
    for links, message in (
        ((0, 1, 2, 3, 4, 6), "1 links of weight given up and 1 taken, where 2 were to be"),
        ((0, 1, 2, 6, 7, 8), "3 links of weight given up"),
        ((0, 1, 2, 3, 6), "2 links of weight given up and 1 taken"),
        ((0, 1, 2, 3, 6, 7, 8), "a submodel of 7 parameters, where it may have 6"),
    ):
        bad = inspect(assignment, holding(assignment, dict.fromkeys(links, 1.0)))
        assert isinstance(bad, Failure)
        assert message in bad.reason
    none = replace(holding(assignment, good), submodel=None)
    assert isinstance(inspect(assignment, none), Failure)
    early = plan(method, 1)[0]
    assert isinstance(inspect(early, holding(early, good)), Failure)


def test_a_smaller_client_may_not_take_the_links_of_others() -> None:
    """It holds 0, 1 and 2 of the topology's 0 to 5; 3 has a weight of its own on the server."""
    method = made("feddst", sizes=(5, 10))
    method.state = {"weight": torch.tensor([[6.0, 5, 4, 3, 2], [1, 0, 0, 0, 0]])}
    assignment = plan(method, 2)[0]
    bad = inspect(assignment, holding(assignment, {0: 1.0, 1: 1.0, 3: 1.0}))
    assert isinstance(bad, Failure)
    assert bad.reason == "links of weight taken that others hold"
    for seed in range(5):
        found, _ = client(method, TWO_STEPS).train(assignment.gathered(), data(seed=seed), {})
        assert inspect(assignment, found) is found
