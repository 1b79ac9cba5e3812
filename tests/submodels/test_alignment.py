"""Laws 3, 4 and 5 of channel submodels, on every model that comes with uneven, at random widths and channels."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.submodels.helpers import (
    gap_to_zeroed,
    info,
    misaligned,
    planted,
    random_keep,
    randomised,
    train_step,
)
from uneven.models import MODELS
from uneven.submodels import ChannelSubmodel, Supernet

Analysed = Callable[..., Supernet]

KINDS = [
    ("mlp", None),
    *(
        (name, norm)
        for name in ("cnn", "resnet_tiny", "shufflenet_v2_x0_5")
        for norm in ("group", "batch", "none")
    ),
    ("resnet18", "group"),
]
kinds = pytest.mark.parametrize(("name", "norm"), KINDS)
few = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
seeds = st.integers(0, 2**31)
x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def drawn(supernet: Supernet, seed: int, kind: str) -> ChannelSubmodel:
    """A submodel by a prefix of a random width, by a window that may wrap, or by random channels."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "sets":
        return supernet.submodel(random_keep(supernet, seed))
    width = float(torch.rand((), generator=generator))
    if kind == "prefix":
        return supernet.prefix(width)
    start = int(torch.randint(1000, (), generator=generator))
    channels = supernet.channels(width)
    return supernet.submodel(
        {g.index: (start + torch.arange(channels[g.index])) % g.size for g in supernet.groups}
    )


drawings = st.sampled_from(["prefix", "window", "sets"])


# ---------------------------------------------------------------- law 5: aligned


@kinds
@few
@given(seed=seeds, kind=drawings)
def test_every_member_keeps_the_channels_of_its_group(
    analysed: Analysed, name: str, norm: str | None, seed: int, kind: str
) -> None:
    assert misaligned(drawn(analysed(name, norm), seed, kind)) == []


@pytest.mark.parametrize(("name", "norm"), [kind for kind in KINDS if kind[0] != "resnet18"])
@settings(few, max_examples=3)
@given(seed=seeds, kind=drawings)
def test_a_training_step_runs(analysed: Analysed, name: str, norm: str | None, seed: int, kind: str) -> None:
    supernet = analysed(name, norm)
    submodel = drawn(supernet, seed, kind)
    network = supernet.network(submodel).load(submodel.gather(supernet.initial))
    assert train_step(network, x) > 0
    assert {n: t.shape for n, t in network.tensors.items()} == {
        n: t.shape for n, t in submodel.gather(supernet.initial).items()
    }


def test_a_training_step_of_a_narrow_resnet18(analysed: Analysed) -> None:
    supernet = analysed("resnet18", "group")
    submodel = supernet.prefix(1 / 16)
    assert train_step(supernet.network(submodel).load(submodel.gather(supernet.initial)), x) > 0


@pytest.mark.parametrize(("name", "norm"), [kind for kind in KINDS if kind[1] != "group"])
@pytest.mark.parametrize("training", [False, True])
@settings(few, max_examples=4)
@given(seed=seeds, kind=drawings)
def test_dropped_channels_are_as_good_as_zero(
    analysed: Analysed, name: str, norm: str | None, training: bool, seed: int, kind: str
) -> None:
    """The small network is the full one with the dropped weights zero: nothing but the members moved.

    Batch norm acts on each channel alone, so it holds in training too, and shows that norms line up.
    """
    submodel = drawn(analysed(name, norm), seed, kind)
    assert gap_to_zeroed(submodel, x, training) < 1e-5


@pytest.mark.parametrize("name", ["cnn", "resnet_tiny", "shufflenet_v2_x0_5"])
def test_a_group_norm_of_one_group_changes_no_group(analysed: Analysed, name: str) -> None:
    """So what the test above says of batch norm holds of group norm's structure."""
    by_norm = [[(g.name, g.size, g.members) for g in analysed(name, norm).groups] for norm in ("group", "batch")]
    assert by_norm[0] == by_norm[1]


@kinds
def test_planted_markers_come_out_at_the_kept_channels(analysed: Analysed, name: str, norm: str | None) -> None:
    """Each tensor an outer function of positions; gathered, it is that function of the positions kept."""
    supernet = analysed(name, norm)
    submodel = supernet.submodel(random_keep(supernet, 3))
    for tensor, value in supernet.initial.items():
        kept = [torch.tensor(planted(submodel, tensor, dim)) for dim in range(value.dim())]
        found = submodel.gather({tensor: marker([torch.arange(n) for n in value.shape])})[tensor]
        assert torch.equal(found, marker(kept)), tensor


def marker(positions: list[Tensor]) -> Tensor:
    """A number for each tuple of positions, all different."""
    out = torch.zeros((), dtype=torch.int64)
    for dim, own in enumerate(positions):
        out = out.unsqueeze(-1) + own * 1000**dim
    return out


