"""A small world in which every law is tried: tiny images, a few clients, any method, any model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from uneven.aggregation import ServerOptions
from uneven.data import ClientData, Examples, Federation, Info
from uneven.data.federation import NOTHING
from uneven.engines import SerialEngine
from uneven.methods import METHODS, Assignment, ClientCard, Context, Method, Update
from uneven.models import build
from uneven.rng import generator
from uneven.submodels import State, Supernet
from uneven.training import TrainingOptions

INFO = Info(input_shape=(1, 8, 8), num_classes=3, labels=("a", "b", "c"))
WORDS = ("[PAD]", "[UNK]", *"abcdefghij")
TEXTS = Info((5,), len(WORDS), WORDS, vocab_size=len(WORDS), pad_id=0, tokenizer="words", task="next_token")

# Every model, and every norm that it can have.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {"hidden": [12, 7]}),
    **{f"cnn-{norm}": ("cnn", {"norm": norm}) for norm in ("group", "batch", "none")},
    "cnn-group-4": ("cnn", {"norm": "group", "groups": 4}),
    "resnet_tiny-group": ("resnet_tiny", {"norm": "group"}),
    "resnet_tiny-batch": ("resnet_tiny", {"norm": "batch"}),
    "shufflenet-batch": ("shufflenet_v2_x0_5", {"norm": "batch"}),
    "resnet18-group": ("resnet18", {"norm": "group"}),
    "resnet_tiny-exits": ("resnet_tiny", {"norm": "batch", "exits": True}),
    "lstm": ("slimmable_lstm", {"embedding": 6, "hidden": 8, "layers": 2}),
}
OF_TEXTS = ("lstm",)
"""The models that predict the next word."""

# Every method in every form; full-model methods under mixed capacities must say what they do.
METHOD_FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"{m}-{fit}": (m, {"fit": fit})
        for m in ("fedavg", "fedprox", "scaffold")
        for fit in ("exclude", "smallest")
    },
    "heterofl": ("heterofl", {}),
    "heterofl-plain": ("heterofl", {"masked_loss": False, "label_rows": False}),
    "federated_dropout": ("federated_dropout", {}),
    "fedrolex": ("fedrolex", {}),
    "fedbrb": ("fedbrb", {}),
    "fjord": ("fjord", {}),
    "slimmable": ("slimmable", {}),
    "scalefl": ("scalefl", {}),
    "scalefl-widths": ("scalefl", {"exits": False}),
    "fiarse": ("fiarse", {}),
    "fiarse-tensor": ("fiarse", {"scope": "tensor", "gradient": "masked"}),
    "fiarse-outputs": ("fiarse", {"per_output": True}),
    "fedlagc": ("fedlagc", {}),
    "fedlagc-norms": ("fedlagc", {"score": "gradient_norm", "keep_edges": False}),
    "fedfibos": ("fedfibos", {}),
    "fedfibos-weighted": ("fedfibos", {"rule": "weighted", "scope": "block"}),
    "fedfibos-random": ("fedfibos", {"rule": "random"}),
    "fedfibos-channel": ("fedfibos", {"grain": "channel"}),
    "fedfibos-overall": ("fedfibos", {"grain": "channel", "scope": "global"}),
    "fedfibos-server": ("fedfibos", {"scores": "server"}),
    "fedhello": ("fedhello", {}),
    "static": ("static", {"density": 0.4}),
    "static-magnitude": ("static", {"density": 0.4, "initial": "magnitude"}),
    "static-snip": ("static", {"density": 0.4, "initial": "snip"}),
    "set": ("set", {"density": 0.4, "every": 1}),
    "fedtiny": ("fedtiny", {"density": 0.4, "every": 1}),
    "fedtiny-one": ("fedtiny", {"density": 0.4, "every": 1, "candidates": 1}),
    "prunefl": ("prunefl", {"density": 0.4, "every": 1}),
    "prunefl-fixed": ("prunefl", {"density": 0.4, "every": 1, "fixed": True}),
    "fedmef": ("fedmef", {"density": 0.4, "every": 1}),
    "feddst": ("feddst", {"density": 0.4, "every": 1}),
    "fedsgc": ("fedsgc", {"density": 0.4, "every": 1}),
    "fedrts": ("fedrts", {"density": 0.4, "every": 1}),
    "fedrts-clients": ("fedrts", {"density": 0.4, "every": 1, "gamma": 0.0, "cap_swaps": True}),
    "fedrts-momentum": ("fedrts", {"density": 0.4, "every": 2, "decision": "momentum"}),
}

# They take the gradient of each example, which batch norm does not let it have: they refuse such models.
ONE_BY_ONE = ("fedfibos", "fedfibos-weighted", "fedfibos-channel", "fedfibos-overall", "fedhello")


OF_MASKS = ("mlp", "cnn-group", "cnn-batch", "resnet_tiny-batch", "lstm")
"""Models that have what a mask can meet: matrices, convolutions, norms of both kinds, a table of tokens, gates."""
LARGE = ("resnet18-group", "shufflenet-batch")


def tried(forms: Mapping[str, tuple[str, Mapping[str, Any]]], models: Iterable[str]) -> list[tuple[str, str]]:
    """Every form with every model that shows something of it.

    A mask knows tensors, not how they are joined: the models of `OF_MASKS` have all kinds of them. Of another form
    of a method the `LARGE` models show nothing that smaller ones do not, slowly. Early exits go with methods that
    train them, and with no others; batch norm does not with those of `ONE_BY_ONE`.
    """
    masks, exits = masking(forms), exiting(forms)
    pairs = ((form, model) for model in models for form in forms if (form in exits) == model.endswith("-exits"))
    return [
        (form, model)
        for form, model in pairs
        if (form not in masks or model in OF_MASKS)
        and ((form in METHODS and form not in ONE_BY_ONE) or model not in LARGE)
        and not (model.endswith("-batch") and form in ONE_BY_ONE)
    ]


def exiting(forms: Mapping[str, tuple[str, Mapping[str, Any]]]) -> list[str]:
    """The forms that train early exits."""
    made = {form: METHODS[name].Options(**options) for form, (name, options) in forms.items()}
    return [form for form, options in made.items() if getattr(options, "exits", False) is not False]


def masking(forms: Mapping[str, tuple[str, Mapping[str, Any]]]) -> list[str]:
    """The forms that hold single parameters."""
    made = {form: (METHODS[name], METHODS[name].Options(**options)) for form, (name, options) in forms.items()}
    return [form for form, (method, options) in made.items() if method.grain(options) == "parameter"]


TRAINING = TrainingOptions(lr=0.05, batch_size=4, epochs=1)


@lru_cache
def supernet(key: str) -> Supernet:
    name, options = MODELS[key]
    info, dtype = (TEXTS, torch.int64) if key in OF_TEXTS else (INFO, torch.float32)
    return Supernet(build(name, info, options, seed=0), torch.zeros(info.input_shape, dtype=dtype))


@lru_cache
def federation(clients: int = 4, texts: bool = False) -> Federation:
    """Clients of 5, 6, 7, ... examples; client n lacks class n mod 3, or every third word from its n-th on."""
    draws, examples = generator(0, "law data"), _texts if texts else _images
    rows = tuple(
        ClientData(n, str(n), examples(5 + n, n % 3, draws), examples(3, n % 3, draws), {}) for n in range(clients)
    )
    return Federation(rows, examples(9, None, draws), TEXTS if texts else INFO)


def _images(n: int, lacks: int | None, draws: torch.Generator) -> Examples:
    classes = torch.tensor([c for c in range(3) if c != lacks])
    y = classes[torch.arange(n) % len(classes)]
    return Examples(torch.randn(n, *INFO.input_shape, generator=draws), y)


def _texts(n: int, lacks: int | None, draws: torch.Generator) -> Examples:
    """One to six words, an unknown one among them now and then, and what follows each but the last."""
    words = torch.tensor([1, *(w for w in range(2, len(WORDS)) if lacks is None or w % 3 != lacks)])
    ids = words[torch.randint(len(words), (n, 6), generator=draws)]
    ids[torch.arange(6) > torch.arange(n).unsqueeze(1) % 6] = 0
    return Examples(ids[:, :-1], torch.where(ids[:, 1:] > 1, ids[:, 1:], NOTHING))


def _fit(method: type[Method], options: Any, net: Supernet, capacity: float) -> tuple[float, int]:
    """The width and the size of a capacity. Of single parameters: all that are never dropped, and that share of
    the others (one for each output, at least, where that is asked), which every method can do."""
    if method.grain(options) == "channel":
        return capacity, net.prefix(capacity).size
    droppable = net.maskable[1:-1] if getattr(options, "keep_edges", False) else net.maskable
    others = sum(net.initial[name].numel() for name in droppable)
    outputs = sum(len(net.initial[name]) for name in droppable) if getattr(options, "per_output", False) else 0
    return 1.0, net.size - others + max(math.ceil(capacity * others), outputs)


class World:
    """A method on the small federation, driven step by step."""

    def __init__(
        self,
        method: type[Method],
        model: str,
        widths: Sequence[float],
        options: Mapping[str, Any] | None = None,
        server: ServerOptions | None = None,
        training: TrainingOptions = TRAINING,
        seed: int = 0,
        rounds: int = 5,
    ) -> None:
        self.federation = federation(len(widths), model in OF_TEXTS)
        classes = self.federation.info.num_classes
        given = method.Options(**(options or {}))
        self.cards = [
            ClientCard(
                c.id, len(c.train), c.label_counts(classes), width, *_fit(method, given, supernet(model), width)
            )
            for c, width in zip(self.federation.clients, widths, strict=True)
        ]
        context = Context(supernet(model), self.cards, rounds, seed, training, server or ServerOptions())
        self.method = method(context, given)
        half = method.Client(context.supernet, training, self.method.options, rounds, seed)
        self.engine = SerialEngine(half, self.federation)

    def plan(self, t: int = 1) -> list[Assignment]:
        return self.method.plan(t, self.method.eligible())

    def train(self, assignments: Sequence[Assignment]) -> list[tuple[Assignment, Update]]:
        results = list(self.engine.train(assignments))
        for _, update in results:
            assert isinstance(update, Update), update
        return results  # type: ignore[return-value]

    def round(self, t: int = 1) -> list[tuple[Assignment, Update]]:
        results = self.train(self.plan(t))
        self.method.merge(t, results)
        self.method.adjust(t)
        self.engine.commit([assignment.client for assignment, _ in results])
        return results


def formed(form: str, model: str, widths: Sequence[float], **more: Any) -> World:
    """A world of a method in one of its forms. ``fit`` is left out where all widths are the same."""
    name, options = METHOD_FORMS[form]
    if len(set(widths)) == 1:
        options = {key: value for key, value in options.items() if key != "fit"}
    return World(METHODS[name], model, widths, options, **more)


def same_bits(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def held(world: World, results: Sequence[tuple[Assignment, Update]]) -> dict[str, Tensor]:
    """Where some update is of a coordinate that counts, worked out with index arithmetic."""
    masks = {}
    for name, tensor in world.method.state.items():
        mask = torch.zeros(tensor.shape, dtype=torch.bool)
        positions = torch.arange(tensor.numel()).reshape(tensor.shape)
        for assignment, update in results:
            own = assignment.trained(update).select(name, positions)
            counted = world.method.counted(assignment).get(name, torch.ones(()))
            mask.view(-1)[own[counted.expand(own.shape) > 0].reshape(-1)] = True
        masks[name] = mask
    return masks
