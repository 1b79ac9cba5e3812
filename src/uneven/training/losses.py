"""Cross-entropy of logits and labels: a class of each example, or the next token at each of its positions.

Logits are ``(batch, classes)`` with y ``(batch,)``, or ``(batch, length, classes)`` with y ``(batch, length)``,
where `uneven.data.federation.NOTHING` marks a position at which nothing is to be predicted.
"""

from torch import Tensor
from torch.nn import functional

from uneven.data.federation import NOTHING


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The mean over everything that is to be predicted, a scalar; 0 where that is nothing.

    ``y`` may also be probabilities, of the logits' shape; where they are all 0 nothing is to be predicted.
    """
    if logits.dim() == 2:
        return functional.cross_entropy(logits, y)
    wanted = y != NOTHING if y.dim() < logits.dim() else y.sum(-1) > 0
    rows, goals = logits[wanted], y[wanted]  # what is left out costs no time
    return functional.cross_entropy(rows, goals, reduction="sum") / max(len(goals), 1)


def targets(y: Tensor) -> int:
    """How much is to be predicted: the examples, or the positions of texts that have a next token."""
    return int((y != NOTHING).sum())


def of_examples(logits: Tensor, y: Tensor) -> Tensor:
    """The mean over examples of -log p(y | x), a scalar: of a text, the sum over its targets.

    Its shapes do not depend on the labels, as `torch.func` wants it.
    """
    return functional.cross_entropy(logits, y) if logits.dim() == 2 else summed(logits, y) / len(y)


def summed(logits: Tensor, y: Tensor) -> Tensor:
    """The sum over everything that is to be predicted, a scalar."""
    if logits.dim() == 2:
        return functional.cross_entropy(logits, y, reduction="sum")
    rows = logits.flatten(0, 1), y.flatten(0, 1)
    return functional.cross_entropy(*rows, ignore_index=NOTHING, reduction="sum")
