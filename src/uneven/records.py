"""What a run writes down: the line of a round, the line of a client, the result, and what was resolved."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from statistics import fmean
from typing import Any

import torch

from uneven import fitting
from uneven.evaluation import Evaluation, Score
from uneven.experiment import Experiment, Round
from uneven.methods.topology import SparseMethod
from uneven.sparsity.coding import reference_bytes
from uneven.submodels.cost import cost
from uneven.tracking import Line

RECENT = 5
"""Evaluations that count as the last."""


def resolved(experiment: Experiment) -> dict[str, Any]:
    """What a run chose where the spec left it open, and the versions that it ran with."""
    classes = {} if experiment.fleet is None else experiment.fleet.classes
    return {
        "clients": {"count": len(experiment.cards)},
        "devices": {"file": None, "classes": {n: d.model_dump() for n, d in classes.items()}} if classes else None,
        "allocation": experiment.allocation.options.model_dump(mode="json"),
        "method": experiment.method.options.model_dump(mode="json"),
        "engine": {"name": "serial"},
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """What a run's bits depend on."""
    return {
        "uneven": version("uneven"),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "python": platform.python_version(),
    }


def round_line(log: Round, evaluation: Evaluation | None, experiment: Experiment) -> Line:
    """One line of ``rounds.jsonl``. Lists by client are in the order of ``cohort``; bytes are an estimate (the
    tensors that travel, uncoded); MACs are of training, three times the forward pass for every example."""
    line: Line = {
        "round": log.t,
        "loss": sum(log.losses) / len(log.losses),
        "cohort": log.cohort,
        "failures": [{"client": f.client, "reason": f.reason} for f in log.failures],
        "bytes": {"down": sum(log.bytes_down), "up": sum(log.bytes_up), "kind": "estimate"},
        "bytes_by_client": [down + up for down, up in zip(log.bytes_down, log.bytes_up, strict=True)],
        "macs": log.macs,
        "scoring_macs": log.scoring_macs,
        "seconds": round(log.seconds, 4),
        **({} if log.simulated is None else {"simulated_seconds": log.simulated}),
    }
    if log.diagnostics is not None:
        line["diagnostics"] = log.diagnostics
    if evaluation is not None:
        line["evaluation"] = {
            **evaluation.full.numbers(),
            "per_capacity": [
                {"capacity": capacity, **score.numbers()} for capacity, score in _scores(experiment, evaluation)
            ],
            "local": evaluation.local_summary(),
            "recalibration": asdict(evaluation.recalibration),
        }
    return line


def _scores(experiment: Experiment, evaluation: Evaluation) -> Iterable[tuple[float, Score]]:
    """Every capacity of a client, the largest first, with the score of its submodel."""
    capacities = sorted({card.capacity for card in experiment.cards}, reverse=True)
    return [(capacity, evaluation.by_capacity[capacity]) for capacity in capacities]


def client_lines(experiment: Experiment, evaluation: Evaluation) -> list[Line]:
    """``clients.jsonl``: every client's size, capacity, last local accuracy, and what the capacity came from."""
    given = experiment.allocation
    columns = {**given.columns, **({} if given.ratios is None else {"ratio": given.ratios})}
    rows = zip(experiment.federation.clients, experiment.cards, evaluation.local, strict=True)
    return [
        {
            "client": card.id,
            "name": client.name,
            "examples": card.examples,
            "capacity": card.capacity,
            "width": card.width,
            "parameters": card.size,
            "local_accuracy": accuracy,
            **({} if experiment.fleet is None else {"device": experiment.fleet.names[card.id]}),
            **{name: column[card.id] for name, column in columns.items()},
        }
        for client, card, accuracy in rows
    ]


