"""Each method's own rule against values worked out by hand, and its refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.laws.world import MODELS, TRAINING, World, federation, formed, supernet
from uneven.data import Examples
from uneven.errors import MethodError
from uneven.evaluation import evaluate, recalibrate
from uneven.methods import METHODS, Client
from uneven.submodels import Network, Supernet
from uneven.training import TrainingOptions, train_locally

MIXED = [1.0, 0.5, 0.25, 0.5]


def linear_world(method: str, options: dict[str, Any], training: TrainingOptions) -> World:
    MODELS.setdefault("linear", ("mlp", {"hidden": []}))
    return World(METHODS[method], "linear", [1.0] * 3, options, training=training)


def gradient(world: World, client: int, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The full-batch gradient of cross-entropy of a linear model: (softmax(Wx + b) - y) x^T / n."""
    data = federation(3).clients[client].train
    x = data.x.flatten(1)
    error = torch.softmax(x @ state["1.weight"].T + state["1.bias"], 1) - nn.functional.one_hot(data.y, 3)
    return {"1.weight": error.T @ x / len(x), "1.bias": error.mean(0)}


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


FULL_BATCH = TrainingOptions(lr=0.1, batch_size=100, steps=2, schedule="constant")


def test_fedprox_by_hand() -> None:
    """Two full-batch steps: w1 = w0 - lr g(w0); w2 = w1 - lr (g(w1) + mu (w1 - w0))."""
    world = linear_world("fedprox", {"mu": 0.5}, FULL_BATCH)
    w0 = world.method.state
    for assignment, update in world.train(world.plan()):
        g0 = gradient(world, assignment.client, w0)
        w1 = {name: w0[name] - 0.1 * g0[name] for name in w0}
        g1 = gradient(world, assignment.client, w1)
        for name, end in update.payload["model"].items():
            close(end, w1[name] - 0.1 * (g1[name] + 0.5 * (w1[name] - w0[name])))


def test_scaffold_by_hand() -> None:
    """Two rounds of two steps. After the first c_n is the mean of the client's two gradients (it was zero, and
    so was c), c is their mean over clients; the second round walks along g - c_n + c."""
    world = linear_world("scaffold", {}, FULL_BATCH)
    x0 = world.method.state
    first = world.round(1)
    c_n = {}
    for assignment, update in first:
        g0 = gradient(world, assignment.client, x0)
        g1 = gradient(world, assignment.client, {name: x0[name] - 0.1 * g0[name] for name in x0})
        c_n[assignment.client] = {name: (g0[name] + g1[name]) / 2 for name in x0}
        for name in x0:
            close(update.payload["variate"][name], c_n[assignment.client][name])
            close(world.engine.memories[assignment.client][name], c_n[assignment.client][name])
    c = {name: sum(own[name] for own in c_n.values()) / 3 for name in x0}
    for name in x0:
        close(world.method.variate[name], c[name])  # type: ignore[attr-defined]

    y = world.method.state
    for assignment, update in world.train(world.plan(2)):
        own, walk = c_n[assignment.client], dict(y)
        for _ in range(2):
            g = gradient(world, assignment.client, walk)
            walk = {name: walk[name] - 0.1 * (g[name] - own[name] + c[name]) for name in walk}
        for name, end in update.payload["model"].items():
            close(end, walk[name])


@pytest.mark.parametrize("training", [{"momentum": 0.9}, {"optimizer": "adamw"}, {"clip_norm": 1.0}])
def test_scaffold_needs_plain_sgd(training: dict[str, Any]) -> None:
    with pytest.raises(MethodError, match="plain SGD"):
        formed("scaffold-smallest", "mlp", [1.0] * 3, training=TrainingOptions(**training))


def kept(world: World, t: int, client: int) -> list[list[int]]:
    submodel = world.method.submodel(t, world.cards[client])
    return [submodel.keep[group.index].tolist() for group in world.method.supernet.groups]  # type: ignore[attr-defined]


def test_heterofl_keeps_prefixes() -> None:
    """Hidden layers of 12 and 7 at widths 1, 1/2, 1/4: ceil(6), ceil(3.5), ceil(3), ceil(1.75)."""
    world = formed("heterofl", "mlp", MIXED)
    assert [[len(k) for k in kept(world, 1, n)] for n in range(3)] == [[12, 7], [6, 4], [3, 2]]
    assert kept(world, 9, 2) == [[0, 1, 2], [0, 1]]


