"""Gradients of single examples against a loop by hand, whichever way they are taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.scores.models import CASES, examples, loaded, supernet
from tests.submodels.helpers import info
from uneven.data import Examples
from uneven.errors import MethodError
from uneven.models import build
from uneven.scores import Gradients, batch_squares, couples, gradients, ways
from uneven.scores.tally import Tally
from uneven.scores.ways import planned
from uneven.submodels import Network, State, Supernet
from uneven.submodels.masks import masked
from uneven.training import Loss

ALLOWED = [
    (name, way)
    for name, case in CASES.items()
    for way in ("layers", "vmap", "loop")
    if not (way == "layers" and case.not_layers) and not (way == "vmap" and name == "written")
]


def by_hand(network: Network, data: Examples, loss: Loss = cross_entropy) -> Gradients:
    """One example after the other, in double precision from the gradient on."""
    weights = network.eval().weights()
    found: dict[str, list[Tensor]] = {name: [] for name in weights}
    for i in range(len(data)):
        one = torch.autograd.grad(loss(network(data.x[i : i + 1]), data.y[i : i + 1]), list(weights.values()))
        for name, gradient in zip(weights, one, strict=True):
            found[name].append(gradient.double())
    each = {name: torch.stack(all_) for name, all_ in found.items()}
    return Gradients(
        {n: g.mean(0) for n, g in each.items()}, {n: g.square().mean(0) for n, g in each.items()}, len(data)
    )


def agree(a: Gradients, b: Gradients, tolerance: float = 1e-6) -> None:
    """To 1e-6 of the tensor's largest entry."""
    assert a.examples == b.examples
    for one, other in ((a.mean, b.mean), (a.square, b.square)):
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            assert tensor.shape == other[name].shape, name
            largest = max(1.0, float(other[name].abs().max()))
            assert float((tensor.double() - other[name].double()).abs().max()) <= tolerance * largest, name


def same_bits(a: State, b: State) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def way_of(network: Network, data: Examples, chunk_bytes: int = 512 << 20, method: Any = "auto") -> ways.Plan:
    tally = Tally(network.weights())
    return planned(network.eval(), *data[:1].batch(torch.arange(1)), tally, cross_entropy, chunk_bytes, method)


@pytest.mark.parametrize(("name", "way"), ALLOWED)
def test_every_way_is_the_loop_by_hand(name: str, way: Any) -> None:
    network, data = loaded(name), examples(name)
    agree(gradients(network, data, method=way), by_hand(network, data))


@pytest.mark.parametrize("name", CASES)
def test_auto_takes_one_way_by_the_model_and_its_bits(name: str) -> None:
    network, data, way = loaded(name), examples(name), CASES[name].auto
    assert way_of(network, data).way == way
    first, again, named = (gradients(network, data, method=m) for m in ("auto", "auto", way))  # type: ignore[arg-type]
    for other in (again, named):
        assert same_bits(first.mean, other.mean)
        assert same_bits(first.square, other.square)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.not_layers])
def test_layers_says_what_it_cannot_do(name: str) -> None:
    with pytest.raises(MethodError, match=rf"method = 'layers': parameter {CASES[name].not_layers}"):
        gradients(loaded(name), examples(name), method="layers")


def test_vmap_says_what_it_cannot_do() -> None:
    with pytest.raises(MethodError, match=r"method = 'vmap': output with shape .*; use 'loop'"):
        gradients(loaded("written"), examples("written"), method="vmap")


def test_what_is_batched_by_torchs_own_loop_is_not_batched() -> None:
    def add(x: Tensor, y: Tensor) -> None:
        torch.func.vmap(torch.histc)(x)

    assert "performance drop" in str(ways._fails(add, torch.rand(2, 3), torch.zeros(2)))


def test_a_large_model_of_unusual_layers_takes_one_example_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    network, data = loaded("attention"), examples("attention")
    size = 4 * supernet("attention").size
    monkeypatch.setattr(ways, "CACHE", ways.FEW * size)
    assert way_of(network, data).way == "vmap"
    monkeypatch.setattr(ways, "CACHE", ways.FEW * size - 1)
    assert way_of(network, data).way == "loop"


