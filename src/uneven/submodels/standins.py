"""Operators in one piece while a model is traced.

PyTorch finds out the shapes of a recurrent layer's results by running it step by step, which takes seconds and
fixes the length of the sequence; and those of attention with dropout by writing it out. Inside `in_one_piece`
these are calls of stand-ins that know their shapes; `target_of` gives the real operator for a stand-in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_LIBRARY = torch.library.Library("uneven_trace", "DEF")  # type: ignore[no-untyped-call]
_REAL: dict[Any, Any] = {}  # stand-in -> operator


def _stand_in(real: Any, shapes: Callable[..., Any]) -> Any:
    """An operator of the same arguments as ``real``, which says nothing but the shapes of its results."""
    name, _, signature = str(real._schema).removeprefix("aten::").partition("(")
    name = name.partition(".")[0]
    _LIBRARY.define(f"{name}({signature}")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"uneven_trace::{name}", shapes, lib=_LIBRARY)
    stand_in = getattr(torch.ops.uneven_trace, name).default
    _REAL[stand_in] = real
    return stand_in


def _recurrent(x: Tensor, hx: Tensor | Sequence[Tensor], *rest: Any) -> tuple[Tensor, ...]:
    """The output ``(..., directions * hidden)`` and the last states."""
    states, bidirectional = [hx] if isinstance(hx, Tensor) else list(hx), rest[-2]
    outputs = states[0].shape[-1] * (2 if bidirectional else 1)
    return x.new_empty(*x.shape[:-1], outputs), *(torch.empty_like(state) for state in states)


def _attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor:
    return query.new_empty(*query.shape[:-1], value.shape[-1])


_CELLS = {getattr(torch, n): _stand_in(getattr(torch.ops.aten, n).input, _recurrent) for n in RECURRENT}
_ATTENTION = _stand_in(torch.ops.aten.scaled_dot_product_attention.default, _attention)


def target_of(target: Any) -> Any:
    """The operator that a call of the trace stands for."""
    return _REAL.get(target, target)


class in_one_piece(TorchFunctionMode):  # noqa: N801
    """Calls the stand-ins; not for packed sequences, nor for attention without dropout, whose result may be laid
    out in other ways."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CELLS and len(args) == 9 and isinstance(args[3], bool):
            return _CELLS[func](*args)
        if func is torch.nn.functional.scaled_dot_product_attention:
            dropout = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
            if dropout > 0:
                return _ATTENTION(*args, **kwargs)
        return func(*args, **kwargs)
