"""A model as two graphs: how it behaves in training, and how in evaluation.

`torch.export` traces the user's module once in each mode, with a batch of any size. Nothing of the user's code
runs afterwards; dropout and norms behave as the module's own.
"""

from __future__ import annotations

import copy
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, fx, nn

from uneven.errors import ModelError

State = dict[str, Tensor]

# A batch size that no model is likely to have as a size of its own, so that a mix-up would show.
BATCH = 13


@dataclass(frozen=True)
class Traced:
    """A traced model. Names are the module's own; a tied tensor appears once, under its first name.

    ``training``, ``evaluation``: graphs over placeholders, ``get_attr`` nodes (targets in ``parameters``,
    ``buffers`` or ``constants``) and operator calls; the output is one tensor.
    """

    training: fx.Graph
    evaluation: fx.Graph
    parameters: State
    buffers: State
    constants: State


def trace(model: nn.Module, example: Tensor) -> Traced:
    """Trace ``model`` on one example, ``(*input_shape)`` without a batch axis.

    Raises:
        ModelError: the model cannot be exported, or returns something other than one tensor.
    """
    model = copy.deepcopy(model)
    canonical = _canonical_names(model)
    batch = torch.zeros(BATCH, *example.shape, dtype=example.dtype)
    training = _export(model.train(), batch)
    evaluation = _export(model.eval(), batch)
    state = training.state_dict
    parameters = {n: state[n].detach().clone() for n, p in model.named_parameters() if n in state}
    buffers = {n: state[n].detach().clone() for n, _ in model.named_buffers() if n in state}
    modes = {"of_training": training, "of_evaluation": evaluation}
    constants = {
        f"{mode}.{n}": c
        for mode, exported in modes.items()
        for n, c in exported.constants.items()
        if isinstance(c, Tensor)
    }
    graphs = {
        mode: _plain_graph(exported, canonical | {n: f"{mode}.{n}" for n in exported.constants})
        for mode, exported in modes.items()
    }
    return Traced(graphs["of_training"], graphs["of_evaluation"], parameters, buffers, constants)


def _canonical_names(model: nn.Module) -> dict[str, str]:
    """Every parameter and buffer name to the first name of the same tensor."""
    first: dict[int, str] = {}
    everything = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    return {name: first.setdefault(id(tensor), name) for name, tensor in everything}


def _export(model: nn.Module, batch: Tensor) -> torch.export.ExportedProgram:
    dynamic = ({0: torch.export.Dim("batch", min=1)},)
    try:
        return torch.export.export(model, (batch,), dynamic_shapes=dynamic, strict=False)
    except Exception as error:  # export raises whatever the model raises, and much of its own
        place = "\n  ".join(_places(error)) or "outside the model's own code"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"the model {type(model).__name__} cannot be exported: {reason}\n  at {place}\n"
            "  A model must compute its output with tensor operators that do not depend on the data's values."
        ) from error


def _places(error: BaseException) -> Iterator[str]:
    """The innermost line of the user's code in an error's traceback, which starts here."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
    if frames:
        yield f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}"


_TORCH = Path(torch.__file__).parent
_PYTHON = Path(sysconfig.get_path("stdlib"))


def is_users(filename: str) -> bool:
    """Whether a source file is neither PyTorch's, nor Python's, nor this one."""
    path = Path(filename)
    pythons = path.is_relative_to(_PYTHON) and "site-packages" not in path.parts
    return not pythons and not path.is_relative_to(_TORCH) and filename != __file__


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
        if node.op == "get_attr":
            copies[node].target = canonical.get(str(node.target), node.target)
    return graph
