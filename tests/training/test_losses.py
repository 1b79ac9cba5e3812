"""The loss of classes and of next tokens, against the formula in numpy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from uneven.data.federation import NOTHING
from uneven.training.losses import cross_entropy, of_examples, summed

LOGITS = torch.tensor([[[0.0, math.log(2), 0.0], [3.0, 3.0, 3.0]], [[0.0, 0.0, math.log(6)], [9.0, 0.0, 0.0]]])
Y = torch.tensor([[1, 2], [2, NOTHING]])
"""p(y) is 2/4 and 1/3 in the first text, 6/8 in the second, which ends there."""
FIRST, SECOND = math.log(2) + math.log(3), math.log(4 / 3)


def test_by_hand() -> None:
    assert float(summed(LOGITS, Y)) == pytest.approx(FIRST + SECOND)
    assert float(cross_entropy(LOGITS, Y)) == pytest.approx((FIRST + SECOND) / 3)  # three targets
    assert float(of_examples(LOGITS, Y)) == pytest.approx((FIRST + SECOND) / 2)  # two texts


def numpy_sum(logits: Tensor, y: Tensor) -> float:
    z = logits.double().numpy().reshape(-1, logits.shape[-1])
    log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
    return -sum(log_p[i, k] for i, k in enumerate(y.flatten().tolist()) if k != NOTHING)


@given(seed=st.integers(0, 10**6), b=st.integers(1, 4), length=st.integers(1, 5), words=st.integers(2, 6))
def test_by_formula(seed: int, b: int, length: int, words: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    logits = torch.randn(b, length, words, generator=draws).requires_grad_()
    y = torch.randint(-1, words, (b, length), generator=draws)
    y[y < 0] = NOTHING
    count, total = int((y != NOTHING).sum()), numpy_sum(logits.detach(), y)
    for loss, expected in ((summed, total), (of_examples, total / b), (cross_entropy, total / max(count, 1))):
        assert loss(logits, y).item() == pytest.approx(expected, abs=1e-5)
        (gradient,) = torch.autograd.grad(loss(logits, y), logits)
        assert not gradient[y == NOTHING].any()
        assert torch.isfinite(gradient).all()


def test_a_batch_without_a_target_is_zero() -> None:
    logits, y = LOGITS.clone().requires_grad_(), torch.full((2, 2), NOTHING)
    loss = cross_entropy(logits, y)
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_classes_are_as_ever() -> None:
    logits, y = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 1, 1, 0])
    assert torch.equal(cross_entropy(logits, y), functional.cross_entropy(logits, y))
    assert torch.equal(of_examples(logits, y), functional.cross_entropy(logits, y))
    assert torch.equal(summed(logits, y), functional.cross_entropy(logits, y, reduction="sum"))
    soft = torch.full((5, 3), 1 / 3)
    assert torch.equal(cross_entropy(logits, soft), functional.cross_entropy(logits, soft))


def test_probabilities_as_labels() -> None:
    """-sum of q log p over the three positions that have a q."""
    q = torch.tensor([[[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], [[0.25, 0.25, 0.5], [0.0, 0.0, 0.0]]])
    expected = (0.5 * math.log(4) + 0.5 * math.log(2)) + math.log(3) + (0.5 * math.log(8) + 0.5 * math.log(4 / 3))
    assert float(cross_entropy(LOGITS, q)) == pytest.approx(expected / 3)