def summary(experiment: Experiment, lines: Sequence[Line], evaluation: Evaluation) -> dict[str, Any]:
    """``result.json``: the final round, and beside it the best, and the mean of the last five evaluated."""
    spec = experiment.spec
    evaluated = [line for line in lines if "evaluation" in line]
    best = max(evaluated, key=lambda line: line["evaluation"]["accuracy"])
    return {
        **_budget(experiment),
        "allocation": _allocation(experiment),
        "name": spec.name,
        "method": spec.names["method"],
        "seed": spec.seed,
        "version": version("uneven"),
        "rounds": spec.rounds,
        **evaluation.full.numbers(),
        "best_accuracy": best["evaluation"]["accuracy"],
        "best_round": best["round"],
        "recent_accuracy": fmean(line["evaluation"]["accuracy"] for line in evaluated[-RECENT:]),
        "per_capacity": _per_capacity(experiment, lines, evaluation),
        "local": evaluation.local_summary() | {"worst_interval": list(evaluation.worst_interval(spec.seed))},
        "bytes": {
            "up": sum(line["bytes"]["up"] for line in lines),
            "down": sum(line["bytes"]["down"] for line in lines),
            "kind": "estimate",
            **_reference(experiment, lines),
        },
        "macs": sum(line["macs"] for line in lines),
        "scoring_macs": sum(line["scoring_macs"] for line in lines),
        "recalibration": _recalibration(lines),
        "failures": sum(len(line["failures"]) for line in lines),
        "seconds": round(sum(line["seconds"] for line in lines), 3),
        **({} if experiment.fleet is None else {"simulated_seconds": sum(x["simulated_seconds"] for x in lines)}),
    }


def _allocation(experiment: Experiment) -> dict[str, Any]:
    spec, given = experiment.spec, experiment.allocation
    return fitting.summary(spec, given, fitting.spent(spec, experiment.federation, experiment.supernet, given))


def _reference(experiment: Experiment, lines: Sequence[Line]) -> dict[str, float]:
    """Of a method with one topology, the bytes both ways by the formula that its papers use."""
    if not isinstance(experiment.method, SparseMethod):
        return {}
    each = reference_bytes(experiment.supernet.size, experiment.method.options.density)
    return {"reference": each * sum(len(line["cohort"]) for line in lines)}


def _recalibration(lines: Sequence[Line]) -> dict[str, int]:
    """What filling the statistics of norms cost over all evaluations, beside training."""
    costs = [line["evaluation"]["recalibration"] for line in lines if "evaluation" in line]
    return {key: sum(cost[key] for cost in costs) for key in ("down", "up", "macs")}


def _budget(experiment: Experiment) -> dict[str, Any]:
    """With ``match``: which share of its budget each client that takes part uses, in the first round."""
    unit, method, training = experiment.spec.match, experiment.method, experiment.spec.training
    if unit is None:
        return {}
    cards = [card for card in method.eligible() if card.budget]
    used = [cost(method.submodel(1, card), unit, training) / (card.budget or 1) for card in cards]
    return {"budget": {"unit": unit, "mean": sum(used) / len(used), "least": min(used), "most": max(used)}}


def _per_capacity(experiment: Experiment, lines: Sequence[Line], evaluation: Evaluation) -> list[dict[str, Any]]:
    rows = []
    for capacity, score in _scores(experiment, evaluation):
        cards = [card for card in experiment.cards if card.capacity == capacity]
        submodel = experiment.method.evaluation_submodel(cards[0], experiment.spec.rounds)
        held = experiment.method.held(cards[0], experiment.spec.rounds)
        rows.append(
            {
                "capacity": capacity,
                "clients": len(cards),
                "parameters": submodel.size,
                "macs": submodel.macs,
                "memory": max(cost(part, "memory", experiment.spec.training) for part in (submodel, held)),
                "parameters_held": held.size,
                "bytes": _mean_bytes({card.id for card in cards}, lines),
                **score.numbers(),
            }
        )
    return rows


def _mean_bytes(clients: set[int], lines: Sequence[Line]) -> float | None:
    """Bytes down and up of one client in one round, over the rounds that these took part in; None if none did."""
    sent = [
        size
        for line in lines
        for client, size in zip(line["cohort"], line["bytes_by_client"], strict=True)
        if client in clients
    ]
    return sum(sent) / len(sent) if sent else None