def test_the_groups_of_resnet_tiny_by_hand(analysed: Analysed) -> None:
    """Three streams through their skips, and one group inside each of the six blocks."""
    supernet = analysed("resnet_tiny", "batch")
    assert [(g.name, g.size) for g in supernet.groups] == [
        ("0.0", 16),  # the first stream
        *(("2.first.0", 16), ("3.first.0", 16)),
        ("4.first.0", 32),
        ("4.second.0", 32),  # the second stream
        ("5.first.0", 32),
        ("6.first.0", 64),
        ("6.second.0", 64),  # the third
        ("7.first.0", 64),
    ]
    stream = supernet.groups[4]
    expected = (
        "4.second.0.weight.0 4.second.1.weight.0 4.second.1.bias.0 4.skip.0.weight.0 4.skip.1.weight.0 "
        "4.skip.1.bias.0 5.first.0.weight.1 5.second.0.weight.0 5.second.1.weight.0 5.second.1.bias.0 "
        "6.first.0.weight.1 6.skip.0.weight.1"
    )
    assert sorted(f"{tensor}.{dim}" for tensor, dim in stream.members) == sorted(expected.split())


# ---------------------------------------------------------------- law 5 can fail


def with_one_channel_shifted(submodel: ChannelSubmodel, name: str, dim: int) -> ChannelSubmodel:
    """A copy whose selection along one axis of one tensor has one kept channel moved to a dropped one."""
    size = submodel.supernet.initial[name].shape[dim]
    kept = planted(submodel, name, dim)
    dropped = next(i for i in range(size) if i not in kept)
    shifted = torch.tensor(sorted([dropped, *kept[1:]]))
    copy = submodel.supernet.submodel(submodel.keep)
    selects = {tensor: list(axes) for tensor, axes in copy._selects.items()}
    selects[name][dim] = shifted
    vars(copy)["_selects"] = selects  # where the cached property keeps its value
    return copy


@pytest.fixture(scope="module")
def lively() -> Supernet:
    """A resnet_tiny in which every channel is above zero for some input, so that every channel counts."""
    model = randomised(MODELS["resnet_tiny"](info(3, 16, 16), norm="batch"))
    with torch.no_grad():
        for norm in (m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)):
            norm.bias.abs_().add_(1)
    return Supernet(model, torch.zeros(3, 16, 16))


@pytest.mark.parametrize("group", range(9))
def test_one_channel_out_of_line_in_any_member_is_found(lively: Supernet, group: int) -> None:
    """By the alignment check, and by what the network computes."""
    supernet = lively
    submodel = supernet.submodel(random_keep(supernet, 11))
    assert misaligned(submodel) == []
    exact = gap_to_zeroed(submodel, x)
    for name, dim in supernet.groups[group].members:
        broken = with_one_channel_shifted(submodel, name, dim)
        assert misaligned(broken) == [f"{name} axis {dim}"]
        assert gap_to_zeroed(broken, x) > 100 * exact, f"{name} axis {dim}"


# ---------------------------------------------------------------- law 3: extract, then merge


@kinds
@few
@given(seed=seeds, kind=drawings)
def test_gather_then_add_of_zeros_changes_nothing(
    analysed: Analysed, name: str, norm: str | None, seed: int, kind: str
) -> None:
    supernet = analysed(name, norm)
    submodel = drawn(supernet, seed, kind)
    state = {n: t.clone() for n, t in supernet.initial.items()}
    for tensor, values in submodel.gather(state).items():
        submodel.add(tensor, state[tensor], torch.zeros_like(values))
    assert all(torch.equal(state[n], t) for n, t in supernet.initial.items())


@kinds
@few
@given(seed=seeds, kind=drawings)
def test_add_touches_exactly_what_gather_reads(
    analysed: Analysed, name: str, norm: str | None, seed: int, kind: str
) -> None:
    """Distinct numbers added to zeros lie where gather finds them, and nothing lies elsewhere."""
    supernet = analysed(name, norm)
    submodel = drawn(supernet, seed, kind)
    for tensor, full in supernet.initial.items():
        positions = torch.arange(full.numel()).view(full.shape)
        read = submodel.gather({tensor: positions})[tensor]
        touched = torch.zeros(full.shape)
        submodel.add(tensor, touched, torch.ones(read.shape))
        assert torch.equal(touched.flatten().nonzero().flatten(), read.flatten().sort().values)
        assert float(touched.max()) <= 1
        back = torch.zeros(full.shape, dtype=torch.int64)
        submodel.add(tensor, back, read)
        assert torch.equal(submodel.gather({tensor: back})[tensor], read)


