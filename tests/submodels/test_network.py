"""What networks do beyond computing: sharing, loading, observing; and what a supernet says of itself."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.submodels.helpers import loaded, random_keep, randomised
from uneven.submodels import Network, Supernet

Analysed = Callable[..., Supernet]
x = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(2))


class Normed(nn.Module):
    """Two batch norms (one of them without scale) and dropout between them."""

    def __init__(self, momentum: float = 0.1) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3)
        self.norm = nn.BatchNorm2d(8, momentum=momentum)
        self.bare = nn.BatchNorm2d(6, affine=False)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(torch.relu(self.norm(self.first(x))))
        return self.head(self.bare(self.second(y)).mean((2, 3)))


def moments(y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the unbiased variance of each channel."""
    flat = y.transpose(0, 1).flatten(1)
    return flat.mean(1), flat.var(1, unbiased=True)


@pytest.fixture(scope="module")
def normed() -> Supernet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Supernet(randomised(Normed()), torch.zeros(3, 16, 16))


def test_running_names_the_statistics_of_each_norm(normed: Supernet) -> None:
    assert normed.running == (
        ("norm.running_mean", "norm.running_var"),
        ("bare.running_mean", "bare.running_var"),
    )
    assert normed.counters == ("norm.num_batches_tracked", "bare.num_batches_tracked")


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_observing_takes_the_statistics_of_the_batch(normed: Supernet, seed: int | None) -> None:
    """The second norm sees what the first normalised by the batch, and no dropout."""
    submodel = normed.submodel({} if seed is None else random_keep(normed, seed))
    network = loaded(normed, submodel)
    network.train()
    before = network.values()
    network.observe(x)
    t = network.tensors
    first = nn.functional.conv2d(x, t["first.weight"], t["first.bias"])
    y = nn.functional.batch_norm(first, None, None, t["norm.weight"], t["norm.bias"], training=True)
    second = nn.functional.conv2d(torch.relu(y), t["second.weight"], t["second.bias"])
    for name, values in (("norm", first), ("bare", second)):
        mean, variance = moments(values)
        torch.testing.assert_close(t[f"{name}.running_mean"], mean.detach())
        torch.testing.assert_close(t[f"{name}.running_var"], variance.detach())
    after = network.values()
    statistics = {name for pair in normed.running for name in pair}
    assert all(torch.equal(before[n], after[n]) for n in after if n not in statistics)
    network.observe(x[:3])  # again: momentum 1 leaves nothing of the first batch
    mean, _ = moments(first[:3])
    torch.testing.assert_close(network.tensors["norm.running_mean"], mean.detach())


def test_observing_leaves_evaluation_as_it_was(normed: Supernet) -> None:
    network = loaded(normed, normed.submodel({})).eval()
    network.observe(x)
    statistics = network.values()
    network(x)
    assert all(torch.equal(statistics[n], v) for n, v in network.values().items())
    assert torch.equal(network(x[:2]), network(x)[:2])


def test_training_updates_the_statistics_as_the_module_does(normed: Supernet) -> None:
    network = loaded(normed, normed.prefix(0.5)).train()
    network(x)
    t = network.tensors
    mean, variance = moments(nn.functional.conv2d(x, t["first.weight"], t["first.bias"]).detach())
    old = normed.initial
    torch.testing.assert_close(t["norm.running_mean"], 0.9 * old["norm.running_mean"][:4] + 0.1 * mean)
    torch.testing.assert_close(t["norm.running_var"], 0.9 * old["norm.running_var"][:4] + 0.1 * variance)
    assert int(t["norm.num_batches_tracked"]) == 1


def test_loading_copies_values_and_forgets_gradients(normed: Supernet) -> None:
    submodel = normed.prefix(0.5)
    network = loaded(normed, submodel).train()
    network(x).sum().backward()
    assert any(w.grad is not None for w in network.weights().values())
    values = {name: torch.full_like(t, 2) for name, t in submodel.gather(normed.initial).items()}
    assert network.load(values) is network
    assert all(w.grad is None for w in network.weights().values())
    assert all(torch.equal(t, values[name]) for name, t in network.tensors.items())
    values["head.bias"].fill_(9)
    assert float(network.tensors["head.bias"].detach().max()) == 2  # a copy


