"""FedMef by hand: which links are pressed and how, and what sparse activations change and do not."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from tests.laws.world import supernet
from tests.methods.sparse import LINKS, client, data, gradient, made, places, plan, update
from tests.sparsity.models import three
from uneven.engines import inspect
from uneven.errors import MethodError
from uneven.methods import Assignment, ClientCard, Context
from uneven.methods.fedmef import FedMef
from uneven.sparsity import activations
from uneven.sparsity.activations import SparseActivations, bits, from_bits, largest, scattered
from uneven.submodels import Network, State, Supernet
from uneven.training import TrainingOptions

THREE_STEPS = TrainingOptions(lr=0.1, batch_size=10, steps=3, schedule="constant")
START = torch.tensor([[6.0, -0.5, 4.0, 3.0, 0.25], [1.0, 0, 0, 0, 0]]) / 4
"""Links 1 and 4 are the smallest two."""


def trained(t: int, **options: object) -> torch.Tensor:
    """The weights of a client after three steps of round t."""
    method: FedMef = made("fedmef", activation_density=1.0, **options)
    method.state = {"weight": START}
    assignment = plan(method, t)[0]
    found, _ = client(method, THREE_STEPS).train(assignment.gathered(), data(), {})
    assert inspect(assignment, found) is found
    weight = torch.zeros(2, 5)
    weight[LINKS] = found.payload["model"]["weight"]
    return weight


def by_hand(strengths: list[float]) -> torch.Tensor:
    """w <- w - .1 (g + lambda_s w on the two smallest links)."""
    weight, low = START, torch.tensor([[0.0, 1, 0, 0, 1], [0] * 5])
    for strength in strengths:
        weight = weight - 0.1 * (gradient(weight, data()) * LINKS + strength * low * weight)
    return weight


@pytest.mark.parametrize(
    ("t", "options", "strengths"),
    [
        (2, {}, [1 / 3, 2 / 3, 1]),
        (2, {"extrusion": 3.0}, [1, 2, 3]),
        (2, {"extrusion": 3.0, "ramp": "constant"}, [3, 3, 3]),
        (6, {"ramp": "constant"}, [1, 1, 1]),
        (1, {}, [0, 0, 0]),  # no adjustment is due
        (1, {"extrusion_rounds": 2, "ramp": "constant"}, [1, 1, 1]),
        (3, {"extrusion_rounds": 2, "every": 4}, [1 / 3, 2 / 3, 1]),
        (2, {"extrusion_rounds": 2, "every": 4}, [0, 0, 0]),
        (2, {"extrusion": 0.0}, [0, 0, 0]),
        (8, {"extrusion_rounds": 3}, [0, 0, 0]),  # after T_end
    ],
)
def test_the_links_to_be_dropped_are_pressed(t: int, options: dict[str, object], strengths: list[float]) -> None:
    torch.testing.assert_close(trained(t, **options), by_hand(strengths), rtol=1e-4, atol=1e-6)


def test_what_is_pressed_is_what_would_go() -> None:
    """Were the server to adjust as things are: links 1 and 4. A client without 4 presses what is left."""
    method: FedMef = made("fedmef", sizes=(10, 9))
    method.state = {"weight": START}
    one, other = plan(method, 2)
    assert [pressed(method, assignment) for assignment in (one, other)] == [{1, 4}, {1}]
    found = ([6, 7], [1.0, 2.0])
    held = START[other.submodel.masks["weight"]]  # type: ignore[attr-defined]
    method.merge(
        2, [(one, update(one, START[LINKS].tolist(), found)), (other, update(other, held.tolist(), found))]
    )
    method.adjust(2)
    assert places(method) == {0, 2, 3, 5, 6, 7}


def pressed(method: FedMef, assignment: Assignment) -> set[int]:
    low = client(method, THREE_STEPS).low(*_network(assignment))
    return set(low["weight"].flatten().nonzero().flatten().tolist()) if low else set()


@pytest.mark.parametrize(
    ("size", "change", "links"),
    [
        (9, 1 / 3, {1}),  # 5 of 6 links: it lacks 4; 2 - 1
        (8, 1 / 3, set()),  # 4 links: it lacks 1 and 4, the 2 that go
        (8, 1 / 2, {5}),  # 3 go: 5 too
        (5, 2 / 3, {3}),  # 3 links: it lacks 1, 4 and 5; 4 - 3
        (5, 1 / 3, set()),  # 2 < 3
    ],
)
def test_what_a_smaller_client_lacks_goes_first(size: int, change: float, links: set[int]) -> None:
    """Of m links that it does not hold, all smaller than its own, it presses max(0, swap - m)."""
    method: FedMef = made("fedmef", sizes=(10, size), change=change)
    method.state = {"weight": START}
    assert pressed(method, plan(method, 2)[1]) == links


def test_a_smaller_client_presses_for_the_adjustment_to_come() -> None:
    """2/3 of 6 links by the cosine to 6: after round 2 3/4 of 4 go, after round 4 1/4, and after round 6 none. A
    client that lacks the link 4 presses one less. After T_end nobody presses."""
    method: FedMef = made("fedmef", sizes=(10, 9), change=2 / 3, decay="cosine", extrusion_rounds=2)
    method.state = {"weight": START}
    found = {t: [pressed(method, assignment) for assignment in plan(method, t)] for t in range(1, 8)}
    first, second, none = [{1, 4, 5}, {1, 5}], [{4}, set()], [set(), set()]
    assert found == {1: first, 2: first, 3: second, 4: second, 5: none, 6: none, 7: none}


def test_a_smaller_clients_steps_by_hand() -> None:
    """In the round before the one that ends with an adjustment, too: w <- w - .1 (g + w at link 1)."""
    method: FedMef = made("fedmef", sizes=(10, 9), activation_density=1.0, ramp="constant", extrusion_rounds=2)
    method.state = {"weight": START}
    weight, low = START.clone(), torch.tensor([[0.0, 1, 0, 0, 0], [0] * 5])
    weight[0, 4] = 0  # it does not hold it
    held = weight != 0
    for _ in range(3):
        weight = weight - 0.1 * (gradient(weight, data()) * held + low * weight)
    found, _ = client(method, THREE_STEPS).train(plan(method, 1)[1].gathered(), data(), {})
    torch.testing.assert_close(found.payload["model"]["weight"], weight[held], rtol=1e-4, atol=1e-6)


def test_nothing_is_pressed_in_a_layer_that_never_swaps() -> None:
    """88 links: 55 of 200, 25 of 40, and all 8 of the last, where there is no free place. Of the first two .4, 22
    and 10, go. A client of three quarters lacks 14, 6 and 2."""
    cards = [ClientCard(n, 1, torch.ones(2), size / 250, 1.0, size) for n, size in enumerate((250, 188))]
    options = FedMef.Options(density=90 / 250, every=1, end=5, decay="constant")
    method = FedMef(Context(three(), cards, 9, 0), options)
    assert method.links == {"0.weight": 55, "2.weight": 25, "4.weight": 8}
    whole, part = plan(method, 1)
    assert whole.going == {"0.weight": 22, "2.weight": 10, "4.weight": 0}
    assert part.going == {"0.weight": 8, "2.weight": 4, "4.weight": 0}
    for assignment in (whole, part):
        network = assignment.submodel.network().load(assignment.gathered().payload["model"])
        low = FedMef.Client(method.supernet, THREE_STEPS, method.options, 9, 0).low(network, assignment)
        assert {name: int(links.sum()) for name, links in low.items()} == assignment.going


def test_ties_are_the_same_for_all_clients() -> None:
    method: FedMef = made("fedmef")
    method.state = {"weight": LINKS.float()}
    one, other = (client(method, THREE_STEPS).low(*_network(a)) for a in plan(method, 2))
    assert torch.equal(one["weight"], other["weight"])
    assert int(one["weight"].sum()) == 2


def _network(assignment: Assignment) -> tuple[Network, Assignment]:
    return assignment.submodel.network().load(assignment.gathered().payload["model"]), assignment


# --- sparse activations ------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 40), density=st.floats(0.01, 1), seed=st.integers(0, 1000))
def test_the_largest_are_kept_at_the_norm_of_all(n: int, density: float, seed: int) -> None:
    a = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    back = scattered(largest(a, density))
    k = math.ceil(round(density * n, 9))
    kept = np.argsort(-np.abs(a.numpy()))[:k]
    expected = np.zeros(n)
    expected[kept] = a.numpy()[kept]
    expected *= np.linalg.norm(a.numpy()) / np.linalg.norm(expected)
    np.testing.assert_allclose(back.numpy(), expected, rtol=1e-4, atol=1e-6)


def test_what_is_stored() -> None:
    """Of 100 values 30, 4 bytes each, and a bit for each of 100."""
    where, values, shape = largest(torch.randn(4, 25), 0.3)
    assert values.nbytes == 120
    assert where.nbytes == 13
    assert shape == (4, 25)
    assert not scattered(largest(torch.zeros(3, 3), 0.5)).any()


@settings(max_examples=50, deadline=None)
@given(mask=st.lists(st.booleans(), min_size=1, max_size=40))
def test_bits(mask: list[bool]) -> None:
    packed = bits(torch.tensor(mask))
    assert packed.dtype == torch.uint8
    assert len(packed) == -(-len(mask) // 8)
    assert from_bits(packed, len(mask)).tolist() == mask


def gradients(net: Supernet, density: float | None) -> State:
    """Of one batch at the initial weights, in training."""
    network = net.prefix(1.0).network().load(net.initial).train()
    x = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(16) % 3
    if density is None:
        logits = network(x)
    else:
        with SparseActivations(density, network.weights().values()):
            logits = network(x)
    nn.functional.cross_entropy(logits, y).backward()
    return {name: weight.grad.clone() for name, weight in network.weights().items()}  # type: ignore[union-attr]


@pytest.mark.parametrize("model", ["mlp", "cnn-batch", "cnn-none", "resnet_tiny-group", "shufflenet-batch"])
def test_only_the_gradients_of_layers_weights_change(model: str) -> None:
    """All that flows back is exact: biases and norms have the gradients that they had, and so has the first layer,
    whose input is the batch. The others' point where they did."""
    net = supernet(model)
    dense, sparse = gradients(net, None), gradients(net, 0.3)
    changed = {name for name in dense if not torch.equal(dense[name], sparse[name])}
    assert changed
    assert changed == set(net.maskable[1:])
    flat = [torch.cat([found[name].flatten() for name in sorted(found)]) for found in (dense, sparse)]
    assert nn.functional.cosine_similarity(flat[0], flat[1], 0) > 0.8
    for name, whole in gradients(net, 1.0).items():
        torch.testing.assert_close(whole, dense[name], rtol=1e-4, atol=1e-6)


