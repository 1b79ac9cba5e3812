"""Fed-HeLLo: which layers a client takes, and that it trains those and no others."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import uneven
from tests.laws.world import World, same_bits
from uneven.data import from_texts
from uneven.errors import MethodError
from uneven.experiment import Experiment
from uneven.methods import Update
from uneven.methods.fedhello import FedHeLLo, best_layers
from uneven.spec import parse
from uneven.submodels import Supernet
from uneven.training import TrainingOptions

ADAMW = TrainingOptions(lr=0.01, batch_size=4, epochs=1, optimizer="adamw", weight_decay=0.5)


@cache
def stack() -> Supernet:
    """Layers 0, 1 and 2 of 6 x 6 + 6 parameters, a small layer of 6, and a head of 12 + 2."""
    layers = [nn.Linear(6, 6) for _ in range(3)]
    return Supernet(nn.Sequential(*layers, nn.LayerNorm(6, bias=False), nn.Linear(6, 2)), torch.zeros(6))


def chosen(size: int, scores: list[float]) -> list[str]:
    """The layers held, where every parameter of layer l scores ``scores[l]``."""
    net = stack()
    full = {name: torch.full_like(net.initial[name], scores[int(name[0])]) for name in net.parameters}
    part = best_layers(net, full, size)
    assert part.size <= size
    assert not any(mask.any() for mask in part.masks.values())
    return sorted({name[0] for name in net.parameters if name not in part.masks})


def test_the_layers_of_the_highest_mean_score_that_fit() -> None:
    scores = [1.0, 3.0, 2.0, 2.5, 0.0]
    assert chosen(14, scores) == ["4"]  # the head is always trained
    assert chosen(14 + 42, scores) == ["1", "4"]
    assert chosen(14 + 42 + 6, scores) == ["1", "3", "4"]
    assert chosen(14 + 42 + 42, scores) == ["1", "3", "4"]  # what is left holds no second large one
    assert chosen(14 + 42 + 6 + 42, scores) == ["1", "2", "3", "4"]
    assert chosen(14 + 41, scores) == ["3", "4"]  # the best does not fit, the next does
    assert chosen(14 + 42, [1.0, 1.0, 1.0, 0.0, 9.0]) == ["0", "4"]  # of equals the first
    assert chosen(14 + 42, [0.0, 1.0, 0.0, 5.0, 0.0]) == ["3", "4"]  # by the mean, not the sum
    with pytest.raises(MethodError, match=r"13 of 146 parameters is too small: the head, .* has 14"):
        chosen(13, scores)


def world(capacity: float = 0.25, **more: Any) -> World:
    return World(FedHeLLo, "mlp", [capacity] * 3, training=ADAMW, **more)


def test_the_score_is_the_mean_fisher_information_of_a_layer() -> None:
    """By hand: the squared gradient of each example, one at a time."""
    run = world(0.9)
    net = run.method.supernet
    for assignment, update in run.train(run.plan()):
        data = run.federation.clients[assignment.client].train
        network = net.prefix(1.0).network().load(net.initial)
        weights, total = network.weights(), dict.fromkeys(net.parameters, 0.0)
        for i in range(len(data)):
            x, y = data.batch(torch.tensor([i]))
            loss = nn.functional.cross_entropy(network(x), y)
            for name, g in zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True):
                total[name] += float(g.square().sum())
        sizes = {"1": 64 * 12 + 12, "3": 12 * 7 + 7}  # one of the two fits
        means = {n: (total[f"{n}.weight"] + total[f"{n}.bias"]) / size for n, size in sizes.items()}
        assert {name[0] for name in update.submodel.masks} == {min(means, key=means.__getitem__)}
        assert update.scored == len(data)


def test_what_is_not_chosen_stays_to_the_bit() -> None:
    """Under AdamW with weight decay, which moves whatever it is given."""
    run = world()
    before = run.method.state
    assignment = run.plan()[0]
    ((_, update),) = run.train([assignment])
    assert isinstance(update, Update)
    assert set(update.submodel.masks) == {"1.weight", "1.bias"}  # too large; 3 and the head fit
    ended = run.method.supernet.prefix(1.0).network().values()
    for name in run.method.supernet.parameters:
        assert torch.equal(ended[name], before[name]) == (name in update.submodel.masks)
        sent = update.payload["model"][name]
        assert sent.numel() == (0 if name in update.submodel.masks else before[name].numel())


def test_the_server_averages_a_layer_over_those_who_trained_it() -> None:
    run = world()
    before = run.method.state
    results = run.round()
    after = run.method.state
    assert torch.equal(after["1.weight"], before["1.weight"])
    mean = torch.stack([update.payload["model"]["3.weight"] for _, update in results]).mean(0)
    torch.testing.assert_close(after["3.weight"], mean)


def test_full_capacity_is_fedavg() -> None:
    from uneven.methods import FedAvg

    runs = [World(method, "mlp", [1.0] * 3, training=ADAMW) for method in (FedHeLLo, FedAvg)]
    for run in runs:
        run.round()
    assert same_bits(runs[0].method.state, runs[1].method.state)


def test_batch_norm_is_refused() -> None:
    with pytest.raises(MethodError, match="couples the examples"):
        World(FedHeLLo, "cnn-batch", [1.0] * 3)


def test_low_rank_pairs_by_layer() -> None:
    """With LoRA a layer is the pairs of one layer of the encoder: 4 pairs' halves of 4 x 16, of two layers."""
    words = ("red", "green", "blue", "round", "square", "large", "small")
    texts = [f"{words[i % 7]} {words[i * 5 % 6]} {words[i * 3 % 5]}" for i in range(60)]
    spec = {
        "rounds": 1,
        "cohort": 4,
        "data": {"source": from_texts(texts, torch.arange(60) % 2), "partition": "iid", "max_length": 6},
        "clients": {"count": 4, "capacities": {"levels": [1, 0.6], "unit": "params"}},
        "model": {"name": "encoder", "layers": 2, "hidden": 16, "heads": 2, "lora": {"rank": 4}},
        "method": "uneven.methods.fedhello:FedHeLLo",
    }
    run = Experiment(parse(spec))
    layer, head = 4 * 4 * 16, 2 * 16 + 2
    assert run.supernet.size == 2 * layer + head
    log = run.round(1)
    assert log.failures == []
    floats = sorted((up - up % 4) // 4 for up in log.bytes_up)
    assert set(floats[2:]) == {2 * layer + head}
    assert layer + head <= floats[0] <= floats[1] <= layer + head + layer // 32 + 1  # with a bit for what is not
    result = uneven.run(spec)
    assert result["failures"] == 0
