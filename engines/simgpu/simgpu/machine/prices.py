"""Price of an operator on a GPU: operations, bytes, and the kernels that PyTorch runs for it.

Rules that differ from "reads its inputs, writes its results", with their causes in PyTorch's CUDA code:

- A convolution of single channels (depthwise) has a kernel of its own and no tensor cores.
- cuDNN's tensor cores want the channels of a pixel side by side: inputs and results in the usual order (NCHW) are
  converted by further kernels. Forward only where the kernel covers more than one pixel: else it is a product of
  matrices in either order.
- A convolution's bias is added by a kernel of its own; its backward pass is one kernel for each gradient.
- Batch and group norm in training pass twice over their input, and so do the backward passes of all norms. In layer
  norm one block takes a row, however long and however few there are.
- Softmax reads a row three times, its backward pass twice: from memory, where the L2 cache does not hold the rows that
  two blocks on each multiprocessor work on.
- Huber's loss and smooth L1 write that of each element, and another kernel takes the mean.
- Pooling in float32 computes an index for each number of a window.
- A product whose matrices have rows that are no multiple of 8 elements reads and writes these in smaller pieces.
- Attention is one kernel in which the scores never reach the memory, and which skips what a causal mask hides.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from simgpu.ground.torch_internals import TORCH, Args, Kwargs

_changed = functools.lru_cache(maxsize=4096)(replace)  # of a cost, which takes ten times as long
_SHARED = 48 << 10  # bytes of a row that a block keeps in shared memory: host_softmax in PyTorch's SoftMax.cu
_LONG_ROW, _A_STEP = 1 << 16, 1_000  # numbers of a row from which its block decides, and that it takes in 2 µs
_FORMATS = {torch.float64: "fp64", torch.complex128: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one operator's kernels, on any GPU; `Clock.kernel` turns it into time.

    - `flops`: operations, at the `rate` of a number format ("fp16"), of "depthwise" convolutions, of float32's
      convolutions in three dimensions ("volume"), or of "pooling", one for each number of a window;
    - `nbytes`: what is read and written while they are computed, `extra_bytes` what is moved before or after;
    - `again`: bytes that are read again where the L2 cache has lost them; what a block, and all blocks, keep there;
    - `strided`: whether memory is read in another order than it is written;
    - `odd_bytes`: of a product's matrices with rows that are no multiple of 8 elements, which cost more in 16 bits;
    - `steps`: kernels that wait for one another, each of which takes its least time;
    - `width`: of a recurrent layer whose steps are products of their own: the hidden states that each adds up, else 0;
    - `attention`: in a kernel of attention the share of `flops` that it cannot skip (a causal mask halves it), else 0;
    - `by_formula`: whether `flops` are those of a product, a convolution or attention, not one for each element;
    - `modelled`: False where it computes more than is counted here: it takes at least this (`unmodelled`);
    - `host`: what the host takes it for, one of `hosts.KINDS`; `tensors`: of a foreach or fused operator.
    """

    flops: int
    nbytes: int
    rate: str = "fp32"
    strided: bool = False
    steps: int = 1
    width: int = 0
    extra_bytes: int = 0
    odd_bytes: int = 0
    again: tuple[int, int, int] = (0, 0, 0)
    attention: float = 0.0
    by_formula: bool = False
    modelled: bool = True
    host: str = "light"
    tensors: int = 0


