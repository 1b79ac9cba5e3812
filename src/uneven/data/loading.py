"""From the ``[data]`` section of a spec to a federation."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from uneven.data import options as data_options
from uneven.data.federation import NOTHING, ClientData, Examples, Federation, Info
from uneven.data.options import DataOptions
from uneven.data.partitions import SMALLEST, natural, share
from uneven.data.reading import read
from uneven.data.rows import Rows, Splits
from uneven.data.text import Tokens, refuse_options, tokenizer
from uneven.errors import DataError
from uneven.rng import generator

CLIENTS = 100
"""Number of clients where neither the spec nor the data says it."""
TEST_SHARE = 0.2


def load(options: DataOptions, count: int | None = None, seed: int = 0) -> Federation:
    """The clients' data: read, limit, share among the clients, split each client's share.

    ``count``: the number of clients; None means one per natural id, or 100. The same options, count and seed
    give the same bits. Raises `DataError` where the data or the partition does not allow what is asked.
    """
    splits = _checked(read(options), options)
    train, test = _global_split(splits, options, seed)
    train = train.take(_limited(train.examples.y, options.train_limit, "training", seed))
    parts, names, validation = _parts(options, train, count, seed)
    if options.validation is None:
        test = test[_limited(test.y, options.test_limit, "test", seed)]
    else:
        test = train.examples[validation]
    if splits.images is not None:
        examples, test = splits.images.decoded(train.examples, test)
        train = replace(train, examples=examples)
    cuts = [_cut(part, options.local_test_share, seed, k) for k, part in enumerate(parts)]
    info = Info(tuple(train.examples.x.shape[1:]), len(splits.labels), splits.labels)
    if splits.texts is None:
        refuse_options(options)
        return Federation(_clients(train, cuts, names), test, info)
    return _tokenised(options, splits.texts, train, test, cuts, names, info)


class _Cut(NamedTuple):
    """A client's positions in the training set, for its own test and for training."""

    test: Tensor
    train: Tensor


def _cut(part: Tensor, test_share: float, seed: int, client: int) -> _Cut:
    order = torch.randperm(len(part), generator=generator(seed, "local split", client))
    shuffled, k = part.sort().values[order], held(len(part), test_share)
    return _Cut(shuffled[:k], shuffled[k:])


def _checked(splits: Splits, options: DataOptions) -> Splits:
    """The same; a `DataError` where they do not do for the task and the partition."""
    if splits.texts is None and options.task == "next_token":
        raise DataError("data.task = 'next_token': needs texts, and the inputs are none")
    if not splits.labels and options.task == "classify":
        raise DataError("data.task = 'classify': needs labels, and the texts have none; or use 'next_token'")
    if not splits.labels and options.goes_by_label:
        raise DataError(
            f"data.partition.kind = '{options.partition.kind}': goes by labels, and there are none; name a column "
            "as data.label, or use natural, iid, linear, square or exponential"
        )
    return splits


def _tokenised(
    options: DataOptions,
    texts: tuple[str, ...],
    train: Rows,
    test: Examples,
    cuts: list[_Cut],
    names: list[str],
    info: Info,
) -> Federation:
    """Numbers of texts become rows of tokens; a tokenizer is trained on the clients' training texts only."""

    def named(x: Tensor) -> list[str]:
        return [texts[i] for i in x.flatten().tolist()]

    seen = named(train.examples.x[torch.cat([cut.train for cut in cuts])])
    if not any(text.strip() for text in seen):
        raise DataError("the clients' training texts are all empty")
    encode = tokenizer(options, seen)
    every, unseen = (encode(named(split.x)) for split in (train.examples, test))
    if options.task == "classify":
        examples, test = Examples(every.ids, train.examples.y), Examples(unseen.ids, test.y)
    else:
        examples, test = (Examples(t.ids[:, :-1], encode.targets(t)) for t in (every, unseen))
        info = replace(info, num_classes=len(encode.tokens), labels=encode.tokens, task="next_token")
    info = replace(
        info,
        input_shape=tuple(test.x.shape[1:]),
        vocab_size=len(encode.tokens),
        pad_id=encode.pad,
        marks=encode.marks,
        tokenizer=encode.name,
    )
    clients = tuple(
        replace(client, token_counts=encode.counts(Tokens(every.ids[cut.train], every.real[cut.train])))
        for client, cut in zip(_clients(replace(train, examples=examples), cuts, names), cuts, strict=True)
    )
    if info.task == "next_token":
        _require_targets(clients, test)
    return Federation(clients, test, info)


def _require_targets(clients: tuple[ClientData, ...], test: Examples) -> None:
    """A `DataError` where some split has nothing to predict."""
    splits = [
        (f"client '{c.name}'", kind, e) for c in clients for kind, e in (("training", c.train), ("test", c.test))
    ]
    for whose, kind, examples in [*splits, ("the federation", "global test", test)]:
        if not bool((examples.y != NOTHING).any()):
            raise DataError(
                f"{whose} has nothing to predict in its {len(examples)} {kind} texts: all have less than two "
                "tokens, or unknown ones after the first; leave out small clients (data.partition.drop_below), or "
                "know more words (data.vocab_size, data.min_count)"
            )


