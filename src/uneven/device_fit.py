"""The widest part of the model that each client's device can take."""

from __future__ import annotations

from collections.abc import Hashable

from uneven.allocation.budget import DEVICES
from uneven.allocation.device import DeviceOptions
from uneven.data import Federation
from uneven.devices import Device, Fleet, fleet
from uneven.errors import MethodError, SpecError
from uneven.methods import Method
from uneven.spec import Spec
from uneven.submodels import Submodel, Supernet
from uneven.submodels.cost import cost, widest, widths
from uneven.submodels.memory import HEADROOM


class Fitter:
    """What devices can take of a spec's model. Predicts the memory of each part once."""

    def __init__(self, spec: Spec, supernet: Supernet) -> None:
        self.spec, self.supernet = spec, supernet
        self._memory: dict[Hashable, int] = {}

    def memory(self, part: Submodel) -> float:
        """Bytes that training takes at most, with room for the allocator."""
        if part.key not in self._memory:
            self._memory[part.key] = cost(part, "memory", self.spec.training)
        return (1 + HEADROOM) * self._memory[part.key]

    def seconds(self, part: Submodel, device: Device, examples: int) -> float:
        """Of one round of a client with so many training examples: the part comes, is trained, and goes back."""
        macs = 3 * part.macs * self.spec.training.seen_in(examples)
        return device.seconds(macs, part.nbytes, part.nbytes)

    def widest(self, device: Device, examples: int = 0, seconds: float | None = None) -> float | None:
        """The largest width that the device has memory for, and time for so many training examples, where that is
        limited; None if none."""

        def fits(part: Submodel) -> bool:
            in_time = seconds is None or self.seconds(part, device, examples) <= seconds
            return in_time and self.memory(part) <= device.memory

        if self.spec.method_class.grain(self.spec.method_options) == "parameter":
            return 1.0 if fits(self.supernet.prefix(1.0)) else None  # it computes all, whatever it holds
        return widest(self.supernet, fits)


def device_widths(
    spec: Spec, federation: Federation, supernet: Supernet, seconds: float | None = None
) -> list[float]:
    """The width that each client's device allows.

    Raises:
        SpecError: the spec has no devices, the method's clients would not save by it, or a device has no room for
            even the narrowest part.
    """
    if spec.devices is None:
        raise SpecError(["allocation: goes by the clients' devices, and there is no section [devices]"])
    if spec.method_class.grain(spec.method_options) == "parameter":
        raise SpecError(
            [
                "allocation: this method holds single parameters, which takes the memory and the work of the full "
                "model however few they are: devices cannot say how many; use a method of channels"
            ]
        )
    fitter, owned = Fitter(spec, supernet), fleet(spec.devices, federation, spec.seed)
    found: dict[tuple[str, int], float | None] = {}
    problems: dict[str, str] = {}
    given: list[float] = []
    for client, name in zip(federation.clients, owned.names, strict=True):
        examples, device = len(client.train), owned.classes[name]
        key = (name, examples if seconds is not None else 0)
        if key not in found:
            found[key] = fitter.widest(device, examples, seconds)
        width = found[key]
        if width is None:
            problems.setdefault(name, _too_small(fitter, client.name, name, device, examples, seconds))
        else:
            given.append(width)
    if problems:
        raise SpecError(list(problems.values()))
    return given


def _too_small(
    fitter: Fitter, client: str, name: str, device: Device, examples: int, seconds: float | None
) -> str:
    least = fitter.supernet.prefix(widths(fitter.supernet)[0])
    takes, has = f"{fitter.memory(least) / 1e6:.3g} MB", f"{device.memory / 1e6:.3g} MB"
    if seconds is not None:
        takes += f" and {fitter.seconds(least, device, examples):.3g} s"
        has += f" and {seconds:g} s"
    return f"allocation: client {client}, a {name}, has {has}, and even the narrowest part takes {takes}"


def require_room(spec: Spec, method: Method, owned: Fleet) -> None:
    """Where devices say how much each client can get, check what the method's clients hold beyond what they train.

    Raises:
        MethodError: some hold more than their device has memory for.
    """
    options = spec.allocation_options
    if not isinstance(options, DeviceOptions) and getattr(options, "caps", None) != DEVICES:
        return
    fitter = Fitter(spec, method.supernet)
    for card in method.eligible():
        takes, has = fitter.memory(method.held(card, 1)), owned[card.id].memory
        if takes > has:
            raise MethodError(
                f"allocation: client {card.id}, a {owned.names[card.id]}, has {has / 1e6:.3g} MB; its width fits, "
                "but this method's clients hold more of the model than they train, which takes "
                f"{takes / 1e6:.3g} MB"
            )
