"""Federated averaging."""

from uneven.methods.full import FullModelMethod


class FedAvg(FullModelMethod):
    """Every client of a round trains the same model; the server averages.

    Paper: McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data
    (arXiv 1602.05629), Algorithm 1.

    Rule: x <- x + sum_n a_n (x_n - x) / sum_n a_n.

    Deviations: batches of a local epoch are of nearly equal size, so that none is tiny; ``server.weights``
    is even by default (the paper weights by examples).
    """
