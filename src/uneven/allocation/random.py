"""HASA's places, dealt by chance: a control."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from uneven.allocation.base import View
from uneven.allocation.hasa import Hasa
from uneven.rng import generator


class Random(Hasa):
    """HASA's places h_n, shuffled by the run's seed; scores are reported, and have no other effect."""

    def arranged(self, h: Sequence[float], view: View) -> Sequence[float]:
        order = torch.randperm(len(h), generator=generator(view.seed, "allocation"))
        return [h[n] for n in order.tolist()]
