"""A model as two graphs: how it behaves in training, and how in evaluation.

`torch.export` traces the user's module once in each mode, with a batch of any size, and sequences of any length
where the model allows it. Nothing of the user's code runs afterwards; dropout and norms behave as the module's
own.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import logging
import sysconfig
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.fx.config
from torch import Tensor, fx, nn

from uneven.errors import ModelError
from uneven.submodels.rules.base import operator_name
from uneven.submodels.standins import in_one_piece, target_of

State = dict[str, Tensor]

# A batch size that no model is likely to have as a size of its own, so that a mix-up would show.
BATCH = 13


@dataclass(frozen=True)
class Traced:
    """A traced model. Names are the module's own; a tied tensor appears once, under its first name.

    ``training``, ``evaluation``: graphs over placeholders, ``get_attr`` nodes (targets in ``parameters``,
    ``buffers``, ``frozen`` or ``constants``) and operator calls; the output is one tensor. ``frozen``: parameters
    that are not trained. ``constants``: buffers that are no part of the module's state, under their names, and
    tensors made in its code, as ``of_training.name``.
    """

    training: fx.Graph
    evaluation: fx.Graph
    parameters: State
    buffers: State
    frozen: State
    constants: State


def trace(model: nn.Module, example: Tensor, dynamic: Sequence[int] | None = None, lines: bool = True) -> Traced:
    """Trace ``model`` on one example, ``(*input_shape)`` without a batch axis.

    ``dynamic``: axes of the example that may have any size; by default that of a sequence of tokens, if the
    model allows it. ``lines``: whether to note the line of each call in the model's code, which takes a fifth
    of the time.

    Raises:
        ModelError: the model cannot be exported, or returns something other than one tensor.
    """
    model = _copy(model)
    canonical = _canonical_names(model)
    batch = torch.zeros(BATCH, *example.shape, dtype=example.dtype)
    lengths = _lengths(example, dynamic)
    with _quickly(lines):
        training = _export(model.train(), batch, lengths)
        evaluation = _export(model.eval(), batch, lengths)
    state = training.state_dict
    weights = [(n, p.requires_grad) for n, p in model.named_parameters() if n in state]
    parameters, frozen = (
        {n: state[n].detach().clone() for n, trained in weights if trained is wanted} for wanted in (True, False)
    )
    buffers = {n: state[n].detach().clone() for n, _ in model.named_buffers() if n in state}
    modes = {"of_training": training, "of_evaluation": evaluation}
    names = {
        mode: {n: canonical.get(n, f"{mode}.{n}") for n, c in exported.constants.items() if isinstance(c, Tensor)}
        for mode, exported in modes.items()
    }
    constants = {new: modes[mode].constants[n].detach() for mode in modes for n, new in names[mode].items()}
    graphs = {mode: _plain_graph(exported, canonical | names[mode]) for mode, exported in modes.items()}
    for mode, graph in graphs.items():
        constants |= _fold(graph, constants, mode)
    return Traced(graphs["of_training"], graphs["of_evaluation"], parameters, buffers, frozen, constants)


def _copy(model: nn.Module) -> nn.Module:
    """A copy of the module whose parameters share their data with the module's: tracing reads shapes only."""
    shared = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, dict(shared))


@contextmanager
def _quickly(lines: bool) -> Iterator[None]:
    """Without lines, if so asked; and without looking for garbage among the many objects that stay."""
    before, collects = torch.fx.config.do_not_emit_stack_traces, gc.isenabled()
    torch.fx.config.do_not_emit_stack_traces = not lines
    gc.disable()
    try:
        yield
    finally:
        torch.fx.config.do_not_emit_stack_traces = before
        if collects:
            gc.enable()


def _lengths(example: Tensor, dynamic: Sequence[int] | None) -> dict[int, Any]:
    if dynamic is not None:
        if not all(0 <= axis < example.dim() for axis in dynamic):
            raise ModelError(f"dynamic = {tuple(dynamic)}: must be axes of the example, 0..{example.dim() - 1}")
        return {axis + 1: torch.export.Dim.DYNAMIC for axis in dynamic}
    tokens = example.dim() == 1 and not example.is_floating_point()
    return {1: torch.export.Dim.AUTO} if tokens else {}


def _canonical_names(model: nn.Module) -> dict[str, str]:
    """Every parameter and buffer name to the first name of the same tensor."""
    first: dict[int, str] = {}
    everything = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    return {name: first.setdefault(id(tensor), name) for name, tensor in everything}


