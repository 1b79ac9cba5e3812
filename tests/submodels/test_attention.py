"""Attention: which axes are heads and which are channels of a head, under both policies, in all spellings."""

import math
from collections.abc import Callable
from functools import cache
from typing import Literal

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.submodels.families import gpt2, llama, transformer_encoder, without_norms
from tests.submodels.helpers import (
    differences_at_full_width,
    gap_to_zeroed,
    loaded,
    misaligned,
    random_keep,
    randomised,
    train_step,
)
from uneven.submodels import Supernet

Policy = Literal["head_dim", "heads"]
HEADS, DIM, EMBED = 3, 4, 10
Mix = Callable[[Tensor, Tensor, Tensor], Tensor]


class Attention(nn.Module):
    """Queries, keys and values of ``(batch, heads, length, channels)``, mixed in one of many spellings."""

    def __init__(self, mix: Mix, groups: int = HEADS) -> None:
        super().__init__()
        self.q = nn.Linear(6, HEADS * DIM)
        self.k, self.v = nn.Linear(6, groups * DIM), nn.Linear(6, groups * DIM)
        self.o, self.mix = nn.Linear(HEADS * DIM, 5), mix

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, DIM)).transpose(1, 2) for part in (self.q, self.k, self.v))
        y: Tensor = self.o(self.mix(q, k, v).transpose(1, 2).flatten(2)).mean(1)
        return y


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def fused_causal_with_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)


def fused_with_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.where(torch.arange(7)[None, :] <= torch.arange(7)[:, None], 0.0, -math.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None, None])


def matmuls(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, -1) @ v


def bmms(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads folded into the batch."""
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    scores = torch.baddbmm(torch.zeros(1, 7, 7), q, k.mT, alpha=0.5)
    return torch.bmm(torch.softmax(scores, -1), v).unflatten(0, (-1, HEADS))


def einsums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhqd, bhkd -> bhqk", q, k)
    return torch.einsum("...qk,...kd->...qd", torch.softmax(scores, -1), v)


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys times values first: both are channels of a head."""
    return F.relu(q) @ (F.relu(k).mT @ v)


MIXES = [fused, fused_causal_with_scale, fused_with_mask, matmuls, bmms, einsums, linear_attention]
QK = (DIM, "q.weight.0 q.bias.0 k.weight.0 k.bias.0")
V = (DIM, "v.weight.0 v.bias.0 o.weight.1")
BY_HEAD = (HEADS, "q.weight.0 q.bias.0 k.weight.0 k.bias.0 v.weight.0 v.bias.0 o.weight.1")


def found(supernet: Supernet) -> list[tuple[int, list[str]]]:
    return sorted((g.size, sorted(f"{tensor}.{dim}" for tensor, dim in g.members)) for g in supernet.groups)


def by_hand(*groups: tuple[int, str]) -> list[tuple[int, list[str]]]:
    return sorted((size, sorted(members.split())) for size, members in groups)


@cache
def prepared(mix: Mix, attention: Policy, groups: int = HEADS) -> tuple[nn.Module, Supernet]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = randomised(Attention(mix, groups))
    return model, Supernet(model, torch.zeros(7, 6), attention=attention)


x = torch.randn(3, 7, 6, generator=torch.Generator().manual_seed(0))
mixes = pytest.mark.parametrize("mix", MIXES)
policies = pytest.mark.parametrize("attention", ["head_dim", "heads"])


@mixes
def test_channels_of_every_head_drop_alike(mix: Mix) -> None:
    """All heads stay; queries and keys are one group, values another."""
    _, supernet = prepared(mix, "head_dim")
    assert found(supernet) == by_hand(QK, V)
    (line,) = (line for line in supernet.structure.kept if line.startswith("v.weight axis 0"))
    assert line == 'v.weight axis 0 [3]*4: attention = "head_dim" keeps it whole'


@mixes
def test_whole_heads_drop(mix: Mix) -> None:
    _, supernet = prepared(mix, "heads")
    assert found(supernet) == by_hand(BY_HEAD)


@mixes
@policies
def test_the_laws(mix: Mix, attention: Policy) -> None:
    model, supernet = prepared(mix, attention)
    assert differences_at_full_width(model, supernet, x) == []
    for seed in range(4):
        submodel = supernet.submodel(random_keep(supernet, seed))
        assert misaligned(submodel) == []
        assert gap_to_zeroed(submodel, x) < 1e-5
    assert train_step(loaded(supernet, supernet.prefix(0.5)), x) > 0


def test_one_head_leaves_nothing_but_its_channels_to_drop() -> None:
    def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2).flatten(2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).unflatten(2, (HEADS, DIM)).transpose(1, 2)

    model = Attention(one)
    supernet = Supernet(model, torch.zeros(7, 6), attention="heads")
    assert {g.size for g in supernet.groups} == {HEADS, DIM}  # 12 = 3 * 4 channels of one head: both go


