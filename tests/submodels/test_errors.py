"""Models that cannot be analysed: one ModelError each, which names the operator and the line in this file."""

import inspect
import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from uneven.errors import ModelError
from uneven.submodels import Supernet
from uneven.submodels.axes import Axis, unify
from uneven.submodels.rules import RULES, Call, Outcome
from uneven.submodels.trace import is_users

Forward = Callable[["Two", Tensor], Tensor]


class Two(nn.Module):
    """Two linear layers, and a forward function that uses them."""

    def __init__(self, run: Forward | None = None) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 8)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        assert self.run is not None
        return self.run(self, x)


def failure(model: Two | Forward, shape: tuple[int, ...] = (6,)) -> str:
    with pytest.raises(ModelError) as caught:
        Supernet(model if isinstance(model, Two) else Two(model), torch.zeros(shape))
    return str(caught.value)


def marked_line(source: Forward | type[Two]) -> str:
    """``file:line`` of the line marked HERE in a function or a class."""
    lines, start = inspect.getsourcelines(source)
    (offset,) = (i for i, line in enumerate(lines) if "# HERE" in line)
    return f"{__file__}:{start + offset}"


@pytest.fixture(scope="module")
def custom() -> Iterator[Callable[[Tensor], Tensor]]:
    with torch.library._scoped_library("uneven_tests", "FRAGMENT") as library:

        @torch.library.custom_op("uneven_tests::mystery", mutates_args=())
        def mystery(x: Tensor) -> Tensor:
            return x * 2

        @mystery.register_fake
        def _(x: Tensor) -> Tensor:
            return torch.empty_like(x)

        assert library is not None
        yield mystery


# ---------------------------------------------------------------- operators without a rule


# PyTorch remembers the lines of methods called forward, so these are modules.


class Cumulative(Two):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y = torch.cumsum(y, 1)  # HERE
        return self.b(y)


class Fourier(Two):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y = torch.fft.fft(y).real  # HERE
        return self.b(y)


