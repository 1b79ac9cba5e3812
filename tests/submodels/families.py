"""Model families by name, each tiny (for the laws) and at its usual size (for the zoo's table).

The common ones come from `transformers`; those that would need torchvision are written here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.submodels.helpers import info
from uneven.models import MODELS

Build = Callable[..., tuple[nn.Module, Tensor]]  # (full) -> a module and one example
FAMILIES: dict[str, Build] = {}


def family(build: Build) -> Build:
    FAMILIES[build.__name__] = build
    return build


class Nothing(nn.Identity):
    """In a norm's place, with what `nn.TransformerEncoderLayer` looks up of one."""

    eps = 0.0
    weight = bias = None


def mixing_norms(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Where the model has norms that mix channels (batch norm does not), as (parent, name)."""
    kinds = ("LayerNorm", "RMSNorm", "GroupNorm", "LayerNorm2d")
    modules = [(parent, *pair) for parent in model.modules() for pair in parent.named_children()]
    return [(parent, name) for parent, name, child in modules if type(child).__name__.endswith(kinds)]


def without_norms(model: nn.Module) -> nn.Module:
    for parent, name in mixing_norms(model):
        setattr(parent, name, Nothing())
    return model


def tokens(length: int, vocabulary: int = 50) -> Tensor:
    return torch.arange(length) * 7 % (vocabulary - 3) + 2


# ---------------------------------------------------------------- transformers


class Logits(nn.Module):
    """A model of `transformers` as one that takes a tensor and returns a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x).logits
        return logits


@family
def gpt2(full: bool, attention: str = "sdpa") -> tuple[nn.Module, Tensor]:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {} if full else {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 50, "n_positions": 32}
    tags = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    config = GPT2Config(**sizes, **tags, attn_implementation=attention)  # type: ignore[arg-type]
    return Logits(GPT2LMHeadModel(config)), tokens(128 if full else 7)


def bert_sizes(full: bool) -> dict[str, Any]:
    tiny = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "vocab_size": 50,
    }
    return {"num_labels": 4} if full else {**tiny, "max_position_embeddings": 32, "num_labels": 4}


@family
def bert(full: bool, attention: str = "sdpa") -> tuple[nn.Module, Tensor]:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(**bert_sizes(full), attn_implementation=attention)
    return Logits(BertForSequenceClassification(config)), tokens(128 if full else 7)


@family
def roberta(full: bool) -> tuple[nn.Module, Tensor]:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    return Logits(RobertaForSequenceClassification(RobertaConfig(**bert_sizes(full)))), tokens(128 if full else 7)


@family
def distilbert(full: bool) -> tuple[nn.Module, Tensor]:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    tiny = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24, "vocab_size": 50}
    config = DistilBertConfig(num_labels=4, **({} if full else {**tiny, "max_position_embeddings": 32}))
    return Logits(DistilBertForSequenceClassification(config)), tokens(128 if full else 7)


@family
def vit(full: bool) -> tuple[nn.Module, Tensor]:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"image_size": 8, "patch_size": 4, "num_channels": 3}
    bert = {k: v for k, v in bert_sizes(full).items() if k not in ("vocab_size", "max_position_embeddings")}
    config = ViTConfig(**bert, **({} if full else sizes))
    return Logits(ViTForImageClassification(config)), torch.zeros(3, *((224, 224) if full else (8, 8)))


@family
def llama(full: bool, attention: str = "sdpa") -> tuple[nn.Module, Tensor]:
    """Grouped queries, RMS norm, rotary embeddings, gated MLP."""
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 32000,
    }
    tiny = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 50,
    }
    config = LlamaConfig(**(small if full else tiny), use_cache=False, attn_implementation=attention)  # type: ignore[arg-type]
    return Logits(LlamaForCausalLM(config)), tokens(128 if full else 7)


