"""The next token of texts: what is predicted, what is counted, and one clear error for each bad input."""

import sys
from collections import Counter

import pydantic
import pytest
import torch

from uneven.data import DataOptions, Federation, from_texts, load
from uneven.data.federation import NOTHING
from uneven.data.rows import InMemory
from uneven.data.text import END, tokenizer
from uneven.data.words import split
from uneven.errors import DataError

PAD, UNK = 0, 1
TRAINING = ["a b c", "a b", "a c b a"]
"""a comes four times, b three times, c twice: ids 2, 3, 4."""


def source(texts: list[str] = TRAINING, test: tuple[str, ...] = ("a b",), **others) -> InMemory:
    """A client's own test text is one of the ``texts``, all alike: every one comes twenty times."""
    return from_texts(texts * 20, test=(test, None), **others)


def read(given: InMemory | str, count: int | None = 1, seed: int = 0, **others) -> Federation:
    options = {"partition": "iid", "local_test_share": 0.1, **others}
    return load(DataOptions(source=given, task="next_token", **options), count, seed)


def targets(*texts: str, **options) -> tuple[list[list[int]], list[list[int]]]:
    """x and y of test texts."""
    fed = read(source(test=texts), **options)
    return fed.test.x.tolist(), fed.test.y.tolist()


def test_every_position_is_followed_by_its_target():
    x, y = targets("a b c", "c", "b z a", "A B C A B C A", max_length=5)
    N = NOTHING
    assert x == [[2, 3, 4, PAD], [4, PAD, PAD, PAD], [3, UNK, 2, PAD], [2, 3, 4, 2]]
    assert y == [[3, 4, N, N], [N] * 4, [N, 2, N, N], [3, 4, 2, 3]]


def test_what_the_rest_of_the_library_sees():
    fed = read(source(), max_length=6)
    info = fed.info
    assert (info.task, info.input_shape, info.num_classes, info.vocab_size) == ("next_token", (5,), 5, 5)
    assert (info.labels, info.pad_id, info.tokenizer) == (("[PAD]", "[UNK]", "a", "b", "c"), PAD, "words")
    x, y = fed.clients[0].train.batch(torch.tensor([0, 1]))
    assert x.shape == y.shape == (2, 5)
    assert x.dtype == y.dtype == torch.int64
    assert read(source()).info.input_shape == (63,)


def by_hand(text: str, known: tuple[str, ...], length: int) -> tuple[list[int], list[int]]:
    """How often each token comes in a text, and how often it is to be predicted."""
    places = {word: i for i, word in enumerate(known)}
    row = [places.get(word, UNK) for word in split(text)[:length]]
    tokens, after = Counter(row), Counter(token for token in row[1:] if token != UNK)
    return [tokens[i] for i in range(len(known))], [after[i] for i in range(len(known))]


@pytest.mark.parametrize("length", [3, 4, 64])
@pytest.mark.parametrize("task", ["next_token", "classify"])
def test_tokens_and_targets_are_counted(length: int, task: str):
    """Of a text that is cut the last token is no input, but counts; so does one that is not known."""
    texts = {"u": "a b z a b", "v": "a b a", "w": "b a b a b"}  # z comes 18 times
    given = from_texts(
        [*texts.values()] * 20, torch.arange(60) % 3, test=(["a b"], torch.tensor([0])), client=[*texts] * 20
    )
    options = DataOptions(
        source=given,
        task=task,
        partition="natural",
        local_test_share=0.1,
        tokenizer="words",
        min_count=25,
        max_length=length,
    )
    fed = load(options)
    known = ("[PAD]", "[UNK]", "a", "b")
    for client in fed.clients:
        assert client.token_counts is not None
        tokens, after = by_hand(texts[client.name], known, length)
        assert len(client.train) == 18
        assert client.token_counts.tolist() == [18 * n for n in tokens]
        if task == "next_token":
            assert fed.info.labels == known
            assert client.label_counts(4).tolist() == [18 * n for n in after]


def test_inputs_that_are_no_texts_have_no_tokens(numbered):
    fed = load(DataOptions(source=numbered(30), partition="iid"), 3)
    assert {client.token_counts for client in fed.clients} == {None}