def test_fedrolex_rolls_one_window_for_all() -> None:
    """In round t the window starts at t - 1 and wraps: groups of 12 and 7, width 1/4 (3 and 2 channels)."""
    world = formed("fedrolex", "mlp", MIXED)
    assert kept(world, 1, 2) == [[0, 1, 2], [0, 1]]
    assert kept(world, 7, 2) == [[6, 7, 8], [0, 6]]
    assert kept(world, 12, 2) == [[0, 1, 11], [4, 5]]
    assert kept(world, 12, 1) == [[0, 1, 2, 3, 4, 11], [0, 4, 5, 6]]
    evaluated = world.method.evaluation_submodel(world.cards[2], 7)
    assert [k.tolist() for k in evaluated.keep.values()] == [[6, 7, 8], [0, 6]]  # type: ignore[attr-defined]


def test_federated_dropout_draws_afresh_and_uniformly() -> None:
    """Fresh for every client and round; over many draws each of 12 channels is kept half of the time."""
    world = formed("federated_dropout", "mlp", MIXED)
    assert kept(world, 1, 1) == kept(world, 1, 1)
    assert kept(world, 1, 1) != kept(world, 2, 1)
    assert kept(world, 1, 1) != kept(world, 1, 3)
    draws = torch.zeros(12)
    for t in range(1, 401):
        draws[torch.tensor(kept(world, t, 1)[0])] += 1
    # A fair share is 200 of 400, standard deviation 10.
    assert (draws - 200).abs().max() < 50
    one, other = (world.method.evaluation_submodel(world.cards[1], t) for t in (1, 9))
    assert all(torch.equal(one.keep[i], other.keep[i]) for i in (0, 1))  # type: ignore[attr-defined]


def test_masked_loss_ignores_classes_that_the_client_has_not() -> None:
    """Client 0 lacks class 0, so its logit counts as 0: CE((9, 1, 2) -> (0, 1, 2), y = 2) by hand."""
    world = formed("heterofl", "mlp", MIXED)
    half: Client = world.engine._client
    loss = half.loss(federation(4).clients[0].train)
    e = torch.tensor([0.0, 1.0, 2.0]).exp()
    assert loss(torch.tensor([[9.0, 1.0, 2.0]]), torch.tensor([2])).item() == pytest.approx(
        -(e[2] / e.sum()).log().item()
    )


def test_label_rows_are_averaged_over_clients_that_have_the_label() -> None:
    """With clients 0 and 1 (which lack classes 0 and 1) the row of class 0 is client 1's alone, of class 1
    client 0's alone, and of class 2 the mean."""
    world = World(METHODS["heterofl"], "mlp", [1.0, 1.0])
    results = sorted(world.round(), key=lambda result: result[0].client)
    zero, one = (update.payload["model"]["5.weight"] for _, update in results)
    now = world.method.state["5.weight"]
    close(now[0], one[0])
    close(now[1], zero[1])
    close(now[2], (zero[2] + one[2]) / 2)
    plain = World(METHODS["heterofl"], "mlp", [1.0, 1.0], {"label_rows": False, "masked_loss": False})
    (_, a), (_, b) = plain.round()
    close(plain.method.state["5.weight"], (a.payload["model"]["5.weight"] + b.payload["model"]["5.weight"]) / 2)


def test_scaler_divides_by_the_share_that_is_kept() -> None:
    """Training mode at width 1/2 of Linear(2, 4) - ReLU - Linear(4, 2): hidden activations are doubled."""
    net = Supernet(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)), torch.zeros(2))
    submodel = net.prefix(0.5)
    scaled = submodel.network(scaler=True).load(submodel.gather(net.initial))
    x = torch.randn(3, 2)
    w = submodel.gather(net.initial)
    hidden = (x @ w["0.weight"].T + w["0.bias"]) / 0.5
    close(scaled.train()(x), hidden.relu() @ w["2.weight"].T + w["2.bias"])
    close(scaled.eval()(x), (hidden * 0.5).relu() @ w["2.weight"].T + w["2.bias"])