@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet_tiny"])
def test_the_models_for_images_take_layers(model: str) -> None:
    net = Supernet(build(model, info(3, 8, 8, classes=3), {}, seed=0), torch.zeros(3, 8, 8))
    network = net.prefix(1.0).network().load(net.initial)
    data = Examples(torch.randint(256, (3, 3, 8, 8), dtype=torch.uint8), torch.tensor([0, 2, 1]))
    assert way_of(network, data).way == "layers"
    agree(gradients(network, data), gradients(network, data, method="loop"), 1e-5)


def test_opposite_gradients_cancel_in_the_mean_and_not_in_the_mean_square() -> None:
    """W = 0: both classes have p = 1/2, and d l / d W[c] = (p_c - [y = c]) x = -+ x / 2."""
    net = Supernet(nn.Linear(2, 2, bias=False), torch.zeros(2))
    network = net.prefix(1.0).network().load({"weight": torch.zeros(2, 2)})
    data = Examples(torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([0, 1]))
    for way in ("layers", "vmap", "loop"):
        found = gradients(network, data, method=way)  # type: ignore[arg-type]
        torch.testing.assert_close(found.mean["weight"], torch.zeros(2, 2))
        torch.testing.assert_close(found.square["weight"], torch.tensor([[0.25, 1.0], [0.25, 1.0]]))
    squares, seen = batch_squares(network, data, 512, 2)
    assert (float(squares["weight"].abs().max()), seen) == (0.0, 2)  # the square of the mean


@pytest.mark.parametrize(("name", "way"), [("images", "layers"), ("text", "layers"), ("attention", "vmap")])
def test_the_limit_of_memory_cuts_chunks_and_changes_nothing_else(name: str, way: str) -> None:
    network, data = loaded(name), examples(name)
    whole = way_of(network, data)
    assert whole.chunk > len(data)
    for count in (1, 2, 4):
        limit = next(b for b in range(64, 10**6, 64) if way_of(network, data, b).chunk == count)
        assert way_of(network, data, limit // 2).chunk in (1, count // 2)
        agree(gradients(network, data, chunk_bytes=limit), by_hand(network, data))
    assert way_of(network, data, 1).chunk == 1
    assert way_of(network, data).way == way


def test_only_the_first_examples_count() -> None:
    network, data = loaded("images"), examples("images")
    agree(gradients(network, data, 3), by_hand(network, data[:3]))
    assert gradients(network, data, 100).examples == 7
    many = examples("rows", 600)
    assert gradients(loaded("rows"), many).examples == 512


def weighted(logits: Tensor, y: Tensor) -> Tensor:
    """A mean with weights: of several examples it is not the mean of theirs."""
    return cross_entropy(logits, y, weight=torch.tensor([1.0, 5.0, 0.5]), label_smoothing=0.1)


@pytest.mark.parametrize("way", ["layers", "vmap", "loop"])
def test_the_loss_is_that_of_single_examples(way: Any) -> None:
    network, data = loaded("rows"), examples("rows")
    agree(gradients(network, data, loss=weighted, method=way), by_hand(network, data, weighted))


def test_the_network_runs_as_in_evaluation_and_keeps_its_weights() -> None:
    network, data = loaded("images").train(), examples("images")
    before = {name: tensor.clone() for name, tensor in network.tensors.items()}
    with torch.no_grad():
        first = gradients(network, data)
    assert not network.training
    assert same_bits(first.square, gradients(network, data).square)  # the dropout draws nothing
    assert same_bits(before, network.tensors)
    assert all(weight.grad is None and weight.requires_grad for weight in network.weights().values())
    assert not any(tensor.requires_grad for tensor in (*first.mean.values(), *first.square.values()))


def test_small_networks_and_masked_ones() -> None:
    net, data = supernet("images"), examples("images")
    half = net.prefix(0.5)
    network = half.network().load(half.gather(net.initial))
    agree(gradients(network, data), by_hand(network, data))
    part = masked(net, {"5.weight": net.initial["5.weight"] > 0})
    network = part.network().load(part.gather(net.initial))
    found = gradients(network, data)
    agree(found, by_hand(network, data))
    assert float(found.square["5.weight"][net.initial["5.weight"] <= 0].max()) > 0  # full shapes: none is masked


class Largest(TorchDispatchMode):
    """The most entries that a tensor had."""

    entries = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.entries = max(self.entries, tensor.numel())
        return result


def test_layers_make_no_gradient_of_every_example() -> None:
    """A linear layer of 200 x 300 on 50 examples, and 1,000 words of 40: nothing is larger than these weights."""
    wide = Supernet(nn.Sequential(nn.Linear(200, 300), nn.Linear(300, 3)), torch.zeros(200))
    words = Supernet(
        nn.Sequential(nn.Embedding(1000, 40), nn.Flatten(), nn.Linear(160, 3)), torch.zeros(4, dtype=torch.int64)
    )
    y = torch.zeros(50, dtype=torch.int64)
    for net, x in ((wide, torch.randn(50, 200)), (words, torch.randint(1000, (50, 4)))):
        with Largest() as made:  # type: ignore[no-untyped-call]
            gradients(net.prefix(1.0).network().load(net.initial), Examples(x, y))
        assert made.entries == max(tensor.numel() for tensor in net.initial.values())


def norms(**options: Any) -> Network:
    layers = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.Sequential(nn.BatchNorm2d(3, **options)), nn.Flatten(), nn.Linear(48, 3)
    )
    return Supernet(layers, torch.zeros(2, 6, 6)).prefix(1.0).network()


