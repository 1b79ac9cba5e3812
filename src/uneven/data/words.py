"""Words: what counts as one, and which are known."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

from uneven.errors import DataError

PAD, UNKNOWN = "[PAD]", "[UNK]"

_WORD = re.compile(
    r"(?:[^\W\d_]\.){2,}"  # single letters with full stops: a.i.
    r"|\d+(?:[.,]\d+)+"  # 2,000 and 3.5
    r"|[^\W_]+(?:'[^\W_]+)*"  # letters and digits, with apostrophes between them: don't, 10, ggplot2
    r"|\S"  # all else, each on its own
)


def split(text: str) -> list[str]:
    """The words of a text in lower case, and its punctuation.

    An apostrophe between letters belongs to its word, straight or curly; a full stop to letters that each have
    one, and inside a number. All else but white space is a word of its own, character by character.

    >>> split("Don’t panic: A.I. needs 2,000 hands-on hours…")
    ["don't", 'panic', ':', 'a.i.', 'needs', '2,000', 'hands', '-', 'on', 'hours', '…']
    """
    return _WORD.findall(unicodedata.normalize("NFC", text).lower().replace("’", "'"))


def vocabulary(texts: Iterable[str], size: int, least: int) -> tuple[str, ...]:
    """Filling, the unknown word, then the words of the texts, the most frequent first, ties by the word itself.

    Args:
        size: entries in all, at most.
        least: how often a word must come.

    Raises:
        DataError: fewer than two words are left.
    """
    counts = Counter(word for text in texts for word in split(text))
    if not counts:
        raise DataError("the clients' training texts have no words")
    often = sorted((word for word, count in counts.items() if count >= least), key=lambda w: (-counts[w], w))
    if len(often) < 2:
        raise DataError(
            f"a vocabulary of {('none', 'one')[len(often)]}: the clients' training texts have {len(counts)} "
            f"different words, of which {len(often)} come {least} times or more (data.min_count); two are needed"
        )
    return (PAD, UNKNOWN, *often[: size - 2])
