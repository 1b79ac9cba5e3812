"""GPT-2, a transformer that reads texts from left to right."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, validate_call
from torch import Tensor, nn

from uneven.data import Info
from uneven.data.extras import extra
from uneven.errors import ModelError
from uneven.options import Count


class NextToken(nn.Module):
    """Token ids ``(batch, length)`` int64 to logits ``(batch, length, vocabulary)`` of what follows each.

    Nothing is masked for short texts: what fills them up comes after all that matters, and a position sees only
    what is before it.
    """

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.base(input_ids=x, use_cache=False).logits
        return logits


@validate_call(config=ConfigDict(strict=True, arbitrary_types_allowed=True))
def gpt2(
    info: Info,
    hidden: Count = 256,
    layers: Count = 8,
    heads: Count = 16,
    positions: Count | None = None,
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
) -> nn.Module:
    """GPT-2 (Radford et al. 2019) of random weights, by `transformers`: the next token of texts.

    The table of tokens is tied to the output layer, and counts once: FedRTS's sizes (hidden 256, 8 layers, 16
    heads, 2,048 positions, 50,257 tokens) are 19.7 million parameters, quoted there as 32.6 million with the
    table twice.

    Args:
        hidden: channels; the layers in between have 4 times as many.
        layers: blocks of attention and two linear layers.
        heads: of each attention; ``hidden`` is a multiple of it.
        positions: the longest text; by default as long as the data's.
        dropout: the share of activations dropped in training, wherever GPT-2 drops any (0.1 in the original).
    """
    if info.vocab_size is None:
        raise ModelError("model.name = 'gpt2': reads texts, and the inputs are none")
    length = info.input_shape[0]
    if hidden % heads:
        raise ModelError(f"model.hidden = {hidden}: must be a multiple of the {heads} heads")
    if positions is not None and positions < length:
        raise ModelError(f"model.positions = {positions}: the data's texts have {length} tokens")
    transformers: Any = extra("transformers", ModelError)
    config = transformers.GPT2Config(
        vocab_size=info.vocab_size,
        n_positions=length if positions is None else positions,
        n_embd=hidden,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=info.pad_id,
        eos_token_id=info.pad_id,
    )
    return NextToken(transformers.GPT2LMHeadModel(config))
