"""One tiny model per graph pattern: its channel groups by hand, and the laws of its small networks."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.submodels.cases import Case, Model, prepare, registering
from uneven.submodels import Supernet

IMAGE, VECTOR = (2, 8, 8), (6,)


def conv(inputs: int, outputs: int, kernel: int = 3, **options: int | str) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, **{"padding": kernel // 2, **options})  # type: ignore[arg-type]


def gap(x: Tensor) -> Tensor:
    return x.mean((2, 3))


CASES: dict[str, Case] = {}
case = registering(CASES)


@case(IMAGE, (8, "c.weight.0 c.bias.0 h.weight.1"))
def convolution() -> nn.Module:
    return Model(lambda m, x: m.h(gap(F.relu(m.c(x)))), c=conv(2, 8), h=nn.Linear(8, 5))


@case(IMAGE, (8, "c.weight.0 c.bias.0 h.weight.1"))
def convolution_with_padding_by_name() -> nn.Module:
    return Model(lambda m, x: m.h(gap(m.c(x))), c=conv(2, 8, 3, padding="same"), h=nn.Linear(8, 5))


@case(IMAGE, (8, "c.weight.0 c.bias.0 d.weight.0 d.bias.0 h.weight.1"))
def depthwise_convolution() -> nn.Module:
    return Model(lambda m, x: m.h(gap(m.d(m.c(x)))), c=conv(2, 8), d=conv(8, 8, groups=8), h=nn.Linear(8, 5))


@case(
    IMAGE,
    (6, "c.weight.0 c.bias.0 d.weight.0 d.bias.0 h.weight.1"),
    (2, "d.weight.0 d.bias.0 h.weight.1"),
)
def depthwise_convolution_with_multiplier() -> nn.Module:
    """Output channel 2 c + j comes of input channel c: a product of the two."""
    return Model(lambda m, x: m.h(gap(m.d(m.c(x)))), c=conv(2, 6), d=conv(6, 12, groups=6), h=nn.Linear(12, 5))


@case(
    IMAGE,
    (4, "c.weight.0 c.bias.0 g.weight.1"),
    (3, "g.weight.0 g.bias.0 h.weight.1"),
)
def grouped_convolution() -> nn.Module:
    """Two groups of 4 inputs and 3 outputs: both keep the same."""
    return Model(lambda m, x: m.h(gap(m.g(m.c(x)))), c=conv(2, 8), g=conv(8, 6, groups=2), h=nn.Linear(6, 5))


@case(VECTOR, (8, "a.weight.0 a.bias.0 h.weight.1"))
def linear() -> nn.Module:
    return Model(lambda m, x: m.h(F.relu(m.a(x))), a=nn.Linear(6, 8), h=nn.Linear(8, 5))


@case(VECTOR, (8, "a.weight.0 a.bias.0 b.weight.1"), (7, "b.weight.0 h.weight.1"))
def linear_chain() -> nn.Module:
    parts = {"a": nn.Linear(6, 8), "b": nn.Linear(8, 7, bias=False), "h": nn.Linear(7, 5)}
    return Model(lambda m, x: m.h(F.gelu(m.b(torch.tanh(m.a(x))))), **parts)


@case((7, 6), (8, "a.weight.0 a.bias.0 h.weight.1"))
def linear_over_a_sequence() -> nn.Module:
    return Model(lambda m, x: m.h(m.a(x)).mean(1), a=nn.Linear(6, 8), h=nn.Linear(8, 5))


@case(IMAGE, (8, "c.weight.0 c.bias.0 n.weight.0 n.bias.0 h.weight.1"))
def batch_norm() -> nn.Module:
    parts = {"c": conv(2, 8), "n": nn.BatchNorm2d(8), "h": nn.Linear(8, 5)}
    return Model(lambda m, x: m.h(gap(F.relu(m.n(m.c(x))))), **parts)


@case(IMAGE, (8, "c.weight.0 c.bias.0 n.weight.0 n.bias.0 h.weight.1"))
def batch_norm_called_by_keywords() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        n = m.n
        y = torch.batch_norm(
            input=m.c(x),
            weight=n.weight,
            bias=n.bias,
            running_mean=n.running_mean,
            running_var=n.running_var,
            training=m.training,
            momentum=0.1,
            eps=1e-5,
            cudnn_enabled=False,
        )
        return m.h(gap(y))

    return Model(forward, c=conv(2, 8), n=nn.BatchNorm2d(8), h=nn.Linear(8, 5))


@case(IMAGE, (8, "c.weight.0 c.bias.0 n.weight.0 n.bias.0 h.weight.1"), mixes=True)
def group_norm_of_one_group() -> nn.Module:
    return Model(lambda m, x: m.h(gap(m.n(m.c(x)))), c=conv(2, 8), n=nn.GroupNorm(1, 8), h=nn.Linear(8, 5))


@case(IMAGE, (4, "c.weight.0 c.bias.0 n.weight.0 n.bias.0 h.weight.1"), mixes=True)
def group_norm_of_two_groups() -> nn.Module:
    """8 channels are 2 * 4: the same of the 4 stay in each norm group."""
    return Model(lambda m, x: m.h(gap(m.n(m.c(x)))), c=conv(2, 8), n=nn.GroupNorm(2, 8), h=nn.Linear(8, 5))


@case(VECTOR, (8, "a.weight.0 a.bias.0 n.weight.0 n.bias.0 h.weight.1"), mixes=True)
def layer_norm() -> nn.Module:
    return Model(lambda m, x: m.h(m.n(m.a(x))), a=nn.Linear(6, 8), n=nn.LayerNorm(8), h=nn.Linear(8, 5))


@case(IMAGE, (8, "c.weight.0 c.bias.0 n.weight.0 n.bias.0 h.weight.1"), mixes=True)
def layer_norm_over_space_too() -> nn.Module:
    parts = {"c": conv(2, 8), "n": nn.LayerNorm((8, 8, 8)), "h": nn.Linear(8, 5)}
    return Model(lambda m, x: m.h(gap(m.n(m.c(x)))), **parts)


@case(
    IMAGE,
    (8, "c.weight.0 c.bias.0 d.weight.0 d.weight.1 d.bias.0 e.weight.1 h.weight.1 e.weight.0 e.bias.0"),
)
def residual_skips() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.c(x)
        y = y + m.d(F.relu(y))
        y += m.e(F.relu(y))
        return m.h(gap(y))

    return Model(forward, c=conv(2, 8), d=conv(8, 8), e=conv(8, 8), h=nn.Linear(8, 5))


@case(IMAGE, (3, "c.weight.0 c.bias.0 h.weight.1"))
def flatten_with_pixels() -> nn.Module:
    return Model(lambda m, x: m.h(F.max_pool2d(m.c(x), 2).flatten(1)), c=conv(2, 3), h=nn.Linear(48, 5))


@case(IMAGE, (4, "c.weight.0 c.bias.0 h.weight.1"))
def flatten_of_inner_axes() -> nn.Module:
    """Only the two last axes, counted from the end."""
    return Model(lambda m, x: m.h(m.c(x).flatten(-2, -1).mean(-1)), c=conv(2, 4), h=nn.Linear(4, 5))


@case(IMAGE, (4, "c.weight.0 c.bias.0 h.weight.1"))
def view_with_sizes() -> nn.Module:
    return Model(lambda m, x: m.h(m.c(x).view(x.shape[0], 4 * 64)), c=conv(2, 4), h=nn.Linear(256, 5))


@case(IMAGE, (4, "c.weight.0 c.bias.0 h.weight.1"))
def reshape_with_a_size_left_open() -> nn.Module:
    return Model(lambda m, x: m.h(m.c(x).reshape(x.size(0), -1)), c=conv(2, 4), h=nn.Linear(256, 5))


@case(IMAGE, (4, "c.weight.0 c.bias.0 h.weight.1"))
def reshape_of_batch_and_channels() -> nn.Module:
    """Both sizes open at once: batch * channels, and what is left."""

    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.c(x)
        means = y.reshape(y.shape[0] * y.shape[1], -1).mean(1)
        return m.h(means.view(x.shape[0], -1))

    return Model(forward, c=conv(2, 4), h=nn.Linear(4, 5))


@case(
    VECTOR,
    (3, "a.weight.0 a.bias.0 h.weight.1"),
    (4, "a.weight.0 a.bias.0 h.weight.1"),
)
def unflatten_and_transpose() -> nn.Module:
    """12 = 3 * 4 = (3, 4), read as (4, 3): rows and columns can both be dropped."""
    parts = {"a": nn.Linear(6, 12), "h": nn.Linear(12, 5)}
    return Model(lambda m, x: m.h(m.a(x).unflatten(-1, (3, -1)).transpose(-2, -1).flatten(-2)), **parts)


@case(IMAGE, (8, "c.weight.0 c.bias.0 n.weight.0 n.bias.0 h.weight.1"), mixes=True)
def permute_to_channels_last() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.n(m.c(x).permute(0, 2, 3, -3))
        return m.h(y.permute(0, -1, 1, 2).mean(dim=(-2, -1)))

    return Model(forward, c=conv(2, 8), n=nn.LayerNorm(8), h=nn.Linear(8, 5))


@case(
    IMAGE,
    (3, "a.weight.0 a.bias.0 d.weight.1"),
    (5, "b.weight.0 b.bias.0 d.weight.1"),
    (7, "d.weight.0 d.bias.0 h.weight.1"),
)
def concatenation_then_convolution() -> nn.Module:
    parts = {"a": conv(2, 3), "b": conv(2, 5), "d": conv(8, 7), "h": nn.Linear(7, 5)}
    return Model(lambda m, x: m.h(gap(m.d(torch.cat([m.a(x), m.b(x)], dim=-3)))), **parts)


@case(
    IMAGE,
    (3, "a.weight.0 a.bias.0 h.weight.1"),
    (5, "b.weight.0 b.bias.0 h.weight.1"),
)
def concatenation_then_flatten() -> nn.Module:
    parts = {"a": conv(2, 3, stride=4), "b": conv(2, 5, stride=4), "h": nn.Linear(32, 5)}
    return Model(lambda m, x: m.h(torch.cat([m.a(x), m.b(x)], 1).flatten(1)), **parts)


@case(
    IMAGE,
    (3, "a.weight.0 a.bias.0 h.weight.1"),
    (2, "b.weight.0 b.bias.0 h.weight.1"),
)
def flatten_then_concatenation() -> nn.Module:
    parts = {"a": conv(2, 3, stride=4), "b": conv(2, 2, stride=2), "h": nn.Linear(3 * 4 + 2 * 16, 5)}
    return Model(lambda m, x: m.h(torch.cat([m.a(x).flatten(1), m.b(x).flatten(1)], -1)), **parts)


@case(IMAGE, (8, "a.weight.0 a.bias.0 b.weight.0 b.bias.0 h.weight.1"))
def concatenation_in_space() -> nn.Module:
    """Side by side, both images have the same channels."""
    parts = {"a": conv(2, 8), "b": conv(2, 8), "h": nn.Linear(8, 5)}
    return Model(lambda m, x: m.h(gap(torch.cat([m.a(x), m.b(x)], dim=-1))), **parts)


@case(
    IMAGE,
    (3, "a.weight.0 a.bias.0 d.weight.0 d.bias.0 h.weight.1"),
    (5, "b.weight.0 b.bias.0 d.weight.0 d.bias.0 h.weight.1"),
)
def concatenation_then_depthwise() -> nn.Module:
    parts = {"a": conv(2, 3), "b": conv(2, 5), "d": conv(8, 8, groups=8), "h": nn.Linear(8, 5)}
    return Model(lambda m, x: m.h(gap(m.d(torch.cat([m.a(x), m.b(x)], 1)))), **parts)


@case(IMAGE, (4, "c.weight.0 c.bias.0 d.weight.1"), (4, "c.weight.0 c.bias.0 d.weight.0 d.bias.0 h.weight.1"))
def chunk() -> nn.Module:
    """The first half through a convolution and onto the second: that ties its output to the second half."""

    def forward(m: Model, x: Tensor) -> Tensor:
        first, second = m.c(x).chunk(2, dim=-3)
        return m.h(gap(m.d(first) + second))

    return Model(forward, c=conv(2, 8), d=conv(4, 4), h=nn.Linear(4, 5))


@case(
    VECTOR,
    (2, "a.weight.0 a.bias.0 h.weight.1"),
    (3, "a.weight.0 a.bias.0 b.weight.1"),
    (4, "b.weight.0 b.bias.0 h.weight.1"),
)
def split_into_unequal_pieces() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        first, second = m.a(x).split([2, 3], dim=-1)
        return m.h(torch.cat([m.b(second), first], dim=-1))

    return Model(forward, a=nn.Linear(6, 5), b=nn.Linear(3, 4), h=nn.Linear(6, 5))


@case(VECTOR, (3, "a.weight.0 a.bias.0 h.weight.1"), (2, "a.weight.0 a.bias.0"))
def split_by_a_size_with_a_rest() -> nn.Module:
    """5 by 3: pieces of 3 and 2; the second is only summed."""

    def forward(m: Model, x: Tensor) -> Tensor:
        first, second = m.a(x).split(3, dim=1)
        return m.h(first) + second.sum(1, keepdim=True)

    return Model(forward, a=nn.Linear(6, 5), h=nn.Linear(3, 5))


@case(IMAGE, (4, "a.weight.0 a.bias.0 b.weight.0 b.bias.0 d.weight.1"), (6, "d.weight.0 d.bias.0 h.weight.1"))
def channel_shuffle_of_equal_halves() -> nn.Module:
    """A shuffle interleaves the halves: both keep the same channels."""

    def forward(m: Model, x: Tensor) -> Tensor:
        y = torch.cat([m.a(x), m.b(x)], 1)
        b, c, h, w = y.shape
        return m.h(gap(m.d(y.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w))))

    return Model(forward, a=conv(2, 4), b=conv(2, 4), d=conv(8, 6), h=nn.Linear(6, 5))


@case(IMAGE, (8, "c.weight.0 c.bias.0 d.weight.1"), (6, "d.weight.0 d.bias.0 h.weight.1"))
def pooling() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        y = F.avg_pool2d(m.d(F.max_pool2d(m.c(x), 2)), 2)
        return m.h(F.adaptive_avg_pool2d(y, 1).squeeze(-1).squeeze(-1))

    return Model(forward, c=conv(2, 8), d=conv(8, 6), h=nn.Linear(6, 5))


@case(IMAGE, (8, "c.weight.0 c.bias.0 h.weight.1"))
def adaptive_max_pooling() -> nn.Module:
    """Two results, values and indices."""
    parts = {"c": conv(2, 8), "p": nn.AdaptiveMaxPool2d(1), "h": nn.Linear(8, 5)}
    return Model(lambda m, x: m.h(m.p(m.c(x)).flatten(1)), **parts)


@case(
    IMAGE,
    (8, "c.weight.0 c.bias.0 d.weight.1 u.weight.0 u.bias.0 h.weight.1"),
    (3, "d.weight.0 d.bias.0 u.weight.1"),
)
def squeeze_and_excitation() -> nn.Module:
    """A gate of shape (batch, channels, 1, 1) multiplies the stream."""

    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.c(x)
        gate = torch.sigmoid(m.u(F.relu(m.d(y.mean((2, 3), keepdim=True)))))
        return m.h(gap(y * gate))

    return Model(forward, c=conv(2, 8), d=conv(8, 3, 1), u=conv(3, 8, 1), h=nn.Linear(8, 5))


@case(
    IMAGE,
    (8, "c.weight.0 c.bias.0 d.weight.1 u.weight.0 u.bias.0 h.weight.1"),
    (3, "d.weight.0 d.bias.0 u.weight.1"),
)
def squeeze_and_excitation_with_expand() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        y = m.c(x)
        gate = torch.sigmoid(m.u(F.relu(m.d(gap(y))))).unsqueeze(-1).unsqueeze(-1)
        return m.h(gap(y * gate.expand(-1, 8, 8, 8)))

    return Model(forward, c=conv(2, 8), d=nn.Linear(8, 3), u=nn.Linear(3, 8), h=nn.Linear(8, 5))


@case(IMAGE, (8, "c.weight.0 c.bias.0 h.weight.1"), mixes=True)
def mean_over_channels_as_a_gate() -> nn.Module:
    """The small network takes the mean of its own channels, as a norm does."""
    parts = {"c": conv(2, 8), "h": nn.Linear(8, 5)}
    return Model(lambda m, x: m.h(gap(m.c(x) * torch.sigmoid(m.c(x).mean(1, keepdim=True)))), **parts)


@case(
    IMAGE,
    (8, "scale.0 c.weight.0 c.bias.0 p.weight.0 h.weight.1"),
)
def learned_scale_and_prelu() -> nn.Module:
    parts = {"c": conv(2, 8), "p": nn.PReLU(8), "h": nn.Linear(8, 5)}
    scale = nn.Parameter(torch.ones(8, 1, 1))
    return Model(lambda m, x: m.h(gap(m.p(1 - m.c(x) * m.scale))), scale=scale, **parts)


@case(VECTOR, (8, "i.weight.0 i.bias.0 a.weight.0 a.weight.1 a.bias.0 b.bias.0 h.weight.1"))
def tied_weights() -> nn.Module:
    """Two layers share one matrix, which runs along the same group twice."""
    a, b = nn.Linear(8, 8), nn.Linear(8, 8)
    b.weight = a.weight
    parts = {"i": nn.Linear(6, 8), "a": a, "b": b, "h": nn.Linear(8, 5)}
    return Model(lambda m, x: m.h(F.relu(m.b(F.relu(m.a(m.i(x)))))), **parts)


@case(IMAGE, (8, "c.weight.0 c.bias.0 d.weight.1"), (6, "d.weight.0 d.bias.0 h.weight.1"))
def dropout() -> nn.Module:
    parts = {"c": conv(2, 8), "d": conv(8, 6), "h": nn.Linear(6, 5)}
    return Model(
        lambda m, x: m.h(F.dropout(gap(m.d(F.dropout2d(m.c(x), 0.3, m.training))), 0.5, m.training)), **parts
    )


@case(IMAGE, (8, "c.weight.0 c.bias.0 h.weight.1"))
def squeeze_of_everything_that_has_one_entry() -> nn.Module:
    return Model(lambda m, x: m.h(F.adaptive_avg_pool2d(m.c(x), 1).squeeze()), c=conv(2, 8), h=nn.Linear(8, 5))


@case(IMAGE, (8, "c.weight.0 c.bias.0 h.weight.1"))
def squeeze_of_an_axis_with_many_entries() -> nn.Module:
    """It does nothing, and must do nothing where a width leaves one entry."""
    return Model(lambda m, x: m.h(gap(m.c(x).squeeze(1))), c=conv(2, 8), h=nn.Linear(8, 5))


@case(IMAGE, (8, "c.weight.0 c.bias.0 h.weight.1"))
def sum_of_everything() -> nn.Module:
    """An empty list of axes means all of them."""
    parts = {"c": conv(2, 8), "h": nn.Linear(8, 5)}
    return Model(lambda m, x: m.h(gap(m.c(x))) + 0.01 * torch.sum(m.c(x), dim=[]), **parts)


@case(IMAGE, (6, "d.weight.0 d.bias.0 h.weight.1"))
def convolution_that_reads_channels_as_space() -> nn.Module:
    """Channels brought to a spatial axis have a place each, so they stay."""
    parts = {"c": conv(2, 8), "d": conv(8, 6), "h": nn.Linear(6, 5)}
    return Model(lambda m, x: m.h(gap(m.d(m.c(x).transpose(1, 2)))), **parts)


@case(IMAGE)
def pooling_over_channels() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        return m.h(F.avg_pool1d(m.c(x).flatten(2).transpose(1, 2), 2).mean(1))

    return Model(forward, c=conv(2, 8), h=nn.Linear(4, 5))


@case(IMAGE)
def view_as_another_type() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        return m.h(gap(m.c(x)).view(torch.float64).view(torch.float32))

    return Model(forward, c=conv(2, 8), h=nn.Linear(8, 5))


@case(VECTOR, (8, "a.weight.0 a.bias.0 h.weight.1"))
def constants_that_differ_between_modes() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        shift = torch.tensor([1.0, 2, 3, 4, 5]) if m.training else torch.tensor([5.0, 4, 3, 2, 1])
        return m.h(m.a(x)) + shift

    return Model(forward, a=nn.Linear(6, 8), h=nn.Linear(8, 5))


@case(VECTOR, (8, "a.weight.0 a.bias.0 h.weight.1"))
def log_softmax_on_the_output() -> nn.Module:
    parts = {"a": nn.Linear(6, 8), "h": nn.Linear(8, 5)}
    return Model(lambda m, x: F.log_softmax(m.h(m.a(x)), -1), **parts)


@case(VECTOR, (8, "a.weight.0 a.bias.0 h.weight.1"))
def a_layer_that_is_never_called() -> nn.Module:
    parts = {"a": nn.Linear(6, 8), "unused": nn.Linear(8, 9), "h": nn.Linear(8, 5)}
    return Model(lambda m, x: m.h(m.a(x)), **parts)


@case(VECTOR, (8, "a.weight.0 a.bias.0 h.weight.1"))
def work_in_place() -> nn.Module:
    parts = {"a": nn.Linear(6, 8), "h": nn.Linear(8, 5)}
    return Model(lambda m, x: m.h(m.a(x).mul_(2).add_(1).relu_()), **parts)


@case((4, 2, 6, 6), (8, "c.weight.0 c.bias.0 h.weight.1"))
def time_folded_into_the_batch() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        frames = gap(m.c(x.reshape(x.shape[0] * 4, 2, 6, 6)))
        return m.h(frames.view(x.shape[0], 4, 8).flatten(1))

    return Model(forward, c=conv(2, 8), h=nn.Linear(32, 5))


@case(IMAGE, (8, "c.weight.0 c.bias.0 h.weight.1"))
def standardised_weights() -> nn.Module:
    def forward(m: Model, x: Tensor) -> Tensor:
        weight = m.c.weight
        weight = weight - weight.mean((1, 2, 3), keepdim=True)
        weight = weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5)
        return m.h(gap(F.conv2d(x, weight, m.c.bias)))

    return Model(forward, c=conv(2, 8), h=nn.Linear(8, 5))


@case(VECTOR, (4, "a.weight.0 a.bias.0 h.weight.1"))
def gated_halves() -> nn.Module:
    """One half of a layer's output gates the other."""

    def forward(m: Model, x: Tensor) -> Tensor:
        value, gate = m.a(x).chunk(2, dim=-1)
        return m.h(value * torch.sigmoid(gate))

    return Model(forward, a=nn.Linear(6, 8), h=nn.Linear(4, 5))


