"""Parts of a model chosen by any score of its parameters: the best of them, or the best channels."""

from __future__ import annotations

from typing import Self

import torch
from pydantic import model_validator

from uneven.methods.base import Choice, Grain, MethodOptions
from uneven.submodels import State, Submodel, Supernet
from uneven.submodels.masks import MaskSubmodel, Scope, choose
from uneven.submodels.ranking import best_channels, best_channels_overall


class ImportanceOptions(MethodOptions):
    grain: Grain = "parameter"
    """Hold the best single parameters, or the best channels: a smaller dense network."""
    scope: Scope | None = None
    """The best of the whole model (``global``), or the same share of each ``tensor`` (of each channel group, for
    channels), or of each ``block``: embeddings, a layer of an encoder, the head. Default: ``global`` for
    parameters, ``tensor`` for channels."""
    per_output: bool = False
    """Keep at least one weight of each output, whatever the others score."""

    @model_validator(mode="after")
    def _no_dead_options(self) -> Self:
        if self.grain == "channel" and self.per_output:
            raise ValueError("per_output = True: has no effect with grain 'channel'")
        if self.grain == "channel" and self.scope == "block":
            raise ValueError("scope = 'block': is not defined for grain 'channel'; use 'global' or 'tensor'")
        return self


def pick(supernet: Supernet, options: ImportanceOptions, scores: State, allowed: Choice, ties: State) -> Submodel:
    """The highest scores that a client may hold; ``scores`` of every parameter, ``ties`` as in `choose`."""
    if options.grain == "parameter":
        return _mask(supernet, options, scores, allowed.size, ties)
    if options.scope == "global":
        return best_channels_overall(supernet, scores, allowed.size)
    return best_channels(supernet, scores, allowed.width)


def explored(
    supernet: Supernet,
    options: ImportanceOptions,
    scores: State,
    allowed: Choice,
    ties: State,
    share: float,
    draws: torch.Generator,
) -> Submodel:
    """A mask of which a share of the droppable entries is drawn at random among those that score too low."""
    fixed = supernet.size - sum(supernet.initial[name].numel() for name in supernet.maskable)
    best = _mask(supernet, options, scores, allowed.size - int(share * (allowed.size - fixed)), ties)
    whole = torch.ones((), dtype=torch.bool)
    lottery = {
        name: torch.rand(scores[name].shape, generator=draws).masked_fill_(best.masks.get(name, whole), torch.inf)
        for name in supernet.maskable
    }
    return _mask(supernet, options, lottery, allowed.size, ties)


def _mask(supernet: Supernet, options: ImportanceOptions, scores: State, size: int, ties: State) -> MaskSubmodel:
    maskable = {name: scores[name] for name in supernet.maskable}
    scope = options.scope or "global"
    return choose(supernet, maskable, size, ties, scope=scope, per_output=options.per_output)
