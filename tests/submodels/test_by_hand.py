"""What a user declares: a rule for an operator of one's own, axes that stay whole; and what is refused."""

import inspect
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from tests.submodels.helpers import (
    differences_at_full_width,
    gap_to_zeroed,
    loaded,
    misaligned,
    random_keep,
    randomised,
    train_step,
)
from uneven.errors import ModelError
from uneven.submodels import Supernet
from uneven.submodels.axes import Axis, count, unify
from uneven.submodels.rules import Call, Outcome

x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", autouse=True)
def _operators() -> Iterator[None]:
    """Two operators that PyTorch does not know, with their gradients."""
    with torch.library._scoped_library("uneven_by_hand", "FRAGMENT"):

        @torch.library.custom_op("uneven_by_hand::mix", mutates_args=())
        def mix(x: Tensor, weight: Tensor, width: int) -> Tensor:
            """x @ weight, for a weight of ``width`` columns; with a loop that no export could follow."""
            assert weight.shape[1] == width
            rows = [row @ weight if float(row.sum()) > -1e9 else row for row in x]
            return torch.stack(rows)

        @mix.register_fake
        def _(x: Tensor, weight: Tensor, width: int) -> Tensor:
            return x.new_empty(x.shape[0], width)

        def save(
            ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, Tensor, int], output: Tensor
        ) -> None:
            ctx.save_for_backward(*inputs[:2])

        def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
            x, weight = ctx.saved_tensors  # type: ignore[attr-defined]
            return grad @ weight.mT, x.mT @ grad, None

        mix.register_autograd(backward, setup_context=save)
        yield


class Custom(nn.Module):
    """6 -> 8, the operator to 7, -> 5."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.h = nn.Linear(6, 8), nn.Linear(7, 5)
        self.weight = nn.Parameter(torch.randn(8, 7))

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y = torch.ops.uneven_by_hand.mix(y, self.weight, 7)  # HERE
        logits: Tensor = self.h(y)
        return logits


def mix_rule(call: Call) -> Outcome:
    """Rows of the weight are the channels read, columns those written, of which ``width`` says the number."""
    x, weight = call.axes("x"), call.axes("weight")
    unify(x[1], weight[0])
    out = [x[0], weight[1]]
    return Outcome(
        out,
        resize=lambda sizes: {"width": count(weight[1], sizes)},
        macs=lambda sizes: count(weight[0], sizes) * count(weight[1], sizes),
    )


RULES = {"uneven_by_hand::mix": mix_rule}


def members(supernet: Supernet) -> list[tuple[int, tuple[tuple[str, int], ...]]]:
    found = [(group.size, tuple(sorted(group.members))) for group in supernet.groups]
    return sorted(found, reverse=True)


def test_a_rule_for_an_operator_of_ones_own() -> None:
    model = randomised(Custom())
    supernet = Supernet(model, torch.zeros(6), rules=RULES)
    assert members(supernet) == [
        (8, (("a.bias", 0), ("a.weight", 0), ("weight", 0))),
        (7, (("h.weight", 1), ("weight", 1))),
    ]
    assert differences_at_full_width(model, supernet, x) == []
    submodel = supernet.submodel(random_keep(supernet, 1))
    assert misaligned(submodel) == []
    assert gap_to_zeroed(submodel, x) < 1e-5
    assert train_step(loaded(supernet, supernet.prefix(0.5)), x) > 0
    assert supernet.prefix(1.0).macs == 6 * 8 + 8 * 7 + 7 * 5


def test_without_its_rule_the_operator_is_named_and_rules_are_offered() -> None:
    lines, start = inspect.getsourcelines(Custom)
    (offset,) = (i for i, line in enumerate(lines) if "# HERE" in line)
    with pytest.raises(ModelError) as caught:
        Supernet(Custom(), torch.zeros(6))
    assert f"operator uneven_by_hand::mix at {__file__}:{start + offset}" in str(caught.value)
    assert "rules={operator: rule}" in str(caught.value)


def test_a_rule_of_ones_own_comes_before_the_librarys() -> None:
    def whole(call: Call) -> Outcome:
        return Outcome([call.axes("self")[0], Axis(8, "tanh is special here")])

    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.Linear(7, 5))
    supernet = Supernet(model, torch.zeros(6), rules={"tanh": whole})
    assert ("2.weight axis 1 [8]: tanh is special here") in supernet.structure.kept
    assert "tanh" in dir(torch)  # and the library's own rule is as before
    assert len(Supernet(model, torch.zeros(6)).groups) == 2


# ---------------------------------------------------------------- axes frozen by hand


def test_an_axis_frozen_by_hand_stays_with_all_that_it_is_tied_to() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 5))
    supernet = Supernet(model, torch.zeros(6), frozen=["2.weight:1"])
    assert [g.name for g in supernet.groups] == ["2"]
    kept = [line for line in supernet.structure.kept if "by hand" in line]
    assert kept == [
        "0.weight axis 0 [8]: 2.weight:1 is frozen by hand",
        "0.bias axis 0 [8]: 2.weight:1 is frozen by hand",
        "2.weight axis 1 [8]: 2.weight:1 is frozen by hand",
    ]
    assert supernet.prefix(0.5).gather(supernet.initial)["2.weight"].shape == (4, 8)


@pytest.mark.parametrize("item", ["2.weight", "2.weight:2", "2.weight:-1", "weight:0", "", "2.bias:x"])
def test_what_cannot_be_frozen_is_told(item: str) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7))
    with pytest.raises(ModelError, match="must be a tensor of the model and one of its axes"):
        Supernet(model, torch.zeros(6), frozen=[item])


def test_a_policy_that_does_not_exist_is_told() -> None:
    with pytest.raises(ModelError, match="attention = 'head': must be 'head_dim' or 'heads'"):
        Supernet(nn.Linear(6, 5), torch.zeros(6), attention="head")  # type: ignore[arg-type]


@pytest.mark.parametrize("dynamic", [(1,), (-1,)])
def test_an_axis_that_the_example_does_not_have_cannot_vary(dynamic: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match="must be axes of the example"):
        Supernet(nn.Linear(6, 5), torch.zeros(6), dynamic=dynamic)


# ---------------------------------------------------------------- nothing left to drop


class Interleaved(nn.Module):
    """3 + 3 channels, read as 2 * 3 and cut in 4 + 2: the only stream is mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x).unflatten(1, (2, 3)).transpose(1, 2).flatten(1)
        first, _ = y.split([4, 2], dim=1)  # HERE
        return self.b(first)  # type: ignore[no-any-return]