class Encoder(nn.Module):
    """`nn.TransformerEncoder` as a classifier of sentences."""

    def __init__(self, vocabulary: int, dim: int, heads: int, hidden: int, layers: int, batch_first: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, hidden, 0.1, batch_first=batch_first, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head, self.batch_first = nn.Linear(dim, 4), batch_first

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        y = self.encoder(y) if self.batch_first else self.encoder(y.transpose(0, 1)).transpose(0, 1)
        logits: Tensor = self.head(y.mean(1))
        return logits


@family
def transformer_encoder(full: bool, batch_first: bool = True) -> tuple[nn.Module, Tensor]:
    sizes = (10000, 256, 4, 1024, 6) if full else (50, 16, 2, 24, 1)
    return Encoder(*sizes, batch_first=batch_first), tokens(128 if full else 7)


# ---------------------------------------------------------------- recurrent networks


class Recurrent(nn.Module):
    """A language model (the next token at every position), or a classifier of the last state."""

    def __init__(
        self, cell: Callable[..., nn.Module], vocabulary: int, dim: int, hidden: int, every: bool
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.cell = cell(dim, hidden, batch_first=True)
        twice = 2 if self.cell.bidirectional else 1
        self.head, self.every = nn.Linear(twice * hidden, vocabulary if every else 4), every

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.cell(self.embed(x))
        logits: Tensor = self.head(y if self.every else y[:, -1])
        return logits


@family
def lstm(full: bool) -> tuple[nn.Module, Tensor]:
    cell = partial(nn.LSTM, num_layers=2)
    return Recurrent(cell, *((10000, 256, 512) if full else (50, 8, 10)), every=True), tokens(64 if full else 7)


@family
def gru(full: bool) -> tuple[nn.Module, Tensor]:
    cell = partial(nn.GRU, num_layers=2, bidirectional=True)
    return Recurrent(cell, *((10000, 256, 512) if full else (50, 8, 10)), every=False), tokens(64 if full else 7)


@family
def rnn(full: bool) -> tuple[nn.Module, Tensor]:
    return Recurrent(nn.RNN, *((10000, 256, 512) if full else (50, 8, 10)), every=False), tokens(64 if full else 7)


# ---------------------------------------------------------------- convolutional networks


class Sum(nn.Module):
    """A skip over a branch."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.branch(x)
        return y


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int, squeezed: int, act: type[nn.Module], gate: type[nn.Module]) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.act, self.gate = act(), gate()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.gate(self.up(self.act(self.down(F.adaptive_avg_pool2d(x, 1)))))
        return y


def conv(
    i: int, o: int, k: int, stride: int = 1, groups: int = 1, act: type[nn.Module] | None = None
) -> nn.Sequential:
    layers = [nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o)]
    return nn.Sequential(*layers, *([act()] if act else []))


Act = type[nn.Module]


def inverted(i: int, o: int, expand: int, k: int, stride: int, act: Act, gate: Act | None = None) -> nn.Module:
    """Widen, filter each channel, gate, narrow: MobileNetV2 and V3, EfficientNet."""
    wide = i * expand
    layers = [conv(i, wide, 1, act=act)] if expand > 1 else []
    layers.append(conv(wide, wide, k, stride, wide, act))
    if gate is not None:
        layers.append(Gate(wide, max(2, i // 4), nn.ReLU if gate is nn.Hardsigmoid else act, gate))
    branch = nn.Sequential(*layers, conv(wide, o, 1))
    return Sum(branch) if stride == 1 and i == o else branch


def head(inputs: int, hidden: int, act: Act) -> list[nn.Module]:
    return [
        conv(inputs, hidden, 1, act=act),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(hidden, 10),
    ]


def stages(rows: list[tuple[Any, ...]], first: int) -> list[nn.Module]:
    """Rows of (expand, kernel, channels, repeats, stride, act, gate)."""
    layers: list[nn.Module] = []
    for expand, k, channels, repeats, stride, act, gate in rows:
        for i in range(repeats):
            layers.append(inverted(first, channels, expand, k, stride if i == 0 else 1, act, gate))
            first = channels
    return layers


def picture(full: bool) -> Tensor:
    return torch.zeros(3, *((32, 32) if full else (8, 8)))


@family
def mobilenet_v2(full: bool) -> tuple[nn.Module, Tensor]:
    act = nn.ReLU6
    table = [
        (1, 16, 1, 1),
        (6, 24, 2, 1),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]
    if not full:
        table = [(1, 6, 1, 1), (2, 6, 2, 2), (2, 8, 1, 1)]
    rows = [(t, 3, c, n, s, act, None) for t, c, n, s in table]
    stem = 32 if full else 5
    blocks = stages(rows, stem)
    return nn.Sequential(
        conv(3, stem, 3, act=act), *blocks, *head(table[-1][1], 1280 if full else 9, act)
    ), picture(full)


@family
def mobilenet_v3(full: bool) -> tuple[nn.Module, Tensor]:
    r, h, gate = nn.ReLU, nn.Hardswish, nn.Hardsigmoid
    rows = [
        (1, 3, 16, 1, 1, r, None),
        (4, 3, 24, 2, 1, r, None),
        (3, 5, 40, 3, 2, r, gate),
        (6, 3, 80, 4, 2, h, None),
        (6, 3, 112, 2, 1, h, gate),
        (6, 5, 160, 3, 2, h, gate),
    ]
    if not full:
        rows = [(1, 3, 5, 1, 1, r, None), (2, 5, 6, 2, 2, h, gate)]
    stem = 16 if full else 5
    return nn.Sequential(
        conv(3, stem, 3, act=h), *stages(rows, stem), *head(rows[-1][2], 960 if full else 9, h)
    ), picture(full)


@family
def efficientnet(full: bool) -> tuple[nn.Module, Tensor]:
    act, gate = nn.SiLU, nn.Sigmoid
    table = [
        (1, 3, 16, 1, 1),
        (6, 3, 24, 2, 1),
        (6, 5, 40, 2, 2),
        (6, 3, 80, 3, 2),
        (6, 5, 112, 3, 1),
        (6, 5, 192, 4, 2),
        (6, 3, 320, 1, 1),
    ]
    if not full:
        table = [(1, 3, 5, 1, 1), (2, 5, 6, 2, 2)]
    stem = 32 if full else 5
    blocks = stages([(*row, act, gate) for row in table], stem)
    return nn.Sequential(
        conv(3, stem, 3, act=act), *blocks, *head(table[-1][2], 1280 if full else 9, act)
    ), picture(full)


class Dense(nn.Module):
    """Each layer reads all the channels before it, and adds its own beside them."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(y)))], 1)


@family
def densenet(full: bool) -> tuple[nn.Module, Tensor]:
    growth, blocks = (12, (16, 16, 16)) if full else (3, (2, 2))
    channels = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
    for i, repeats in enumerate(blocks):
        for _ in range(repeats):
            layers.append(Dense(channels, growth))
            channels += growth
        if i < len(blocks) - 1:
            half = channels // 2
            layers += [
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.Conv2d(channels, half, 1, bias=False),
                nn.AvgPool2d(2),
            ]
            channels = half
    tail = [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*layers, *tail), picture(full)


class LayerNorm2d(nn.LayerNorm):
    """A norm over the channels of each pixel."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(dim, dim, 7, padding=3, groups=dim), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.scale = nn.Parameter(torch.full((dim,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


@family
def convnext(full: bool) -> tuple[nn.Module, Tensor]:
    dims, depths = ((96, 192, 384, 768), (3, 3, 9, 3)) if full else ((5, 6), (1, 1))
    layers: list[nn.Module] = []
    before = 3
    for dim, depth in zip(dims, depths, strict=True):
        layers += [nn.Conv2d(before, dim, 2, 2), LayerNorm2d(dim), *(ConvNeXt(dim) for _ in range(depth))]
        before = dim
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(before), nn.Linear(before, 10)]
    return nn.Sequential(*layers, *pool), picture(full)


class UNet(nn.Module):
    """Down, up by transposed convolutions (or by interpolation), and skips by concatenation; a class per pixel."""

    def __init__(self, channels: tuple[int, ...], learned: bool = True) -> None:
        super().__init__()
        pairs = list(zip((3, *channels), channels, strict=False))
        self.down = nn.ModuleList(self.double(i, o) for i, o in pairs)
        back = list(zip(channels[::-1], channels[-2::-1], strict=False))
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(i, o, 2, 2)
            if learned
            else nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(i, o, 1))
            for i, o in back
        )
        self.up = nn.ModuleList(self.double(2 * o, o) for _, o in back)
        self.head = nn.Conv2d(channels[0], 4, 1)

    @staticmethod
    def double(i: int, o: int) -> nn.Module:
        return nn.Sequential(conv(i, o, 3, act=nn.ReLU), conv(o, o, 3, act=nn.ReLU))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            skips.append(x)
        for grow, block, skip in zip(self.grow, self.up, skips[-2::-1], strict=True):
            x = block(torch.cat([skip, grow(x)], 1))
        logits: Tensor = self.head(x)
        return logits


@family
def unet(full: bool) -> tuple[nn.Module, Tensor]:
    return UNet((64, 128, 256, 512) if full else (4, 5, 6)), picture(full)


@family
def unet_interpolating(full: bool) -> tuple[nn.Module, Tensor]:
    return UNet((64, 128, 256, 512) if full else (4, 5, 6), learned=False), picture(full)


@family
def resnet18(full: bool) -> tuple[nn.Module, Tensor]:
    model = MODELS["resnet18" if full else "resnet_tiny"]
    return model(info(3, 32, 32), norm="batch"), picture(full)


@family
def shufflenet(full: bool) -> tuple[nn.Module, Tensor]:
    return MODELS["shufflenet_v2_x0_5"](info(3, 32, 32), norm="batch"), picture(full)


# ---------------------------------------------------------------- others


class Mixer(nn.Module):
    """A block of MLP-Mixer: across the patches, then across the channels."""

    def __init__(self, patches: int, dim: int, between: int, within: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.between = nn.Sequential(nn.Linear(patches, between), nn.GELU(), nn.Linear(between, patches))
        self.within = nn.Sequential(nn.Linear(dim, within), nn.GELU(), nn.Linear(within, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.between(self.norm1(x).mT).mT
        y: Tensor = x + self.within(self.norm2(x))
        return y


class MLPMixer(nn.Module):
    def __init__(self, size: int, patch: int, dim: int, between: int, within: int, depth: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        patches = (size // patch) ** 2
        self.blocks = nn.Sequential(*(Mixer(patches, dim, between, within) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.blocks(self.patch(x).flatten(2).transpose(1, 2)))
        logits: Tensor = self.head(y.mean(1))
        return logits


@family
def mlp_mixer(full: bool) -> tuple[nn.Module, Tensor]:
    return MLPMixer(*((32, 4, 256, 128, 1024, 8) if full else (8, 4, 6, 5, 9, 2))), picture(full)


class Waves(nn.Module):
    """One-dimensional convolutions with gates, as in WaveNet."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, channels, 1)
        self.gated = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 3, padding=2**i, dilation=2**i) for i in range(depth)
        )
        self.skip = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(depth))
        self.act, self.head = nn.PReLU(channels), nn.Linear(channels, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        for gated, skip in zip(self.gated, self.skip, strict=True):
            value, gate = gated(y).chunk(2, 1)
            y = y + skip(torch.tanh(value) * torch.sigmoid(gate))
        logits: Tensor = self.head(self.act(y).mean(2))
        return logits


@family
def wavenet(full: bool) -> tuple[nn.Module, Tensor]:
    return Waves(*((128, 8) if full else (6, 2))), torch.zeros(2, 1000 if full else 20)


class Volumes(nn.Module):
    """An autoencoder of volumes: three-dimensional convolutions, forth and back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv3d(1, channels, 2, 2)
        self.deep = nn.Conv3d(channels, 2 * channels, 2, 2)
        self.norm = nn.InstanceNorm3d(2 * channels, affine=True)
        self.back = nn.ConvTranspose3d(2 * channels, channels, 2, 2)
        self.up = nn.ConvTranspose3d(channels, 3, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(F.relu(self.back(F.relu(self.norm(self.deep(F.relu(self.down(x))))))))
        return y


@family
def volumes(full: bool) -> tuple[nn.Module, Tensor]:
    return Volumes(32 if full else 4), torch.zeros(1, *((32, 32, 32) if full else (8, 8, 8)))