def test_only_training_texts_are_seen():
    """Each text has a word of its own; it is known if the text is one to train on."""
    texts = [f"the word {i}w" for i in range(40)]
    fed = read(from_texts(texts), local_test_share=0.3)  # a test set is drawn, too
    (client,) = fed.clients
    assert len(fed.test) + len(client.train) + len(client.test) == 40
    assert (client.train.x[:, 2] != UNK).all()
    assert (client.test.x[:, 2] == UNK).all()
    assert (fed.test.x[:, 2] == UNK).all()
    assert fed.info.num_classes == 4 + len(client.train)


def test_clients_by_label_or_without(write):
    path = write("a.parquet", {"title": TRAINING * 20, "kind": ["p", "q", "r"] * 20})
    fed = read(path, 3, label="kind", partition={"kind": "pathological", "classes": 1})
    firsts = [{tuple(row) for row in c.train.x[:, :4].tolist()} for c in fed.clients]
    assert all(len(first) == 1 for first in firsts)  # one kind of text each
    for kind in ("iid", "linear", "square", "exponential"):
        assert len(read(path, 2, partition=kind, test_share=0.5).clients) == 2
    assert len(read(path, 2, validation=0.2, train_limit=30).test) == 6


@pytest.mark.parametrize(("client", "name"), [("role", "Hamlet/HAMLET"), ("play", "Hamlet")])
def test_shakespeare(client: str, name: str):
    partition = {"kind": "natural", "drop_below": 30}
    fed = read(
        "shakespeare", None, partition=partition, client=client, max_length=24, vocab_size=3000, train_limit=6000
    )
    assert fed.info.num_classes == 3000
    assert name in {c.name for c in fed.clients}
    assert fed.info.labels[2] == ","
    assert {"love", "thou", "'"} <= set(fed.info.labels)


# ---------------------------------------------------------------- tokens of the library


def test_bytes_know_everything_and_texts_end():
    x, y = targets("a b", "né 👽", tokenizer="byte-bpe", vocab_size=300, max_length=16)
    fed = read(source(), tokenizer="byte-bpe", vocab_size=300)
    assert fed.info.labels[0] == END
    a, b = x[0][:2]
    assert fed.info.labels[a] == "a"
    assert fed.info.labels[b] == "Ġb"  # GPT-2's words start with their space
    assert y[0] == [b, 0] + [NOTHING] * 13  # the end is predicted, once
    assert x[0] == [a, b] + [0] * 13
    assert len([token for token in y[1] if token != NOTHING]) == len("né 👽".encode())  # the end, not the first
    assert fed.info.pad_id == 0
    assert fed.clients[0].token_counts is not None
    assert fed.clients[0].token_counts[0] == 0


def test_a_text_that_is_cut_has_not_ended():
    _, cut = targets("a b c a b c", tokenizer="byte-bpe", vocab_size=300, max_length=4)
    assert len(cut[0]) == 3
    assert 0 not in cut[0]
    x, y = targets("a b c a b c", "a", tokenizer="bpe", max_length=5)
    CLS, SEP = 2, 3
    assert x[0][0] == CLS
    assert SEP not in y[0]
    assert y[1][1] == SEP
    assert y[1][2:] == [NOTHING] * 2


def test_an_unknown_piece_is_not_predicted():
    x, y = targets("a ω b", tokenizer="bpe", max_length=6)
    place = x[0].index(UNK)
    assert y[0][place - 1] == NOTHING
    assert y[0][place] == x[0][place + 1]


