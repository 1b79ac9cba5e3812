"""A recurrent network that reads texts from left to right."""

from itertools import pairwise
from typing import Annotated

from pydantic import ConfigDict, Field, validate_call
from torch import Tensor, nn

from uneven.data import Info
from uneven.errors import ModelError
from uneven.options import Count


class SlimmableLSTM(nn.Module):
    """Token ids ``(batch, length)`` int64 to logits.

    For the next token they are ``(batch, length, vocabulary)``: those at a position say what follows it. For a
    class ``(batch, classes)``, out of the state after a text's last token; what fills it up comes later.

    Each layer is an `nn.LSTM` of its own, so that its units can be dropped apart from those of the others.
    """

    def __init__(self, info: Info, pad: int, sizes: list[int], dropout: float) -> None:
        super().__init__()
        self.pad, self.next_token = pad, info.task == "next_token"
        self.words = nn.Embedding(info.vocab_size or 0, sizes[0], padding_idx=pad)
        self.layers = nn.ModuleList(nn.LSTM(*pair, batch_first=True) for pair in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(sizes[-1], info.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        states = self.dropout(self.words(x))
        for layer in self.layers:
            states = self.dropout(layer(states)[0])
        logits: Tensor = self.head(states if self.next_token else self._last(states, x))
        return logits

    def _last(self, states: Tensor, x: Tensor) -> Tensor:
        """The states ``(batch, channels)`` at each text's last token; 0 of an empty text."""
        real = x != self.pad
        follows = nn.functional.pad(real[:, 1:], (0, 1))
        return (states * (real & ~follows).unsqueeze(2).to(states.dtype)).sum(1)


@validate_call(config=ConfigDict(strict=True, arbitrary_types_allowed=True))
def slimmable_lstm(
    info: Info,
    embedding: Count = 64,
    hidden: Count = 128,
    layers: Count = 1,
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
) -> nn.Module:
    """Embedding, LSTM (Hochreiter and Schmidhuber 1997), linear layer: the next token of texts, or their class.

    At width r every layer keeps ceil(r * hidden) units, the same of all four gates.

    Args:
        embedding: channels of a token.
        hidden: units of each layer.
        layers: one or more LSTMs, one on the other.
        dropout: the share of activations dropped in training, of the embedding and after each layer.
    """
    if info.vocab_size is None or info.pad_id is None:
        raise ModelError("model.name = 'slimmable_lstm': reads texts, and the inputs are none")
    return SlimmableLSTM(info, info.pad_id, [embedding, *[hidden] * layers], dropout)