@case(VECTOR, (2, "a.weight.0 a.bias.0 h.weight.1"), (4, "a.weight.0 a.bias.0"))
def channels_folded_into_the_batch() -> nn.Module:
    """8 = 2 * 4: the 2 go to the batch, the 4 are summed."""

    def forward(m: Model, x: Tensor) -> Tensor:
        sums = m.a(x).reshape(x.shape[0] * 2, 4).sum(1, keepdim=True)
        return m.h(sums.reshape(x.shape[0], 2))

    return Model(forward, a=nn.Linear(6, 8), h=nn.Linear(2, 5))


@case(VECTOR, (8, "a.weight.0 a.bias.0"))
def a_weight_used_again_transposed() -> nn.Module:
    """Its inputs are the model's, so only its outputs can go."""
    parts = {"a": nn.Linear(6, 8), "h": nn.Linear(6, 5)}
    return Model(lambda m, x: m.h(F.linear(m.a(x), m.a.weight.transpose(0, 1))), **parts)


@case(
    IMAGE,
    (3, "a.weight.0 a.bias.0 b.weight.0 b.bias.0 n.weight.0 n.bias.0 h.weight.1"),
    (2, "b.weight.0 b.bias.0 n.weight.0 n.bias.0 h.weight.1"),
    mixes=True,
)
def unequal_concatenation_then_group_norm() -> nn.Module:
    """3 + 7 channels in norm groups of 3 + 2 and 5: the 7 are 2 and (3 + 2), which the norm groups share."""
    parts = {"a": conv(2, 3), "b": conv(2, 7), "n": nn.GroupNorm(2, 10), "h": nn.Linear(10, 5)}
    return Model(lambda m, x: m.h(gap(m.n(torch.cat([m.a(x), m.b(x)], 1)))), **parts)


