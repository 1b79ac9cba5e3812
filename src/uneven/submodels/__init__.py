"""Which part of a model one client holds."""

from collections.abc import Hashable, Mapping
from typing import Protocol

from torch import Tensor

from uneven.submodels.channels import ChannelSubmodel, Supernet
from uneven.submodels.masks import MaskSubmodel
from uneven.submodels.network import Network
from uneven.submodels.trace import State


class Submodel(Protocol):
    """The coordinates that one client holds in one round. Everything above the submodels works on this."""

    @property
    def supernet(self) -> Supernet:
        """The full model."""

    @property
    def size(self) -> int:
        """k_n, the number of parameters held."""

    @property
    def key(self) -> Hashable:
        """Equal for submodels of the same shapes, which share one network."""

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one example's forward pass, over convolutions and matrix products."""

    @property
    def index_bytes(self) -> int:
        """Bytes that say which coordinates are held, to a receiver who does not know."""

    @property
    def nbytes(self) -> int:
        """Bytes of a message: every tensor held, buffers too, and `index_bytes`."""

    def network(self, scaler: bool = False) -> Network:
        """The network that trains this submodel; may be shared, so load values first."""

    def gather(self, state: Mapping[str, Tensor]) -> State:
        """The values held, copied out of full tensors, in the shapes that the client trains."""

    def select(self, name: str, tensor: Tensor) -> Tensor:
        """The values held of one full tensor; may be a view of it."""

    def add(self, name: str, into: Tensor, values: Tensor) -> None:
        """Add values, in the shapes that the client trains, to the held entries of a full tensor, in place."""


__all__ = ["ChannelSubmodel", "MaskSubmodel", "Network", "State", "Submodel", "Supernet"]