def gpt2_like(folder, ends: bool = False) -> str:
    """A tokenizer as GPT-2's: one special token, that ends, fills up and stands for what is unknown; ``ends``:
    every text has it at its end."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({END: 0, "a": 1, "b": 2}, END))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if ends:
        backend.post_processor = processors.TemplateProcessing(f"$A {END}", special_tokens=[(END, 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token=END, eos_token=END)
    fast.save_pretrained(folder)
    return str(folder)


def test_a_pretrained_tokenizer_may_fill_up_with_its_end(tmp_path):
    name = gpt2_like(tmp_path / "words")
    x, y = targets("b a", "a b a b", tokenizer=name, max_length=4)
    assert (x, y) == ([[2, 1, 0], [1, 2, 1]], [[1, NOTHING, NOTHING], [2, 1, 2]])
    _, y = targets("b a", "a b a b", tokenizer=gpt2_like(tmp_path / "ends", ends=True), max_length=4)
    assert y == [[1, 0, NOTHING], [2, 1, 2]]
    labelled = from_texts(TRAINING, torch.tensor([0, 1, 0]))
    with pytest.raises(DataError, match="it has no token to fill up short texts"):
        load(DataOptions(source=labelled, tokenizer=name, partition="iid"), 1)


def test_words_need_no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert read(source()).info.labels[2:] == ("a", "b", "c")
    with pytest.raises(DataError, match="texts need the package tokenizers"):
        read(source(), tokenizer="byte-bpe")


def test_too_few_bytes():
    with pytest.raises(DataError, match=r"data.vocab_size = 100: .*; 257 is the least"):
        tokenizer(DataOptions(tokenizer="byte-bpe", vocab_size=100), TRAINING)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (source(["a a", "a"]), {}, "a vocabulary of one"),
        (source([" ", "\n"]), {}, "the clients' training texts are all empty"),
        (source([" "]), {"tokenizer": "byte-bpe"}, "the clients' training texts are all empty"),
        (source(), {"partition": "dirichlet"}, "data.partition.kind = 'dirichlet': goes by labels, .* data.label"),
        (source(), {"partition": {"kind": "shards"}}, "'shards': goes by labels, .* or use natural, iid, linear"),
        (
            source(client=["u", "v", "v"] * 20),
            {"partition": {"kind": "natural", "pieces": 2, "alpha": 1.0}},
            "'natural': goes by labels",
        ),
        (source(test=("c", "z")), {}, "the federation has nothing to predict in its 2 global test texts"),
        (
            source(["a b", "c d", "a"], client=["u", "v", "w"] * 20),
            {"partition": "natural"},
            r"client 'w' has nothing to predict in its 18 training texts: .*drop_below",
        ),
        (
            source(["a b", "c d", "a z"], client=["u", "v", "w"] * 20),
            {"partition": "natural", "min_count": 19},
            "the clients' training texts have 5 different words, of which 1 come 19 times or more",
        ),
    ],
)
def test_what_is_wrong_with_texts_is_named(given, options, message):
    with pytest.raises(DataError, match=message):
        read(given, None if options.get("partition") else 1, **options)


def test_a_client_whose_test_texts_say_nothing():
    """19 texts of one word and one of two: whichever is held out, one of the splits has nothing to predict."""
    texts, clients = ["a b"] * 20 + ["a"] * 19 + ["a b"], ["u"] * 20 + ["v"] * 20
    found = set()
    for seed in range(30):
        with pytest.raises(DataError, match="client 'v' has nothing to predict in its") as error:
            read(
                from_texts(texts, test=(["a b"], None), client=clients),
                None,
                seed,
                partition="natural",
                local_test_share=0.5,
            )
        found.add("training" if "training texts" in str(error.value) else "test")
    assert found == {"training", "test"}


def test_images_have_no_next_token(numbered):
    with pytest.raises(DataError, match=r"data.task = 'next_token': needs texts, and the inputs are none"):
        read(numbered(30))


def test_no_labels_to_classify(write):
    with pytest.raises(DataError, match=r"set data.label to one of text, or data.task to 'next_token'"):
        load(DataOptions(source=write("a.parquet", {"text": ["a b"] * 30}), partition="iid"), 2)
    with pytest.raises(DataError, match=r"data.task = 'classify': needs labels, .* 'next_token'"):
        load(DataOptions(source=source(), partition="iid"), 2)
    with pytest.raises(DataError, match=r"none of the columns label, fine_label: set data.label to one of x$"):
        load(DataOptions(source=write("b.parquet", {"x": [[1.0]] * 30}), partition="iid"), 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_count": 2}, "min_count = 2 has no effect with tokenizer 'bpe'"),
        ({"min_count": 0, "tokenizer": "words"}, "greater than or equal to 1"),
        ({"task": "next_token", "min_count": 2, "tokenizer": "byte-bpe"}, "with tokenizer 'byte-bpe'"),
        ({"task": "next_token", "label": "kind", "partition": "iid"}, "label = 'kind' has no effect with task"),
        ({"task": "next_word"}, "'classify' or 'next_token'"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(pydantic.ValidationError, match=message):
        DataOptions(**options)


def test_labels_of_texts_in_memory():
    with pytest.raises(DataError, match="y is given for one of train and test"):
        from_texts(TRAINING, torch.tensor([0, 1, 0]), test=(["a"], None))
    with pytest.raises(DataError, match=r"labels = \['x'\] has no effect without y"):
        from_texts(TRAINING, labels=["x"])
    labelled = from_texts(TRAINING * 20, torch.tensor([0, 1, 0] * 20), test=(["a b"], torch.tensor([0])))
    assert len(read(labelled, 2, partition={"kind": "pathological", "classes": 1}).clients) == 2