def _export(model: nn.Module, batch: Tensor, lengths: dict[int, Any]) -> torch.export.ExportedProgram:
    dynamic = ({0: torch.export.Dim("batch", min=1), **lengths},)
    try:
        with _quiet(), warnings.catch_warnings(), torch.enable_grad(), in_one_piece():
            warnings.simplefilter("ignore")  # of lengths that turned out to be fixed, and of the model's own
            return torch.export.export(model, (batch,), dynamic_shapes=dynamic, strict=False)
    except Exception as error:  # export raises whatever the model raises, and much of its own
        place = "\n  ".join(_places(error)) or "outside the model's own code"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"the model {type(model).__name__} cannot be exported: {reason}\n  at {place}\n"
            "  A model must compute its output with tensor operators that do not depend on the data's values."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, export does not print the graph that it could not finish: the error says what is wrong."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _places(error: BaseException) -> Iterator[str]:
    """The innermost line of the user's code in an error's traceback, which starts here."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
    if frames:
        yield f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}"


_TORCH = Path(torch.__file__).parent
_PYTHON = Path(sysconfig.get_path("stdlib"))


def is_users(filename: str) -> bool:
    """Whether a source file is neither PyTorch's, nor Python's, nor one beside this."""
    path = Path(filename)
    pythons = path.is_relative_to(_PYTHON) and "site-packages" not in path.parts
    return not pythons and not path.is_relative_to(_TORCH) and path.parent != Path(__file__).parent


def line_of(node: fx.Node) -> str:
    """Where in the user's model an operator was called, as ``file:line: source``."""
    lines = (node.meta.get("stack_trace") or "").splitlines()
    for i in range(len(lines) - 1, -1, -1):
        parts = lines[i].split('"')
        if lines[i].strip().startswith("File ") and is_users(parts[1]):
            number = parts[2].split(",")[1].split()[-1]
            source = lines[i + 1].strip() if i + 1 < len(lines) else ""
            return f"{parts[1]}:{number}: {source}"
    return "a line that the trace does not name"


def _plain_graph(exported: torch.export.ExportedProgram, canonical: dict[str, str]) -> fx.Graph:
    """The exported graph as a function of tensors: no guards, no pytrees, tied tensors under one name."""
    outputs = exported.call_spec.out_spec
    if outputs is None or not outputs.is_leaf():
        kind = outputs.type.__name__ if outputs is not None and outputs.type is not None else "nothing"
        raise ModelError(f"a model must return one tensor of logits, not a {kind}")
    source = exported.module().graph
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in source.nodes:
        if node.op == "call_module":  # the guards on input shapes
            continue
        if node.op == "output":
            (results,) = node.args
            if not isinstance(results[0], fx.Node):
                raise ModelError(f"a model must return one tensor of logits, not {results[0]!r}")
            graph.output(copies[results[0]])
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].target = target_of(node.target)
        if node.op == "get_attr":
            copies[node].target = canonical.get(str(node.target), node.target)
    return graph


FOLDED = 1 << 22  # entries; a larger constant is better computed than held
POSITIONS = {"arange", "linspace", "eye"}


@torch.no_grad()
def _fold(graph: fx.Graph, constants: State, mode: str) -> State:
    """Compute what the code makes of positions: masks, tables of sines. A small network can then pick entries
    of the result, whatever it was made by."""
    known: dict[fx.Node, Any] = {}
    made_of_positions: set[fx.Node] = set()
    changed = _changed_in_place(graph)
    for node in graph.nodes:
        if node.op == "get_attr" and node.target in constants:
            known[node] = constants[str(node.target)]
        elif _folds(node, known, changed):
            args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
            known[node] = node.target(*args, **kwargs)
            if operator_name(node) in POSITIONS or any(n in made_of_positions for n in node.all_input_nodes):
                made_of_positions.add(node)
    made: State = {}
    for node, value in known.items():
        if node not in made_of_positions or all(user in made_of_positions for user in node.users):
            continue
        made[f"{mode}.{node.name}"] = value.contiguous()
        with graph.inserting_before(node):
            constant = graph.get_attr(f"{mode}.{node.name}")
        constant.meta = dict(node.meta)
        node.replace_all_uses_with(constant)
    for node in reversed(list(known)):
        if not node.users:
            graph.erase_node(node)
    return made


def _folds(node: fx.Node, known: dict[fx.Node, Any], changed: set[fx.Node]) -> bool:
    value, tags = node.meta.get("val"), getattr(node.target, "tags", ())
    return (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and isinstance(value, Tensor)
        and all(isinstance(size, int) for size in value.shape)
        and 0 < value.numel() <= FOLDED
        and all(n in known for n in node.all_input_nodes)
        and torch.Tag.nondeterministic_seeded not in tags
        and node not in changed
    )


def _changed_in_place(graph: fx.Graph) -> set[fx.Node]:
    """Calls that change a tensor, and whatever shares its data."""
    changed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if schema is None or not node.all_input_nodes:
            continue
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
        views = any(a.alias_info is not None for a in schema.arguments)
        if writes or (views and node in changed):
            changed |= {node, node.all_input_nodes[0]}
    return changed
