"""Texts to rows of token ids of one length."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from uneven.data.extras import extra, folder
from uneven.data.federation import NOTHING
from uneven.data.options import TRAINED, DataOptions
from uneven.data.words import PAD, UNKNOWN, split, vocabulary
from uneven.errors import DataError

VOCABULARY = 8000
LENGTH = 64
SPECIAL = (PAD, UNKNOWN, "[CLS]", "[SEP]")
"""The first ids of tokenizer 'bpe': filling, unknown characters, start and end of a text."""
END = "<|endoftext|>"
"""The first id of tokenizer 'byte-bpe': the end of a text, and filling."""


class Tokens(NamedTuple):
    """n texts: ``ids`` (n, length) int64, and ``real`` (n, length) bool, which of them are not filling."""

    ids: Tensor
    real: Tensor


@dataclass(frozen=True)
class Tokenizer:
    """Texts to ids, the places of ``tokens``.

    ``encode``: the ids of each text. ``pad``: fills up to the one ``length``. ``unknown``: stands for what is not
    known; None where nothing is unknown. ``marks``: filling, start and end, which are no part of a text. ``name``:
    ``data.tokenizer``.
    """

    encode: Callable[[Sequence[str]], list[list[int]]]
    name: str
    tokens: tuple[str, ...]
    pad: int
    unknown: int | None
    length: int
    marks: tuple[int, ...]

    def __call__(self, texts: Sequence[str]) -> Tokens:
        rows = [row[: self.length] for row in self.encode(texts)]
        filled = [row + [self.pad] * (self.length - len(row)) for row in rows]
        real = torch.arange(self.length) < torch.tensor([len(row) for row in rows]).unsqueeze(1)
        return Tokens(torch.tensor(filled, dtype=torch.int64), real)

    def targets(self, tokens: Tokens) -> Tensor:
        """(n, length - 1) int64: the token after each but the last, `NOTHING` where it is filling or unknown."""
        ids, known = tokens.ids[:, 1:], tokens.real[:, 1:]
        if self.unknown is not None:
            known = known & (ids != self.unknown)
        return torch.where(known, ids, NOTHING)

    def counts(self, tokens: Tokens) -> Tensor:
        """(size,) int64: how often each token comes; marks do not count."""
        counts = torch.bincount(tokens.ids[tokens.real], minlength=len(self.tokens))
        counts[list(self.marks)] = 0
        return counts


def tokenizer(options: DataOptions, training: Iterable[str]) -> Tokenizer:
    """The tokenizer of the ``[data]`` section; one that is trained sees the texts ``training`` only.

    Raises:
        DataError: there is none of this name, it cannot fill up, or the vocabulary asked for is too small.
    """
    name = options.tokenizer_name
    size, length = options.vocab_size or VOCABULARY, options.max_length or LENGTH
    if name == "words":
        known = vocabulary(training, size, options.min_count or 1)
        places = {word: place for place, word in enumerate(known)}
        unknown = places[UNKNOWN]

        def encode(texts: Sequence[str]) -> list[list[int]]:
            return [[places.get(word, unknown) for word in split(text)] for text in texts]

        return Tokenizer(encode, name, known, places[PAD], unknown, length, (places[PAD],))
    if name == "bpe":
        pad, unknown, *ends = range(len(SPECIAL))
        return _of_library(_trained(size, training), options, pad, unknown, ends)
    if name == "byte-bpe":
        return _of_library(_trained_on_bytes(size, training), options, 0, None, ())
    return _pretrained(options)


def refuse_options(options: DataOptions) -> None:
    """A `DataError` for an option of texts where inputs are none."""
    for key in ("tokenizer", "vocab_size", "min_count", "max_length"):
        if (value := getattr(options, key)) is not None:
            raise DataError(f"data.{key} = {value!r} has no effect: the inputs are not texts")


def _of_library(
    backend: Any, options: DataOptions, pad: int, unknown: int | None, ends: Iterable[int]
) -> Tokenizer:
    """A tokenizer of the library; ``ends``: its marks of start and end.

    A text that is cut keeps the token of its end where it is classified; where the next token is predicted it does
    not, for there it has not ended.
    """
    length = options.max_length or LENGTH
    backend.no_padding()
    if options.task == "classify":
        backend.enable_truncation(length)
    else:
        backend.no_truncation()

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in backend.encode_batch_fast(list(texts))]

    tokens = tuple(backend.id_to_token(i) or f"[{i}]" for i in range(backend.get_vocab_size()))
    marks = tuple(sorted({pad, *ends}))
    return Tokenizer(encode, options.tokenizer_name, tokens, pad, unknown, length, marks)


def _trained(size: int, training: Iterable[str]) -> Any:
    """Byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909) of words in lower case, without accents.

    The start of a word is marked, not what goes on: the library numbers marked continuations (and so all of
    word-piece) in the order of a hash table, which is another one in each run.
    """
    library = extra("tokenizers", DataError)
    backend = library.Tokenizer(library.models.BPE(unk_token=UNKNOWN, fuse_unk=True))
    backend.normalizer = library.normalizers.BertNormalizer()
    words, starts = library.pre_tokenizers.BertPreTokenizer(), library.pre_tokenizers.Metaspace()
    backend.pre_tokenizer = library.pre_tokenizers.Sequence([words, starts])
    trainer = library.trainers.BpeTrainer(vocab_size=size, special_tokens=[*SPECIAL], show_progress=False)
    _train(backend, trainer, size, training)
    ends = [(token, SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = library.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    return backend


def _trained_on_bytes(size: int, training: Iterable[str]) -> Any:
    """Byte-pair encoding of bytes, in GPT-2's words (Radford et al. 2019, section 2.2): nothing is unknown."""
    library = extra("tokenizers", DataError)
    backend = library.Tokenizer(library.models.BPE())
    byte_level = library.pre_tokenizers.ByteLevel
    backend.pre_tokenizer, backend.decoder = byte_level(add_prefix_space=False), library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END], initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    _train(backend, trainer, size, training)
    backend.post_processor = library.processors.TemplateProcessing(f"$A {END}", special_tokens=[(END, 0)])
    return backend


def _train(backend: Any, trainer: Any, size: int, training: Iterable[str]) -> None:
    backend.train_from_iterator(training, trainer)
    if backend.get_vocab_size() > size:
        raise DataError(
            f"data.vocab_size = {size}: the texts have more characters; {backend.get_vocab_size()} is the least"
        )
    backend.encode_special_tokens = True  # a text that spells a special token has those letters


def _pretrained(options: DataOptions) -> Tokenizer:
    name = options.tokenizer_name
    path = folder(name, "data.tokenizer", DataError)
    transformers = extra("transformers", DataError)
    try:
        found = transformers.AutoTokenizer.from_pretrained(path)
        backend = found.backend_tokenizer
    except Exception as error:  # a dozen kinds, from the network's to a slow tokenizer without a backend
        reason = str(error).strip().partition("\n")[0]
        raise DataError(
            f"data.tokenizer = '{name}': neither {', '.join(map(repr, TRAINED))} nor a tokenizer that "
            f"transformers finds in a folder or on the hub: {reason}"
        ) from error
    pad, unknown = found.pad_token_id, found.unk_token_id
    if pad is None and options.task == "next_token":
        pad = found.eos_token_id  # nothing is predicted after the end, so that it can fill up, as GPT-2's does
    if pad is None:
        raise DataError(f"data.tokenizer = '{name}': it has no token to fill up short texts")
    ends = {int(i) for i in found.all_special_ids} - {unknown}
    return _of_library(backend, options, int(pad), None if unknown in (None, pad) else int(unknown), ends)
