"""Which examples each client holds: flwr-datasets' partitioners, made exact and loud.

The partitioners get a table of labels and row numbers only, in a shuffled order (some cut the rows in the
order in which they come). What they would drop, repeat or leave empty is an error here, or is dealt out.
"""

import math
import warnings
from collections.abc import Callable
from itertools import count as count_from
from itertools import islice, takewhile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uneven.data import options
from uneven.data.rows import Ids
from uneven.errors import DataError
from uneven.rng import generator, subseed

SMALLEST = 2
"""Fewest examples of a client: one to train on and one to test on."""
_DRAWS = 11
"""How often a random partition is drawn for what it must meet; flwr-datasets' number for Dirichlet."""


def natural(plan: options.Natural, ids: Ids, y: Tensor, seed: int) -> tuple[list[Tensor], list[str]]:
    """For each id, in sorted order, and each piece of it: the positions (n_k,) of its examples, and its name.

    By hand, because flwr-datasets' NaturalIdPartitioner draws a progress bar that cannot be turned off.
    """
    names, client = np.unique(ids, return_inverse=True)
    order = torch.from_numpy(client).argsort(stable=True)
    parts = list(torch.split(order, np.bincount(client).tolist()))
    kept = [k for k, part in enumerate(parts) if len(part) >= (plan.drop_below or 0)]
    largest = max(len(part) for part in parts)
    if plan.limit is not None:
        parts = [_drawn(part, plan.limit, seed, str(name)) for part, name in zip(parts, names, strict=True)]
    if not kept:
        raise DataError(f"partition.drop_below = {plan.drop_below} leaves no client: the largest has {largest}")
    least = SMALLEST * plan.pieces
    small = [str(names[k]) for k in kept if len(parts[k]) < least]
    if small:
        raise DataError(
            f"{len(small)} natural clients hold fewer than {least} examples ({', '.join(small[:3])}): each client "
            f"needs one to train on and one to test on; set partition.drop_below = {least} to leave them out"
        )
    if plan.pieces == 1:
        return [parts[k] for k in kept], [str(names[k]) for k in kept]
    pieces = [
        (parts[k][piece], f"{names[k]}/{j}")
        for k in kept
        for j, piece in enumerate(_pieces(plan, y[parts[k]], str(names[k]), seed))
    ]
    return [part for part, _ in pieces], [name for _, name in pieces]


def _drawn(part: Tensor, limit: int, seed: int, name: str) -> Tensor:
    """At most so many of a natural client's positions, drawn at random."""
    order = torch.randperm(len(part), generator=generator(seed, "natural limit", name))
    return part[order[:limit].sort().values]


def _pieces(plan: options.Natural, y: Tensor, name: str, seed: int) -> list[Tensor]:
    """For each piece of the natural client with labels ``y`` (n,), the positions (n_k,) of its examples."""
    seed = subseed(seed, "pieces", name)
    if plan.alpha is None:
        return share(options.Iid(), y, plan.pieces, seed)
    parts = _try_dirichlet(options.Dirichlet(alpha=plan.alpha), y, plan.pieces, seed)
    if parts is None:
        raise DataError(
            f"partition.alpha = {plan.alpha:g} gives some of the {plan.pieces} pieces of natural client '{name}' "
            f"fewer than {SMALLEST} of its {len(y)} examples, in all of {_DRAWS} draws: "
            "use a larger alpha or fewer pieces"
        )
    return _exact(parts, y, f"partition.alpha = {plan.alpha:g} in {plan.pieces} pieces of natural client '{name}'")


def share(plan: options.Partition, y: Tensor, count: int, seed: int) -> list[Tensor]:
    """For each of ``count`` clients the positions (n_k,) of its examples in ``y`` (n,).

    Every position belongs to exactly one client, every client has at least two. Raises `DataError` where the
    plan cannot be met, naming values that can.
    """
    if count < 1:
        raise DataError(f"{count} clients: at least 1 is needed")
    if count * SMALLEST > len(y):
        raise DataError(
            f"{count} clients need at least {count * SMALLEST} training examples "
            f"(one to train on and one to test on each), but there are {len(y)}: "
            f"at most {len(y) // SMALLEST} clients"
        )
    parts = _MAKERS[plan.kind](plan, y, count, seed)
    smallest = min(range(count), key=lambda k: len(parts[k]))
    if len(parts[smallest]) < SMALLEST:
        raise DataError(
            f"partition '{plan.kind}' gives client {smallest} only {len(parts[smallest])} of {len(y)} "
            f"examples, {SMALLEST} are needed: use fewer than {count} clients"
        )
    return _exact(parts, y, f"partition '{plan.kind}' with {count} clients")


