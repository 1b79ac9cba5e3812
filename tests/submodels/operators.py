"""One tiny model per operator beyond those of our own models: its groups by hand, and the laws."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.submodels.cases import Case, Model, registering
from tests.submodels.test_patterns import IMAGE, VECTOR, conv, gap

SEQUENCE = (7, 6)
CASES: dict[str, Case] = {}
case = registering(CASES)


def two(forward: Callable[[Model, Tensor], Tensor], inner: int = 8, read: int = 8) -> nn.Module:
    """6 -> inner, whatever is between, read -> 5."""
    return Model(forward, a=nn.Linear(6, inner), h=nn.Linear(read, 5))


ONE = (8, "a.weight.0 a.bias.0 h.weight.1")  # the group of `two` where nothing becomes of it


# ---------------------------------------------------------------- products


@case(VECTOR, (8, "w.1 h.weight.1"))
def matmul_with_a_parameter() -> nn.Module:
    return Model(lambda m, x: m.h(x @ m.w), w=nn.Parameter(torch.ones(6, 8)), h=nn.Linear(8, 5))


@case(VECTOR, (8, "w.1 b.0 v.0"))
def addmm_and_mm() -> nn.Module:
    parts = {"w": torch.ones(6, 8), "b": torch.ones(8), "v": torch.ones(8, 5)}
    return Model(
        lambda m, x: torch.mm(torch.addmm(m.b, x, m.w), m.v), **{n: nn.Parameter(t) for n, t in parts.items()}
    )


@case(SEQUENCE, (8, "a.weight.0 a.bias.0 w.1"))
def bmm_with_a_parameter() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        return torch.bmm(m.a(x), m.w.expand(x.shape[0], -1, -1)).mean(1)

    return Model(forward, a=nn.Linear(6, 8), w=nn.Parameter(torch.ones(1, 8, 5)))


@case(SEQUENCE, (8, "a.weight.0 a.bias.0 w.1"))
def baddbmm() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        return torch.baddbmm(m.b, m.a(x), m.w.expand(x.shape[0], -1, -1)).mean(1)

    return Model(forward, a=nn.Linear(6, 8), b=nn.Parameter(torch.ones(5)), w=nn.Parameter(torch.ones(1, 8, 5)))


@case(VECTOR, (3, "a.weight.0 a.bias.0 w.0"), (4, "w.1 h.weight.1"), (2, "a.weight.0 a.bias.0 w.2"))
def einsum_of_an_activation_and_a_parameter() -> nn.Module:
    """3 * 2 channels, summed over both with a weight for each of 4 outputs."""

    def forward(m: Model, x: Tensor) -> Tensor:
        return m.h(torch.einsum("bij,ioj->bo", m.a(x).unflatten(1, (3, 2)), m.w))

    return Model(forward, a=nn.Linear(6, 6), w=nn.Parameter(torch.ones(3, 4, 2)), h=nn.Linear(4, 5))


@case(SEQUENCE, (8, "a.weight.0 a.bias.0 w.0"))
def einsum_with_dots_and_no_arrow() -> nn.Module:
    parts = {"a": nn.Linear(6, 8), "w": nn.Parameter(torch.ones(8, 5))}
    return Model(lambda m, x: torch.einsum("...i,io", m.a(x), m.w).mean(1), **parts)


@case(VECTOR, ONE)
def einsum_of_one() -> nn.Module:
    return two(lambda m, x: m.h(torch.einsum("bi->ib", m.a(x)).t()))


@case(VECTOR, (8, "e.weight.1 a.weight.0 a.bias.0 h.weight.1"))
def embedding_of_positions() -> nn.Module:
    parts = {"a": nn.Linear(6, 8), "e": nn.Embedding(7, 8), "h": nn.Linear(8, 5)}
    return Model(lambda m, x: m.h(m.a(x).unsqueeze(1) + m.e(torch.arange(7))).mean(1), **parts)


@case((5,), (8, "e.weight.1 a.weight.0 a.weight.1 a.bias.0"))
def embedding_that_is_the_head_too() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.e(x.argsort(-1))
        return F.linear(y + m.a(y), m.e.weight).mean(1)

    return Model(forward, e=nn.Embedding(5, 8), a=nn.Linear(8, 8))


# ---------------------------------------------------------------- shapes


@case(VECTOR, ONE)
def transposed_twice() -> nn.Module:
    return two(lambda m, x: m.h(m.a(x).t().T.movedim(1, 0).mT))


@case(
    VECTOR,
    (4, "a.weight.0 a.bias.0 h.weight.1"),
    (2, "a.weight.0 a.bias.0"),
    (2, "a.weight.0 a.bias.0"),
)
def slice_of_a_run() -> nn.Module:
    """Of 8 channels, 2..5 are read; before and after them 2 each, which go nowhere: a sum of 2 + 4 + 2."""
    return two(lambda m, x: m.h(m.a(x)[:, 2:6]), read=4)


@case(VECTOR, ONE)
def slice_of_everything() -> nn.Module:
    return two(lambda m, x: m.h(m.a(x)[:, :8][:, 0:][:, -8:]))


@case(VECTOR, (4, "a.weight.0 a.bias.0 h.weight.1"))
def halves_by_slices_swapped() -> nn.Module:
    """Rotary embeddings: (-second, first) is added to (first, second), so the halves are one."""

    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.a(x)
        return m.h(y + torch.cat([-y[..., 4:], y[..., :4]], -1))

    return two(forward)


@case(VECTOR, (4, "a.weight.0 a.bias.0 h.weight.1"))
def every_second_channel() -> nn.Module:
    """8 = 4 * 2, of which one of the 2 is read."""
    return two(lambda m, x: m.h(m.a(x)[:, ::2]) + m.h(m.a(x)[:, 1::2]), read=4)


@case(VECTOR, (4, "a.weight.0 a.bias.0 h.weight.1"))
def select_and_stack() -> nn.Module:
    """(4, 2), its two columns swapped: the 4 can be dropped, the 2 are picked by place."""

    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.a(x).unflatten(1, (4, 2))
        return m.h(torch.stack([-y[..., 1], y[:, :, 0]], -1).flatten(1))

    return two(forward)


@case(VECTOR, (4, "a.weight.0 a.bias.0 h.weight.1"))
def unbind() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        first, second = m.a(x).unflatten(1, (2, 4)).unbind(1)
        return m.h(first * second)

    return two(forward, read=4)


@case(SEQUENCE, ONE)
def index_by_positions() -> nn.Module:
    return two(lambda m, x: m.h(m.a(x)[:, torch.tensor([0, 3, 3])]).mean(1))


@case(SEQUENCE, ONE)
def index_by_two_tensors() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        return m.h(m.a(x)[torch.arange(x.shape[0]), (x[:, :, 0] > 0).sum(1).clamp(max=6)])

    return two(forward)


@case(SEQUENCE, ONE)
def index_select() -> nn.Module:
    return two(lambda m, x: m.h(m.a(x).index_select(1, torch.tensor([6, 0]))).mean(1))


@case(SEQUENCE, ONE)
def gather_along_the_sequence() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.a(x)
        last = (x[:, :, 0] > 0).sum(1).clamp(max=6)
        return m.h(torch.gather(y, 1, last[:, None, None].expand(-1, 1, y.shape[2])).squeeze(1))

    return two(forward)


@case(VECTOR, (8, "h.weight.1"))
def index_by_a_permutation_of_channels() -> nn.Module:
    """What is picked from stays whole; of the picks, some can go: the constant that picks is cut with them."""
    return two(lambda m, x: m.h(m.a(x)[:, torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])]))


@case(
    IMAGE,
    (3, "c.weight.0 c.bias.0 d.weight.0 d.bias.0 h.weight.1"),
    (2, "d.weight.0 d.bias.0 h.weight.1"),
    (3, "d.weight.0 d.bias.0 h.weight.1"),
)
def channels_padded_with_zeros() -> nn.Module:
    """The skip of a ResNet without weights: 2 + 3 + 3 channels, of which the middle is the stream."""

    def forward(m: Model, x: Tensor) -> Tensor:
        return m.h(gap(m.d(x) + F.pad(m.c(x), (0, 0, 0, 0, 2, 3))))

    return Model(forward, c=conv(2, 3), d=conv(2, 8), h=nn.Linear(8, 5))


@case(IMAGE, (8, "c.weight.0 c.bias.0 h.weight.1"))
def pixels_padded() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        y = F.pad(F.pad(m.c(x), (1, 2, 0, 1)), (1, 1, 1, 1), mode="reflect")
        return m.h(gap(F.pad(y, (2, 0), value=1.0)[:, :, 1:]))

    return Model(forward, c=conv(2, 8), h=nn.Linear(8, 5))


@case(VECTOR, (4, "a.weight.0 a.bias.0 h.weight.1"), (3, "h.weight.1"))
def repeated() -> nn.Module:
    """Three copies end to end: copy * channel, and both can be dropped."""
    return two(lambda m, x: m.h(m.a(x).repeat(1, 3)), inner=4, read=12)


@case(VECTOR, (4, "a.weight.0 a.bias.0 h.weight.1"), (3, "h.weight.1"))
def repeated_one_by_one() -> nn.Module:
    return two(lambda m, x: m.h(m.a(x).repeat_interleave(3, 1)), inner=4, read=12)


@case(VECTOR, (4, "a.weight.0 a.bias.0 h.weight.1"), (3, "h.weight.1"))
def tiled() -> nn.Module:
    return two(lambda m, x: m.h(torch.tile(m.a(x), (3,))), inner=4, read=12)


@case(VECTOR, (4, "a.weight.0 a.bias.0 h.weight.1"), (3, "h.weight.1"))
def expanded_then_flattened() -> nn.Module:
    return two(lambda m, x: m.h(m.a(x)[:, None].expand(-1, 3, 4).flatten(1)), inner=4, read=12)


@case(VECTOR, (4, "a.weight.0 a.bias.0 h.weight.1"))
def rows_repeated_as_often_as_there_are_examples() -> nn.Module:
    """A batch of copies, of which as many as examples are read."""

    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.a(x)
        return m.h(y.sum(0, keepdim=True).repeat(x.shape[0], 1) + y)

    return two(forward, inner=4, read=4)


@case(VECTOR, (4, "a.weight.0 a.bias.0 h.weight.1"), (4, "a.weight.0 a.bias.0 h.weight.1"))
def half_of_the_channels_overwritten() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.a(x).clone()
        y[:, :4] *= 2
        y[:, 4:].fill_(0.5)
        return m.h(y)

    return two(forward)


# ---------------------------------------------------------------- convolutions and norms


@case(IMAGE, (8, "c.weight.0 c.bias.0 t.weight.0"), (6, "t.weight.1 t.bias.0 h.weight.1"))
def transposed_convolution() -> nn.Module:
    parts = {"c": conv(2, 8), "t": nn.ConvTranspose2d(8, 6, 2, 2), "h": nn.Linear(6, 5)}
    return Model(lambda m, x: m.h(gap(m.t(m.c(x)))), **parts)


@case(IMAGE, (4, "c.weight.0 c.bias.0 t.weight.0"), (3, "t.weight.1 t.bias.0 h.weight.1"))
def grouped_transposed_convolution() -> nn.Module:
    """Two groups of 4 inputs and 3 outputs."""
    parts = {"c": conv(2, 8), "t": nn.ConvTranspose2d(8, 6, 2, groups=2), "h": nn.Linear(6, 5)}
    return Model(lambda m, x: m.h(gap(m.t(m.c(x)))), **parts)


@case(IMAGE, (8, "c.weight.0 c.bias.0 t.weight.0 t.bias.0 h.weight.1"))
def depthwise_transposed_convolution() -> nn.Module:
    parts = {"c": conv(2, 8), "t": nn.ConvTranspose2d(8, 8, 2, 2, groups=8), "h": nn.Linear(8, 5)}
    return Model(lambda m, x: m.h(gap(m.t(m.c(x)))), **parts)


@case((2, 12), (8, "c.weight.0 c.bias.0 t.weight.0"), (6, "t.weight.1 t.bias.0 h.weight.1"))
def convolutions_over_time() -> nn.Module:
    parts = {"c": nn.Conv1d(2, 8, 3), "t": nn.ConvTranspose1d(8, 6, 3), "h": nn.Linear(6, 5)}
    return Model(lambda m, x: m.h(F.interpolate(m.t(F.avg_pool1d(m.c(x), 2)), size=9).mean(2)), **parts)


@case(
    (2, 6, 6, 6), (8, "c.weight.0 c.bias.0 n.weight.0 n.bias.0 t.weight.0"), (6, "t.weight.1 t.bias.0 h.weight.1")
)
def convolutions_over_volumes() -> nn.Module:
    parts = {
        "c": nn.Conv3d(2, 8, 3),
        "n": nn.BatchNorm3d(8),
        "t": nn.ConvTranspose3d(8, 6, 2),
        "h": nn.Linear(6, 5),
    }
    return Model(
        lambda m, x: m.h(F.interpolate(m.t(F.relu(m.n(m.c(x)))), scale_factor=2).mean((2, 3, 4))), **parts
    )


@case(IMAGE, (8, "c.weight.0 c.bias.0 n.weight.0 n.bias.0 h.weight.1"))
def instance_norm() -> nn.Module:
    parts = {"c": conv(2, 8), "n": nn.InstanceNorm2d(8, affine=True), "h": nn.Linear(8, 5)}
    return Model(lambda m, x: m.h(F.relu(m.n(m.c(x))).amax((2, 3))), **parts)


@case(VECTOR, (8, "a.weight.0 a.bias.0 n.weight.0 h.weight.1"), mixes=True)
def rms_norm() -> nn.Module:
    return Model(lambda m, x: m.h(m.n(m.a(x))), a=nn.Linear(6, 8), n=nn.RMSNorm(8), h=nn.Linear(8, 5))


@case(VECTOR, (8, "w.0 a.weight.0 a.bias.0 h.weight.1"), mixes=True)
def rms_norm_written_out() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.a(x)
        return m.h(m.w * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)))

    return Model(forward, w=nn.Parameter(torch.ones(8)), a=nn.Linear(6, 8), h=nn.Linear(8, 5))


@case(VECTOR, ONE)
def normalised_vectors() -> nn.Module:
    """By the length of what is kept: that of the channels dropped is zero."""
    return two(lambda m, x: m.h(F.normalize(m.a(x), dim=-1)))


@case(IMAGE, (2, "c.weight.0 c.bias.0 h.weight.1"))
def pixel_shuffle() -> nn.Module:
    """8 channels become 2 of four times the pixels: 2 * [2] * [2]."""
    return Model(lambda m, x: m.h(gap(F.pixel_shuffle(m.c(x), 2).tanh())), c=conv(2, 8), h=nn.Linear(2, 5))


@case(IMAGE, (3, "c.weight.0 c.bias.0 h.weight.1"))
def pixel_unshuffle() -> nn.Module:
    return Model(lambda m, x: m.h(gap(F.pixel_unshuffle(m.c(x), 2))), c=conv(2, 3), h=nn.Linear(12, 5))


@case(IMAGE, (8, "c.weight.0 c.bias.0 p.weight.0 h.weight.1"))
def prelu_per_channel() -> nn.Module:
    return Model(lambda m, x: m.h(gap(m.p(m.c(x)))), c=conv(2, 8), p=nn.PReLU(8), h=nn.Linear(8, 5))


# ---------------------------------------------------------------- gates, masks, positions


@case(VECTOR, (4, "a.weight.0 a.bias.0 h.weight.1"))
def gated_linear_unit() -> nn.Module:
    return two(lambda m, x: m.h(F.glu(m.a(x), -1)), read=4)


@case(VECTOR, (8, "g.weight.0 u.weight.0 d.weight.1"))
def gated_mlp() -> nn.Module:
    """SwiGLU."""
    parts = {n: nn.Linear(6, 8, bias=False) for n in "gu"}
    return Model(lambda m, x: m.d(F.silu(m.g(x)) * m.u(x)), **parts, d=nn.Linear(8, 5))


@case(SEQUENCE, ONE)
def masked_positions() -> nn.Module:
    """Masks made of positions, by all kinds of arithmetic; channels are filled with zeros."""

    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.a(x)
        seen = torch.tril(torch.ones(7, 7, dtype=torch.bool))[3] & (torch.arange(7) >= 1)
        mask = torch.zeros(x.shape[0], 7, 1).masked_fill(seen.logical_not()[:, None], 1.0)
        y = torch.where(mask.eq(0), y, y.new_zeros(()))
        y = y.masked_fill((torch.cumsum(x[:, :, :1], 1) > 9).to(torch.bool), 0.0)
        return m.h((y + torch.zeros_like(y)).sum(1))

    return two(forward)


@case(VECTOR, ONE)
def tensors_made_along_the_channels() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.a(x)
        y = y * torch.ones(8) + torch.zeros(x.shape[0], 8)
        return m.h(y * y.new_full((x.shape[0], y.shape[1]), 2.0))

    return two(forward)


@case(SEQUENCE, ONE)
def scores_over_positions() -> nn.Module:
    """Attention pooling: softmax over the sequence."""

    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.a(x)
        return m.h((y * torch.softmax(y.sum(-1, keepdim=True), 1)).sum(1))

    return two(forward)


@case(SEQUENCE, ONE)
def order_along_the_sequence() -> nn.Module:
    """Flipped, rolled, summed up, its greatest: nothing that concerns channels."""

    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.a(x)
        y = y.flip(1).roll(1, 1) + torch.cumsum(y, 1)
        return m.h(y.max(1).values + y.amax(1))

    return two(forward)


# ---------------------------------------------------------------- constants along channels


class Tables(nn.Module):
    """A table of sines, kept beside the state or made in the code."""

    def __init__(self, made: bool) -> None:
        super().__init__()
        self.a, self.h, self.made = nn.Linear(6, 8), nn.Linear(8, 5), made
        self.register_buffer("table", torch.sin(torch.arange(56.0)).view(7, 8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(7)[:, None] * 10.0 ** (-torch.arange(0, 8) / 8)
        y: Tensor = self.h(self.a(x) * (at.cos() if self.made else self.table)).mean(1)
        return y


@case(SEQUENCE, ONE)
def table_of_the_module() -> nn.Module:
    return Tables(made=False)


@case(SEQUENCE, ONE)
def table_made_in_the_code() -> nn.Module:
    return Tables(made=True)


@case(VECTOR, ONE)
def constant_in_the_code() -> nn.Module:
    return two(lambda m, x: m.h(m.a(x) * torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])))


@case(VECTOR, ONE)
def constant_changed_in_place() -> nn.Module:
    """A tensor that the code fills is made anew at every call."""

    def forward(m: Model, x: Tensor) -> Tensor:
        total = torch.arange(5.0)
        total[1:].add_(m.h(m.a(x)).detach().sum(0)[1:])
        return m.h(m.a(x)) + total

    return two(forward)


# ---------------------------------------------------------------- recurrent cells


@case(SEQUENCE, (4, "r.weight_ih_l0.0 r.weight_hh_l0.0 r.weight_hh_l0.1 r.bias_ih_l0.0 r.bias_hh_l0.0 h.weight.1"))
def lstm() -> nn.Module:
    """Rows are 4 gates of 4 units."""
    return Model(lambda m, x: m.h(m.r(x)[0][:, -1]), r=nn.LSTM(6, 4, batch_first=True), h=nn.Linear(4, 5))


@case(SEQUENCE, (4, "r.weight_ih_l0.0 r.weight_hh_l0.0 r.weight_hh_l0.1 h.weight.1"))
def gru_without_biases_batch_second() -> nn.Module:
    parts = {"r": nn.GRU(6, 4, bias=False), "h": nn.Linear(4, 5)}
    return Model(lambda m, x: m.h(m.r(x.transpose(0, 1))[1][0]), **parts)


LAYERS = "r.weight_ih_l{0}.0 r.weight_hh_l{0}.0 r.weight_hh_l{0}.1 r.bias_ih_l{0}.0 r.bias_hh_l{0}.0 "


@case(
    SEQUENCE,
    (
        4,
        "".join(LAYERS.format(end) for end in ("0", "0_reverse", "1", "1_reverse"))
        + "r.weight_ih_l1.1 r.weight_ih_l1_reverse.1 h.weight.1",
    ),
)
def stacked_bidirectional_rnn() -> nn.Module:
    """The second layer and the head read both directions: 4 + 4, the same twice."""
    parts = {"r": nn.RNN(6, 4, num_layers=2, bidirectional=True, batch_first=True), "h": nn.Linear(8, 5)}
    return Model(lambda m, x: m.h(m.r(x)[0].mean(1)), **parts)


@case(
    SEQUENCE,
    (3, "r.weight_hh_l0.1 r.weight_hr_l0.0 h.weight.1"),
)
def lstm_with_projection() -> nn.Module:
    """PyTorch knows a projection by sizes that differ; they do while only the projected ones, the fewer, drop."""
    parts = {"r": nn.LSTM(6, 4, proj_size=3, batch_first=True), "h": nn.Linear(3, 5)}
    return Model(lambda m, x: m.h(m.r(x)[0][:, -1]), **parts)


@case(
    SEQUENCE,
    (4, "s.0 r.weight_ih_l0.0 r.weight_hh_l0.0 r.weight_hh_l0.1 r.bias_ih_l0.0 r.bias_hh_l0.0 h.weight.1"),
)
def gru_with_a_learned_start() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        return m.h(m.r(x, m.s.expand(1, x.shape[0], 4).contiguous())[0][:, -1])

    return Model(forward, s=nn.Parameter(torch.ones(4)), r=nn.GRU(6, 4, batch_first=True), h=nn.Linear(4, 5))
