"""Submodels up to an early exit, against the model itself and against a model that ends there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.submodels.helpers import info, loaded, random_keep, randomised
from uneven.models import MODELS
from uneven.models.resnet import EarlyExits
from uneven.submodels import Supernet
from uneven.submodels.memory import predict
from uneven.training import TrainingOptions

SHAPE = (3, 16, 16)
NORMS = ["group", "batch"]
x = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))


@cache
def made(norm: str) -> tuple[EarlyExits, Supernet]:
    model = randomised(MODELS["resnet_tiny"](info(*SHAPE), norm=norm, exits=True))
    assert isinstance(model, EarlyExits)
    return model, Supernet(model, torch.zeros(SHAPE))


@cache
def ending(exit: int) -> Supernet:
    """The supernet of resnet_tiny with nothing after an exit."""
    model, _ = made("group")
    return Supernet(EarlyExits(list(model.stages[:exit]), list(model.heads[:exit])), torch.zeros(SHAPE))


@pytest.mark.parametrize("norm", NORMS)
def test_an_exit_gives_the_bits_of_the_model(norm: str) -> None:
    """In training the logits of every exit up to it, in evaluation its own; the same gradients and statistics."""
    model, supernet = made(norm)
    for exit in range(1, len(model.heads) + 1):
        network = loaded(supernet, supernet.prefix(1.0, exit))
        model.load_state_dict(supernet.initial)
        model.zero_grad()
        network.eval(), model.eval()
        assert torch.equal(network(x), model(x)[:, exit - 1])
        network.train(), model.train()
        ours, theirs = network(x), model(x)[:, :exit]
        assert torch.equal(ours, theirs)
        ours.square().sum().backward(), theirs.square().sum().backward()
        theirs_after = dict([*model.named_parameters(), *model.named_buffers()])
        for tensor_name, tensor in network.tensors.items():
            if tensor.numel() and "num_batches" not in tensor_name:
                assert torch.equal(tensor, theirs_after[tensor_name]), tensor_name
            if tensor.grad is not None:
                assert torch.equal(tensor.grad, theirs_after[tensor_name].grad), tensor_name
        counters = {n: int(network.tensors[n]) for n in supernet.counters}
        assert set(counters.values()) <= {0, 1}
        assert {n for n, count in counters.items() if count} == {n for n in counters if not past(n, exit)}


def past(name: str, exit: int) -> bool:
    return int(name.split(".")[1]) >= exit


@pytest.mark.parametrize("norm", NORMS)
def test_nothing_past_the_exit_is_held(norm: str) -> None:
    """But for counters, which are one number each."""
    _, supernet = made(norm)
    for exit in range(1, supernet.exits + 1):
        part = supernet.prefix(0.5, exit)
        for tensor_name, values in part.gather(supernet.initial).items():
            held = not past(tensor_name, exit) or tensor_name in supernet.counters
            assert (values.numel() > 0) == held, tensor_name


@pytest.mark.parametrize("width", [1, 0.5])
@pytest.mark.parametrize("norm", NORMS)
def test_counts_equal_those_of_the_network(norm: str, width: float) -> None:
    _, supernet = made(norm)
    for exit in range(1, supernet.exits + 1):
        part = supernet.prefix(width, exit)
        with FlopCounterMode(display=False) as counter:
            loaded(supernet, part).train()(x)
        assert part.macs == counter.get_total_flops() / 2 / len(x)
        assert part.size == sum(weight.numel() for weight in part.network().parameters())
        assert part.nbytes == sum(tensor.nbytes for tensor in part.network().tensors.values())


@pytest.mark.parametrize(("width", "k"), [(1, 16), (0.5, 8)])
def test_the_first_exit_of_resnet_tiny_by_hand(width: float, k: int) -> None:
    """A 3x3 stem, four 3x3 convolutions of k channels, a norm of 2k after each, k weights and a bias a class."""
    part = made("group")[1].prefix(width, 1)
    assert part.size == 27 * k + 4 * 9 * k * k + 5 * 2 * k + 10 * k + 10
    assert part.macs == 256 * (27 * k + 4 * 9 * k * k) + 10 * k
    assert part.nbytes == 4 * part.size


@settings(max_examples=5, deadline=None)
@given(exit=st.integers(1, 2), seed=st.integers(0, 99))
def test_a_part_is_that_of_a_model_that_ends_there(exit: int, seed: int) -> None:
    """Any channels: the same values, counts and logits, and what is added goes to the same places."""
    whole, short = made("group")[1], ending(exit)
    by_name = {group.name: group.index for group in whole.groups}
    keep = random_keep(short, seed)
    part = whole.submodel({by_name[group.name]: keep[group.index] for group in short.groups}, exit)
    same = short.submodel(keep, exit)  # a model's own last exit
    assert (part.size, part.macs, part.nbytes) == (same.size, same.macs, same.nbytes)
    values = part.gather(whole.initial)
    for name, tensor in whole.initial.items():
        into, there = tensor.clone(), tensor.clone()
        part.add(name, into, values[name])
        if name in short.initial:
            assert torch.equal(values[name], same.select(name, tensor))
            same.add(name, there, values[name])
        assert torch.equal(into, there)
    for training in (True, False):
        ours, theirs = loaded(whole, part).train(training)(x), loaded(short, same).train(training)(x)
        assert torch.equal(ours, theirs)


def test_memory_is_that_of_a_model_that_ends_there() -> None:
    part, same = made("group")[1].prefix(0.5, 2), ending(2).prefix(0.5, 2)
    ours, theirs = (predict(submodel, torch.zeros(SHAPE), TrainingOptions()) for submodel in (part, same))
    assert ours == theirs


def test_statistics_of_a_batch_are_those_up_to_the_exit() -> None:
    _, supernet = made("batch")
    part = supernet.prefix(0.5, 2)
    network = loaded(supernet, part)
    before = network.values()
    network.observe(x)
    after = network.values()
    for pair in supernet.running:
        for name in pair:
            assert torch.equal(before[name], after[name]) == past(name, 2), name


class Heads(nn.Module):
    """A model of one's own: the heads come last, activations change in place, and ``join`` makes the output."""

    def __init__(self, join: Callable[[list[Tensor]], Tensor]) -> None:
        super().__init__()
        self.body = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)])
        self.heads = nn.ModuleList([nn.Linear(8, 4) for _ in range(3)])
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for layer in self.body:
            x = layer(x).relu_()
            seen.append(x)
        return self.join([head(x) for head, x in zip(self.heads, seen, strict=True)])


