"""Texts to rows of token ids of one length."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uneven.data.extras import extra, folder
from uneven.data.options import TRAINED, DataOptions
from uneven.errors import DataError

VOCABULARY = 8000
LENGTH = 64
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
"""The first ids of a trained tokenizer: filling, unknown characters, start and end of a text."""


@dataclass(frozen=True)
class Tokenizer:
    """Texts to ids 0..``size`` - 1; ``pad`` fills up to the one length. ``name``: ``data.tokenizer``."""

    backend: Any
    name: str
    size: int
    pad: int

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """(n, length) int64."""
        rows = [encoding.ids for encoding in self.backend.encode_batch_fast(list(texts))]
        return torch.tensor(rows, dtype=torch.int64)


def tokenizer(options: DataOptions, training: Iterable[str]) -> Tokenizer:
    """The tokenizer of the ``[data]`` section; one that is trained sees the texts ``training`` only.

    Raises:
        DataError: there is none of this name, it cannot fill up, or the vocabulary asked for is too small.
    """
    name = options.tokenizer or TRAINED
    backend, pad = _trained(options, training) if name == TRAINED else _pretrained(name)
    length = options.max_length or LENGTH
    backend.enable_truncation(length)
    backend.enable_padding(length=length, pad_id=pad, pad_token=backend.id_to_token(pad))
    return Tokenizer(backend, name, backend.get_vocab_size(), pad)


def refuse_options(options: DataOptions) -> None:
    """A `DataError` for an option of texts where inputs are none."""
    for key in ("tokenizer", "vocab_size", "max_length"):
        if (value := getattr(options, key)) is not None:
            raise DataError(f"data.{key} = {value!r} has no effect: the inputs are not texts")


def _trained(options: DataOptions, training: Iterable[str]) -> tuple[Any, int]:
    """Byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909) of words in lower case, without accents.

    The start of a word is marked, not what goes on: the library numbers marked continuations (and so all of
    word-piece) in the order of a hash table, which is another one in each run.
    """
    library = extra("tokenizers", DataError)
    size = VOCABULARY if options.vocab_size is None else options.vocab_size
    backend = library.Tokenizer(library.models.BPE(unk_token="[UNK]", fuse_unk=True))
    backend.normalizer = library.normalizers.BertNormalizer()
    words, starts = library.pre_tokenizers.BertPreTokenizer(), library.pre_tokenizers.Metaspace()
    backend.pre_tokenizer = library.pre_tokenizers.Sequence([words, starts])
    trainer = library.trainers.BpeTrainer(vocab_size=size, special_tokens=[*SPECIAL], show_progress=False)
    backend.train_from_iterator(training, trainer)
    if backend.get_vocab_size() > size:
        raise DataError(
            f"data.vocab_size = {size}: the texts have more characters; {backend.get_vocab_size()} is the least"
        )
    ends = [(token, SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = library.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    backend.encode_special_tokens = True  # a text that spells "[PAD]" has those letters
    return backend, SPECIAL.index("[PAD]")


def _pretrained(name: str) -> tuple[Any, int]:
    path = folder(name, "data.tokenizer", DataError)
    transformers = extra("transformers", DataError)
    try:
        found = transformers.AutoTokenizer.from_pretrained(path)
        backend = found.backend_tokenizer
    except Exception as error:  # a dozen kinds, from the network's to a slow tokenizer without a backend
        reason = str(error).strip().partition("\n")[0]
        raise DataError(
            f"data.tokenizer = '{name}': neither '{TRAINED}' nor a tokenizer that transformers finds in a folder "
            f"or on the hub: {reason}"
        ) from error
    if found.pad_token_id is None:
        raise DataError(f"data.tokenizer = '{name}': it has no token to fill up short texts")
    return backend, int(found.pad_token_id)