def test_the_scale_is_the_full_models() -> None:
    """Of 4 channels, 1 is kept: the scores are still divided by 2."""
    _, supernet = prepared(fused, "head_dim")
    submodel = supernet.submodel({g.index: torch.tensor([2]) for g in supernet.groups})
    values = submodel.gather(supernet.initial)
    q, k, v = (F.linear(x, values[f"{n}.weight"], values[f"{n}.bias"]).mT for n in "qkv")
    scores = torch.softmax(q.unsqueeze(-1) * k.unsqueeze(-2) / 2, -1)
    y = (scores @ v.unsqueeze(-1)).squeeze(-1).mT
    expected = F.linear(y, values["o.weight"], values["o.bias"]).mean(1)
    torch.testing.assert_close(loaded(supernet, submodel)(x), expected)


# ---------------------------------------------------------------- grouped queries


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def grouped_by_expanding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (t[:, :, None].expand(-1, -1, HEADS, -1, -1).flatten(1, 2) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v)


def grouped_by_repeating(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return matmuls(q, *(t.repeat_interleave(HEADS, dim=1) for t in (k, v)))


@pytest.mark.parametrize("mix", [grouped, grouped_by_expanding, grouped_by_repeating])
def test_grouped_queries_of_one_group(mix: Mix) -> None:
    """Three queries to one key: the queries of a group can be dropped."""
    assert found(prepared(mix, "head_dim", 1)[1]) == by_hand(QK, V)
    model, supernet = prepared(mix, "heads", 1)
    assert found(supernet) == by_hand((HEADS, "q.weight.0 q.bias.0 o.weight.1"))
    assert differences_at_full_width(model, supernet, x) == []
    for policy in ("head_dim", "heads"):
        _, supernet = prepared(mix, policy, 1)  # type: ignore[arg-type]
        submodel = supernet.submodel(random_keep(supernet, 1))
        assert misaligned(submodel) == []
        assert gap_to_zeroed(submodel, x) < 1e-5


def test_grouped_queries_of_a_llama() -> None:
    """4 heads are 2 groups * 2 queries: groups drop with their keys and values, queries by themselves."""
    model, example = llama(False)
    supernet = Supernet(model, example, attention="heads")
    layer = "model.model.layers.0.self_attn."
    q, k, v, o = (f"{layer}{n}_proj.weight" for n in "qkvo")
    assert (2, [f"{k}.0", f"{o}.1", f"{q}.0", f"{v}.0"]) in found(supernet)
    assert (2, [f"{o}.1", f"{q}.0"]) in found(supernet)


def test_rotary_embeddings_tie_the_halves_of_a_head_and_all_layers() -> None:
    """Of 4 channels the pairs (0, 2) and (1, 3) turn together, by one table for all layers."""
    model, example = llama(False)
    supernet = Supernet(model, example)
    table = "model.model.rotary_emb.inv_freq"
    rows = [f"model.model.layers.{i}.self_attn.{n}_proj.weight.0" for i in (0, 1) for n in "kq"]
    assert (2, rows) in found(supernet)
    (group,) = (g for g in supernet.groups if g.size == 2)
    submodel = supernet.submodel({group.index: torch.tensor([1])})
    values = submodel.gather(supernet.initial)
    assert torch.equal(submodel.network().constants[table], supernet.constants[table][1:])
    q = supernet.initial["model.model.layers.1.self_attn.q_proj.weight"]
    assert torch.equal(values["model.model.layers.1.self_attn.q_proj.weight"], q[1::2])  # 1, 3 of each 4
    assert table not in supernet.initial


# ---------------------------------------------------------------- PyTorch's own layers


def test_the_groups_of_multihead_attention() -> None:
    """in_proj is 3 * heads * channels: queries, keys and values keep the same."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.MultiheadAttention(12, HEADS, batch_first=True)
            self.i, self.h = nn.Linear(6, 12), nn.Linear(12, 5)

        def forward(self, x: Tensor) -> Tensor:
            y = self.i(x)
            y, weights = self.a(y, y, y)
            logits: Tensor = self.h(y.mean(1)) + weights.mean((1, 2))[:, None]
            return logits

    model = randomised(Model())
    inside = "a.in_proj_weight.0 a.in_proj_bias.0 a.out_proj.weight.1"
    around = [
        (12, "i.weight.0 i.bias.0 a.in_proj_weight.1"),
        (12, "a.out_proj.weight.0 a.out_proj.bias.0 h.weight.1"),
    ]
    for attention, size in (("head_dim", DIM), ("heads", HEADS)):
        supernet = Supernet(model, torch.zeros(7, 6), attention=attention)  # type: ignore[arg-type]
        assert found(supernet) == by_hand((size, inside), *around)
        assert differences_at_full_width(model, supernet, x) == []
        if attention == "head_dim":  # the mean over heads of the weights is one over those that are kept
            assert gap_to_zeroed(supernet.submodel(random_keep(supernet, 0)), x) < 1e-5


def test_multihead_attention_with_own_sizes_of_keys_and_values() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.MultiheadAttention(12, HEADS, kdim=6, vdim=6)
            self.i, self.h = nn.Linear(6, 12), nn.Linear(12, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = x.transpose(0, 1)
            y, _ = self.a(self.i(x), x, x, need_weights=False)
            logits: Tensor = self.h(y.mean(0))
            return logits

    supernet = Supernet(randomised(Model()), torch.zeros(7, 6))
    sizes = sorted(g.size for g in supernet.groups)
    assert sizes == [4, 4, 12, 12]  # queries with keys, values, what is read, what is written
    assert gap_to_zeroed(supernet.submodel(random_keep(supernet, 0)), x) < 1e-5


@pytest.mark.parametrize(("build", "attention"), [(gpt2, "head_dim"), (llama, "heads")])
def test_models_that_spell_attention_out(
    build: Callable[..., tuple[nn.Module, Tensor]], attention: Policy
) -> None:
    """The same groups as with the fused operator, and the laws."""
    (fused_model, example), (model, _) = build(False), build(False, attention="eager")
    supernet = Supernet(randomised(without_norms(model)), example, attention=attention)
    assert found(supernet) == found(Supernet(without_norms(fused_model), example, attention=attention))
    tokens = torch.stack([example, example.roll(2)])
    assert gap_to_zeroed(supernet.submodel(random_keep(supernet, 0)), tokens) < 1e-5


def test_an_encoder_with_the_batch_second() -> None:
    (first, example), (second, _) = (transformer_encoder(False, batch_first=b) for b in (True, False))
    supernet = Supernet(randomised(without_norms(second)), example)
    assert found(supernet) == found(Supernet(without_norms(first), example))
    tokens = torch.stack([example, example.roll(2)])
    assert gap_to_zeroed(supernet.submodel(random_keep(supernet, 0)), tokens) < 1e-5


# ---------------------------------------------------------------- any length


def test_a_length_that_may_vary() -> None:
    """By default only tokens' is; here it is asked for."""

    class Free(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.q, self.h = nn.Conv1d(6, 8, 3, 2, 1), nn.Linear(8, 12), nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            y = F.relu(self.c(x.mT)).mT
            y = self.q(y).view(x.shape[0], y.shape[1], 2, 6).transpose(1, 2)
            return self.h(fused(y, y, y).mean((1, 2)))  # type: ignore[no-any-return]

    model = randomised(Free())
    supernet = Supernet(model, torch.zeros(8, 6), dynamic=(0,))
    submodel = supernet.submodel(random_keep(supernet, 0))
    for length in (3, 8, 21):
        x = torch.randn(2, length, 6)
        assert torch.equal(loaded(supernet, supernet.prefix(1.0))(x), model(x))
        assert gap_to_zeroed(submodel, x) < 1e-5
    full = supernet.prefix(1.0)  # of an example of 8, which the convolution leaves 4
    assert full.macs == 4 * 8 * 6 * 3 + 4 * 8 * 12 + 2 * (2 * 4 * 4 * 6) + 6 * 5
