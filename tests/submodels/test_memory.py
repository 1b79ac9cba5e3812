"""Predicted memory, against saved activations counted by hand and against the peak of a real process."""

import copy
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from tests.submodels.helpers import info
from uneven.errors import UnevenError
from uneven.submodels import Supernet
from uneven.submodels.memory import Memory, Step, measure, predict, simulate_inference, simulate_training
from uneven.training.options import TrainingOptions

Analysed = Callable[..., Supernet]
B, F, H, C = 32, 100, 200, 10  # batch, features, hidden units, classes
EXAMPLE = torch.zeros(F)
PARAMETERS = (F * H + H) + (H * C + C)
TENSORS = 4


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(F, H), nn.ReLU(), nn.Linear(H, C))


def step(**options: object) -> Step:
    return simulate_training(mlp(), EXAMPLE, TrainingOptions.model_validate({"batch_size": B, **options}))


def test_saved_activations_of_a_two_layer_mlp_by_hand() -> None:
    """Alive after the loss: weights; the input, ReLU's result, log-probabilities and labels for the backward
    pass; the loss and the sum of the class weights. Not the first layer's result, nor the logits."""
    saved = 4 * (B * F + B * H + B * C) + 8 * B
    assert step().weights == 4 * PARAMETERS
    assert step().forward == 4 * PARAMETERS + saved + 4 + 4


def test_optimizers_hold_none_one_and_two_numbers_a_parameter() -> None:
    sgd, momentum, adamw = step(), step(momentum=0.9), step(optimizer="adamw")
    assert sgd.held == 2 * 4 * PARAMETERS  # weights and gradients
    assert momentum.held - sgd.held == 4 * PARAMETERS
    assert adamw.held - sgd.held == 2 * 4 * PARAMETERS + 4 * TENSORS  # AdamW counts its steps, per tensor
    for other in (momentum, adamw):
        assert other.backward - sgd.backward == other.held - sgd.held  # the state is there from the start
        assert other.forward - sgd.forward == other.held - sgd.held


def test_the_peak_is_of_the_whole_step() -> None:
    for options in ({}, {"momentum": 0.9}, {"optimizer": "adamw"}, {"clip_norm": 1.0}, {"weight_decay": 0.1}):
        result = step(**options)
        assert result.peak >= max(result.forward, result.backward, result.held)
    decayed, plain = step(weight_decay=0.1), step()
    assert decayed.peak >= plain.peak
    assert decayed.held == plain.held


def test_inference_by_hand() -> None:
    """A linear layer's input and output, and no more: the first input is the caller's, so it stays."""
    assert simulate_inference(mlp(), EXAMPLE, B) == 4 * (PARAMETERS + B * F + 2 * B * H)


def test_a_tied_weight_counts_once() -> None:
    first, second = nn.Linear(H, H, bias=False), nn.Linear(H, H, bias=False)
    untied = simulate_training(nn.Sequential(first, nn.ReLU(), second), torch.zeros(H), TrainingOptions())
    second.weight = first.weight
    tied = simulate_training(nn.Sequential(first, nn.ReLU(), second), torch.zeros(H), TrainingOptions())
    assert (untied.weights, tied.weights) == (2 * 4 * H * H, 4 * H * H)


def test_views_count_once_and_a_bias_is_added_in_place() -> None:
    class Views(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(-1, 2, F // 2).transpose(1, 2).permute(0, 2, 1).flatten(1)

    assert simulate_inference(Views(), EXAMPLE, B) == 4 * B * F

    class Strided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 1000)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.transpose(1, 2))

    expected = 4 * (9 * 1000 + 2 * B * 6 * 8 + B * 6 * 1000)  # the input, its contiguous copy, one output
    assert simulate_inference(Strided(), torch.zeros(8, 6), B) == expected


def test_what_the_libraries_allocate_unseen_by_hand() -> None:
    """A convolution's blocked output beside the plain one; MKL's buffer for 512 x 64 times 64 x 256."""
    x, y, weight = 4 * 16 * 64, 8 * 16 * 64, 8 * 4 * 9
    convolution = simulate_inference(nn.Conv2d(4, 8, 3, padding=1, bias=False), torch.zeros(4, 8, 8), 16)
    assert convolution == 4 * (weight + x + 2 * y)
    linear = simulate_inference(nn.Linear(64, 256, bias=False), torch.zeros(64), 512)
    packed = 64 * (256 + 384) if torch.backends.mkl.is_available() else 0
    assert linear == 4 * (64 * 256 + 512 * 64 + 512 * 256 + packed)


def test_grows_with_width_and_batch(analysed: Analysed) -> None:
    supernet, example = analysed("cnn"), torch.zeros(3, 16, 16)
    by_width = [predict(supernet.prefix(w), example, TrainingOptions(batch_size=8)) for w in (0.25, 0.5, 0.75, 1)]
    by_batch = [predict(supernet.prefix(0.5), example, TrainingOptions(batch_size=b)) for b in (1, 2, 8, 32)]
    for memories in (by_width, by_batch):
        for less, more in pairwise(memories):
            assert less.training < more.training
            assert less.inference < more.inference
    assert all(memory.inference < memory.training for memory in by_width + by_batch)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_nothing_of_the_network_changes(analysed: Analysed, norm: str) -> None:
    supernet = analysed("resnet_tiny", norm)
    submodel = supernet.prefix(0.5)
    network = submodel.network().load(submodel.gather(supernet.initial)).train()
    network(torch.ones(2, 3, 16, 16)).sum().backward()
    before = {n: (id(t), t.data_ptr(), t.detach().clone()) for n, t in network.tensors.items()}
    gradients = {n: (w.grad, copy.deepcopy(w.grad)) for n, w in network.weights().items()}
    random = torch.get_rng_state()
    predict(submodel, torch.zeros(3, 16, 16), TrainingOptions(momentum=0.9))
    assert submodel.network() is network
    assert network.training
    assert torch.equal(torch.get_rng_state(), random)
    for name, tensor in network.tensors.items():
        identity, pointer, values = before[name]
        assert (id(tensor), tensor.data_ptr()) == (identity, pointer)
        assert type(tensor) in (Tensor, nn.Parameter)
        assert torch.equal(tensor, values)
    for name, weight in network.weights().items():
        assert weight.grad is gradients[name][0]
        assert weight.grad is None or torch.equal(weight.grad, gradients[name][1])
    assert torch.isfinite(network(torch.ones(2, 3, 16, 16))).all()


def test_prediction_agrees_with_a_real_process(analysed: Analysed) -> None:
    """ResNet-18 at half the width: 112 MB, of which the process's own kernels are 3."""
    example, training = torch.zeros(3, 32, 32), TrainingOptions(momentum=0.9, batch_size=32)
    predicted = predict(analysed("resnet18", size=32).prefix(0.5), example, training)
    measured = measure("resnet18", info(3, 32, 32), example, training, width=0.5)
    assert isinstance(measured, Memory)
    assert predicted.training == pytest.approx(measured.training, rel=0.15)
    assert predicted.inference == pytest.approx(measured.inference, rel=0.15)
    assert measured.inference < measured.training


def test_a_measuring_process_that_fails_says_why() -> None:
    with pytest.raises(UnevenError, match=r"measuring nothing at width 0\.5 failed: .*nothing"):
        measure("nothing", info(3, 8, 8), torch.zeros(3, 8, 8), TrainingOptions(), width=0.5)
