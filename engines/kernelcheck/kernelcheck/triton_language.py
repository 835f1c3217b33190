"""What does a Triton kernel compute? Its unchanged text runs here on NumPy, one program after the other, everywhere.

triton, tl = kernelcheck.triton()  # the real modules where CUDA and Triton work, else those of this interpreter

@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) + tl.load(y_ptr + at, mask=at < n), mask=at < n)

add[(triton.cdiv(n, 256),)](x, y, out, n, BLOCK=256)
report = kernelcheck.checked(add, (triton.cdiv(n, 256),), x, y, out, n, BLOCK=256)

As on the device: types and their promotion, int32 that overflows, `//` and `%` that truncate, 16-bit floats rounded
after each operation, pointers that know no shapes. An access out of bounds is an error at its line, not a wild one.
Other than on the device: products of float32 are exact, not TF32; what Triton's compiler alone refuses, such as a loop
that changes the type of a variable, runs here; and `and` and `or` of blocks, of which it warns, are refused.
"""

import ast
import dis
import functools
import importlib.util
import inspect
import math
import numbers
import os
import random
import textwrap
import types

import numpy as np
import torch

from kernelcheck.faults import KernelFault
from kernelcheck.triton_blocks import OF_TORCH, Pointer, as_block
from kernelcheck.triton_functions import IN_KERNELS, cdiv, next_power_of_2, tl
from kernelcheck.triton_memory import Buffer, Launch, Memory, Report, line_of, running, wrong

_MOST_PROGRAMS = 1_000_000  # one after the other
_OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg"}
_FORBIDDEN = {
    ast.Break: "break", ast.Continue: "continue", ast.Try: "try", ast.Lambda: "lambda", ast.Raise: "raise",
    ast.DictComp: "dictionary", ast.Dict: "dictionary", ast.Yield: "yield", ast.Global: "global", ast.Import: "import",
    ast.ImportFrom: "import", ast.ClassDef: "class", ast.FunctionDef: "def",
}  # fmt: skip


class Config:
    """One way to launch a kernel that `autotune` may try."""

    def __init__(self, kwargs: dict, num_warps: int = 4, num_stages: int = 3, **options) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages


class Kernel:
    """A function in Triton's language: `kernel[grid](…)` launches it, another kernel calls it."""

    def __init__(self, fn, configs: tuple[Config, ...] = (), heuristics: tuple[tuple, ...] = ()) -> None:
        self.fn, self.configs, self.heuristics = fn, configs, heuristics
        self.__name__, self.__doc__, self.__module__ = fn.__name__, fn.__doc__, fn.__module__
        self.signature = inspect.signature(fn)
        self.arg_names = list(self.signature.parameters)
        self.constants = {n for n, one in self.signature.parameters.items() if "constexpr" in str(one.annotation)}

    def __getitem__(self, grid):
        return lambda *args, **options: _start(self, grid, args, options)

    def __call__(self, *args, **options):
        if not running:
            raise RuntimeError(f"a kernel is launched with a grid: {self.__name__}[(programs,)](…)")
        return _bound(self)(*args, **options)


def _ours(value, name: str):
    """Return what stands for a value from outside of a kernel here: Triton's own objects have a twin."""
    kind = type(value)
    if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] == "triton":
        place = value.__name__.rpartition(".")[2]
        return {"triton": _interpreter, "libdevice": tl.extra.libdevice, "math": tl.math}.get(place, tl)
    if kind.__name__ == "constexpr":
        return value.value
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise wrong(f"{name} is a global number, which a kernel may not read: pass it as a parameter with tl.constexpr")
    if kind.__module__.startswith("triton.") and kind.__name__ == "dtype":
        return next(one for one in OF_TORCH.values() if one.short == value.name)
    function = value.fn if kind.__module__.startswith("triton.") and hasattr(value, "fn") else value
    if getattr(function, "__module__", None) and function.__module__.startswith("triton.language"):
        return getattr(tl, function.__name__, value)
    return value if function is value else kernel_of(value)


def kernel_of(function) -> Kernel:
    """Return a kernel, ours or one of the installed Triton, as one of this interpreter."""
    configs, heuristics = (), ()
    while not isinstance(function, Kernel):
        configs = configs or tuple(getattr(function, "configs", ()))
        values = getattr(function, "values", None)
        heuristics += tuple(values.items()) if isinstance(values, dict) else ()
        if not hasattr(function, "fn"):
            raise TypeError(f"a kernel is a function under @triton.jit, and this is a {type(function).__name__}")
        if inspect.isfunction(function.fn):
            return Kernel(function.fn, configs, heuristics)
        function = function.fn
    return function


