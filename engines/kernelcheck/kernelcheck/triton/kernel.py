"""Kernel in Triton's language, and the outside names in it."""

from __future__ import annotations

import inspect
import numbers
import types
from collections.abc import Callable
from typing import Any, ClassVar

from kernelcheck.triton.blocks import OF_TORCH, DType, constant, constexpr, plain
from kernelcheck.triton.descriptors import HostDescriptor
from kernelcheck.triton.functions import host_cdiv, next_power_of_2, tl
from kernelcheck.triton.memory import running, wrong
from kernelcheck.triton.text import is_constexpr

_RESETS = "reset_to_zero", "restore_value"  # arguments of autotune, and attributes of Triton's Autotuner


class Config:
    """One way to launch a kernel that `autotune` may try."""

    def __init__(
        self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 3, pre_hook: Any = None, **options: Any
    ) -> None:
        self.kwargs, self.num_warps, self.num_stages, self.pre_hook = kwargs, num_warps, num_stages, pre_hook


class Kernel:
    """A function in Triton's language: `kernel[grid](…)` launches it, another kernel calls it."""

    start: ClassVar[Callable[..., Any]]  # launches a kernel: the room that does it puts it here

    def __init__(
        self, fn: Callable[..., Any], configs: tuple[Config, ...] = (), heuristics: tuple[tuple[str, Any], ...] = (),
        reset: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.fn, self.configs, self.heuristics = fn, configs, heuristics
        self.reset = reset or {}  # options of autotune that say what its runs leave behind
        self.__name__, self.__doc__, self.__module__ = fn.__name__, fn.__doc__, fn.__module__
        self.signature = inspect.signature(fn)
        self.arg_names = list(self.signature.parameters)
        self.constants = {name for name, one in self.signature.parameters.items() if is_constexpr(one.annotation)}

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **options: Kernel.start(self, grid, args, options)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if not running:
            raise RuntimeError(f"a kernel is launched with a grid: {self.__name__}[(programs,)](…)")
        return running[-1].call(self, args, options)


class ConstantFunction:
    """A function of Python that computes with constants, when the kernel is compiled, and returns one."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self.__name__ = fn, fn.__name__

    def __call__(self, *args: Any, **options: Any) -> Any:
        known = [constant(value, f"what {self.__name__} computes with") for value in args]
        named = {name: constant(value, f"what {self.__name__} computes with") for name, value in options.items()}
        made = plain(self.fn(*known, **named))
        return _of_triton(made) if type(made).__module__.startswith("triton.") else made


def kernel_of(function: Any) -> Kernel:
    """Return a kernel, ours or one of the installed Triton, as one of this interpreter."""
    configs: tuple[Config, ...] = ()
    heuristics: tuple[tuple[str, Any], ...] = ()
    reset: dict[str, Any] = {}
    while not isinstance(function, Kernel):
        configs = configs or tuple(getattr(function, "configs", ()))
        reset = reset or {name: one for name in _RESETS if (one := getattr(function, name, None))}
        values = getattr(function, "values", None)
        heuristics += tuple(values.items()) if isinstance(values, dict) else ()
        if not hasattr(function, "fn"):
            raise TypeError(f"a kernel is a function under @triton.jit, and this is a {type(function).__name__}")
        if inspect.isfunction(function.fn):
            return Kernel(function.fn, configs, heuristics, reset)
        function = function.fn
    return function


class Room:
    """Module of the reader's that a kernel names: what kernels can call in it means what it means to Triton."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        return of_room(self.module, name)


def of_room(module: types.ModuleType, name: str) -> Any:
    """Return what a module has under a name, as kernels see it."""
    value = getattr(module, name)
    device = isinstance(value, types.ModuleType) or hasattr(value, "fn") or type(value).__module__.startswith("triton.")
    found = meaning(value, name) if device and module.__name__ != "math" else value
    return Room(found) if isinstance(found, types.ModuleType) else found


def outside(function: Callable[..., Any]) -> dict[str, Any]:
    """Resolve a function's outside names in its file or cell, and in enclosing functions."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}


def meaning(value: Any, name: str) -> Any:
    """Return the stand-in for an outside value of a kernel: Triton's own objects have a twin here.

    Raises `KernelFault` for a value that a kernel may not read.
    """
    kind = type(value)
    if isinstance(value, types.ModuleType):
        return _twin(value)
    if kind.__name__ == "constexpr":
        return ConstantFunction(value.value) if inspect.isfunction(value.value) else value.value
    if kind.__name__ == "ConstexprFunction":
        return ConstantFunction(value.fn)
    if kind.__module__.startswith("triton."):
        return _of_triton(value)
    if (home := str(getattr(value, "__module__", ""))).startswith("triton.language"):
        return getattr(tl.extra.libdevice if home.endswith("libdevice") else tl, value.__name__)
    functions = types.FunctionType | types.BuiltinFunctionType
    ours = isinstance(value, Kernel | ConstantFunction | DType | types.SimpleNamespace | functions)
    if ours or value is None or value is constexpr:
        return value
    what = "number" if isinstance(value, numbers.Number) else kind.__name__
    raise wrong(f"{name} is a global {what}, which a kernel may not read: pass it as a parameter with tl.constexpr")


def _of_triton(value: Any) -> Any:
    if type(value).__name__ == "dtype":
        return next(one for one in OF_TORCH.values() if one.short == value.name)
    if hasattr(value, "fn"):
        language = value.fn.__module__.startswith("triton.language")
        return getattr(tl, value.fn.__name__, value) if language else kernel_of(value)
    return value


def _twin(module: types.ModuleType) -> Any:
    """Return the twin of a module of Triton's, and any other module as it is."""
    path = module.__name__.split(".")
    twins = {"triton": namespace, "libdevice": tl.extra.libdevice, "math": tl.math}
    return twins.get(path[-1], tl) if path[0] == "triton" else module


def _jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    return Kernel(fn) if fn is not None else Kernel


def _autotune(configs: list[Config], key: Any = (), **options: Any) -> Callable[[Kernel], Kernel]:
    reset = {name: options[name] for name in _RESETS if options.get(name)}
    return lambda kernel: Kernel(kernel.fn, tuple(configs), kernel.heuristics, reset)


def _heuristics(values: dict[str, Callable[..., Any]]) -> Callable[[Kernel], Kernel]:
    return lambda kernel: Kernel(kernel.fn, kernel.configs, (*values.items(), *kernel.heuristics), kernel.reset)


namespace = types.SimpleNamespace(
    jit=_jit, autotune=_autotune, heuristics=_heuristics, Config=Config, cdiv=host_cdiv,
    next_power_of_2=next_power_of_2, constexpr_function=ConstantFunction, set_allocator=lambda allocator: None,
    reinterpret=lambda tensor, dtype: tensor.view(dtype.torch),
    tools=types.SimpleNamespace(tensor_descriptor=types.SimpleNamespace(TensorDescriptor=HostDescriptor)),
    language=tl,
)  # fmt: skip