def test_the_gradient_of_a_layer_by_hand() -> None:
    """Two linear layers and a ReLU between: the last layer's gradient is its output's times the sparse input."""
    net = Supernet(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(5))
    network = net.prefix(1.0).network().load(net.initial).train()
    examples = data(6)
    with SparseActivations(0.25, network.weights().values()):
        logits = network(examples.x)
    nn.functional.cross_entropy(logits, examples.y).backward()
    hidden = (examples.x @ net.initial["0.weight"].T + net.initial["0.bias"]).relu()
    kept = hidden.flatten().argsort(descending=True)[:12]
    sparse = torch.zeros(48)
    sparse[kept] = hidden.flatten()[kept]
    sparse *= hidden.norm() / sparse.norm()
    p = logits.detach().softmax(1)
    p[torch.arange(6), examples.y] -= 1
    torch.testing.assert_close(network.weights()["2.weight"].grad, p.T @ sparse.view(6, 8) / 6)


def test_nothing_dense_is_kept_where_the_largest_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is packed in a step: the inputs of the second convolution and of the last layer as bits and values, two
    ReLUs as bits, and of two pools nothing but shapes."""
    net, packed = supernet("cnn-none"), []
    network = net.prefix(1.0).network().load(net.initial).train()

    def noted(pack: Any, *args: Any) -> Any:
        packed.append(pack(*args))
        return packed[-1]

    for name in ("largest", "signs", "shape"):
        monkeypatch.setattr(activations, name, partial(noted, getattr(activations, name)))
    with SparseActivations(0.3, network.weights().values()):
        network(torch.randn(16, 1, 8, 8))
    sizes = [sum(part.nbytes for part in parts if isinstance(part, torch.Tensor)) for parts in packed]
    inputs, relus = [16 * 32 * 4 * 4, 16 * 64 * 2 * 2], [16 * 32 * 8 * 8, 16 * 64 * 4 * 4]
    of_inputs = [n // 8 + 4 * math.ceil(0.3 * n) for n in inputs]
    assert sizes == [relus[0] // 8, 0, of_inputs[0], relus[1] // 8, 0, of_inputs[1]]


def test_density_1_is_off() -> None:
    method = made("fedmef", activation_density=1.0)
    tiny = made("fedtiny", candidates=1)
    for t in (1, 3):
        found = [client(m, THREE_STEPS).train(plan(m, t)[0].gathered(), data(), {})[0] for m in (method, tiny)]
        assert torch.equal(*(update.payload["model"]["weight"] for update in found))


def test_options() -> None:
    assert made("fedmef").options.candidates == 1
    assert made("fedmef", candidates=3).opening is not None
    with pytest.raises(MethodError, match="ramp = 'linear': has no effect with extrusion 0"):
        made("fedmef", extrusion=0.0, ramp="linear")
    with pytest.raises(MethodError, match="extrusion_rounds = 2: has no effect with extrusion 0"):
        made("fedmef", extrusion=0.0, extrusion_rounds=2)
    with pytest.raises(MethodError, match="extrusion = 5: has no effect at density 1"):
        made("fedmef", density=1.0, extrusion=5.0)
    assert [made("fedmef", density=density).options.extrusion for density in (0.6, 1.0)] == [1, 0]
    for extrusion in (math.inf, -1.0):
        with pytest.raises(ValidationError, match="extrusion"):
            made("fedmef", extrusion=extrusion)