def _bound(kernel: Kernel):
    """Return the kernel's function as it runs here: Python's `range`, `min` and others are Triton's in it."""
    found = running[-1].bound.get(id(kernel))
    if found is None:
        fn = kernel.fn
        running[-1].codes.add(fn.__code__)
        _check_text(fn.__code__)
        names = {one.argval for one in dis.get_instructions(fn) if one.opname == "LOAD_GLOBAL"} & fn.__globals__.keys()
        values = {name: _ours(fn.__globals__[name], name) for name in names} | {"__builtins__": IN_KERNELS}
        closure = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        cells = tuple(types.CellType(_ours(cell.cell_contents, name)) for name, cell in closure)
        found = types.FunctionType(fn.__code__, values, fn.__name__, fn.__defaults__, cells)
        found.__kwdefaults__ = fn.__kwdefaults__
        running[-1].bound[id(kernel)] = found
    return found


@functools.cache
def _check_text(code: types.CodeType) -> None:
    """Refuse what Triton's compiler does not know, at its line."""
    try:
        lines, first = inspect.getsourcelines(code)
        function = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, SyntaxError):  # typed where no source is kept
        return
    for node in (node for statement in function.body for node in ast.walk(statement)):
        if type(node) in _FORBIDDEN:
            line = line_of(code.co_filename, first + node.lineno - 1)
            raise KernelFault("language", f"Triton's language has no `{_FORBIDDEN[type(node)]}` in a kernel", line)


def _prepared(kernel: Kernel, grid, args, options, config: Config | None) -> tuple[tuple[int, int, int], dict]:
    """Return the grid and the arguments by name, checked."""
    options = {**(config.kwargs if config else {}), **options}
    warps = options.get("num_warps", 4)
    if not isinstance(warps, int) or warps < 1 or warps & (warps - 1):
        raise KernelFault("arguments", f"num_warps must be a power of two, and it is {warps}")
    options = {name: value for name, value in options.items() if name not in _OPTIONS or name in kernel.arg_names}
    try:
        for name, rule in kernel.heuristics:
            options[name] = rule({**kernel.signature.bind_partial(*args, **options).arguments})
        bound = kernel.signature.bind(*args, **options)
    except TypeError as error:
        raise KernelFault("arguments", f"{kernel.__name__}: {error}") from None
    bound.apply_defaults()
    named = dict(bound.arguments)
    grid = grid(named) if callable(grid) else grid
    if not isinstance(grid, tuple | list) or not 1 <= len(grid) <= 3:
        raise KernelFault(
            "arguments", f"the grid is {grid!r}; it must be a tuple of one to three numbers, such as (n,)"
        )
    for n in grid:
        if not isinstance(n, numbers.Integral) or n < 1:
            raise KernelFault("arguments", f"the grid {tuple(grid)} must hold whole numbers above 0: use triton.cdiv")
    if math.prod(grid) > _MOST_PROGRAMS:
        raise KernelFault(
            "arguments", f"the grid {tuple(grid)} has more than {_MOST_PROGRAMS:,} programs: too many here"
        )
    return (*map(int, grid), 1, 1)[:3], named


def _as_arguments(kernel: Kernel, named: dict, memory: Memory) -> dict:
    """Return the arguments as the kernel sees them: tensors as pointers, numbers as numbers of the device."""
    tensors = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    devices = {str(value.device): name for name, value in reversed(tensors.items())}
    if len(devices) > 1 or "meta" in devices:
        places = " and ".join(f"{name} on {device}" for device, name in reversed(devices.items()))
        raise KernelFault("arguments", f"the tensors of a launch must be on one device, with values, and are {places}")
    found = {}
    for name, value in named.items():
        if name in tensors:
            if name in kernel.constants:
                raise KernelFault("arguments", f"{name} is tl.constexpr, and a tensor was passed")
            if value.dtype not in OF_TORCH or value.layout is not torch.strided:
                raise KernelFault("arguments", f"{name} is a tensor of {value.dtype}, which Triton does not have")
            found[name] = Pointer(Buffer(name, value, OF_TORCH[value.dtype], memory), 0)
        elif name in kernel.constants or value is None:
            found[name] = value if isinstance(value, numbers.Number) else _ours(value, name)
        elif isinstance(value, numbers.Real):
            found[name] = as_block(value)
        else:
            raise KernelFault("arguments", f"{name} is a {type(value).__name__}; a kernel takes tensors and numbers")
    return found


def _run(launch: Launch, kernel: Kernel, arguments: dict, seed: int | None = None) -> None:
    """Run all programs, in order, or shuffled. What ends a launch that is watched stands in its report."""
    width, height, depth = launch.grid
    programs = [(x, y, z) for z in range(depth) for y in range(height) for x in range(width)]
    if seed is not None:
        random.Random(seed).shuffle(programs)
    running.append(launch)
    try:
        with np.errstate(all="ignore"):
            function = _bound(kernel)
            for program in programs:
                launch.start(program)
                function(**arguments)
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


