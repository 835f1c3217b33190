"""Triton interpreter: unchanged kernels run on NumPy, one program after the other, on every system.

triton, tl = kernelcheck.triton()  # the real modules where CUDA and Triton work, else those of this interpreter

@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) + tl.load(y_ptr + at, mask=at < n), mask=at < n)

add[(triton.cdiv(n, 256),)](x, y, out, n, BLOCK=256)
report = kernelcheck.checked(add, (triton.cdiv(n, 256),), x, y, out, n, BLOCK=256)

As on the device: types and their promotion, int32 that overflows, `//` and `%` that truncate, 16-bit floats rounded
after each operation, pointers that know no shapes. An access out of bounds is an error at its line, not a wild one, and
what Triton's compiler refuses is refused before the first program runs. `tl.dot` rounds float32 to TF32 where Triton
does on GPUs since Ampere: unless `input_precision="ieee"` is asked for.
"""

from __future__ import annotations

import dis
import functools
import importlib.util
import itertools
import math
import numbers
import os
import random
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from kernelcheck.devices import is_real
from kernelcheck.faults import KernelFault
from kernelcheck.triton import text as triton_text
from kernelcheck.triton.blocks import OF_TORCH, Pointer, as_block, assigned, chained, joined, negated, value_of
from kernelcheck.triton.compiler import compiled
from kernelcheck.triton.descriptors import HostDescriptor, TensorDescriptor
from kernelcheck.triton.functions import IN_KERNELS, tl
from kernelcheck.triton.kernel import Config, Kernel, Room, kernel_of, meaning, namespace, outside
from kernelcheck.triton.memory import Addresses, Buffer, FarBuffer, Launch, Memory, Report, line_of, running

_MOST_PROGRAMS = 1_000_000  # one after the other
_OPTIONS = {
    "num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion", "launch_pdl", "launch_cooperative_grid",
    "debug", "ptx_version", "ptx_options", "extern_libs", "sanitize_overflow",
}  # fmt: skip
_DESCRIPTORS = "HostDescriptor", "TensorDescriptor"  # ours, Triton's
_WORDS = {
    triton_text.AND: lambda *later: joined("and", *later), triton_text.OR: lambda *later: joined("or", *later),
    triton_text.NOT: negated, triton_text.CHAIN: chained, triton_text.NUMBER: assigned,
    triton_text.VALUE: value_of, triton_text.WHILE: lambda line, condition: running[-1].goes_on(line, condition),
    triton_text.FOR: lambda numbers: running[-1].turns(numbers),
}  # fmt: skip


