"""q-FFL: clients that do badly count more."""

from __future__ import annotations

from uneven.errors import MethodError
from uneven.weightings.base import Weighting

LEAST, LARGEST = 1e-30, 1e30
"""Of weights; sums of them and of what they weigh stay within single precision."""


class QFFL(Weighting):
    """a_n = n_n F_n(x_t)^q.

    Paper: Li, Sanjabi, Beirami, Smith 2020, Fair Resource Allocation in Federated Learning (arXiv 1905.10497).
    Its objective is sum_n p_n F_n^(q+1) / (q+1), p_n = n_n / sum n_i, whose gradient is sum_n p_n F_n^q grad F_n.

    Deviations: q-FedAvg (Algorithm 2) divides the sum of F_n^q (x_t - x_n) / eta by that of
    q F_n^(q-1) ||x_t - x_n||^2 / eta^2 + F_n^q / eta, an estimate of the curvature: it steps in the same
    direction, less far the larger q is. Here the weights are those of an average, so that a step is as long as
    with other weights, and ``server.lr`` scales it. The paper samples clients by p_n and leaves n_n out; here
    they are sampled evenly.
    """

    asks_loss = True

    def __init__(self, q: float) -> None:
        super().__init__()
        self._q = q

    def weight(self, client: int, examples: int, loss: float | None) -> float:
        """
        Raises:
            MethodError: F_n^q is too large or too small for a weight.
        """
        assert loss is not None  # engines.inspect lets no update through without
        try:
            weight = float(examples * loss**self._q)
        except OverflowError:
            weight = float("inf")
        if not LEAST <= weight <= LARGEST and loss:
            size = "large" if weight > 1 else "small"
            raise MethodError(
                f"server.q = {self._q:g}: client {client} has a loss of {loss:g}, to the power of q too {size}; "
                "use a smaller q"
            )
        return weight