def _start(kernel: Kernel, grid, args, options) -> None:
    """Launch a kernel: programs run in the order of their numbers, and change the tensors."""
    grid, named = _prepared(kernel, grid, args, options, next(iter(kernel.configs), None))
    memory = Memory(copy=False)
    _run(Launch(grid, watched=False), kernel, _as_arguments(kernel, named, memory))
    memory.write_back()


def checked(kernel, grid, *args, **options) -> Report:
    """Run a kernel twice on copies of the tensors, programs in order and shuffled, and return what it did.

    `kernel` may be one of this interpreter or of the installed Triton. The arguments stay as they are: what the kernel
    would leave in them is in `report.results`. What is wrong is in `report.fault`, at the reader's line: the first
    access out of bounds, a race (two programs touch an element that one of them writes, or the result depends on their
    order), a result that depends on elements that a mask left out ("undefined"), a loop without an end, an error of
    Python. With `@triton.autotune` all configurations run: the report is that of the first with a fault, else of the
    first. Nothing is raised but TypeError where `kernel` is none.
    """
    kernel, first = kernel_of(kernel), None
    for config in kernel.configs or (None,):
        try:
            report = _twice(kernel, *_prepared(kernel, grid, args, options, config))
        except KernelFault as fault:
            report = Report(fault)
        first = first or report
        if report.fault is not None:
            return report
    return first


def _twice(kernel: Kernel, grid, named: dict) -> Report:
    first = _trial(kernel, grid, named)
    other = _trial(kernel, grid, named, seed=1, changed="") if first.report.fault is None else first
    if other.report.fault is not None:
        return other.report
    found = _difference(first, other)
    if found is not None:
        of_a_line = (
            fault for line, fault in first.undefined.items()
            if _difference(first, _trial(kernel, grid, named, changed=line)) is not None
        )  # fmt: skip
        what = f"element {found[1]:,} of {found[0]} depends on the order in which the programs run"
        race = KernelFault("race", what, array=found[0], element=found[1])
        first.report.fault = next(of_a_line, race)
    return first.report


def _trial(kernel: Kernel, grid, named: dict, seed: int | None = None, changed: str | None = None) -> Launch:
    """Run a kernel on copies of its tensors and note what it does."""
    launch, arguments = Launch(grid, watched=True, changed=changed), _as_arguments(kernel, named, Memory(copy=True))
    _run(launch, kernel, arguments, seed)
    buffers = [one.buffer for one in arguments.values() if isinstance(one, Pointer)]
    launch.buffers, launch.report.results = buffers, {one.name: one.tensor for one in buffers}
    launch.report.sizes = {one.name: one.size for one in buffers}
    return launch


def _difference(first: Launch, other: Launch) -> tuple[str, int] | None:
    """Return the first element in which two runs differ. Sums by atomic operations may, and what follows from them."""
    for one, again in zip(first.buffers, other.buffers, strict=True):
        a, b = one.dtype.decode(one.array), again.dtype.decode(again.array)
        if one.dtype.kind < 2:
            same = a == b
        elif one.summed():
            same = np.isnan(a) == np.isnan(b)
        else:
            slack = 1e-2 if any(buffer.summed() for buffer in first.buffers) else 0
            same = np.isclose(a.astype(np.float64), b.astype(np.float64), slack, slack, equal_nan=True)
        if not same.all():
            return one.name, int(np.argmin(same))
    return None


def _jit(fn=None, **options):
    return Kernel(fn) if fn is not None else Kernel


def _autotune(configs, key=(), **options):
    return lambda kernel: Kernel(kernel.fn, tuple(configs), kernel.heuristics)


def _heuristics(values: dict):
    return lambda kernel: Kernel(kernel.fn, kernel.configs, (*values.items(), *kernel.heuristics))


_interpreter = types.SimpleNamespace(
    jit=_jit,
    autotune=_autotune,
    heuristics=_heuristics,
    Config=Config,
    cdiv=cdiv,
    next_power_of_2=next_power_of_2,
    language=tl,
)


def triton(interpreter: bool = False) -> tuple[types.ModuleType, types.ModuleType]:
    """Return `triton` and `triton.language`: the installed ones where CUDA works, else those of this interpreter.

    With `interpreter=True`, or where COURSE_DEVICE names another device than CUDA, always those of this interpreter.
    """
    wanted = os.environ.get("COURSE_DEVICE") or "cuda"
    if not interpreter and wanted == "cuda" and torch.cuda.is_available() and importlib.util.find_spec("triton"):
        import triton as real
        import triton.language as language

        return real, language
    return _interpreter, tl
