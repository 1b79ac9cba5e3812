"""Static sparse training: one topology, drawn once."""

from __future__ import annotations

from uneven.methods.topology import SparseMethod


class Static(SparseMethod):
    """All clients train one sparse topology, which never changes: the control of the methods that adjust it.

    Paper: none of its own; the control of Mocanu et al. 2018 (SET) and of Evci et al. 2020 (RigL).

    Rule: K_l links of each layer, at random, of the largest initial |x| or of SNIP's scores (over the whole
    model with ``layers`` "global"); masked training, overlap average.

    Deviations: none.
    """
