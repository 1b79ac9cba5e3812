"""Recurrent layers: every gate of a cell keeps the same hidden units."""

from __future__ import annotations

from uneven.submodels.axes import Axis, concat, fixed, freeze, product, unify
from uneven.submodels.rules.base import Call, Outcome, numel, operator_name, rule

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@rule(*GATES)
def recurrent(call: Call) -> Outcome:
    """Rows of every matrix are gates * hidden. All layers and directions share one group of hidden units, for
    their initial states are one tensor ``(layers * directions, batch, hidden)``."""
    if "batch_sizes" in call.args:
        raise ValueError("packed sequences have no rule: pad them instead")
    name = operator_name(call.node)
    x, params = call.axes("input"), call.list_axes("params")
    states = call.list_axes("hx") if name == "lstm" else [call.axes("hx")]
    out, hidden = states[0][-1], states[-1][-1]  # they differ where an LSTM projects its output
    biases, projects = bool(call.args["has_biases"]), out.size != hidden.size
    directions = 2 if call.args["bidirectional"] else 1
    both, inputs = concat([out] * directions), x[-1]
    for state in states[1:]:
        for a, b in zip(states[0][:-1], state[:-1], strict=True):
            unify(a, b)
    if len(x) == 3:
        unify(states[0][1], x[0] if call.args["batch_first"] else x[1])
    if projects:
        freeze(hidden, "PyTorch knows a projection by fewer outputs than hidden units")
    else:
        unify(out, hidden)
    cells = _cells(params, 2 + 2 * biases + projects)
    for i, (w_in, w_out, *rest) in enumerate(cells):
        unify(w_in[1], inputs if i < directions else both)
        unify(w_out[1], out)
        for rows in (w_in[0], w_out[0], *(b[0] for b in rest if len(b) == 1)):
            unify(rows, product([fixed(GATES[name], "the gates of a cell"), hidden]))
        if projects:
            unify(rest[-1][0], out)
            unify(rest[-1][1], hidden)
    matrices = [axes for axes in params if len(axes) == 2]
    return Outcome(
        [[*x[:-1], both], *([*state[:-1], own] for state, own in zip(states, (out, hidden), strict=False))],
        macs=lambda sizes: numel(x[:-1], sizes) * sum(numel(axes, sizes) for axes in matrices),
    )


def _cells(params: list[list[Axis]], each: int) -> list[list[list[Axis]]]:
    """The parameters of each cell: layer by layer, forwards then backwards."""
    return [params[i : i + each] for i in range(0, len(params), each)]
