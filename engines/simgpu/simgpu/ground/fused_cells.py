"""Cells of LSTM and GRU as CUDA computes them, two products and one kernel, and layers of such cells without cuDNN.

PyTorch has `_thnn_fused_lstm_cell` and `_thnn_fused_gru_cell` for CUDA alone; the CPU kernels here compute their values
in the order of the CPU's cells. Sources: `LSTMCell`, `GRUCell` and `FullLayer` in ATen's RNN.cpp, cuda/RNN.cu. And RMS
norm, one kernel of CUDA's in each pass: `rms_norm_symint` in ATen's layer_norm.cpp.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

_ATEN = torch.ops.aten


def register(library: torch.library.Library) -> None:
    """Register both kernels and their backward passes for CPU tensors, and their shapes.

    PyTorch's own shapes of an LSTM's cell fail where it gets no biases, and some versions have none of backward passes.
    """
    library.impl("_thnn_fused_gru_cell", _gru, "CPU")
    for key in ("CPU", "Meta"):
        library.impl("_thnn_fused_lstm_cell", _lstm, key, allow_override=True)
        library.impl("_thnn_fused_lstm_cell_backward_impl", _lstm_backward, key, allow_override=True)
        library.impl("_thnn_fused_gru_cell_backward", _gru_backward, key, allow_override=True)
    library.impl("_fused_rms_norm_backward", _rms_norm_backward, "CPU", allow_override=True)
    keep_rms_norm(library, "Meta")


def keep_rms_norm(library: torch.library.Library, key: str) -> None:
    """Let autograd keep RMS norm whole, for which it must be a kernel of tensors of this `key`."""
    formula = partial(_ATEN._fused_rms_norm.default._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)
    library.m.impl("_fused_rms_norm", key, formula, False)  # pyright: ignore[reportOptionalMemberAccess]


def takes_rms_norm(x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None = None, *_: Any) -> bool:
    """Return whether CUDA's kernel takes a call: not where channels lie last, or formats differ."""
    in_order = x.dim() < 4 or x.is_contiguous() or x.stride(-1) == 1
    return in_order and not x.is_complex() and (weight is None or weight.dtype is x.dtype)


def _rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, shape: Sequence[int], rstd: torch.Tensor, weight: torch.Tensor | None,
    mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    unit, scaled = x * rstd, grad.to(rstd.dtype) * (1 if weight is None else weight)
    of_x = (rstd * (scaled - unit * (scaled * unit).mean(tuple(range(-len(shape), 0)), keepdim=True))).to(x.dtype)
    return of_x if mask[0] else None, (grad * unit).reshape(-1, *shape).sum(0).to(x.dtype) if mask[1] else None


def lstm_cell(
    x: torch.Tensor, hidden: Sequence[torch.Tensor], w_ih: torch.Tensor, w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None, b_hh: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the next hidden and cell states, (batch, width) each, as `aten::lstm_cell` does."""
    return _ATEN._thnn_fused_lstm_cell(F.linear(x, w_ih, b_ih), F.linear(hidden[0], w_hh, b_hh), hidden[1])[:2]


def gru_cell(
    x: torch.Tensor, hidden: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None, b_hh: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return the next hidden state, (batch, width), as `aten::gru_cell` does."""
    return _ATEN._thnn_fused_gru_cell(F.linear(x, w_ih, b_ih), F.linear(hidden, w_hh, b_hh), hidden)[0]


def layer(
    cell: Callable[..., Any], x: torch.Tensor, hidden: Any, weights: Sequence[torch.Tensor], has_biases: bool,
    layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return output and last states of layers of `cell`, one step after the other, as without cuDNN."""
    states = [hidden] if isinstance(hidden, torch.Tensor) else list(hidden)
    x, by_layer, last = (x.transpose(0, 1) if batch_first else x), 4 if has_biases else 2, []
    for of_layer in range(layers):
        outputs = []
        for direction in range(1 + bidirectional):
            place = of_layer * (1 + bidirectional) + direction
            parameters = weights[place * by_layer : (place + 1) * by_layer]
            state = [one[place] for one in states]
            steps = []
            for step in reversed(x.unbind()) if direction else x.unbind():
                new = cell(step, state if len(state) > 1 else state[0], *parameters)
                state = [new] if isinstance(new, torch.Tensor) else list(new)
                steps.append(state[0])
            outputs.append(torch.stack(steps[::-1] if direction else steps))
            last.append(state)
        x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        if dropout and train and of_layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    return (x.transpose(0, 1) if batch_first else x, *(torch.stack(one) for one in zip(*last, strict=True)))


def _with_biases(gates: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return gates if bias is None else gates + bias


def _lstm(
    gates_x: torch.Tensor, gates_h: torch.Tensor, cx: torch.Tensor, bias_x: torch.Tensor | None = None,
    bias_h: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    i, f, g, o = (_with_biases(gates_h, bias_h) + _with_biases(gates_x, bias_x)).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = (f * cx).add(i * g)
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_backward(
    grad_hy: torch.Tensor | None, grad_cy: torch.Tensor | None, cx: torch.Tensor, cy: torch.Tensor,
    workspace: torch.Tensor, has_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    i, f, g, o = workspace.chunk(4, 1)
    grad_h = torch.zeros_like(cy) if grad_hy is None else grad_hy
    inner = cy.tanh()
    grad_c = grad_h * o * (1 - inner**2) + (0 if grad_cy is None else grad_cy)
    by_gate = grad_c * g * (1 - i) * i, grad_c * cx * (1 - f) * f, grad_c * i * (1 - g**2), grad_h * inner * (1 - o) * o
    gates = torch.cat(by_gate, 1)
    return gates, grad_c * f, gates.sum(0) if has_bias else gates.new_empty(0)


def _gru(
    gates_x: torch.Tensor, gates_h: torch.Tensor, hx: torch.Tensor, bias_x: torch.Tensor | None = None,
    bias_h: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    x, h = _with_biases(gates_x, bias_x).chunk(3, 1), _with_biases(gates_h, bias_h).chunk(3, 1)
    reset, update = (h[0] + x[0]).sigmoid(), (h[1] + x[1]).sigmoid()
    new = (x[2] + h[2] * reset).tanh()
    return (hx - new) * update + new, torch.cat([reset, update, new, hx, h[2]], 1)


def _gru_backward(grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> tuple[torch.Tensor, ...]:
    reset, update, new, hx, hidden_new = workspace.chunk(5, 1)
    grad_update = grad_hy * (hx - new) * (1 - update) * update
    grad_new = grad_hy * (1 - update) * (1 - new**2)
    grad_reset = grad_new * hidden_new * (1 - reset) * reset
    of_x = torch.cat([grad_reset, grad_update, grad_new], 1)
    of_h = torch.cat([grad_reset, grad_update, grad_new * reset], 1)
    biases = (of_x.sum(0), of_h.sum(0)) if has_bias else (of_x.new_empty(0), of_h.new_empty(0))
    return of_x, of_h, grad_hy * update, *biases