# ---------------------------------------------------------------- the tests


@cache
def prepared(name: str) -> tuple[nn.Module, Supernet, Tensor]:
    return prepare(CASES[name])


def test_dropout_is_on_in_training_only() -> None:
    _, supernet, x = prepared("dropout")
    network = supernet.network(supernet.prefix(0.5)).load(supernet.prefix(0.5).gather(supernet.initial))
    assert not torch.equal(network.train()(x), network(x))
    assert torch.equal(network.eval()(x), network(x))


def test_the_two_groups_of_a_group_norm_keep_the_same_entries() -> None:
    """Against a smaller module written by hand: channels {1, 3} of each half of 8."""
    model, supernet, x = prepared("group_norm_of_two_groups")
    (group,) = supernet.groups
    submodel = supernet.submodel({group.index: torch.tensor([1, 3])})
    values, kept = submodel.gather(supernet.initial), [1, 3, 5, 7]
    assert torch.equal(values["c.weight"], model.c.weight[kept])  # type: ignore[union-attr, index]
    by_hand = Model(model.run, c=conv(2, 4), n=nn.GroupNorm(2, 4), h=nn.Linear(4, 5))  # type: ignore[arg-type]
    by_hand.load_state_dict(values)
    network = supernet.network(submodel).load(values)
    assert torch.equal(network.eval()(x), by_hand.eval()(x))