def marked_line(kind: type) -> str:
    lines, start = inspect.getsourcelines(kind)
    (offset,) = (i for i, line in enumerate(lines) if "# HERE" in line)
    return f"{__file__}:{start + offset}"


def test_a_model_of_which_a_mix_leaves_nothing_to_drop_is_told_with_its_line() -> None:
    with pytest.raises(ModelError) as caught:
        Supernet(Interleaved(), torch.zeros(6))
    message = str(caught.value)
    assert "no channel of the model can be dropped" in message
    assert "cannot be cut into balanced pieces of (4, 2)" in message
    assert f"at {marked_line(Interleaved)}" in message
    assert message.count(__file__) == 1
    assert "in pieces of equal size" in message


def test_a_mix_beside_channels_that_can_be_dropped_is_reported() -> None:
    model = nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 6), *Interleaved().children())
    assert len(Supernet(model[:2], torch.zeros(6)).groups) == 1

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.mixed = nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 6)), Interleaved()

        def forward(self, x: Tensor) -> Tensor:
            return self.mixed(self.before(x))  # type: ignore[no-any-return]

    supernet = Supernet(Beside(), torch.zeros(6))
    assert ("before.0", 7) in [(g.name, g.size) for g in supernet.groups]
    assert any("mixed.a.weight axis 0" in k and "balanced pieces" in k for k in supernet.structure.kept)


def test_a_model_without_hidden_channels_is_no_error() -> None:
    supernet = Supernet(nn.Linear(6, 5), torch.zeros(6))
    assert supernet.groups == ()
    assert supernet.prefix(0.5).size == supernet.size


# ---------------------------------------------------------------- what depends on the data's values


class Nonzero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return y[y.sum(1) > 0]  # HERE


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.LSTM(6, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.tensor([3] * 13)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.a(packed)[1][0][0]  # type: ignore[no-any-return]


def test_sizes_that_depend_on_values_are_refused_with_their_line() -> None:
    with pytest.raises(ModelError) as caught:
        Supernet(Nonzero(), torch.zeros(6))
    assert marked_line(Nonzero) in str(caught.value)


def test_packed_sequences_are_refused() -> None:
    with pytest.raises(ModelError):
        Supernet(Packed(), torch.zeros(3, 6))