def _global_split(splits: Splits, options: DataOptions, seed: int) -> tuple[Rows, Examples]:
    if splits.test is not None:
        if options.test_share is not None:
            raise DataError(
                f"data.test_share = {options.test_share:g} has no effect: "
                f"'{options.source}' has a test split of its own"
            )
        return splits.train, splits.test
    order = torch.randperm(len(splits.train), generator=generator(seed, "global test"))
    k = held(len(order), TEST_SHARE if options.test_share is None else options.test_share)
    return splits.train.take(order[k:].sort().values), splits.train.examples[order[:k].sort().values]


def held(n: int, share: float) -> int:
    """How many of ``n`` examples are for testing: the share, but at least one, and not all."""
    if n < 2:
        raise DataError(f"{n} training example cannot be split into train and test")
    return min(max(round(n * share), 1), n - 1)


def _limited(y: Tensor, limit: int | None, kind: str, seed: int) -> Tensor:
    """Positions of ``limit`` examples, class by class in turn, so that the classes are as even as they can be."""
    if limit is None:
        return torch.arange(len(y))
    if limit > len(y):
        key = {"training": "train_limit", "test": "test_limit"}[kind]
        raise DataError(f"data.{key} = {limit}: there are only {len(y)} {kind} examples")
    order = torch.randperm(len(y), generator=generator(seed, f"{kind} limit"))
    y = y[order]
    turn = torch.empty_like(y)
    for label in torch.unique(y):
        of_label = (y == label).nonzero().squeeze(1)
        turn[of_label] = torch.arange(len(of_label))
    first = turn.argsort(stable=True)[:limit]
    return order[first].sort().values


def _parts(
    options: DataOptions, train: Rows, count: int | None, seed: int
) -> tuple[list[Tensor], list[str], Tensor]:
    """Each client's positions in the training set, and its name; and the positions held out from all of them."""
    if isinstance(options.partition, data_options.Natural):
        parts, names = _natural(options.partition, train, count, seed)
        held = _held_out(parts, options.validation, seed)
        return [part[~torch.isin(part, held)] for part in parts], names, held
    y = train.examples.y
    held = _held_out([(y == label).nonzero().squeeze(1) for label in torch.unique(y)], options.validation, seed)
    every = torch.arange(len(y))
    left = every[~torch.isin(every, held)]
    parts = share(options.partition, y[left], CLIENTS if count is None else count, seed)
    return [left[part] for part in parts], [str(k) for k in range(len(parts))], held


def _natural(
    plan: data_options.Natural, train: Rows, count: int | None, seed: int
) -> tuple[list[Tensor], list[str]]:
    if train.client is None:
        raise DataError("partition 'natural' needs client ids: give from_tensors(..., client=...)")
    parts, names = natural(plan, train.client, train.examples.y, seed)
    if count not in (None, len(parts)):
        raise DataError(
            f"{count} clients are asked for, but the natural ids make {len(parts)}: "
            "leave the number out, or set it so"
        )
    return parts, names


def _held_out(groups: list[Tensor], validation: float | None, seed: int) -> Tensor:
    """Positions drawn for validation, (h,) sorted: that share of each group, up to rounding; two of each are left.

    The first k groups together give their share rounded, so that small groups give an example in turn.
    """
    if validation is None:
        return torch.empty(0, dtype=torch.int64)
    sizes = torch.tensor([len(group) for group in groups])
    quotas = (sizes.cumsum(0).double() * validation).round().long().diff(prepend=torch.tensor([0]))
    quotas = quotas.minimum((sizes - SMALLEST).clamp(min=0))
    if not quotas.any():
        raise DataError(
            f"data.validation = {validation:g} holds out none of {int(sizes.sum())} training examples, since each "
            f"class or natural client keeps {SMALLEST}: use a larger share or more examples"
        )
    draws = generator(seed, "validation")
    drawn = [
        group[torch.randperm(len(group), generator=draws)[:quota]]
        for group, quota in zip(groups, quotas.tolist(), strict=True)
    ]
    return torch.cat(drawn).sort().values


def _clients(train: Rows, cuts: list[_Cut], names: list[str]) -> tuple[ClientData, ...]:
    """One copy of the training set in the clients' order; each client's splits are views of it."""
    rows = train.take(torch.cat([part for cut in cuts for part in cut]))
    constant = _constant(rows, [len(cut.test) + len(cut.train) for cut in cuts])
    clients, start = [], 0
    for k, (cut, name) in enumerate(zip(cuts, names, strict=True)):
        middle = start + len(cut.test)
        end = middle + len(cut.train)
        attributes = {column: float(rows.numbers[column][start]) for column in constant}
        clients.append(ClientData(k, name, rows.examples[middle:end], rows.examples[start:middle], attributes))
        start = end
    return tuple(clients)


def _constant(rows: Rows, sizes: list[int]) -> list[str]:
    """The numeric columns that say one thing of each client, of so many rows each."""
    return [
        name
        for name, column in rows.numbers.items()
        if all(bool((own == own[0]).all()) for own in torch.split(column, sizes))
    ]
