"""FedSGC by hand: which links a client exchanges by directions, and which directions the server tells."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.methods.sparse import LINKS, client, data, gradient, holding, made, mask_of, plan, update
from tests.methods.test_feddst import TWO_STEPS, merged
from uneven.engines import inspect
from uneven.methods.feddst import Layer
from uneven.methods.fedsgc import FedSGC, _halves

DRAWS = torch.Generator()


def layer(direction: list[int]) -> Layer:
    """Links 0 to 5 by size; 0, 2 and 4 have grown in their training, 1, 3 and 5 shrunk."""
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0, 0, 0, 0])
    start = weight - torch.tensor([0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0, 0, 0, 0])
    slope = torch.tensor([9.0, 9, 9, 9, 9, 9, 4.0, -3.0, 2.0, 1.0])
    held = mask_of(range(6)).flatten()
    return Layer(held, ~held, weight, slope, start, torch.tensor(direction, dtype=torch.int8))


def half(name: str, direction: list[int], count: int) -> set[int]:
    method = made("fedsgc")
    chosen = getattr(client(method, TWO_STEPS), name)(layer(direction), count, DRAWS)
    return set(chosen.nonzero().flatten().tolist())


def test_half_of_the_drops_conflict() -> None:
    """Against a global direction of -1 at 4 and +1 at 5, 4 and 5 conflict: they go though they are the largest."""
    assert half("dropped", [0, 0, 0, 0, -1, 1, 0, 0, 0, 0], 2) == {4, 0}
    assert half("dropped", [0, 0, 0, 0, -1, 1, 0, 0, 0, 0], 3) == {4, 5, 0}  # the half is rounded up
    assert half("dropped", [0, 0, 0, 0, 1, -1, 0, 0, 0, 0], 2) == {0, 1}  # they agree: the smallest go
    assert half("dropped", [0] * 10, 4) == {0, 1, 2, 3}
    assert half("dropped", [-1, 1, -1, 1, -1, 0, 0, 0, 0, 0], 4) == {0, 1, 2, 5}  # only 5 does not conflict
    assert half("dropped", [-1, 1, -1, 1, -1, 1, 0, 0, 0, 0], 4) == {0, 1, 2, 3}


def test_half_of_the_growths_agree() -> None:
    """Descent would go to -, +, -, - at 6 to 9."""
    assert half("grown", [0] * 10, 2) == {6, 7}
    assert half("grown", [0, 0, 0, 0, 0, 0, 0, 0, 0, -1], 2) == {9, 6}
    assert half("grown", [0, 0, 0, 0, 0, 0, 1, 0, -1, -1], 2) == {8, 6}  # 6 is among the rest
    assert half("grown", [0, 0, 0, 0, 0, 0, 1, -1, 1, 1], 2) == {6, 7}
    assert half("grown", [1, 1, 1, 1, 1, 1, 0, 0, 0, -1], 1) == {9}


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.floats(0, 1), count=st.integers(0, 12))
def test_halves(seed: int, share: float, count: int) -> None:
    """As many as asked, among those allowed, the best of each part, and a half of each if there are enough."""
    draws = torch.Generator().manual_seed(seed)
    scores, first = torch.rand(20, generator=draws), torch.rand(20, generator=draws) < share
    among = torch.zeros(20, dtype=torch.bool)
    among[torch.randperm(20, generator=draws)[:12]] = True
    chosen = _halves(scores, among, first, count, draws)
    assert int(chosen.sum()) == count
    assert not (chosen & ~among).any()
    own, wanted = int((chosen & first).sum()), count - count // 2
    have, rest = int((among & first).sum()), int((among & ~first).sum())
    assert own == min(have, max(wanted, count - rest))
    for part in (among & first, among & ~first):
        if (part & chosen).any() and (part & ~chosen).any():
            assert scores[part & chosen].min() >= scores[part & ~chosen].max()


def test_a_client_goes_by_its_own_change_and_the_servers_direction() -> None:
    """Two steps by a closed formula; the direction speaks against the largest link's own."""
    method, examples = made("fedsgc"), data()
    start = torch.randn(2, 5, generator=torch.Generator().manual_seed(1)) * LINKS
    method.state = {"weight": start}
    weight = start - 0.1 * gradient(start, examples) * LINKS
    largest = int(weight.flatten().abs().argmax())
    whole = gradient(weight, examples).flatten()
    free = sorted(range(6, 10), key=lambda i: abs(whole[i]))
    direction = torch.zeros(10, dtype=torch.int8)
    direction[largest] = -(weight - start).flatten()[largest].sign()
    direction[free[0]] = -whole[free[0]].sign()
    method.direction = {"weight": direction.view(2, 5)}
    assignment = plan(method, 2)[0]
    found, _ = client(method, TWO_STEPS).train(assignment.gathered(), examples, {})
    assert inspect(assignment, found) is found
    smallest = min(set(range(6)) - {largest}, key=lambda i: abs(weight.flatten()[i]))
    links = mask_of(sorted(set(range(6)) - {largest, smallest} | {free[0], free[-1]}))
    assert found.submodel is not None
    assert torch.equal(found.submodel.masks["weight"], links)  # type: ignore[attr-defined]
    weight = weight * links
    weight = weight - 0.1 * gradient(weight, examples) * links
    torch.testing.assert_close(found.payload["model"]["weight"], weight[links])