def test_scaler_is_used_in_training_where_no_norm_follows() -> None:
    assert formed("heterofl", "mlp", MIXED).method.options.scaler
    assert not formed("heterofl", "cnn-group", MIXED).method.options.scaler
    scaled, plain = (World(METHODS["heterofl"], "mlp", MIXED, {"scaler": s}) for s in (True, False))
    for (assignment, a), (_, b) in zip(scaled.train(scaled.plan()), plain.train(plain.plan()), strict=True):
        same = torch.equal(a.payload["model"]["1.weight"], b.payload["model"]["1.weight"])
        assert same == (scaled.cards[assignment.client].width == 1.0)


@pytest.mark.parametrize(
    ("model", "option", "why"),
    [("cnn-group", "scaler", "meets a norm"), ("mlp", "static_batch_norm", "no batch norm")],
)
def test_heterofl_refuses_switches_without_effect(model: str, option: str, why: str) -> None:
    with pytest.raises(MethodError, match=why):
        World(METHODS["heterofl"], model, MIXED, {option: True})


def test_static_batch_norm_fills_statistics_from_clients_that_can_hold_the_width() -> None:
    """Before an evaluation the running statistics of the first norm are those of the clients' own inputs."""
    world = formed("heterofl", "cnn-batch", MIXED)
    assert world.method.recalibrates
    before = {name: tensor.clone() for name, tensor in world.method.state.items()}
    evaluation = evaluate(world.method, world.federation, world.cards, 1)
    holders = {1.0: 1, 0.5: 3, 0.25: 4}  # clients that can hold each width: they get it and send statistics
    prefixes = {width: world.method.supernet.prefix(width) for width in holders}
    assert evaluation.recalibration.down == sum(n * prefixes[width].nbytes for width, n in holders.items())
    # The norms have 32 and 64 channels; a mean and a variance of 4 bytes for each that is kept.
    assert evaluation.recalibration.up == sum(n * 8 * (32 + 64) * width for width, n in holders.items())
    assert all(torch.equal(before[name], tensor) for name, tensor in world.method.state.items())
    network = world.method.supernet.prefix(0.5).network()
    able = [c.train for c, card in zip(world.federation.clients, world.cards, strict=True) if card.width >= 0.5]
    pooled = torch.cat([examples.x for examples in able])
    first = nn.functional.conv2d(pooled, network.tensors["0.0.weight"], padding=2)
    recalibrate(network, world.method.supernet.running, able)
    close(network.tensors["0.1.running_mean"], first.mean((0, 2, 3)))


def test_pooled_variance_is_that_of_all_examples() -> None:
    """Two clients whose means differ: the pooled variance has the spread between them too."""
    net = Supernet(nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 1, 1)), torch.zeros(1, 4, 4))
    network = net.prefix(1.0).network().load(net.initial)
    data = [Examples(torch.randn(50, 1, 4, 4) + shift, torch.zeros(50, dtype=torch.int64)) for shift in (0.0, 5.0)]
    recalibrate(network, net.running, data)
    out = nn.functional.conv2d(torch.cat([d.x for d in data]), net.initial["0.weight"], net.initial["0.bias"])
    close(network.tensors["1.running_mean"], out.mean((0, 2, 3)))
    torch.testing.assert_close(network.tensors["1.running_var"], out.var((0, 2, 3)), rtol=2e-3, atol=1e-4)


def test_fit_smallest_trains_what_the_smallest_client_holds() -> None:
    world = formed("fedavg-smallest", "mlp", MIXED)
    assert len(world.method.eligible()) == 4
    assert {a.submodel.size for a in world.plan()} == {world.method.supernet.prefix(0.25).size}
    assert world.method.evaluation_submodel(world.cards[0], 1).size == world.method.supernet.prefix(0.25).size


def test_fit_exclude_trains_on_full_width_clients() -> None:
    world = formed("fedavg-exclude", "mlp", MIXED)
    assert [card.id for card in world.method.eligible()] == [0]
    assert {a.submodel.size for a in world.plan()} == {world.method.supernet.size}


@pytest.mark.parametrize(
    ("widths", "options", "message"),
    [
        (MIXED, {}, "fit is missing"),
        ([1.0] * 3, {"fit": "smallest"}, "no effect"),
        ([0.5, 0.25, 0.5], {"fit": "exclude"}, "no client has the full width"),
    ],
)
def test_fit_is_required_only_where_it_acts(widths: list[float], options: dict[str, str], message: str) -> None:
    with pytest.raises(MethodError, match=message):
        World(METHODS["fedavg"], "mlp", widths, options)