@pytest.mark.parametrize(
    ("name", "small"),
    [
        ("layer_norm", {"a": nn.Linear(6, 3), "n": nn.LayerNorm(3), "h": nn.Linear(3, 5)}),
        ("layer_norm_over_space_too", {"c": conv(2, 3), "n": nn.LayerNorm((3, 8, 8)), "h": nn.Linear(3, 5)}),
        ("group_norm_of_one_group", {"c": conv(2, 3), "n": nn.GroupNorm(1, 3), "h": nn.Linear(3, 5)}),
        ("permute_to_channels_last", {"c": conv(2, 3), "n": nn.LayerNorm(3), "h": nn.Linear(3, 5)}),
        ("mean_over_channels_as_a_gate", {"c": conv(2, 3), "h": nn.Linear(3, 5)}),
    ],
)
def test_where_channels_mix_the_network_is_the_smaller_module(name: str, small: dict[str, nn.Module]) -> None:
    model, supernet, x = prepared(name)
    (group,) = supernet.groups
    submodel = supernet.submodel({group.index: torch.tensor([0, 4, 7])})
    by_hand = Model(model.run, **small)  # type: ignore[arg-type]
    by_hand.load_state_dict(submodel.gather(supernet.initial))
    network = supernet.network(submodel).load(submodel.gather(supernet.initial))
    for training in (True, False):
        assert torch.equal(network.train(training)(x), by_hand.train(training)(x))