class _Run(Launch):
    """A run with numbers: each kernel is a function of Python, in whose text little has changed."""

    def __init__(self, grid: tuple[int, int, int], watched: bool, changed: str | None = None) -> None:
        super().__init__(grid, watched, changed)
        self._functions: dict[Callable[..., Any], types.FunctionType] = {}

    def function(self, kernel: Kernel) -> types.FunctionType:
        """Return a kernel as Python runs it: its names mean what they mean to Triton."""
        function = self._functions.get(kernel.fn)
        if function is None:
            fn, text = kernel.fn, triton_text.text_of(kernel.fn)
            self.codes.update(text.codes())
            named = {name for code in text.codes() for name in _read_from_outside(code)}
            known = {name: meaning(value, name) for name, value in outside(fn).items() if name in named}
            known |= {name: Room(one) for name, one in known.items() if isinstance(one, types.ModuleType)}
            space = {**IN_KERNELS, **known, **_WORDS, "__builtins__": {}}
            function = types.FunctionType(text.code, space, fn.__name__, fn.__defaults__)
            function.__kwdefaults__ = fn.__kwdefaults__
            self._functions[kernel.fn] = function
        return function

    def call(self, kernel: Kernel, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Call a kernel from a kernel."""
        return self.function(kernel)(*args, **options)


@functools.cache
def _read_from_outside(code: types.CodeType) -> frozenset[str]:
    """Return the global names that the code reads; in `tl.erf` that is `tl`, whatever `erf` is outside."""
    return frozenset(one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


def _prepared(
    kernel: Kernel, grid: Any, args: Sequence[Any], options: dict[str, Any], config: Config | None
) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """Return the grid and the arguments by name, checked."""
    if meta := next((one for one in kernel.signature.parameters.values() if one.kind is one.VAR_KEYWORD), None):
        what = f"a kernel has no `**{meta.name}` any more: give each of these constants a parameter of its own"
        raise KernelFault("language", f"{what}, such as BLOCK_SIZE: tl.constexpr")
    if twice := [name for name in (config.kwargs if config else {}) if name in options]:
        raise KernelFault("arguments", f"{twice[0]} is given by @triton.autotune and by the launch: leave one out")
    options = {**(config.kwargs if config else {}), **options}
    taken = [name for name in options if name not in _OPTIONS or name in kernel.arg_names]
    try:
        for name, rule in kernel.heuristics:
            known = kernel.signature.bind_partial(*args, **{one: options[one] for one in taken}).arguments
            options[name] = rule({**options, **known})
            taken += [name] if name in kernel.arg_names else []
        warps = options.get("num_warps", 4)
        if not isinstance(warps, int) or warps < 1 or warps & (warps - 1):
            raise KernelFault("arguments", f"num_warps must be a power of two, and it is {warps}")
        options = {name: value for name, value in options.items() if name not in _OPTIONS or name in kernel.arg_names}
        bound = kernel.signature.bind(*args, **options)
    except TypeError as error:
        raise KernelFault("arguments", f"{kernel.__name__}: {error}") from None
    bound.apply_defaults()
    named = dict(bound.arguments)
    grid = grid(named) if callable(grid) else grid
    if not isinstance(grid, tuple | list) or not 1 <= len(grid) <= 3:
        raise KernelFault("arguments", f"the grid {grid!r} must be a tuple of one to three numbers, such as (n,)")
    for n in grid:
        nothing = n == 0 and any(isinstance(one, torch.Tensor) and not one.numel() for one in named.values())
        if not isinstance(n, numbers.Integral) or (n < 1 and not nothing):
            raise KernelFault("arguments", f"the grid {tuple(grid)} must hold whole numbers above 0: use triton.cdiv")
    if math.prod(grid) > _MOST_PROGRAMS:
        raise KernelFault("arguments", f"the grid {tuple(grid)} has over {_MOST_PROGRAMS:,} programs: too many here")
    x, y, z = (*map(int, grid), 1, 1)[:3]
    return (x, y, z), named


def _as_arguments(kernel: Kernel, named: dict[str, Any], memory: Memory) -> dict[str, Any]:
    """Return the arguments as the kernel sees them: tensors as pointers, numbers as numbers of the device."""
    given = dict(_each(named, kernel.constants))
    made = {name: HostDescriptor(**vars(one)) for name, one in given.items() if type(one).__name__ in _DESCRIPTORS}
    each = given | {name: one.base for name, one in made.items()}
    tensors = {name: value for name, value in each.items() if isinstance(value, torch.Tensor)}
    far = {name: value for name, value in each.items() if isinstance(value, Addresses)}
    devices = {str(value.device): name for name, value in reversed(tensors.items())}
    if len(devices) > 1 or "meta" in devices:
        places = " and ".join(f"{name} on {device}" for device, name in reversed(devices.items()))
        raise KernelFault("arguments", f"the tensors of a launch must be on one device, with values, and are {places}")
    arguments: dict[str, Any] = {}
    for name, value in each.items():
        if name in tensors or name in far:
            if name in kernel.constants:
                raise KernelFault("arguments", f"{name} is tl.constexpr, and a tensor was passed")
            if value.dtype not in OF_TORCH or (name in tensors and value.layout is not torch.strided):
                raise KernelFault("arguments", f"{name} is a tensor of {value.dtype}, which Triton does not have")
            dtype = OF_TORCH[value.dtype]
            buffer = FarBuffer(name, value, dtype) if name in far else Buffer(name, value, dtype, memory)
            arguments[name] = made[name].on(Pointer(buffer, 0)) if name in made else Pointer(buffer, 0)
        elif name in kernel.constants or value is None:
            arguments[name] = value if isinstance(value, numbers.Number | str | tuple) else meaning(value, name)
        elif isinstance(value, numbers.Real):
            arguments[name] = as_block(value)
        else:
            raise KernelFault("arguments", f"{name} is a {type(value).__name__}; a kernel takes tensors and numbers")
    return {name: _together(name, value, arguments) for name, value in named.items()}


def _each(named: dict[str, Any], constants: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each argument; those of a tuple have names such as `strides[0]`."""
    for name, value in named.items():
        if type(value).__name__ == "TensorWrapper":  # of `triton.reinterpret`
            yield name, value.base.view(getattr(meaning(value.dtype, name), "torch", value.dtype))
        elif isinstance(value, tuple | list) and name not in constants:
            yield from _each({f"{name}[{index}]": part for index, part in enumerate(value)}, constants)
        else:
            yield name, value


def _together(name: str, value: Any, arguments: dict[str, Any]) -> Any:
    """Return an argument as the kernel sees it: of a tuple the tuple of its parts."""
    if name in arguments:
        return arguments[name]
    return tuple(_together(f"{name}[{index}]", part, arguments) for index, part in enumerate(value))


def _run(launch: _Run, kernel: Kernel, arguments: dict[str, Any], seed: int | None = None) -> None:
    """Run all programs, in order, or shuffled. What ends a launch that is watched stands in its report."""
    width, height, depth = launch.grid
    programs = [(x, y, z) for z in range(depth) for y in range(height) for x in range(width)]
    if seed is not None:
        random.Random(seed).shuffle(programs)
    running.append(launch)
    try:
        function = launch.function(kernel)
        launch.each(programs, lambda: function(**arguments))
    except Exception as error:
        if not launch.watched:
            raise
        launch.report.fault = error if isinstance(error, KernelFault) else _fault_of(error, launch)
    finally:
        running.pop()
        launch.close()


def _fault_of(error: Exception, launch: Launch) -> KernelFault:
    """Return an error of Python in the kernel as a fault at the kernel's line."""
    line, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in launch.codes:
            line = line_of(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    fault = KernelFault("error", f"{type(error).__name__}: {error}", line, where=launch.program)
    fault.__cause__ = error
    return fault


def _start(kernel: Kernel, grid: Any, args: Sequence[Any], options: dict[str, Any]) -> None:
    """Launch a kernel: programs run in the order of their numbers, and change the tensors."""
    grid, named = _prepared(kernel, grid, args, options, next(iter(kernel.configs), None))
    if (config := next(iter(kernel.configs), None)) and config.pre_hook:
        config.pre_hook(named)
    memory = Memory(copy=False)
    if far := [name for name, value in named.items() if isinstance(value, Addresses)]:
        raise KernelFault("arguments", f"{far[0]} has addresses and no values: kernelcheck.checked alone takes it")
    arguments = _as_arguments(kernel, named, memory)
    try:
        compiled(kernel, arguments, grid)
    except KernelFault as fault:
        raise fault.__cause__ or fault from None
    _run(_Run(grid, watched=False), kernel, arguments)
    memory.write_back()


Kernel.start = staticmethod(_start)


def checked(kernel: Any, grid: Any, *args: Any, **options: Any) -> Report:
    """Run a kernel twice on copies of the tensors, programs in order and shuffled, and return what it did.

    `kernel` may be one of this interpreter or of the installed Triton. The arguments stay as they are: what the kernel
    would leave in them is in `report.results`. What is wrong is in `report.fault`, at the reader's line: the first
    access out of bounds, a race (two programs touch an element that one of them writes, or the result depends on their
    order), a result that depends on elements that a mask left out ("undefined"), a loop without an end, an error of
    Python. An argument may be `Addresses`: a tensor that this machine has no room for. With `@triton.autotune` all
    configurations run: the report is that of the first with a fault, else of the first; kind "autotune" says that they
    do not leave what one run leaves, as they share the tensors. Nothing is raised but TypeError where `kernel` is none.
    """
    kernel, reports = kernel_of(kernel), list[Report]()
    for config in kernel.configs or (None,):
        try:
            report = _twice(kernel, *_prepared(kernel, grid, args, options, config), config)
        except KernelFault as fault:
            report = Report(fault)
        if report.fault is not None:
            return report
        reports.append(report)
    if len(reports) > 1:
        reports[0].fault = _of_tuning(kernel, grid, args, options, reports)
    return reports[0]


def _of_tuning(
    kernel: Kernel, grid: Any, args: Sequence[Any], options: dict[str, Any], reports: list[Report]
) -> KernelFault | None:
    """Return what is wrong with the runs by which autotune chooses: they are on the same tensors, one after the other.

    A run must leave the same behind a run of its own configuration, and of another one, as it leaves alone.
    """
    zeroed, restored = (set(kernel.reset.get(name, ())) for name in ("reset_to_zero", "restore_value"))
    known = ", ".join(kernel.arg_names)
    for name in sorted((zeroed | restored) - set(kernel.arg_names)):
        return KernelFault("arguments", f"@triton.autotune names {name!r}, which is no argument: they are {known}")
    runs = list(zip(kernel.configs, reports, strict=True))
    for (config, report), (before, left) in [
        *zip(runs, runs, strict=True),
        *zip(runs, runs[1:] + runs[:1], strict=True),
    ]:
        dims, named = _prepared(kernel, grid, args, options, config)
        tensors = {name: one.cpu() for name, one in named.items() if isinstance(one, torch.Tensor)}
        used = {name: one for name, one in left.results.items() if name in tensors and name not in zeroed | restored}
        second = _trial(kernel, dims, named | tensors | used, config).report
        for name in used:
            alone, after = report.results[name], second.results.get(name, report.results[name])
            if (same := (alone == after) | (alone.isnan() & after.isnan())).all():
                continue
            element = int(same.flatten().int().argmin())
            one, two = (f"{numbers.flatten()[element].item():g}" for numbers in (alone, after))
            ran = f"a run with {config.kwargs}, and {two} if one with {before.kwargs} came first"
            ran = f"one run of {kernel.__name__}, and {two} after two" if config is before else ran
            way = "restore_value" if tensors[name].any() else "reset_to_zero"
            why = f"autotune runs the kernel several times on the same tensors: give it {way}=[{name!r}]"
            if config is not before:
                why = "autotune runs both on the same tensors to choose, and one alone later: let each write everything"
            what = f"element {element:,} of {name} is {one} after {ran}"
            return KernelFault("autotune", what, why=why, array=name, element=element)
    return None


def _twice(kernel: Kernel, grid: tuple[int, int, int], named: dict[str, Any], config: Config | None) -> Report:
    compiled(kernel, _on_copies(kernel, named, config), grid)
    return compared(functools.partial(_trial, kernel, grid, named, config))


def compared(trial: Callable[..., Launch]) -> Report:
    """Return the report of a run, with what a run in another order does otherwise as its fault."""
    first = trial()
    other = trial(seed=1, changed="") if first.report.fault is None else first
    if other.report.fault is not None:
        return other.report
    difference = _difference(first, other)
    if difference is not None:
        of_a_line = (
            fault for line, fault in first.undefined.items()
            if _difference(first, trial(changed=line)) is not None
        )  # fmt: skip
        of_several = (
            fault for fault in first.undefined.values()
            if _difference(first, trial(changed="")) is not None
        )  # fmt: skip
        what = f"element {difference[1]:,} of {difference[0]} depends on the order in which the {first.word}s run"
        race = KernelFault("race", what, array=difference[0], element=difference[1])
        first.report.fault = next(itertools.chain(of_a_line, of_several), race)
    return first.report


def _on_copies(kernel: Kernel, named: dict[str, Any], config: Config | None) -> dict[str, Any]:
    """Return the arguments of a run that leaves the tensors alone, behind the hook of its configuration."""
    memory = Memory(copy=True)
    if config is not None and config.pre_hook is not None:
        there = {name: memory.host(one) for name, one in named.items() if isinstance(one, torch.Tensor)}
        config.pre_hook(named | there)
    return _as_arguments(kernel, named, memory)


def _trial(
    kernel: Kernel, grid: tuple[int, int, int], named: dict[str, Any], config: Config | None, seed: int | None = None,
    changed: str | None = None,
) -> _Run:  # fmt: skip
    """Run a kernel on copies of its tensors and note what it does."""
    launch, arguments = _Run(grid, watched=True, changed=changed), _on_copies(kernel, named, config)
    _run(launch, kernel, arguments, seed)
    parts = [one.block.base if isinstance(one, TensorDescriptor) else one for _, one in _each(arguments, set())]
    pointers = [one for one in parts if isinstance(one, Pointer)]
    buffers = [one.buffer for one in pointers if type(one.buffer) is Buffer]
    launch.buffers = buffers
    launch.sum_up()
    return launch


def _difference(first: Launch, other: Launch) -> tuple[str, int] | None:
    """Return the first element in which two runs differ. Sums by atomic operations may, and what follows from them."""
    for original, again in zip(first.buffers, other.buffers, strict=True):
        a, b = original.dtype.decode(original.array), again.dtype.decode(again.array)
        if original.dtype.kind < 2:
            same = a == b
        elif original.summed():
            same = np.isnan(a) == np.isnan(b)
        else:
            slack = 1e-2 if any(buffer.summed() for buffer in first.buffers) else 0
            same = np.isclose(a.astype(np.float64), b.astype(np.float64), slack, slack, equal_nan=True)
        if not same.all():
            return original.name, int(np.argmin(same))
    return None


def triton(interpreter: bool = False) -> tuple[Any, Any]:
    """Return `triton` and `triton.language`: the installed ones where they work, else those of this interpreter.

    They work where a first small kernel has run on a GPU of CUDA: that needs a C compiler, and a GPU which that Triton
    knows. A line says why they do not, once. With `interpreter=True`, or where KERNELCHECK_DEVICE is set and not
    "cuda", always those of this interpreter.
    """
    wanted = os.environ.get("KERNELCHECK_DEVICE") or "cuda"
    there = torch.cuda.is_available() and is_real(torch.device("cuda"))
    if not interpreter and wanted == "cuda" and there and _installed_works():
        return importlib.import_module("triton"), importlib.import_module("triton.language")
    return namespace, tl


@functools.cache
def _installed_works() -> bool:
    """Return whether the installed Triton, if there is one, has run a kernel; print in a line why it has not."""
    if not importlib.util.find_spec("triton"):
        return False
    try:
        out = torch.zeros(16, device="cuda")
        importlib.import_module("kernelcheck.triton.first").ones[(1,)](out, 16)
        why = "" if out.sum().item() == 16 else "its first kernel wrote wrong numbers"
    except Exception as error:  # of Triton, its compiler, the C compiler, the driver
        why = f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]
    if why:
        print(f"The installed Triton does not work here, so kernels run in an interpreter on the CPU. {why}")
    return not why