def price(
    plan: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], args: Args, kwargs: Kwargs, out: Any
) -> Cost:
    """Return the cost of the operator of `plan` (`operators.Plan`), by the sizes of its tensors alone.

    `inputs` and `outputs` are all tensors in `args`, `kwargs` and in `out`, which it returned.
    """
    nbytes, strided = _traffic(plan, inputs, outputs, kwargs)
    formula = plan.flops
    if formula is not None:
        flops, rate = int(formula(*args, **kwargs, out_val=out)), _FORMATS.get(inputs[0].dtype, "fp32")
        flops *= 4 if inputs[0].is_complex() else 1  # a complex product is four real ones
        if inputs[0].dtype is torch.float32 and rounds(plan.name):
            rate = "tf32"
    else:
        flops = max([t.numel() for t in (*inputs, *outputs)], default=0)
        rate = "fp64" if torch.float64 in [t.dtype for t in outputs] else "fp32"
    tensors = len(args[0]) if plan.of_lists and args and isinstance(args[0], list | tuple) else 0
    host = "library" if plan.library else "fused" if tensors and plan.name.startswith("_fused_") else "light"
    cost = _cost(flops, nbytes, rate, strided, formula is not None, host, tensors)
    rule = plan.row.price
    return cost if rule is None else rule(cost, args, kwargs, outputs)


@functools.lru_cache(maxsize=4096)  # a program asks for the same sizes again and again
def _cost(flops: int, nbytes: int, rate: str, strided: bool, by_formula: bool, host: str, tensors: int) -> Cost:
    return Cost(flops, nbytes, rate, strided, by_formula=by_formula, host=host, tensors=tensors)


@functools.lru_cache(maxsize=4096)
def price_of_elements(flops: int, nbytes: int, rate: str) -> Cost:
    """Return the cost of an elementwise kernel: one operation for each element, read and written in order."""
    return Cost(flops, nbytes, rate)


def price_of_copy(source: torch.Tensor, target: torch.Tensor) -> Cost:
    """Return the cost of a copy within the memory of a GPU."""
    nbytes, strided = _moved([source], target)
    return Cost(0, nbytes, strided=strided, host="cast")