class RolledGate(Two):
    """The stream meets the operator's result before any layer does; still it is not guessed at."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return self.b(y * torch.roll(y, 1, dims=1))  # HERE


class Within(Two):
    """The operator is in a part of the model."""

    class Part(nn.Module):
        def forward(self, y: Tensor) -> Tensor:
            return torch.cumsum(y, 1)  # HERE

    def __init__(self) -> None:
        super().__init__()
        self.part = self.Part()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.part(self.a(x)))


@pytest.mark.parametrize(
    ("model", "operator"),
    [(Cumulative, "cumsum"), (Fourier, "fft_fft"), (RolledGate, "roll"), (Within, "cumsum")],
)
def test_an_operator_without_a_rule_is_named_with_its_line(model: type[Two], operator: str) -> None:
    message = failure(model())
    assert f"operator {operator} at {marked_line(model)}" in message
    assert message.count("operator ") == 1  # found in two graphs, told once
    assert "conv2d" in message  # the operators that have a rule


def test_a_custom_operator_is_named_with_its_library(custom: Callable[[Tensor], Tensor]) -> None:
    class Mysterious(Two):
        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            y = custom(y)  # HERE
            return self.b(y)

    assert f"operator uneven_tests::mystery at {marked_line(Mysterious)}" in failure(Mysterious())


def test_every_operator_without_a_rule_is_named() -> None:
    message = failure(lambda m, x: m.b(torch.roll(m.a(x), 1, dims=1) + torch.flip(m.a(x), (1,))))
    assert "operator roll at " in message
    assert "operator flip at " in message


@pytest.mark.parametrize(
    "run",
    [
        lambda m, x: torch.cumsum(m.b(torch.relu(m.a(x))), 1),  # after the output layer
        lambda m, x: m.b(torch.relu(m.a(torch.cumsum(x, 1)))),  # on the raw input
        lambda m, x: torch.fft.fft(m.b(torch.relu(m.a(torch.roll(torch.flip(x, (1,)), 1))))).real,
    ],
)
def test_operators_on_axes_that_stay_whole_need_no_rule(run: Forward) -> None:
    model = Two(run)
    supernet = Supernet(model, torch.zeros(6))
    (group,) = supernet.groups
    assert group.members == (("a.weight", 0), ("a.bias", 0), ("b.weight", 1))
    submodel = supernet.submodel({0: torch.tensor([1, 6])})
    network = supernet.network(submodel).load(submodel.gather(supernet.initial))
    assert network(torch.ones(3, 6)).shape == (3, 8)
    whole = supernet.network(supernet.submodel({})).load(supernet.initial)
    assert torch.equal(whole(torch.ones(3, 6)), model(torch.ones(3, 6)))


def test_custom_operators_on_the_input_and_the_output_need_no_rule(custom: Callable[[Tensor], Tensor]) -> None:
    supernet = Supernet(Two(lambda m, x: custom(m.b(m.a(custom(x))))), torch.zeros(6))
    assert [group.size for group in supernet.groups] == [8]
    assert any("uneven_tests::mystery" in line for line in supernet.structure.kept)


def test_an_operator_of_python_is_not_taken_for_one_of_aten() -> None:
    """`operator.mul` on sizes has the name of a rule."""

    def run(m: Two, x: Tensor) -> Tensor:
        y = m.a(x)
        return m.b(y.reshape(y.shape[0] * 2, 4).reshape(y.shape[0], 8))

    supernet = Supernet(Two(run), torch.zeros(6))
    submodel = supernet.prefix(0.5)
    assert submodel.network().load(submodel.gather(supernet.initial))(torch.ones(3, 6)).shape == (3, 8)


def test_a_rule_that_misreads_a_call_is_found_out_by_the_traced_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    class Misread(Two):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.tanh(self.a(x))  # HERE
            return self.b(y)

    monkeypatch.setitem(RULES, "tanh", lambda call: Outcome(call.axes("self")[:1]))
    message = failure(Misread())
    assert "operator tanh is used in a way that its rule cannot read" in message
    assert "it gives ([13]) and not (13, 8)" in message
    assert marked_line(Misread) in message


def test_a_rule_that_cannot_unify_tells_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torn(Two):
        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.tanh(self.a(x)))  # HERE

    def wrong(call: Call) -> Outcome:
        unify(call.axes("self")[1], Axis(5))
        return Outcome(call.axes("self"))

    monkeypatch.setitem(RULES, "tanh", wrong)
    message = failure(Torn())
    assert "operator tanh is used in a way that its rule cannot read (axes of 8 and 5 entries" in message
    assert marked_line(Torn) in message


# ---------------------------------------------------------------- models that cannot be exported


def branches(m: Two, x: Tensor) -> Tensor:
    y = m.a(x)
    if y.sum() > 0:  # HERE
        y = -y
    return m.b(y)


def reads_a_value(m: Two, x: Tensor) -> Tensor:
    y = m.a(x)
    return m.b(y[:, : int(y.argmax())])  # HERE


def raises(m: Two, x: Tensor) -> Tensor:
    raise RuntimeError("not today")  # HERE


@pytest.mark.parametrize("run", [branches, reads_a_value, raises])
def test_a_model_that_cannot_be_exported_is_told_by_its_line(run: Forward) -> None:
    message = failure(run)
    assert "the model Two cannot be exported" in message
    assert f"at {marked_line(run)}" in message


def test_an_error_outside_the_model_names_no_line_of_the_caller() -> None:
    class Shadowed(Two):
        def __init__(self) -> None:
            super().__init__(lambda m, x: m.b(m.half(x)))
            self.half = nn.Linear(6, 8)  # the name of a method of nn.Module

    with pytest.raises(ModelError) as caught:
        Supernet(Shadowed(), torch.zeros(6))
    assert "outside the model's own code" in str(caught.value)
    assert "contextlib" not in str(caught.value)


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (lambda m, x: (m.b(m.a(x)), x), "tuple"),
        (lambda m, x: (m.b(m.a(x)),), "tuple"),
        (lambda m, x: [m.b(m.a(x))], "list"),
        (lambda m, x: {"logits": m.b(m.a(x))}, "dict"),
    ],
)
def test_a_model_returns_one_tensor(run: Forward, kind: str) -> None:
    assert failure(run) == f"a model must return one tensor of logits, not a {kind}"


def test_a_shape_that_does_not_fit_is_told() -> None:
    assert "cannot be exported" in failure(lambda m, x: m.b(m.a(x)), shape=(7,))


# ---------------------------------------------------------------- streams that cannot be balanced


class Shuffled(nn.Module):
    """Two convolutions, shuffled, then halves of the stream apart: 10 channels are 5 * 2, and 5 is odd."""

    def __init__(self, half: int) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, half, 1), nn.Conv2d(3, half, 1)
        self.inner, self.back = nn.Conv2d(half, 7, 1), nn.Conv2d(7, half, 1)
        self.head = nn.Linear(2 * half, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([self.left(x), self.right(x)], 1)
        b, c, h, w = y.shape
        kept, worked = y.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w).chunk(2, 1)
        return self.head(torch.cat([kept, self.back(self.inner(worked))], 1).mean((2, 3)))


def test_a_shuffle_that_cannot_be_balanced_freezes_its_stream() -> None:
    supernet = Supernet(Shuffled(5), torch.zeros(3, 6, 6))
    assert [(g.name, g.size) for g in supernet.groups] == [("inner", 7), ("back", 5)]
    kept = {line.partition(":")[0]: line.partition(": ")[2] for line in supernet.structure.kept}
    reason = "a stream of 5*[2] cannot be cut into balanced pieces of (5, 5)"
    assert kept["left.weight axis 0 [5]"] == reason
    assert kept["right.weight axis 0 [5]"] == reason
    submodel = supernet.prefix(0.5)
    network = submodel.network().load(submodel.gather(supernet.initial))
    assert network(torch.ones(2, 3, 6, 6)).shape == (2, 4)


def test_a_shuffle_that_can_be_balanced_keeps_its_stream_free() -> None:
    supernet = Supernet(Shuffled(6), torch.zeros(3, 6, 6))
    assert ("left", 3) in [(g.name, g.size) for g in supernet.groups]
    assert not any("balanced" in line for line in supernet.structure.kept)


def test_a_users_own_folder_may_be_named_torch() -> None:
    assert is_users("/home/me/torch/model.py")
    assert not is_users(inspect.getfile(nn.Linear))
    assert not is_users(inspect.getfile(re))