def signs(method: FedSGC) -> list[int]:
    found: list[int] = method.direction["weight"].flatten().tolist()
    return found


def test_the_direction_is_of_the_last_change_by_averaging() -> None:
    """0 in the first round. Pruning is no change, and a place that nobody holds keeps its direction."""
    method: FedSGC = made("fedsgc")
    method.state = {"weight": torch.full((2, 5), 1.0) * LINKS}
    assert signs(method) == [0] * 10
    one, other = plan(method, 1)
    values = [2.0, 0.5, 1.0, 1.5, 1.0, 0.0]
    method.merge(1, [(one, update(one, values)), (other, update(other, values))])
    method.adjust(1)
    assert signs(method) == [1, -1, 0, 1, 0, -1, 0, 0, 0, 0]
    directions = plan(method, 2)[0].exchange.directions  # type: ignore[union-attr]
    assert directions["weight"].dtype == torch.int8
    assert directions["weight"].flatten().tolist() == signs(method)
    # All give up 0 and 5, and grow 8, which is pruned again, and 9.
    both = {1: 0.5, 2: 0.9, 3: 9.0, 4: 1.0, 8: -0.01, 9: 2.0}
    merged(method, 2, both, both)
    assert not method.mask["weight"][0, 0]
    assert signs(method) == [1, -1, -1, 1, 0, -1, 0, 0, -1, 1]


def test_the_directions_are_counted_where_they_are_sent() -> None:
    """Which places have one, log2 of 10 over 4, and a bit for each: 12 bits; nothing in other rounds."""
    method: FedSGC = made("fedsgc")
    plan(method, 1)  # all are told of the topology
    method.direction = {"weight": torch.tensor([[1, -1, 0, 1, -1], [0] * 5], dtype=torch.int8)}
    sent = [plan(method, t)[0].index_bytes for t in (1, 2, 3, 4)]
    bits = math.log2(math.comb(10, 4)) + 4
    assert sent == [0, math.ceil(bits / 8), 0, math.ceil(bits / 8)]


def test_directions_go_on_where_a_run_was_stopped() -> None:
    method, other = made("fedsgc"), made("fedsgc")
    one, two = plan(method, 1)
    method.merge(1, [(one, update(one, [9.0] * 6)), (two, update(two, [9.0] * 6))])
    method.adjust(1)
    other.restore(method.saved())
    assert signs(other) == signs(method) == [1] * 6 + [0] * 4
    a, b = plan(other, 2)
    other.merge(2, [(a, holding(a, dict.fromkeys((0, 1, 2, 3, 6, 7), 1.0)))])
    assert b.exchange is not None
