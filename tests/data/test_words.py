"""Words: what counts as one, and which are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uneven.data.words import split, vocabulary
from uneven.errors import DataError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't panic", ["don't", "panic"]),
        ("A Beginner’s Guide", ["a", "beginner's", "guide"]),
        ("'Tis the dogs' 'day'", ["'", "tis", "the", "dogs", "'", "'", "day", "'"]),
        ("10 Tips: 2,000 words, 3.5 hours.", ["10", "tips", ":", "2,000", "words", ",", "3.5", "hours", "."]),
        ("A.I. and the U.S.A.", ["a.i.", "and", "the", "u.s.a."]),
        ("Plan B. ggplot2 3D", ["plan", "b", ".", "ggplot2", "3d"]),
        ("hands-on R&D/C++", ["hands", "-", "on", "r", "&", "d", "/", "c", "+", "+"]),
        ("a_b\n\tc…", ["a", "_", "b", "c", "…"]),
        ("Naïve Ünïcode", ["naïve", "ünïcode"]),
        ("e\u0301", ["é"]),
        (" \n", []),
    ],
)
def test_split(text: str, words: list[str]) -> None:
    assert split(text) == words


@given(st.text())
def test_nothing_but_white_space_is_lost(text: str) -> None:
    words = split(text)
    assert split(" ".join(words)) == words  # a word is one word
    assert not any(character.isspace() for word in words for character in word)
    assert len(text.split()) <= len(words)


def test_the_most_frequent_come_first_and_ties_in_order() -> None:
    texts = ["b a", "c a", "d c", "B"]  # a, b and c twice, d once
    assert vocabulary(texts, 100, 1) == ("[PAD]", "[UNK]", "a", "b", "c", "d")
    assert vocabulary(texts[::-1], 100, 1) == vocabulary(texts, 100, 1)
    assert vocabulary(texts, 4, 1) == ("[PAD]", "[UNK]", "a", "b")
    assert vocabulary(texts, 100, 2) == ("[PAD]", "[UNK]", "a", "b", "c")


@pytest.mark.parametrize(
    ("texts", "least", "message"),
    [
        ([" ", ""], 1, "the clients' training texts have no words"),
        (
            ["a a", "A"],
            1,
            "a vocabulary of one: the clients' training texts have 1 different words, of which 1 come 1",
        ),
        (
            ["a a b"],
            2,
            r"have 2 different words, of which 1 come 2 times or more \(data.min_count\); two are needed",
        ),
        (["a b"], 2, "a vocabulary of none: .* 2 different words, of which 0 come 2 times"),
    ],
)
def test_too_few_words(texts: list[str], least: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        vocabulary(texts, 100, least)