def test_a_model_of_ones_own() -> None:
    model = Heads(lambda logits: torch.stack(logits, -2))
    supernet, rows = Supernet(model, torch.zeros(6)), torch.randn(5, 6)
    assert supernet.exits == 3
    assert supernet.prefix(1.0, 2).size == (48 + 8) + (64 + 8) + 2 * (32 + 4)
    for exit in (1, 2, 3):
        network = loaded(supernet, supernet.prefix(1.0, exit))
        assert torch.equal(network.train()(rows), model(rows)[:, :exit])
        assert torch.equal(network.eval()(rows), model(rows)[:, exit - 1])


@pytest.mark.parametrize(
    "join",
    [
        lambda logits: logits[2],
        lambda logits: torch.stack(logits, 2),  # (batch, classes, exits)
        lambda logits: torch.stack(logits, 1).sum(1),
        lambda logits: torch.cat(logits, 1),
        lambda logits: torch.stack([row[:, None] for row in logits], 1),
    ],
    ids=["last", "other axis", "sum", "joined", "three axes"],
)
def test_other_outputs_are_no_exits(join: Callable[[list[Tensor]], Tensor]) -> None:
    supernet = Supernet(Heads(join), torch.zeros(6))
    assert supernet.exits == 0
    with pytest.raises(ValueError, match="no exit 1: the model has none"):
        supernet.prefix(0.5, 1)


@pytest.mark.parametrize("exit", [0, 4, -1])
def test_an_exit_that_is_not_there(exit: int) -> None:
    with pytest.raises(ValueError, match=rf"no exit {exit}: the model has 3"):
        made("group")[1].submodel({}, exit)


def test_the_residual_networks_have_an_exit_after_each_stage() -> None:
    for name, channels in (("resnet_tiny", [16, 32, 64]), ("resnet18", [64, 128, 256, 512])):
        model, plain = (MODELS[name](info(*SHAPE), exits=exits) for exits in (True, False))
        assert isinstance(model, EarlyExits)
        assert [head[-1].in_features for head in model.heads] == channels  # type: ignore[index]
        early = sum(10 * c + 10 for c in channels[:-1])
        sizes = [sum(p.numel() for p in net.parameters()) for net in (model, plain)]
        assert sizes[0] == sizes[1] + early
