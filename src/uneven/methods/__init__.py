"""Methods: which part of the model each client trains. One file each; `base` is the contract."""

from uneven.errors import MethodError
from uneven.lookup import find
from uneven.methods.base import (
    Assignment,
    Choice,
    Client,
    ClientCard,
    Context,
    Failure,
    Method,
    MethodOptions,
    Update,
)
from uneven.methods.channelwise import ChannelMethod
from uneven.methods.fedavg import FedAvg
from uneven.methods.fedbrb import FedBRB
from uneven.methods.feddst import FedDST
from uneven.methods.federated_dropout import FederatedDropout
from uneven.methods.fedfibos import FedFIbOS
from uneven.methods.fedhello import FedHeLLo
from uneven.methods.fedlagc import FedLAGC
from uneven.methods.fedmef import FedMef
from uneven.methods.fedprox import FedProx
from uneven.methods.fedrolex import FedRolex
from uneven.methods.fedrts import FedRTS
from uneven.methods.fedsgc import FedSGC
from uneven.methods.fedtiny import FedTiny
from uneven.methods.fiarse import Fiarse
from uneven.methods.fjord import FjORD
from uneven.methods.full import FullModelMethod
from uneven.methods.heterofl import HeteroFL
from uneven.methods.prunefl import PruneFL
from uneven.methods.scaffold import Scaffold
from uneven.methods.scalefl import ScaleFL
from uneven.methods.set import SET
from uneven.methods.slimmable import Slimmable
from uneven.methods.static import Static

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "heterofl": HeteroFL,
    "federated_dropout": FederatedDropout,
    "fedrolex": FedRolex,
    "fedbrb": FedBRB,
    "fjord": FjORD,
    "slimmable": Slimmable,
    "scalefl": ScaleFL,
    "fiarse": Fiarse,
    "fedlagc": FedLAGC,
    "fedfibos": FedFIbOS,
    "fedhello": FedHeLLo,
    "static": Static,
    "set": SET,
    "fedtiny": FedTiny,
    "fedmef": FedMef,
    "prunefl": PruneFL,
    "feddst": FedDST,
    "fedsgc": FedSGC,
    "fedrts": FedRTS,
}


def method_class(name: str | type[Method]) -> type[Method]:
    """The class of a method: one of `METHODS`, or the user's own as ``package.module:Class`` or itself."""
    found = find(name, METHODS, "method.name", MethodError) if isinstance(name, str) else name
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise MethodError(f"method.name = {name!r}: must be a class that extends uneven.methods.Method")
    if found.submodel is Method.submodel:
        raise MethodError(f"method.name = {name!r}: does not define submodel(t, client)")
    return found


__all__ = [
    "METHODS",
    "Assignment",
    "ChannelMethod",
    "Choice",
    "Client",
    "ClientCard",
    "Context",
    "Failure",
    "FullModelMethod",
    "HeteroFL",
    "Method",
    "MethodOptions",
    "Update",
    "method_class",
]
