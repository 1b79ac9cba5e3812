"""SET: the weakest links go, random ones come."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from uneven.methods.dynamic import DynamicMethod
from uneven.sparsity import drop_and_grow


class SET(DynamicMethod):
    """The server drops the links of the lowest |x| and grows as many at random.

    Paper: Mocanu et al. 2018, Scalable training of artificial neural networks with adaptive sparse connectivity
    inspired by network science (Nature Communications 9, 2383).

    Rule: after every Delta T rounds, in each layer: the swap_l links of the lowest |x| go, swap_l of the places
    that were free come, drawn uniformly, at weight 0.

    Deviations: on the server's average, by |x| (the paper drops the smallest positive and the largest negative
    weights, which is the same for signs in equal parts), and with the field's schedule of swap_l.
    """

    def adjusted(self, t: int) -> Mapping[str, Tensor]:
        draws = self.draws("grow", t)
        return {
            name: drop_and_grow(
                self.mask[name],
                swap,
                self.state[name].abs(),
                torch.rand(self.mask[name].shape, generator=draws),
                draws,
            )
            for name, swap in self.swaps(t).items()
        }
