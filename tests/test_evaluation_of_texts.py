"""How good next tokens are predicted: accuracy, top 3, loss and perplexity of texts worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tests.laws.world import formed
from uneven import evaluation
from uneven.data import Examples
from uneven.data.federation import NOTHING
from uneven.evaluation import Score, evaluate, predict
from uneven.submodels import Network, Supernet

WORDS = 5
TABLE = torch.tensor(
    [
        [0.0, 0.0, 0.0, 0.0, 0.0],  # what follows word 0: all alike, the first is taken
        [0.0, 4.0, 3.0, 2.0, 1.0],  # word 1: ranks 4, 0, 1, 2, 3
        [9.0, 0.0, 0.0, 0.0, 0.0],  # word 2: word 0, almost surely
        [1.0, 2.0, 3.0, 4.0, 5.0],
        [torch.nan] * WORDS,
    ]
)


class Table(nn.Module):
    """The logits of what follows each word."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(table, freeze=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x)  # type: ignore[no-any-return]


def network(table: Tensor = TABLE) -> Network:
    net = Supernet(Table(table), torch.zeros(3, dtype=torch.int64))
    return net.prefix(1.0).network().load(net.initial).eval()


def log_p(word: int, target: int) -> float:
    row = TABLE[word].tolist()
    return row[target] - math.log(sum(map(math.exp, row)))


def examples(*texts: list[tuple[int, int]]) -> Examples:
    """Texts as pairs of a word and what follows, filled up to three."""
    filled = [text + [(0, NOTHING)] * (3 - len(text)) for text in texts]
    return Examples(
        torch.tensor([[a for a, _ in t] for t in filled]), torch.tensor([[b for _, b in t] for t in filled])
    )


TEXTS = examples([(1, 1), (1, 3), (1, 4)], [(2, 0)], [], [(1, NOTHING), (1, 2), (0, 4)])
LOSSES = [-(log_p(1, 1) + log_p(1, 3) + log_p(1, 4)), -log_p(2, 0), 0.0, -(log_p(1, 2) + log_p(0, 4))]


def test_by_text() -> None:
    found = predict(network(), TEXTS, WORDS)
    assert found.targets.tolist() == [3, 1, 0, 2]
    assert found.right.tolist() == [1, 1, 0, 0]
    assert found.top3.tolist() == [2, 1, 0, 2]  # where nothing is larger, all are first
    assert found.loss.tolist() == pytest.approx(LOSSES, abs=1e-5)


def test_a_score_is_over_targets_and_perplexity_by_text_too() -> None:
    score = evaluation._score(network(), TEXTS, WORDS)
    assert score.accuracy == 2 / 6
    assert score.top3 == 5 / 6
    assert score.loss == pytest.approx(sum(LOSSES) / 6)
    perplexities = [
        math.exp(LOSSES[0] / 3),
        math.exp(LOSSES[1]),
        math.exp(LOSSES[3] / 2),
    ]  # one text has no target
    assert score.text_perplexity == pytest.approx(sum(perplexities) / 3, rel=1e-5)
    numbers = score.numbers()
    assert list(numbers) == ["accuracy", "loss", "top3", "text_perplexity", "perplexity"]
    assert numbers["perplexity"] == pytest.approx(math.exp(sum(LOSSES) / 6), rel=1e-5)


def test_what_is_not_a_number_predicts_nothing() -> None:
    found = predict(network(), examples([(4, 1), (4, 2)]), WORDS)
    assert found.top3.tolist() == [0]
    assert found.right.tolist() == [0]
    assert found.loss.isnan().all()


def test_classes_have_no_more_than_before() -> None:
    assert Score(0.5, 1.25).numbers() == {"accuracy": 0.5, "loss": 1.25}
    assert Score(0.5, 1000.0, 0.75, math.inf).numbers()["perplexity"] == math.inf  # and no error


@pytest.mark.parametrize("most", [1, 15, 31, 45])
def test_few_logits_are_made_at_once(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text makes 15; one at a time at least."""
    whole = predict(network(), TEXTS, WORDS)
    monkeypatch.setattr(evaluation, "LOGITS", most)
    sizes, net = [], network()
    net.register_forward_hook(lambda _, args, __: sizes.append(len(args[0])))
    parts = predict(net, TEXTS, WORDS)
    assert sizes == {1: [1] * 4, 15: [1] * 4, 31: [2, 2], 45: [3, 1]}[most]
    for name in ("targets", "right", "top3", "loss"):
        assert torch.equal(getattr(parts, name), getattr(whole, name))


def test_each_client_on_its_own_texts() -> None:
    """Its right targets of all its targets, by its own submodel; the full model on the test set of all."""
    world = formed("heterofl-plain", "lstm", [1.0, 0.5, 0.5])
    found = evaluate(world.method, world.federation, world.cards, 0)
    net = world.method.supernet
    for card, client, own in zip(world.cards, world.federation.clients, found.local, strict=True):
        part = net.prefix(card.width)
        logits = part.network().load(part.gather(world.method.state)).eval()(client.test.x)
        there = client.test.y != NOTHING
        right = (logits.argmax(2) == client.test.y) & there
        assert own == pytest.approx(int(right.sum()) / int(there.sum()))
    assert found.full == found.by_capacity[1.0]
    assert found.full.top3 is not None
    assert found.full.accuracy <= found.full.top3 <= 1