def test_values_are_a_copy(normed: Supernet) -> None:
    network = loaded(normed, normed.prefix(0.5))
    network.values()["head.bias"].fill_(9)
    assert torch.equal(network.tensors["head.bias"], normed.initial["head.bias"])


def test_submodels_of_the_same_shapes_share_a_network(normed: Supernet) -> None:
    a, b = (normed.submodel({0: torch.tensor(kept), 1: torch.tensor([0])}) for kept in ([0, 1, 2], [3, 5, 7]))
    other = normed.submodel({0: torch.tensor([0, 1]), 1: torch.tensor([0])})
    assert a.key == b.key != other.key
    assert normed.network(a) is normed.network(b)
    assert normed.network(a) is not normed.network(other)
    assert normed.network(normed.prefix(1.0)) is normed.network(normed.submodel({}))
    assert normed.network(a, scaler=True) is not normed.network(a)


def test_a_shared_network_computes_what_it_was_loaded_with(normed: Supernet) -> None:
    a, b = (normed.submodel({0: torch.tensor(kept)}) for kept in ([0, 1, 2], [3, 5, 7]))
    first = loaded(normed, a).eval()(x)
    second = loaded(normed, b).eval()(x)
    assert not torch.equal(first, second)
    assert torch.equal(loaded(normed, a).eval()(x), first)


def test_training_a_network_leaves_the_initial_tensors_alone(normed: Supernet) -> None:
    before = {n: t.clone() for n, t in normed.initial.items()}
    for submodel in (normed.submodel({}), normed.prefix(0.5)):
        network = loaded(normed, submodel).train()
        network(x).sum().backward()
        with torch.no_grad():
            for weight in network.weights().values():
                weight.add_(1)
        network.observe(x)
    assert all(torch.equal(t, before[n]) for n, t in normed.initial.items())


def test_the_users_module_is_left_alone() -> None:
    model = randomised(Normed()).train()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    supernet = Supernet(model, torch.zeros(3, 16, 16))
    loaded(supernet, supernet.submodel({})).train()(x)
    assert model.training
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_the_names_of_a_network_are_the_modules(normed: Supernet) -> None:
    network = loaded(normed, normed.submodel({}))
    model = Normed()
    assert normed.parameters == tuple(n for n, _ in model.named_parameters())
    assert list(network.weights()) == [n for n, _ in model.named_parameters()]
    assert set(network.tensors) == set(model.state_dict())
    assert isinstance(network, Network)


def test_classes_are_the_axes_of_the_output(analysed: Analysed, normed: Supernet) -> None:
    assert normed.classes == {"head.weight": 0, "head.bias": 0}
    assert analysed("mlp").classes == {"5.weight": 0, "5.bias": 0}
    assert analysed("resnet_tiny", "batch").classes == {"10.weight": 0, "10.bias": 0}


def test_inputs_and_outputs_are_kept_with_their_reasons(analysed: Analysed) -> None:
    kept = analysed("mlp").structure.kept
    assert kept == (
        "1.weight axis 1 [3]*[16]*[16]: the model's input",
        "5.weight axis 0 [10]: the model's output",
        "5.bias axis 0 [10]: the model's output",
    )


# ---------------------------------------------------------------- frozen weights


def test_a_network_has_the_frozen_weights_of_its_own_channels() -> None:
    """Submodels of equal shapes share a network, which takes the frozen entries of the last that asked for it."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    model[0].requires_grad_(False)
    supernet = Supernet(model, torch.zeros(6))
    assert supernet.parameters == ("2.weight", "2.bias")
    assert set(supernet.initial) == {"2.weight", "2.bias"}
    first, second = (supernet.submodel({0: torch.arange(start, start + 4)}) for start in (0, 4))
    x = torch.randn(3, 6)
    for submodel, rows in ((first, slice(0, 4)), (second, slice(4, 8)), (first, slice(0, 4))):
        network = submodel.network().load(submodel.gather(supernet.initial))
        by_hand = torch.relu(x @ model[0].weight[rows].T + model[0].bias[rows]) @ model[2].weight[:, rows].T
        torch.testing.assert_close(network(x), by_hand + model[2].bias)
        assert torch.equal(network.constants["0.weight"], model[0].weight[rows])
    assert first.network() is second.network()
    assert first.nbytes == 4 * first.size == 4 * (4 * 5 + 5)
