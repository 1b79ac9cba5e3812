"""How accurate each client is at each width, measured by training: what the allocation ``oracle`` goes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from uneven.data import ClientData, Federation
from uneven.data.federation import NOTHING
from uneven.data.loading import held
from uneven.errors import DataError, MethodError, SpecError
from uneven.evaluation import evaluate
from uneven.experiment import Experiment
from uneven.rng import generator
from uneven.spec import Spec, given, parse
from uneven.submodels import Supernet


def accuracies(
    spec: Spec, federation: Federation, supernet: Supernet, widths: Sequence[float]
) -> list[list[float]]:
    """Each client's accuracy at each width, (clients, widths), on training examples held out.

    The spec's federation is trained with the method ``slimmable`` on these widths, every client holding the
    widest, and without those examples: the share ``data.local_test_share`` of each client's training split.
    Clients' test splits are not read.

    Raises:
        DataError: a client has too few training examples.
        SpecError: the model cannot be trained at these widths.
    """
    clients = tuple(_held_out(client, spec) for client in federation.clients)
    unread = federation.test[:1]  # an evaluation wants some
    try:
        experiment = Experiment(_probe(spec, widths), (Federation(clients, unread, federation.info), supernet))
    except MethodError as error:
        raise SpecError([f"allocation.widths = {list(widths)}: {error}"]) from error
    for t in range(1, spec.rounds + 1):
        experiment.round(t)
    by_width = []
    for width in widths:
        cards = [replace(card, width=width, capacity=width) for card in experiment.cards]
        by_width.append(evaluate(experiment.method, experiment.federation, cards, spec.rounds).local)
    return [list(own) for own in zip(*by_width, strict=True)]


def _probe(spec: Spec, widths: Sequence[float]) -> Spec:
    own = ("allocation", "method", "match", "diagnostics")
    kept = {key: value for key, value in given(spec).items() if key not in own}
    method = {"name": "slimmable", "ladder": widths}
    return parse(kept, [{"clients": {"capacities": max(widths)}, "method": method}])


def _held_out(client: ClientData, spec: Spec) -> ClientData:
    """The client with part of its training split in the place of its test split."""
    n = len(client.train)
    k = held(n, spec.data.local_test_share) if n > 1 else n
    order = torch.randperm(n, generator=generator(spec.seed, "probe split", client.id))
    train, test = client.train[order[k:]], client.train[order[:k]]
    if not all((part.y != NOTHING).any() for part in (train, test)):
        raise DataError(
            f"client {client.name}: {n} training examples are too few for allocation 'oracle', which measures on "
            "some of them what was learned from the others"
        )
    return replace(client, train=train, test=test)
