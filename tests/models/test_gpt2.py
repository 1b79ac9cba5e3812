"""GPT-2 as a model: its size, its output, what it refuses."""

import pytest
import torch

from uneven.data import Info
from uneven.errors import ModelError
from uneven.models import build


def info(length: int = 12, vocabulary: int = 50) -> Info:
    tokens = tuple(str(i) for i in range(vocabulary))
    return Info((length,), vocabulary, tokens, vocab_size=vocabulary, pad_id=0, task="next_token")


def test_the_size_of_the_paper_with_the_tied_table_counted_once():
    """19.7 million by hand: table, positions, 8 blocks of 12 h^2 + 13 h, the last norm."""
    hidden, vocabulary, positions = 256, 50257, 2048
    blocks = 8 * (12 * hidden**2 + 13 * hidden)
    by_hand = (vocabulary + positions) * hidden + blocks + 2 * hidden
    model = build("gpt2", info(vocabulary=vocabulary), {"positions": positions}, seed=0)
    assert sum(p.numel() for p in model.parameters()) == by_hand == 19_708_672
    assert by_hand + vocabulary * hidden == pytest.approx(32.6e6, rel=2e-3)


def test_a_position_sees_only_what_is_before_it():
    model = build("gpt2", info(), {"hidden": 16, "layers": 2, "heads": 2}, seed=0).eval()
    x = torch.randint(0, 50, (3, 12), generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[:, 7:] = 0
    full, cut = model(x), model(other)
    assert full.shape == (3, 12, 50)
    assert torch.allclose(full[:, :7], cut[:, :7], atol=1e-5)
    assert not torch.allclose(full[:, 7:], cut[:, 7:], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 30, "heads": 4}, r"model.hidden = 30: must be a multiple of the 4 heads"),
        ({"positions": 11}, r"model.positions = 11: the data's texts have 12 tokens"),
        ({"layers": 0}, r"model.layers = 0: .* greater than or equal to 1"),
    ],
)
def test_bad_sizes(options, message):
    with pytest.raises(ModelError, match=message):
        build("gpt2", info(), options, seed=0)


def test_texts_for_the_next_token_only():
    texts = Info((12,), 3, ("a", "b", "c"), vocab_size=50, pad_id=0)
    with pytest.raises(ModelError, match=r"'gpt2': cannot be used with data.task = 'classify'"):
        build("gpt2", texts, {}, seed=0)
    with pytest.raises(ModelError, match=r"'gpt2': reads texts"):
        build("gpt2", Info((1, 8, 8), 3, ("a", "b", "c")), {}, seed=0)