@pytest.mark.parametrize("keep", [[0, 1, 2], [3, 4], [0, 2, 5], [5], list(range(6))])
def test_add_is_gather_backwards_for_tensors_of_every_rank(keep: list[int]) -> None:
    """Scalars, vectors, matrices, kernels of one to three axes; runs of channels and sets of them."""

    class Ranks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.randn(()))
            self.deep = torch.nn.Conv3d(2, 6, 2)
            self.wide = torch.nn.Conv2d(6, 6, 2)
            self.long = torch.nn.Conv1d(6, 6, 2)
            self.head = torch.nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.wide(self.deep(x).mean(2) * self.scale)
            return self.head(self.long(y.mean(2)).mean(2))

    supernet = Supernet(Ranks(), torch.zeros(2, 4, 4, 4))
    submodel = supernet.submodel({g.index: torch.tensor(keep) for g in supernet.groups})
    everything = {n: torch.zeros_like(t) for n, t in supernet.initial.items()}
    for name, values in submodel.gather(supernet.initial).items():
        submodel.add(name, everything[name], values)
        submodel.add(name, everything[name], values)
    for name, full in supernet.initial.items():
        mask = torch.zeros_like(full)
        axes = [torch.tensor(keep) if n == 6 else torch.arange(n) for n in full.shape]
        mask[torch.meshgrid(*axes, indexing="ij") if axes else ...] = 1
        torch.testing.assert_close(everything[name], 2 * full * mask)


def test_select_is_a_view_of_a_run_and_gather_a_copy(analysed: Analysed) -> None:
    supernet = analysed("cnn", "none")
    name = "3.0.weight"
    full = supernet.initial[name]
    run = supernet.prefix(0.5)
    assert run.select(name, full).data_ptr() == full.data_ptr()
    assert run.gather({name: full})[name].data_ptr() != full.data_ptr()
    whole = supernet.submodel({})
    assert whole.gather({name: full})[name].data_ptr() != full.data_ptr()


# ---------------------------------------------------------------- law 4: budget


@kinds
@few
@given(seed=seeds, kind=drawings)
def test_size_is_what_is_gathered(analysed: Analysed, name: str, norm: str | None, seed: int, kind: str) -> None:
    supernet = analysed(name, norm)
    submodel = drawn(supernet, seed, kind)
    values = submodel.gather(supernet.initial)
    assert submodel.size == sum(values[n].numel() for n in supernet.parameters)
    assert submodel.nbytes == sum(t.numel() * t.element_size() for t in values.values())
    assert 0 < submodel.size <= supernet.size


@given(width=st.floats(0, 1))
def test_channels_of_a_width_are_its_ceiling(analysed: Analysed, width: float) -> None:
    supernet = analysed("resnet_tiny", "batch")
    for group in supernet.groups:
        k = supernet.channels(width)[group.index]
        assert 1 <= k <= group.size
        assert k >= width * group.size - 1e-6
        assert k == 1 or k - 1 < width * group.size


def test_rounding_noise_in_a_width_adds_no_channel(analysed: Analysed) -> None:
    """0.1 + 0.2 is a little more than 0.3: of 20 channels, 6."""
    supernet = Supernet(MODELS["mlp"](info(1, 2, 2), hidden=[20]), torch.zeros(1, 2, 2))
    assert supernet.channels(0.1 + 0.2) == {0: 6}
    assert supernet.channels(0.3001) == {0: 7}
    assert analysed("mlp").channels(1.0) == {0: 200, 1: 100}


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({0: [0, 0]}, r"group 0 keeps \[0, 0\]: must be distinct channels of 0..199"),
        ({0: [200]}, "must be distinct"),
        ({0: [-1]}, "must be distinct"),
        ({0: []}, "must be distinct"),
        ({2: [0]}, "no group 2"),
        ({-1: [0]}, "no group -1"),
    ],
)
def test_what_is_no_set_of_channels_is_refused(
    analysed: Analysed, keep: dict[int, list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        analysed("mlp").submodel({i: torch.tensor(k, dtype=torch.int64) for i, k in keep.items()})


def test_channels_in_any_order_are_one_set(analysed: Analysed) -> None:
    supernet = analysed("mlp")
    a, b = (supernet.submodel({0: torch.tensor(k)}) for k in ([5, 1, 9], [1, 5, 9]))
    assert torch.equal(a.gather(supernet.initial)["1.weight"], b.gather(supernet.initial)["1.weight"])


def test_randomised_models_have_no_zeros() -> None:
    """Or the tests above would not see what they look at."""
    model = randomised(MODELS["cnn"](info(3, 16, 16), norm="batch"))
    assert all((t != 0).all() for t in model.state_dict().values() if t.is_floating_point())