class TestLocalTraining:
    """Options of local training against plain PyTorch."""

    @pytest.mark.parametrize(
        "options",
        [
            {"momentum": 0.9},
            {"weight_decay": 0.1},
            {"clip_norm": 0.01},
            {"optimizer": "adamw", "weight_decay": 0.1},
            {},
        ],
    )
    def test_full_batch_steps_equal_torch(self, options: dict[str, Any]) -> None:
        training = TrainingOptions(lr=0.05, batch_size=100, steps=3, **options)
        data, net = federation(3).clients[0].train, supernet("mlp")
        network = net.prefix(1.0).network().load(net.initial)
        train_locally(network, data, training, 0.05, torch.Generator().manual_seed(0))
        plain = {name: tensor.clone().requires_grad_() for name, tensor in net.initial.items()}
        kind = torch.optim.AdamW if options.get("optimizer") == "adamw" else torch.optim.SGD
        rest = {k: v for k, v in options.items() if k not in ("optimizer", "clip_norm")}
        optimizer = kind(plain.values(), 0.05, **rest)
        for _ in range(3):
            optimizer.zero_grad()
            h = data.x.flatten(1)
            for i in (1, 3):
                h = (h @ plain[f"{i}.weight"].T + plain[f"{i}.bias"]).relu()
            nn.functional.cross_entropy(h @ plain["5.weight"].T + plain["5.bias"], data.y).backward()
            if "clip_norm" in options:
                nn.utils.clip_grad_norm_(plain.values(), options["clip_norm"])
            optimizer.step()
        for name, tensor in plain.items():
            torch.testing.assert_close(network.tensors[name], tensor, rtol=1e-4, atol=1e-5)

    def test_batches_are_even_and_every_epoch_sees_every_example(self) -> None:
        """13 examples by at most 4: four batches of 4, 3, 3, 3, in another order each epoch."""
        seen: list[torch.Tensor] = []

        class Spy(Network):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                seen.append(x.flatten(1)[:, 0].detach().clone())
                return super().forward(x)

        net = supernet("mlp")
        network = net.prefix(1.0).network().load(net.initial)
        spy = Spy(network.tensors, *network.graphs, network.constants)
        x = torch.zeros(13, 1, 8, 8)
        x[:, 0, 0, 0] = torch.arange(13)
        data = Examples(x, torch.zeros(13, dtype=torch.int64))
        options = TrainingOptions(batch_size=4, epochs=2)
        report = train_locally(spy, data, options, 0.01, torch.Generator().manual_seed(0))
        assert (report.steps, report.seen) == (8, 26)
        assert [len(batch) for batch in seen] == [4, 3, 3, 3] * 2
        epochs = torch.cat(seen[:4]), torch.cat(seen[4:])
        assert all(torch.equal(epoch.sort().values, torch.arange(13.0)) for epoch in epochs)
        assert not torch.equal(*epochs)

    def test_schedules_by_hand(self) -> None:
        def lrs(**options: Any) -> list[float]:
            training = TrainingOptions(lr=1.0, **options)
            return [round(training.lr_at(t, 4), 6) for t in (1, 2, 3, 4)]

        assert lrs(schedule="constant") == [1, 1, 1, 1]
        assert lrs(schedule="linear") == [1, 0.75, 0.5, 0.25]
        assert lrs(schedule="cosine") == [1, 0.853553, 0.5, 0.146447]
        assert lrs(schedule="step", milestones=(1, 3)) == [1, 0.1, 0.1, 0.01]
        assert lrs(schedule="step", milestones=(2,), decay=0.5) == [1, 1, 0.5, 0.5]

    def test_the_schedule_reaches_the_client(self) -> None:
        """Without a gradient of its own, weight decay alone shows the learning rate of the round."""
        assert TRAINING.lr_at(1, 5) != TRAINING.lr_at(5, 5)
        world = formed("heterofl", "mlp", MIXED)
        early, late = (world.train(world.plan(t))[0][1].payload["model"]["1.weight"] for t in (1, 5))
        start = world.method.state["1.weight"]
        assert (late - start).norm() < 0.5 * (early - start).norm()
