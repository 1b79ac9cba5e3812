"""HASA upside down: a control."""

from __future__ import annotations

from collections.abc import Sequence

from uneven.allocation.base import View
from uneven.allocation.hasa import Hasa


class Inverse(Hasa):
    """HASA with 1 - h_n: the nearer a client's data are to everyone's, the wider."""

    def arranged(self, h: Sequence[float], view: View) -> Sequence[float]:
        return [1 - own for own in h]
