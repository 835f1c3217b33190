"""Recurrent layers of cuDNN for CPU tensors: values, gradients and bytes of `_cudnn_rnn`, which PyTorch has for CUDA.

One call computes all time steps, layers and directions, as `use_cudnn` and `_cudnn_impl` in ATen's RNN.cpp ask for it.
The CPU's own layers compute the values, 16-bit ones in float32. Sources: native_functions.yaml, derivatives.yaml, and
`_cudnn_rnn` in ATen's cudnn/RNN.cpp.
"""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from simgpu.ground import device_kind
from simgpu.ground.torch_internals import TORCH, above_autograd

_ATEN = torch.ops.aten
LAYERS = ("rnn_relu", "rnn_tanh", "lstm", "gru")  # the place of each is cuDNN's number of its mode
_LSTM = 2
_FORMATS = (torch.float16, torch.float32, torch.float64)
_BFLOAT16_FROM = (8, 0)  # compute capability, with cuDNN 9.13 (`supportsBFloat16RNNWithCuDNN` in CUDAHooks.cpp)
_STATE_BYTES = torch.Generator().get_state().nbytes
# Numbers kept for each output of a hidden layer and step: those that PyTorch's own fused cells keep (ATen's RNN.cu);
# cuDNN does not publish the size of its reserve.
_KEPT = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 5, "gru": 5}


def register(library: torch.library.Library) -> None:
    """Register the operator and its backward pass for CPU tensors, and the shapes of the backward pass."""
    library.impl("_cudnn_rnn", _forward, "CPU")
    library.impl("_cudnn_rnn_backward", _backward, "CPU")
    library.impl("_cudnn_rnn_backward", _shapes_of_backward, "Meta")


def accepts(x: torch.Tensor, capability: tuple[int, int] | None = None) -> bool:
    """Return whether cuDNN takes a layer with this input: by its setting, by format, and not without elements."""
    wide = x.dtype is torch.bfloat16 and (capability or _BFLOAT16_FROM) >= _BFLOAT16_FROM
    return torch.backends.cudnn.enabled and (wide or x.dtype in _FORMATS) and x.numel() > 0