class Frozen(nn.BatchNorm2d):
    """Statistics that training does not change."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)


def test_couples_names_the_norm_that_takes_statistics_of_a_batch() -> None:
    usual = norms()
    assert (couples(usual), couples(usual, training=False)) == ("1.0", None)
    always = norms(track_running_stats=False)
    assert (couples(always), couples(always, training=False)) == ("1.0", "1.0")
    assert couples(norms(affine=False)) == "1.0"
    assert couples(loaded("images")) is None
    frozen = Supernet(nn.Sequential(Frozen(2), nn.Flatten(), nn.Linear(72, 3)), torch.zeros(2, 6, 6))
    assert couples(frozen.prefix(1.0).network()) is None


def test_statistics_of_the_batch_are_refused_and_running_ones_are_not() -> None:
    data = examples("images")
    running = norms()
    agree(gradients(running, data), by_hand(running, data))
    with pytest.raises(MethodError, match=r"batch norm 1\.0 couples the examples.*model\.norm = 'group'.*freeze"):
        gradients(norms(track_running_stats=False), data)


def test_batch_squares_are_means_over_batches_of_squared_gradients() -> None:
    network, data = loaded("images"), examples("images", 9)
    squares, seen = batch_squares(network, data, 7, 3)
    assert seen == 7
    batches = [by_hand(network, data[i:j]).mean for i, j in ((0, 3), (3, 6), (6, 7))]
    for name, square in squares.items():
        expected = torch.stack([batch[name].square() for batch in batches]).mean(0)
        torch.testing.assert_close(square.double(), expected, rtol=1e-4, atol=1e-8)


ONE = torch.zeros(1, 4)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (Examples(ONE[:0], torch.zeros(0, dtype=torch.int64)), {}, "labelled examples: there are none"),
        (Examples(ONE, torch.tensor([-1])), {}, "labelled examples: some have no label"),
        (Examples(ONE, torch.tensor([0.5])), {}, "labelled examples: some have no label"),
        (Examples(ONE, torch.tensor([0])), {"limit": 0}, "limit = 0: must be at least 1"),
        (Examples(ONE, torch.tensor([0])), {"chunk_bytes": -1}, "chunk_bytes = -1: must be at least 1"),
        (Examples(ONE, torch.tensor([0])), {"method": "vamp"}, "method = 'vamp': did you mean 'vmap'?"),
    ],
)
def test_bad_input_is_named(data: Examples, options: dict[str, Any], message: str) -> None:
    with pytest.raises(MethodError) as error:
        gradients(loaded("rows"), data, **options)
    assert message in str(error.value)
