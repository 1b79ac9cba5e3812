"""By size: a control for scores that grow as the client's data shrink."""

from __future__ import annotations

from collections.abc import Sequence

from uneven.allocation.base import Columns, View
from uneven.allocation.ranked import Ranked


class Size(Ranked):
    """HASA's rule by the number of training examples: the smallest client widest."""

    def numbers(self, view: View) -> tuple[Sequence[float], Columns]:
        return [-float(n) for n in view.examples], {}