def _exact(parts: list[Tensor], y: Tensor, what: str) -> list[Tensor]:
    if not torch.equal(torch.cat(parts).sort().values, torch.arange(len(y))):
        raise DataError(f"{what} loses or repeats examples")
    return parts


def _iid(plan: options.Iid, y: Tensor, count: int, seed: int) -> list[Tensor]:
    from flwr_datasets.partitioner import IidPartitioner

    return _run(IidPartitioner(count), y, _shuffled(y, seed), count)


def _dirichlet(plan: options.Dirichlet, y: Tensor, count: int, seed: int) -> list[Tensor]:
    if count * plan.min_size > len(y):
        raise DataError(
            f"partition.min_size = {plan.min_size} for {count} clients needs {count * plan.min_size} "
            f"training examples, but there are {len(y)}: at most {len(y) // count}"
        )
    parts = _try_dirichlet(plan, y, count, seed)
    if parts is None:
        raise DataError(
            f"partition.alpha = {plan.alpha:g} gives some of {count} clients fewer than min_size = "
            f"{plan.min_size} of the {len(y)} training examples, in all of {_DRAWS} draws; "
            + _dirichlet_hint(plan, y, count, seed)
        )
    return parts


def _try_dirichlet(plan: options.Dirichlet, y: Tensor, count: int, seed: int) -> list[Tensor] | None:
    """None where no draw meets ``min_size``, or where balancing leaves a class to nobody."""
    from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        count, "label", plan.alpha, plan.min_size, plan.balanced, seed=subseed(seed, "partition")
    )
    with warnings.catch_warnings(), np.errstate(divide="raise", invalid="raise"):
        # Each draw that fails warns; the last one raises, which is what counts.
        warnings.filterwarnings("ignore", message="The specified min_partition_size")
        try:
            return _run(partitioner, y, _shuffled(y, seed), count)
        except (ValueError, FloatingPointError, ZeroDivisionError):
            return None