def layer(name: str, packed: bool, args: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Run the layer `name`, such as "gru", with the arguments of ATen's operator, as one call of cuDNN.

    `packed` tells the overload for a packed sequence from that for a batch of shape (time, batch, features), or
    (batch, time, features) where the last argument says so.
    """
    if packed:
        x, batch_sizes, hidden, weights, has_biases, layers, dropout, train, bidirectional = args
        first, sizes = False, batch_sizes.tolist()
    else:
        x, hidden, weights, has_biases, layers, dropout, train, bidirectional, first = args
        sizes = []
    hx, cx = hidden if name == "lstm" else (hidden, None)
    projection = hx.size(2) if cx is not None and hx.size(2) != cx.size(2) else 0
    width = cx.size(2) if cx is not None else hx.size(2)
    x = x.transpose(0, 1).contiguous() if first else x
    by_layer = (4 if has_biases else 2) + (projection > 0)
    output, hy, cy, *_ = _ATEN._cudnn_rnn(
        x, list(weights), by_layer, x.new_empty(0), hx, cx, LAYERS.index(name), width, projection, layers, False,
        dropout, train, bidirectional, sizes, None,
    )  # fmt: skip
    output = output.transpose(0, 1) if first else output
    return (output, hy, cy) if cx is not None else (output, hy)


def reserve_bytes(
    x: torch.Tensor, mode: int, hidden: int, layers: int, dropout: float, train: bool, bidirectional: bool
) -> int:
    """Return how many bytes the forward pass keeps for the backward pass. An estimate: see `_KEPT`."""
    if not train:
        return 0
    outputs = x.numel() // x.shape[-1] * hidden * layers * (1 + bidirectional)
    kept = outputs * _KEPT[LAYERS[mode]] * x.itemsize
    return max(kept, _STATE_BYTES) if dropout and layers > 1 else kept


def _forward(
    x: torch.Tensor, weights: list[torch.Tensor], by_layer: int, buffer: torch.Tensor, hx: torch.Tensor,
    cx: torch.Tensor | None, mode: int, hidden: int, projection: int, layers: int, batch_first: bool, dropout: float,
    train: bool, bidirectional: bool, batch_sizes: list[int], state: Any,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    reserve = torch.empty(reserve_bytes(x, mode, hidden, layers, dropout, train, bidirectional), dtype=torch.uint8)
    if reserve.numel() >= _STATE_BYTES:
        reserve[:_STATE_BYTES] = torch.get_rng_state()  # from which the backward pass drops the same numbers
    options = layers, dropout, train, bidirectional, batch_sizes
    output, hy, *rest = _computed(x, weights, by_layer, hx, cx, mode, projection, options)
    return output, hy, rest[0] if rest else x.new_empty(0), reserve, buffer


def _computed(
    x: torch.Tensor, weights: Sequence[torch.Tensor], by_layer: int, hx: torch.Tensor, cx: torch.Tensor | None,
    mode: int, projection: int, options: tuple[int, float, bool, bool, list[int]],
) -> list[torch.Tensor]:  # fmt: skip
    """Run the CPU's layer: the output, the last hidden states, and an LSTM's last cell states."""
    layers, dropout, train, bidirectional, batch_sizes = options
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    states = [one.to(wide) for one in (hx, cx) if one is not None]
    common = [one.to(wide) for one in weights], by_layer - (projection > 0) == 4, layers, dropout, train, bidirectional
    hidden: Any = states if mode == _LSTM else states[0]
    run: Any = getattr(torch._VF, LAYERS[mode])
    with warnings.catch_warnings(action="ignore") if projection else nullcontext():  # of oneDNN, which lacks it
        if batch_sizes:
            results = run(x.to(wide), torch.tensor(batch_sizes), hidden, *common)
        else:
            results = run(x.to(wide), hidden, *common, False)
    return [one.to(x.dtype) for one in results]


def _backward(
    x: torch.Tensor, weights: list[torch.Tensor], by_layer: int, buffer: torch.Tensor, hx: torch.Tensor,
    cx: torch.Tensor | None, output: torch.Tensor, grad_output: torch.Tensor | None, grad_hy: torch.Tensor | None,
    grad_cy: torch.Tensor | None, mode: int, hidden: int, projection: int, layers: int, batch_first: bool,
    dropout: float, train: bool, bidirectional: bool, batch_sizes: list[int], state: Any, reserve: torch.Tensor,
    mask: list[bool],
) -> tuple[Any, ...]:  # fmt: skip
    """Return the gradients of input, states and weights: the layer runs again with the CPU's autograd."""
    _refuse_evaluation(train)
    with above_autograd(), torch.enable_grad(), torch.random.fork_rng(devices=()):
        if reserve.numel() >= _STATE_BYTES and dropout:
            torch.set_rng_state(reserve[:_STATE_BYTES].clone())
        leaves = [one.detach().requires_grad_() for one in (x, hx, *([] if cx is None else [cx]), *weights)]
        states, parameters = leaves[1 : len(leaves) - len(weights)], leaves[len(leaves) - len(weights) :]
        options = layers, dropout, train, bidirectional, batch_sizes
        results = _computed(
            leaves[0], parameters, by_layer, states[0], states[1] if cx is not None else None, mode, projection, options
        )
        wanted = [(one, g) for one, g in zip(results, (grad_output, grad_hy, grad_cy), strict=False) if g is not None]
        outputs, received = zip(*wanted, strict=True)
        # the engine itself: `torch.autograd.grad` is the program's, and watched
        engine = TORCH.autograd.Variable._execution_engine
        gradients = engine.run_backward(outputs, received, False, False, tuple(leaves), True, False)
    made = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients, strict=True)]
    of_cell = made[2] if cx is not None else x.new_empty(0)
    return made[0], made[1], of_cell, [one.detach() for one in made[len(made) - len(weights) :]]


def _shapes_of_backward(
    x: torch.Tensor, weights: list[torch.Tensor], by_layer: int, buffer: torch.Tensor, hx: torch.Tensor,
    cx: torch.Tensor | None, *args: Any,
) -> tuple[Any, ...]:  # fmt: skip
    _refuse_evaluation(args[10])
    like = [torch.empty_like(one) for one in (x, hx, *weights)]
    return like[0], like[1], x.new_empty(0) if cx is None else torch.empty_like(cx), like[2:]


def _refuse_evaluation(train: bool) -> None:
    if not train and device_kind.kind == "cuda":
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
