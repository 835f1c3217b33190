"""What does an operator cost on a GPU: operations, bytes, and the kernels that PyTorch runs for it there?

Rules that differ from "reads its inputs, writes its results", with their causes in PyTorch's CUDA code:

- A convolution of single channels (depthwise) has a kernel of its own and no tensor cores.
- cuDNN's tensor cores want the channels of a pixel side by side: inputs and results in the usual order (NCHW) are
  converted by further kernels. Forward only where the kernel covers more than one pixel: else it is a product of
  matrices in either order.
- A convolution's bias is added by a kernel of its own; its backward pass is one kernel for each gradient.
- Batch and group norm in training pass twice over their input, and so do the backward passes of all norms.
- Attention is one kernel in which the scores never reach the memory, and which skips what a causal mask hides.
"""

import math

import torch

_RECURRENT = {"mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"}  # input (time, batch, features), one step after another
_FUSED = "_scaled_dot_product_flash_attention_for_cpu"
_CAUSAL = {_FUSED: 4, f"{_FUSED}_backward": 7}  # where fused attention is told of a causal mask
_PEAKS = {torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}


def price(world, index: int, plan, inputs: list, outputs: list, args, kwargs, out) -> None:
    """Queue on GPU `index` of `world` what an operator costs, by the sizes of its tensors alone."""
    flops, peak, steps, strided, extra, attends = 0, "fp32", 1, False, 0, 0.0
    if plan.gathers:
        written = sum(t.nbytes for t in outputs)
        nbytes = 2 * written + sum(t.nbytes for t in inputs if not t.is_floating_point())
    else:
        result_only = {id(kwargs[name]) for name in plan.mutates if isinstance(name, str)}  # out=
        read = [t for t in (inputs[1:] if plan.overwrites else inputs) if id(t) not in result_only]
        one = outputs[0] if len(outputs) == 1 and (plan.pointwise or plan.name == "clone") else None
        nbytes, strided = moved(read, one)
        nbytes += sum(t.nbytes for t in (outputs if one is None else outputs[1:]))
    if plan.mutates and not outputs:
        nbytes += sum(t.nbytes for t in inputs[: max(1, len(inputs) // 2)])
    if plan.flops is not None:
        flops = int(plan.flops(*args, **kwargs, out_val=out))
        peak = _PEAKS.get(inputs[0].dtype, "fp32")
        if inputs[0].dtype is torch.float32 and _rounds("conv" in plan.name):
            peak = "tf32"
    else:
        flops = max((t.numel() for t in (*inputs, *outputs)), default=0)
        peak = "fp64" if any(t.dtype is torch.float64 for t in outputs) else "fp32"
    if plan.name in _RECURRENT:
        steps = len(args[0])
        nbytes += (steps - 1) * args[2].nbytes  # each step reads the recurrent weight again
    elif plan.name in _RULES:
        extra, steps, peak = _RULES[plan.name](args, outputs, peak)
    elif plan.name in _CAUSAL:
        place = _CAUSAL[plan.name]
        attends = 0.5 if kwargs.get("is_causal", args[place] if len(args) > place else False) else 1.0
    world.kernel(index, plan.name, flops, nbytes, peak, steps, extra, strided, attends)


def moved(inputs: list[torch.Tensor], output: torch.Tensor | None) -> tuple[int, bool]:
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
    steps = [(step, place) for place, (n, step) in enumerate(sizes) if n > 1 and step]
    return min(steps, default=(0, -1))[1]


def _rounds(convolution: bool) -> bool:
    """Return whether CUDA lets tensor cores round float32 inputs: by default in convolutions, not in products."""
    if convolution:
        return torch.backends.cudnn.conv.fp32_precision == "tf32"
    return torch.get_float32_matmul_precision() != "highest"


def _convolution(args, outputs, peak: str) -> tuple[int, int, str]:
    x, weight, bias, groups = args[0], args[1], args[2], args[8]
    extra, steps = (0, 1) if bias is None else (2 * outputs[0].nbytes, 2)
    if _depthwise(weight, groups):
        return extra, steps, "depthwise"
    if _converts(x) and math.prod(weight.shape[2:]) > 1:
        extra, steps = extra + 2 * (x.nbytes + outputs[0].nbytes), steps + 2
    return extra, steps, peak


def _convolution_backward(args, outputs, peak: str) -> tuple[int, int, str]:
    grad, x, weight, groups, wanted = args[0], args[1], args[2], args[9], args[10]
    extra, steps = grad.nbytes * (wanted[0] + wanted[1] + wanted[2] - 1), sum(wanted)
    if _depthwise(weight, groups):
        return extra, steps, "depthwise"
    if _converts(x):
        extra, steps = extra + 2 * (grad.nbytes + x.nbytes * (1 + wanted[0])), steps + 2 + wanted[0]
    return extra, steps, peak


def _depthwise(weight: torch.Tensor, groups: int) -> bool:
    return groups > 1 and weight.shape[1] == 1


def _converts(x: torch.Tensor) -> bool:
    """Return whether cuDNN's kernels need the channels last and have to turn tensors around for it."""
    return x.dtype in (torch.float16, torch.bfloat16) and _fastest(x) != 1


def _norm(args, outputs, peak: str) -> tuple[int, int, str]:
    twice = len(args) < 6 or args[5] is not False  # batch norm that uses its running statistics passes once
    return (args[0].nbytes, 2, peak) if twice else (0, 1, peak)


def _norm_backward(args, outputs, peak: str) -> tuple[int, int, str]:
    return args[0].nbytes + args[1].nbytes, 2, peak


def encoder_layer_flops(src, width, heads, *args, out_val=None, **kwargs) -> int:
    """Two operations for each weight and token, and the two products of attention."""
    tokens, products = src.numel() // width, (args[0], args[2], args[11], args[13])  # qkv, projection, two of the MLP
    return tokens * (2 * sum(weight.numel() for weight in products) + 4 * src.shape[-2] * width)


def _encoder_layer(args, outputs, peak: str) -> tuple[int, int, str]:
    """nn.TransformerEncoderLayer in inference: one operator, a dozen kernels, with what they hand each other."""
    tokens, wide = args[0].numel(), args[14].shape[0] / args[1]
    return int(tokens * (24 + 4 * wide)) * args[0].itemsize, 12, peak


_RULES = {
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "native_batch_norm": _norm,
    "native_group_norm": _norm,
    "native_batch_norm_backward": _norm_backward,
    "native_group_norm_backward": _norm_backward,
    "native_layer_norm_backward": _norm_backward,
}