def _dirichlet_hint(plan: options.Dirichlet, y: Tensor, count: int, seed: int) -> str:
    """Values that were tried and do."""

    def does(clients: int = count, **changes: float) -> bool:
        return _try_dirichlet(plan.model_copy(update=changes), y, clients, seed) is not None

    alphas = (plan.alpha * 2**k for k in range(1, 11))
    counts = (count // 2**k for k in range(1, count.bit_length()))
    found = ["balanced = true"] if not plan.balanced and does(balanced=True) else []
    found += [f"alpha = {alpha:g}" for alpha in islice(filter(lambda a: does(alpha=a), alphas), 1)]
    found += [f"{fewer} clients" for fewer in islice(filter(does, counts), 1)]
    return " or ".join(found) + " would do" if found else "use more examples or fewer clients"


def _pathological(plan: options.Pathological, y: Tensor, count: int, seed: int) -> list[Tensor]:
    present = len(torch.unique(y))
    if plan.classes > present:
        raise DataError(f"partition.classes = {plan.classes}: the training set has only {present} classes")
    for draw in range(_DRAWS):
        parts = _try_pathological(plan, y, count, subseed(seed, "partition", draw), seed)
        if sum(len(part) for part in parts) == len(y):
            return parts
    lost = sorted(set(y.tolist()) - set(y[torch.cat(parts)].tolist()))
    raise DataError(
        f"partition.classes = {plan.classes} with {count} clients leaves classes to nobody, in all of "
        f"{_DRAWS} draws ({lost} in the last): with at least {present} clients, every class has a client"
    )


def _try_pathological(plan: options.Pathological, y: Tensor, count: int, draw: int, seed: int) -> list[Tensor]:
    """May leave out the classes that no client drew. As in the paper, client k surely has class k mod C."""
    from flwr_datasets.partitioner import PathologicalPartitioner

    partitioner = PathologicalPartitioner(count, "label", plan.classes, "first-deterministic", seed=draw)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Classes: .* will NOT be used")  # the caller draws again
        try:
            return _run(partitioner, y, _shuffled(y, seed), count)
        except ValueError as error:
            raise DataError(
                f"partition.classes = {plan.classes} gives a class to more of the {count} clients than "
                "it has examples: use fewer clients or classes"
            ) from error


def _shards(plan: options.Shards, y: Tensor, count: int, seed: int) -> list[Tensor]:
    from flwr_datasets.partitioner import ShardPartitioner

    total = count * plan.shards
    if total > len(y):
        raise DataError(
            f"partition.shards = {plan.shards} for {count} clients makes {total} shards of {len(y)} "
            f"training examples: at most {len(y) // count}"
        )
    # The partitioner drops what does not fill a shard, all of it from the last class. Hold back a random
    # rest of that many examples, and deal it out to clients that hold its classes already.
    rows = _shuffled(y, seed)
    rest = len(y) % total
    partitioner = ShardPartitioner(count, "label", plan.shards, seed=subseed(seed, "partition"))
    with warnings.catch_warnings():
        # datasets sorts by an argument that pyarrow 25 deprecates
        warnings.filterwarnings("ignore", message="Specifying null_placement", category=FutureWarning)
        parts = _run(partitioner, y, rows[rest:], count)
    return _deal(parts, rows[:rest], y)


def _deal(parts: list[Tensor], rest: Tensor, y: Tensor) -> list[Tensor]:
    classes = [set(y[part].tolist()) for part in parts]
    dealt: list[list[int]] = [part.tolist() for part in parts]
    for row in rest.tolist():
        label = int(y[row])
        holders = [k for k in range(len(parts)) if label in classes[k]]
        dealt[min(holders or range(len(parts)), key=lambda k: len(dealt[k]))].append(row)
    return [torch.tensor(part) for part in dealt]


def _sized(
    plan: options.Linear | options.Square | options.Exponential, y: Tensor, count: int, seed: int
) -> list[Tensor]:
    from flwr_datasets import partitioner

    if _first_share(plan.kind, count) * len(y) < SMALLEST:
        enough = takewhile(lambda c: _first_share(plan.kind, c) * len(y) >= SMALLEST, count_from(1))
        most = sum(1 for _ in enough)
        raise DataError(
            f"partition '{plan.kind}' with {count} clients gives the first fewer than {SMALLEST} of {len(y)} "
            f"training examples: at most {most} clients"
        )
    make = {
        "linear": partitioner.LinearPartitioner,
        "square": partitioner.SquarePartitioner,
        "exponential": partitioner.ExponentialPartitioner,
    }[plan.kind]
    return _run(make(count), y, _shuffled(y, seed), count)


def _first_share(kind: str, count: int) -> float:
    """The share of the first, smallest client."""
    if kind == "exponential":
        return 1 / sum(math.exp(min(k, 700)) for k in range(count))
    power = {"linear": 1, "square": 2}[kind]
    return 1 / float(sum(k**power for k in range(1, count + 1)))


_MAKERS: dict[str, Callable[..., list[Tensor]]] = {
    "iid": _iid,
    "dirichlet": _dirichlet,
    "pathological": _pathological,
    "shards": _shards,
    "linear": _sized,
    "square": _sized,
    "exponential": _sized,
}


def _shuffled(y: Tensor, seed: int) -> Tensor:
    return torch.randperm(len(y), generator=generator(seed, "partition"))


def _run(partitioner: Any, y: Tensor, rows: Tensor, count: int) -> list[Tensor]:
    """The partitioner's answer as positions in ``y``; it sees ``rows``, in their order."""
    from datasets import Dataset

    partitioner.dataset = Dataset.from_dict({"label": y[rows].numpy(), "row": rows.numpy()})
    return [torch.tensor(partitioner.load_partition(k)[:]["row"]) for k in range(count)]
