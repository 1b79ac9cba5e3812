"""What the two halves of a method tell each other: an assignment, and an update or why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from uneven.sparsity.coding import subset_bytes
from uneven.submodels import State, Submodel


@dataclass(frozen=True)
class Choice:
    """How much of the model a client may choose: the width of every channel axis, or parameters in all."""

    width: float
    size: int


@dataclass(frozen=True)
class Growth:
    """A question on the places where a sparse topology has no links: which of them would help the most?

    ``masks``: the topology, prunable tensor -> bool. ``counts``: how many places of each tensor the client is to
    name, those of the largest gradient after its training. ``values``: the gradients there too. ``everywhere``:
    the gradients of all places instead, links among them.
    """

    masks: Mapping[str, Tensor] = field(repr=False)
    counts: Mapping[str, int]
    values: bool = False
    everywhere: bool = False

    def count(self, name: str) -> int:
        """How many places of a tensor are named."""
        return self.masks[name].numel() if self.everywhere else self.counts[name]

    def nbytes(self, name: str) -> float:
        """Bytes of the answer for one tensor: the set of places at its entropy, and the values (an estimate)."""
        free = int((~self.masks[name]).sum())
        where = 0.0 if self.everywhere else subset_bytes(free, self.count(name))
        return where + (4 * self.count(name) if self.values or self.everywhere else 0)


@dataclass(frozen=True)
class Exchange:
    """An order to give up some links within the training, and take as many places instead that have none.

    ``masks``: the topology, prunable tensor -> bool. ``counts``: how many links of each tensor. ``directions``:
    the sign of the last change of each place, int8 of the tensors' shapes, for a method that tells it.
    """

    masks: Mapping[str, Tensor] = field(repr=False)
    counts: Mapping[str, int]
    directions: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    def nbytes(self, name: str, held: int) -> float:
        """Bytes that tell what a client of ``held`` links of one tensor gave up and took, at the entropy (an
        estimate)."""
        mask, count = self.masks[name], self.counts[name]
        return subset_bytes(held, count) + subset_bytes(int((~mask).sum()), count)


@dataclass(frozen=True)
class Candidates:
    """The answer to `Growth` for one tensor: places, ``(m,)`` int64 positions in the flat tensor, ascending, and
    the mean gradient there, ``(m,)``, where it was asked."""

    places: Tensor
    gradient: Tensor | None = None


@dataclass(frozen=True)
class Assignment:
    """What one client is to do in one round.

    ``payload``: named sets of tensors, ``model`` and whatever else the method sends. The server's own hold
    *full* tensors; `gathered` is what travels, in the submodel's shapes. ``extra``: names of sets that the
    client sends beside those, one tensor for every parameter that it trains. ``choice``: where the client
    itself chooses the part of the submodel that it trains, how much of it that may be. ``growth``: a question on
    the links that a topology lacks. ``exchange``: links that the client is to exchange itself; its ``choice`` is
    then what it may have in all. ``asks``: vectors that the client sends beside all that, name -> length.
    ``index_bytes``: what it takes to say which coordinates these are, where the client knows most of it already.
    ``asks_loss``: the client is to tell the loss that it starts from. ``going``: how many of its smallest links of
    each tensor are about to be dropped.
    """

    round: int
    client: int
    submodel: Submodel
    payload: Mapping[str, State] = field(repr=False)
    extra: tuple[str, ...] = ()
    choice: Choice | None = None
    growth: Growth | None = None
    exchange: Exchange | None = None
    asks: Mapping[str, int] = field(default_factory=dict)
    index_bytes: int | None = None
    asks_loss: bool = False
    going: Mapping[str, int] = field(default_factory=dict)

    def gathered(self) -> Assignment:
        """The assignment as the client gets it; made when it is sent, so that a cohort costs one at a time."""
        return replace(self, payload={k: self.submodel.gather(state) for k, state in self.payload.items()})

    def trained(self, update: Update) -> Submodel:
        """The part that an update is of."""
        return update.submodel or self.submodel


@dataclass(frozen=True)
class Update:
    """What one client sends back.

    ``payload``: named sets of tensors in the submodel's shapes; ``model`` always. ``examples``: n_n, the size
    of its training split. ``seen``: examples gone through, over all local epochs. ``loss``: mean over steps.
    ``submodel``: the part trained, where the client chose it. ``scored``: examples gone through, forward and
    back on what was assigned, to score coordinates. ``candidates``: by tensor, the answer to ``growth``.
    ``answers``: the vectors asked for. ``start_loss``: F_n, the mean loss on the training split of what was
    trained, before it was; where that was asked.
    """

    round: int
    client: int
    payload: Mapping[str, State] = field(repr=False)
    examples: int
    seen: int
    loss: float
    submodel: Submodel | None = None
    scored: int = 0
    candidates: Mapping[str, Candidates] = field(default_factory=dict, repr=False)
    answers: State = field(default_factory=dict, repr=False)
    start_loss: float | None = None


@dataclass(frozen=True)
class Failure:
    """Why a client's update is missing from a round. Failures are data: the round goes on."""

    client: int
    reason: str
