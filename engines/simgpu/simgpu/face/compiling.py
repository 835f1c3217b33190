"""What does `torch.compile` do for a simulated GPU? With backend="eager" what eager does; kernels are refused."""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.utils._pytree import tree_leaves

from simgpu.device.tensor import SimTensor
from simgpu.ground.replacements import Replacements

_EAGER = ("eager", "aot_eager")  # run a graph operator by operator


def replace(put: Replacements) -> None:
    """Let `torch.compile` know simulated GPUs."""
    for name in ("torch._C._dynamo.utils", "torch._dynamo.utils", "torch._dynamo.guards"):
        if hasattr(sys.modules.get(name), "get_current_stream"):  # since PyTorch 2.15: what is compiled asks for it
            ask = torch.compiler.disable(lambda device: torch.cuda.current_stream())  # traced, it would ask itself
            put.put(sys.modules[name], get_current_stream=ask)
    put.put(torch, compile=functools.wraps(torch.compile)(functools.partial(_compile, torch.compile)))


def _compile(plain: Callable[..., Any], model: Any = None, **options: Any) -> Any:
    """Return `model`, a function or module, compiled; without it, as a decorator.

    Tensors on a simulated GPU are computed operator by operator where the backend is "eager" or "aot_eager", which is
    what those do with the graphs that they find. Other backends write kernels: they raise NotImplementedError when
    they are called with such a tensor, and compile for the CPU as ever. Where PyTorch is told to compile nothing, by
    `disable=True` or TORCH_COMPILE_DISABLE=1, functions are called as they are.
    """
    if model is None:
        return functools.partial(_compile, plain, **options)
    backend = options.get("backend", "inductor")
    function = model.__call__ if isinstance(model, torch.nn.Module) else model
    compiled: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        on_sim = any(isinstance(leaf, SimTensor) for leaf in tree_leaves((args, kwargs))) or _is_on_sim(model)
        if on_sim and getattr(function, "__module__", "") == "torch.nn.attention.flex_attention":
            raise NotImplementedError(
                "flex_attention is a kernel that is compiled, which the simulated GPU cannot run: use "
                "scaled_dot_product_attention here"
            )
        if on_sim and backend not in _EAGER and not (options.get("disable") or _is_off()):
            raise NotImplementedError(
                f"torch.compile(backend={backend!r}) writes kernels for a real GPU, and the simulated one cannot run "
                'them: leave torch.compile out here, say backend="eager", or set TORCH_COMPILE_DISABLE=1'
            )
        if on_sim:
            return function(*args, **kwargs)
        if not compiled:
            compiled.append(plain(model, **options))
        return compiled[0](*args, **kwargs)

    if not isinstance(model, torch.nn.Module):
        return call
    from torch._dynamo.eval_frame import OptimizedModule  # takes a second to import

    return OptimizedModule(model, cast(Any, lambda _: call))


def _is_off() -> bool:
    """Return whether PyTorch compiles nothing, as its two environment variables or its configuration say."""
    config = sys.modules.get("torch._dynamo.config")  # takes a second to import, and has then read its variable
    disabled = os.environ.get("TORCH_COMPILE_DISABLE") == "1" if config is None else config.disable
    return disabled or os.environ.get("TORCHDYNAMO_DISABLE") == "1"


def _is_on_sim(model: Any) -> bool:
    owner = getattr(model, "__self__", model)  # of a method
    return isinstance(owner, torch.nn.Module) and any(type(one) is SimTensor for one in owner.parameters())