def _traffic(
    plan: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], kwargs: Kwargs
) -> tuple[int, bool]:
    """Return how many bytes an operator reads and writes, and whether it reads in another order than it writes."""
    if plan.row.gathers:
        written = sum([t.nbytes for t in outputs])
        nbytes, strided = 2 * written + sum([t.nbytes for t in inputs if not t.is_floating_point()]), False
    else:
        read = inputs[1:] if plan.row.overwrites else inputs
        if plan.mutates and kwargs:
            result_only = {id(kwargs[name]) for name in plan.mutates if isinstance(name, str)}  # out=
            read = [t for t in read if id(t) not in result_only]
        output = outputs[0] if len(outputs) == 1 and (plan.pointwise or plan.name == "clone") else None
        nbytes, strided = _moved(read, output)
        nbytes += sum([t.nbytes for t in (outputs if output is None else outputs[1:])])
    if plan.mutates and not outputs:
        nbytes += sum(t.nbytes for t in inputs[: max(1, len(inputs) // 2)])
    return nbytes, strided


def _moved(inputs: Sequence[torch.Tensor], output: torch.Tensor | None) -> tuple[int, bool]:
    """Return how many bytes a kernel moves, and whether it reads an input in another order than it writes `output`.

    Of an expanded tensor only what is in memory is read.
    """
    nbytes, strided = 0, False
    for tensor in inputs:
        size = tensor.nbytes
        if not tensor.is_contiguous():
            strides = tensor.stride()
            size = math.prod(n for n, step in zip(tensor.shape, strides, strict=True) if step) * tensor.itemsize
        if output is not None and not strided and tensor.shape == output.shape:
            strided = tensor.stride() != output.stride() and _fastest(tensor) != _fastest(output)
        nbytes += size
    return nbytes + (0 if output is None else output.nbytes), strided


def _fastest(tensor: torch.Tensor) -> int:
    """Return the dimension along which neighbours in memory lie, -1 where there is none."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    steps = [(step, dimension) for dimension, (n, step) in enumerate(sizes) if n > 1 and step]
    return min(steps, default=(0, -1))[1]


def rounds(name: str) -> bool:
    """Return whether CUDA may round an operator's float32 inputs to TF32: by default in convolutions, not products."""
    kind = "conv" if "conv" in name else "matmul"  # which `torch.backends` would look up five times as long
    return TORCH._C._get_fp32_precision_getter("cuda", kind) == "tf32"


def product(first: int) -> Callable[..., Cost]:
    """Return the rule of products of matrices, the first of which stands at this place of the arguments."""

    def rule(cost: Cost, args: Args, kwargs: Kwargs, outputs: Sequence[torch.Tensor]) -> Cost:
        odd = sum([one.nbytes for one in (args[first], args[first + 1], *outputs[:1]) if _is_odd(one)])
        return _changed(cost, odd_bytes=odd) if odd else cost

    return rule


def _is_odd(matrix: torch.Tensor) -> bool:
    """Return whether rows of a matrix begin elsewhere than at a multiple of 8 elements: 16 bytes in a 16-bit format."""
    for place, step in enumerate(matrix.stride()):  # noqa: SIM110  # asked of each matrix: any() takes four times as long
        if step % 8 and step > 1 and matrix.shape[place] > 1:
            return True
    return False


def convolution(cost: Cost, args: Args, kwargs: Kwargs, outputs: Sequence[torch.Tensor]) -> Cost:
    x, weight, bias, transposed, groups = args[0], args[1], args[2], args[6], args[8]
    extra, steps = (0, 1) if bias is None else (2 * outputs[0].nbytes, 2)
    if transposed and groups > 1:
        cost = _changed(cost, modelled=False)  # published ones take 9 to 25 times as long
    if _depthwise(weight, groups):
        return _changed(cost, rate="depthwise", steps=steps, extra_bytes=extra)
    turned = 2 * (x.nbytes + outputs[0].nbytes) if math.prod(weight.shape[2:]) > 1 else 0
    return _turned(_changed(cost, steps=steps, extra_bytes=extra), x, turned, 2)


def _turned(cost: Cost, x: torch.Tensor, nbytes: int, kernels: int) -> Cost:
    """Return the cost of a convolution with what turns its channels around, if they do not lie side by side."""
    if cost.rate == "tf32" and x.dim() == 5:
        return _changed(cost, rate="volume")
    if not nbytes or x.dtype not in (torch.float16, torch.bfloat16) or _fastest(x) == 1:
        return cost
    return _changed(cost, steps=cost.steps + kernels, extra_bytes=cost.extra_bytes + nbytes)


def convolution_backward(cost: Cost, args: Args, kwargs: Kwargs, outputs: Sequence[torch.Tensor]) -> Cost:
    grad, x, weight, groups, wanted = args[0], args[1], args[2], args[9], args[10]
    extra, steps = grad.nbytes * (wanted[0] + wanted[1] + wanted[2] - 1), sum(wanted)
    if _depthwise(weight, groups):
        return _changed(cost, rate="depthwise", steps=steps, extra_bytes=extra)
    turned = 2 * (grad.nbytes + x.nbytes * (1 + wanted[0]))
    return _turned(_changed(cost, steps=steps, extra_bytes=extra), x, turned, 2 + wanted[0])


def _depthwise(weight: torch.Tensor, groups: int) -> bool:
    return groups > 1 and weight.shape[1] == 1


def unmodelled(cost: Cost, args: Args, kwargs: Kwargs, outputs: Sequence[torch.Tensor]) -> Cost:
    """Return the cost of a factorisation or a sparse product, of which only reading and writing is known: a floor."""
    return _changed(cost, modelled=False)


def norm(cost: Cost, args: Args, kwargs: Kwargs, outputs: Sequence[torch.Tensor]) -> Cost:
    once = len(args) > 5 and args[5] is False  # batch norm that uses its running statistics
    return cost if once else _changed(cost, steps=2, extra_bytes=args[0].nbytes)


def norm_backward(cost: Cost, args: Args, kwargs: Kwargs, outputs: Sequence[torch.Tensor]) -> Cost:
    return _changed(cost, steps=2, extra_bytes=args[0].nbytes + args[1].nbytes)


def layer_norm(cost: Cost, args: Args, kwargs: Kwargs, outputs: Sequence[torch.Tensor]) -> Cost:
    row = math.prod(args[1])
    return _changed(cost, steps=row // _A_STEP) if row > _LONG_ROW else cost


def softmax(dim_at: int, again: int) -> Callable[..., Cost]:
    """Return the rule of softmax: where its dimension stands, and how often it reads long rows `again`."""

    def rule(cost: Cost, args: Args, kwargs: Kwargs, outputs: Sequence[torch.Tensor]) -> Cost:
        x, dim = args[0], args[dim_at]
        row = x.itemsize * x.shape[dim] if x.dim() and dim % x.dim() == x.dim() - 1 else x.nbytes
        return cost if row < _SHARED else _changed(cost, again=(again * x.nbytes, 2 * row, 2 * x.nbytes))

    return rule


def loss_of_pairs(cost: Cost, args: Args, kwargs: Kwargs, outputs: Sequence[torch.Tensor]) -> Cost:
    nbytes = 2 * max(args[0].nbytes, args[1].nbytes)
    return cost if outputs[0].dim() else _changed(cost, steps=2, extra_bytes=nbytes)


def pooling(cost: Cost, args: Args, kwargs: Kwargs, outputs: Sequence[torch.Tensor]) -> Cost:
    if args[0].dtype is not torch.float32:
        return cost  # of which no times were published
    return _changed(cost, flops=math.prod(args[1]) * outputs[0].numel(), rate="pooling")


def recurrent(batch_sizes: int, narrow: int) -> Callable[..., Cost]:
    """Return the rule of cuDNN's recurrent layers, whose arguments have the sizes of a packed batch at this place.

    The input is (time, batch, features), or packed. One step follows the other, in each layer and direction. In narrow
    layers one kernel keeps the weights and does all steps: up to `narrow` hidden states of LSTM and GRU, twice as many
    of RNN, unless packed, projected or in float64. Else each step is a product that reads the recurrent weight again.
    Source: `use_rnn_persist_small_h` and `get_algo` in ATen's cudnn/RNN.cpp.
    """

    def rule(cost: Cost, args: Args, kwargs: Kwargs, outputs: Sequence[torch.Tensor]) -> Cost:
        sizes, weights, by_layer = args[batch_sizes], args[1], args[2]
        mode, hidden, projected = args[batch_sizes - 8 : batch_sizes - 5]
        steps = len(sizes or args[0])
        cost = _changed(cost, steps=steps * len(weights) // by_layer)
        kept = hidden <= narrow * (2 if mode < 2 else 1) and args[0].dtype is not torch.float64
        if kept and not (sizes or projected):
            return cost
        again = (steps - 1) * sum([weight.nbytes for weight in weights[1::by_layer]])
        return _changed(cost, width=projected or hidden, nbytes=cost.nbytes + again)

    return rule


def attention(position: int) -> Callable[..., Cost]:
    """Return the rule of fused attention that is told of a causal mask at this place of its arguments."""

    def rule(cost: Cost, args: Args, kwargs: Kwargs, outputs: Sequence[torch.Tensor]) -> Cost:
        causal = kwargs.get("is_causal", args[position] if len(args) > position else False)
        return _changed(cost, attention=0.5 if causal else 1.0)

    return rule


def encoder_layer(cost: Cost, args: Args, kwargs: Kwargs, outputs: Sequence[torch.Tensor]) -> Cost:
    """nn.TransformerEncoderLayer in inference: one operator, a dozen kernels, with what they hand each other."""
    tokens, wide = args[0].numel(), args[14].shape[0] / args[1]
    return _changed(cost, steps=12, extra_bytes=int(tokens * (24 + 4 * wide)) * args[0].itemsize)
