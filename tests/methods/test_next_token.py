"""What methods do with the labels of texts: masked losses, distillation, masking errors."""

from __future__ import annotations

import pytest
import torch

from tests.laws.world import TEXTS, World, formed, supernet
from uneven.data import Examples
from uneven.data.federation import NOTHING
from uneven.diagnostics.masks import gradient
from uneven.methods import METHODS
from uneven.methods.fjord import FjORDClient
from uneven.training import TrainingOptions
from uneven.training.losses import cross_entropy

MIXED = [1.0, 0.5, 0.25, 0.5]


def mean_loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Over the targets of all texts, one by one."""
    log_p = logits - logits.exp().sum(2, keepdim=True).log()
    terms = [-log_p[i, j, k] for i, row in enumerate(y.tolist()) for j, k in enumerate(row) if k != NOTHING]
    return torch.stack(terms).mean()


@pytest.mark.parametrize("masked", [True, False])
def test_a_step_of_heterofl_by_hand(masked: bool) -> None:
    """The logits of words that a client never has to predict are 0 in its loss."""
    step = TrainingOptions(lr=0.1, batch_size=100, steps=1, schedule="constant")
    form = "heterofl" if masked else "heterofl-plain"
    world = formed(form, "lstm", MIXED, training=step)
    assignment, update = next((a, u) for a, u in world.train(world.plan()) if a.client == 0)
    data, net = world.federation.clients[0].train, supernet("lstm")
    has = torch.tensor([float((data.y == word).any()) for word in range(TEXTS.num_classes)])
    assert 2 < int(has.sum()) < TEXTS.num_classes - 2
    network = assignment.submodel.network(scaler=False).load(net.initial).train()
    mean_loss(network(data.x) * (has if masked else 1.0), data.y).backward()  # type: ignore[no-untyped-call]
    for name, weight in network.weights().items():
        end = net.initial[name] - 0.1 * (0 if weight.grad is None else weight.grad)
        torch.testing.assert_close(update.payload["model"][name], end, rtol=1e-4, atol=1e-6)


def test_an_output_row_is_averaged_over_clients_that_predict_its_word() -> None:
    world = formed("heterofl", "lstm", MIXED)
    for assignment in world.plan():
        counts = world.method.counted(assignment)
        wanted = {int(k) for k in world.federation.clients[assignment.client].train.y.unique() if k != NOTHING}
        assert set(counts) == {"head.weight", "head.bias"}
        for rows in counts.values():
            assert {k for k, counted in enumerate(rows.flatten().tolist()) if counted} == wanted


def test_only_what_is_to_be_predicted_is_distilled() -> None:
    """CE of a student against a teacher's probabilities, at the positions that have a target."""
    draws = torch.Generator().manual_seed(0)
    teacher, student = torch.randn(2, 2, 3, 4, generator=draws)
    y = torch.tensor([[1, NOTHING, 2], [NOTHING, NOTHING, 0]])
    goal = FjORDClient(supernet("lstm"), TrainingOptions(), None, 1, 0).goal(teacher, y)
    terms = [-(teacher[i, j].softmax(0) * student[i, j].log_softmax(0)).sum() for i, j in ((0, 0), (0, 2), (1, 2))]
    torch.testing.assert_close(cross_entropy(student, goal), torch.stack(terms).mean())
    of_classes = FjORDClient(supernet("mlp"), TrainingOptions(), None, 1, 0).goal(
        teacher[0], torch.tensor([0, 1, 2])
    )
    assert torch.equal(of_classes, teacher[0].softmax(1))


def test_fjord_distils_on_texts() -> None:
    world = World(METHODS["fjord"], "lstm", MIXED, {"distillation": True})
    world.round()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in world.method.state.values())


@pytest.mark.parametrize("batch", [250, 2])
def test_the_gradient_that_masks_are_measured_by_is_over_all_targets(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uneven.diagnostics.masks.BATCH", batch)
    net = supernet("lstm")
    data: Examples = formed("fedavg-exclude", "lstm", [1.0] * 3).federation.clients[2].train
    network = net.prefix(1.0).network()
    found = gradient(network, net.initial, data)
    network.load(net.initial).eval()
    mean_loss(network(data.x), data.y).backward()  # type: ignore[no-untyped-call]
    for name, weight in network.weights().items():
        assert weight.grad is not None
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-4, atol=1e-7)
