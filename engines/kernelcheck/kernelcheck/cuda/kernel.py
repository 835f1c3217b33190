"""CUDA C++ kernel, unchanged, run on the CPU with each memory access checked."""

import ctypes
import functools
import itertools
import json
import math
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernelcheck.cuda import gpu, processes, toolchain
from kernelcheck.cuda.report import CudaFault, Memory, Report, SharedArray, Three, describe
from kernelcheck.cuda.rules import refused
from kernelcheck.cuda.text import CudaText, Function
from kernelcheck.devices import is_real, on_host
from kernelcheck.faults import CompileError

SHARED_MOST = 227 * 1024  # with dynamic shared memory, which a launch asks for
CHECKED_THREADS = 2**21  # a launch on a real GPU that is larger is not looked at on the CPU first
CHECKED_ELEMENTS = 2**25  # of all arrays: each takes 64 bytes beside its own
PAGE = 65536  # a multiple of the page of every system
Dim = int | Sequence[int]

_TORCH = {
    "f4": torch.float32, "f8": torch.float64, "h2": torch.float16, "g2": torch.bfloat16, "b1": torch.bool,
    "i1": torch.int8, "i2": torch.int16, "i4": torch.int32, "i8": torch.int64,
    "u1": torch.uint8, "u2": torch.uint16, "u4": torch.uint32, "u8": torch.uint64,
}  # fmt: skip
_SIGNLESS = ({torch.int32, torch.uint32}, {torch.int64, torch.uint64})  # torch has few operators for the unsigned ones


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: its name and type as the reader wrote them; `code` is letter and bytes of `_TORCH`."""

    name: str
    type: str
    pointer: bool
    code: str

    def __str__(self) -> str:
        """Return the declaration."""
        return f"{self.type} {self.name}".strip()


def compile_cuda(source: str, name: str | None = None) -> "Kernel":
    """Compile the text of a .cu file for the CPU and return its kernel `name`, which one kernel alone need not have.

    The signature is that of `torch.cuda._compile_kernel`. A template is named with its arguments, "scale<float, 4>",
    one of several kernels of a name with its types, "scale(float*, int)".
    Where a compiler is missing this raises `Unavailable`, for wrong text `CompileError` with the reader's line.
    """
    if why := toolchain.why_not():
        raise toolchain.Unavailable(why)
    text = CudaText(source)
    kernels = dict(text.kernels)
    if not kernels and not text.makes_kernels:
        raise CompileError("there is no kernel: a function marked __global__ that returns void")
    if error := refused(text):
        raise error
    if name is None and len(kernels) != 1:
        raise CompileError(f"there are several kernels, say which: {', '.join(kernels) or 'a macro makes them'}")
    name = name or next(iter(kernels))
    base = re.split(r"[<(]", name)[0].split("::")[-1].strip()
    if not any(base in token.text if token.kind == "directive" else base == token.text for token in text.tokens):
        raise CompileError(f"there is no kernel {name}; there is {', '.join(kernels)}")
    own = kernels.pop(base, None)  # None where a macro makes it
    if same := {_signature(one): one for one in text.overloads if one.name == base}:
        if (wanted := re.sub(r"\s*([(),*&])\s*", r"\1", name)) not in same:
            raise CompileError(f"there are {len(same)} kernels {base}: name one with its types, {' or '.join(same)}")
        own, name = same[wanted], wanted
    if own and own.template and "<" not in name:
        raise CompileError(f"{name} is a template: name it with its arguments, such as '{name}<float>'")
    return _compiled(source, name, own.parameters if own else "", tuple(kernels))


def _signature(kernel: Function) -> str:
    """Return the name of a kernel with the types of its parameters."""
    types = [one.type for one in map(_declared, _split(kernel.parameters))]
    return re.sub(r"\s*([(),*&])\s*", r"\1", f"{kernel.name}({','.join(types)})")


def _declared(text: str) -> Parameter:
    """Return a parameter as its declaration has it; an array is a pointer."""
    plain = " ".join(re.sub(r"\b(?:__restrict__|__restrict|__grid_constant__)", "", text).split())
    own = re.match(r"(.*?)\s*\b(\w+)\s*(\[[^]]*\])?$", plain)
    if own is None or not own[1]:
        return Parameter("", plain, "*" in plain, "")
    return Parameter(own[2], own[1] + ("*" if own[3] else ""), "*" in own[1] or bool(own[3]), "")


@functools.lru_cache(maxsize=256)
def _compiled(source: str, name: str, parameters: str, others: tuple[str, ...]) -> "Kernel":
    program = toolchain.build(source, name, others)
    declared = [*map(_declared, _split(parameters))]
    if len(declared) != len(program.parameters):
        declared = [Parameter("", "", False, "")] * len(program.parameters)
    known = [
        Parameter(one.name or f"argument {index}", one.type, pointer, code)
        for index, (one, (pointer, _, code)) in enumerate(zip(declared, program.parameters, strict=True))
    ]
    return Kernel(name, source, tuple(known), program)


def _split(text: str) -> list[str]:
    """Return the parameters between the commas that stand in no bracket."""
    depth, parts = 0, [""]
    for letter in text:
        depth += (letter in "<([{") - (letter in ">)]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


class Kernel:
    """A compiled kernel: call it with a grid, a block and arguments."""

    def __init__(
        self, name: str, source: str, parameters: tuple[Parameter, ...], program: toolchain.KernelProgram
    ) -> None:
        """Keep what `compile_cuda` built."""
        self.name, self.source, self.parameters, self._program = name, source, parameters, program

    def __repr__(self) -> str:
        """Return its declaration."""
        return f"<kernel {self.name}({', '.join(map(str, self.parameters))})>"

    def __call__(
        self, grid: Dim = (1, 1, 1), block: Dim = (1, 1, 1), args: Sequence[object] = (), shared_mem: int = 0, *,
        limit: float = 5.0,
    ) -> Report:  # fmt: skip
        """Run the kernel and return its report. A fault raises `CudaFault`, and nothing is written.

        A tensor is passed as its memory, as `data_ptr` is: a kernel knows no strides. On a simulated GPU it is the CPU
        memory behind it, and that of a Mac or of Intel is copied there and back. Tensors on CUDA are copied, the launch
        is looked at on the CPU (unless it has more than two million threads), and where nothing is wrong it runs for
        real, by `torch.cuda._compile_kernel`; there a double is not passed for a float, and `report.ran_on` names the
        GPU. `limit` is in seconds of the CPU's time.
        """
        report = self.check(grid, block, args, shared_mem, limit=limit)
        if report.fault:
            raise report.fault
        return report

    def check(
        self, grid: Dim = (1, 1, 1), block: Dim = (1, 1, 1), args: Sequence[object] = (), shared_mem: int = 0, *,
        limit: float = 5.0,
    ) -> Report:  # fmt: skip
        """Run the kernel as a call does, but return a fault in the report instead of raising it."""
        report = Report(self.name)
        try:
            report.grid, report.block = _dims("grid", grid), _dims("block", block)
            self._check_launch(report, shared_mem)
            memories, words = self._arguments(args, report)
            device = next((memory.tensor.device for memory in memories), torch.device("cpu"))
            elements = sum(memory.count for memory in memories)
            real = is_real(device)
            if not real and elements > CHECKED_ELEMENTS:
                what = f"the arrays have {elements:,} elements; here {CHECKED_ELEMENTS:,} can be run"
                raise CudaFault("launch", what)
            if not real or (report.threads <= CHECKED_THREADS and elements <= CHECKED_ELEMENTS):
                self._run(report, memories, words, shared_mem, limit)
            else:
                report.notes += ("too large to be looked at on the CPU first: nothing is counted",)
            if real and report.fault is None:
                self._run_on_gpu(report, args, words, shared_mem, device)
        except CudaFault as fault:
            report.fault = fault
        return report

    def _check_launch(self, report: Report, shared_mem: int) -> None:
        if (threads := math.prod(report.block)) > 1024:
            raise CudaFault("launch", f"a block of {report.block} has {threads} threads; a GPU takes at most 1024")
        used = sum(one.size for one in self._program.shared if one.own)
        if used > gpu.SHARED_LIMIT:
            raise CudaFault("launch", f"the kernel has {used} bytes of shared memory; a block has {gpu.SHARED_LIMIT}")
        if not 0 <= shared_mem <= SHARED_MOST - used:
            raise CudaFault("launch", f"shared_mem is {shared_mem} bytes; no GPU has more than {SHARED_MOST} a block")

    def _arguments(self, args: Sequence[object], report: Report) -> tuple[list[Memory], list[tuple[int, bytes]]]:
        """Return the memories that the arguments point into, and each argument: (memory, offset) or (-1, its bytes)."""
        if len(args) != len(self.parameters):
            raise CudaFault("arguments", f"{self!r} takes {len(self.parameters)} arguments, not {len(args)}")
        memories: dict[int, Memory] = {}
        words: list[tuple[int, bytes]] = []
        for index, (parameter, value) in enumerate(zip(self.parameters, args, strict=True)):
            if not parameter.pointer or value is None:
                words.append((-1, _scalar(index, parameter, value) if not parameter.pointer else bytes(8)))
                continue
            tensor = _pointed(index, parameter, value)
            first = next(iter(memories.values()), None)
            if first and tensor.device != first.tensor.device:
                where = f"`{parameter.name}` on {tensor.device}, `{first.name}` on {first.tensor.device}"
                raise CudaFault("arguments", f"{where}: a kernel needs all its tensors on one device")
            if not tensor.is_contiguous():
                report.notes += (f"`{parameter.name}` is not contiguous: the kernel gets its memory, not its strides",)
            size, lo = tensor.element_size(), int(tensor.storage_offset()) * tensor.element_size()
            last = sum((n - 1) * int(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            hi = lo + (last + 1) * size if tensor.numel() else lo
            key = tensor.untyped_storage().data_ptr() or -index - 1
            memory = memories.setdefault(key, Memory([], tensor, lo, hi))
            memory.names.append(parameter.name)
            memory.lo, memory.hi = min(memory.lo, lo), max(memory.hi, hi)
            words.append((list(memories).index(key), struct.pack("<q", lo)))
        return list(memories.values()), words

    def _run(
        self, report: Report, memories: list[Memory], words: list[tuple[int, bytes]], shared_mem: int, limit: float
    ) -> None:
        """Run the launch on copies of the memories, read what it found, and write to them what it wrote."""
        offsets = [0, *itertools.accumulate(-(-memory.hi // PAGE) * PAGE for memory in memories)]
        padded = [(array, value + bytes(-len(value) % 8)) for array, value in words]
        lines: list[Sequence[object]] = [
            [len(memories)],
            *([o, m.hi, m.lo, m.hi, m.tensor.element_size()] for o, m in zip(offsets, memories, strict=False)),
            [len(words)],
            *([a, len(v) // 8, *map("{:x}".format, struct.unpack(f"<{len(v) // 8}Q", v))] for a, v in padded),
            [len(self._program.shared)],
            *([one.offset, one.size if one.name else -one.size] for one in self._program.shared),
        ]
        memory_disk = None  # in memory where it fits: a file that outgrows /dev/shm would end this process
        if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 2 * offsets[-1] + PAGE:
            memory_disk = "/dev/shm"
        with tempfile.TemporaryDirectory(prefix="launch-", dir=memory_disk) as folder:

            def trial(variant: int) -> tuple[dict[str, Any], list[np.ndarray]]:
                first: list[object] = [*report.grid, *report.block, shared_mem, limit, variant]
                text = "\n".join(" ".join(map(str, line)) for line in [first, *lines])
                return self._trial(Path(folder), text, offsets, memories, limit)

            outcome, pieces = trial(0)
            report.fill(memories, outcome)
            if fault := self._local(outcome) or outcome["fault"]:
                raise self._fault(report, memories, fault, limit)
            if outcome["undefined"]:  # a shuffle took what no thread gives: does a result depend on it?
                _, others = trial(1)
                if not all(map(np.array_equal, pieces, others)):
                    raise self._fault(report, memories, outcome["undefined"], limit)
            for memory, piece, (_, stored, *_) in zip(memories, pieces, outcome["arrays"], strict=True):
                if stored and not is_real(memory.tensor.device):
                    _write(memory, piece)

    def _trial(
        self, folder: Path, text: str, offsets: list[int], memories: list[Memory], limit: float
    ) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Run a launch in a process of its own; return what it found, and what it left in copies of the memories."""
        launch, data = folder / "launch", folder / "data"
        launch.write_text(text, encoding="ascii")
        copied = np.memmap(data, np.uint8, "w+", shape=max(offsets[-1], 1))
        pieces = [copied[o + m.lo : o + m.hi] for o, m in zip(offsets, memories, strict=False)]
        for memory, piece in zip(memories, pieces, strict=True):
            piece[:] = _bytes(memory)
        done = processes.run([self._program.path, launch, data], cpu_s=limit * 2 + 5, wall_s=limit * 60 + 60)
        data.unlink()  # the pieces stay
        if done.late:
            raise CudaFault("busy", f"this machine is busy: it gave the kernel less than {limit:g} s of its time")
        if done.out_of_time:
            raise CudaFault("endless", f"the kernel did not end within {limit:g} s")
        try:
            return json.loads(done.stdout), pieces
        except ValueError:
            raise CudaFault("exit", f"the kernel ended its process (code {done.code})") from None

    def _local(self, outcome: dict[str, Any]) -> dict[str, Any] | None:
        """Return an index beyond a local array, unless more is known; a shared row may run into the next."""
        if outcome["fault"] and outcome["fault"]["kind"] == "out of bounds":
            return None
        declared = CudaText(self.source).local_arrays()
        for access in (outcome[f"beyond{index}"] for index in range(8)):
            text = self.source.splitlines()[access["line"] - 1] if access else ""
            for used in re.finditer(r"(\w+)\s*\[", text):
                if used[1] in declared:
                    return {
                        **access,
                        "text": used[1],
                        "type": access["text"].strip("'").replace(" [", "["),
                        "other_line": 0,
                    }
        return None

    def _fault(self, report: Report, memories: list[Memory], fault: dict[str, Any], limit: float) -> CudaFault:
        lines: list[int | None] = [fault["line"] or None, fault["other_line"] or None]
        if lines[0] is None:
            lines = self._program.lines(fault["place"], fault["other_place"])
        if fault["space"] == "device":
            fault["text"] = self._program.variable(fault["at"])
        text = CudaText(self.source)
        if fault["kind"] == "endless" and lines[0]:  # a loop without accesses may have no line in the program
            lines[0] = text.loop_at(lines[0])
        dynamic = next(filter(None, map(text.dynamic, range(len(text.tokens)))), None)
        name, size = dynamic[0] if dynamic else "shared memory", None
        if fault["space"] == "shared" and self._program.shared:
            array = self._program.shared[fault["array"]]
            name, size = array.name, array.size
        shared = SharedArray(name, size, text.shared_sizes().get(name, fault["size"] or 4))
        return describe(report, memories, shared, fault, lines, self.source, limit)

    def _run_on_gpu(
        self, report: Report, args: Sequence[object], words: list[tuple[int, bytes]], shared_mem: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        """Run the launch on a real GPU."""
        with torch.cuda.device(device):
            if self._real is None:
                self._real = gpu.compiled(self.source, self.name)
            launch = {"grid": report.grid, "block": report.block}
            gpu.run(self._real, launch, args, [raw for _, raw in words], shared_mem)
            report.ran_on = torch.cuda.get_device_name(device)

    _real: Any = None


def _dims(what: str, dim: Dim) -> Three:
    values = (dim,) if isinstance(dim, int) else tuple(dim)
    x, y, z = (*values, 1, 1, 1)[:3]
    limits = (2**31 - 1, 65535, 65535) if what == "grid" else (1024, 1024, 64)
    for axis, value, limit in zip("xyz", (x, y, z), limits, strict=True):
        if not isinstance(value, int) or not 1 <= value <= limit or len(values) > 3:
            raise CudaFault("launch", f"{what} is {dim}: its {axis} may be 1 to {limit}")
    return x, y, z


def _bytes(memory: Memory) -> np.ndarray:
    """Return the bytes of a memory of the CPU as they are, of a GPU a copy."""
    storage, count = memory.tensor.untyped_storage(), memory.hi - memory.lo
    if not on_host(memory.tensor.device):
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return whole[memory.lo : memory.hi].cpu().numpy()
    if not count:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(storage.data_ptr() + memory.lo))


def _write(memory: Memory, piece: np.ndarray) -> None:
    """Copy the results of a launch on the CPU back to the memory that it was given."""
    if on_host(memory.tensor.device):
        _bytes(memory)[:] = piece
        return
    storage = memory.tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    whole[memory.lo : memory.hi] = torch.from_numpy(np.array(piece)).to(storage.device)


def _pointed(index: int, parameter: Parameter, value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise CudaFault("arguments", f"argument {index} is {type(value).__name__}; `{parameter}` needs a tensor")
    wanted = _TORCH.get(parameter.code)
    if wanted and value.dtype != wanted and {value.dtype, wanted} not in _SIGNLESS:
        raise CudaFault("arguments", f"argument {index} is {value.dtype}; `{parameter}` needs {wanted}")
    if value.device.type not in ("cpu", "sim", "cuda", "mps", "xpu"):
        where = f"argument {index}, `{parameter.name}`, is on {value.device}"
        raise CudaFault("arguments", f"{where}: give one on the CPU or a GPU, such as that of .cpu()")
    return value.detach()


def _scalar(index: int, parameter: Parameter, value: object) -> bytes:
    """Return the bytes of a number as the kernel gets it."""
    letter, size = parameter.code[0], int(parameter.code[1:])
    if letter not in "fiubhg":
        return _structure(parameter, value, size)
    if not isinstance(value, bool | int | float):
        raise CudaFault("arguments", f"argument {index} is {type(value).__name__}; `{parameter}` needs a number")
    if letter in "iub" and isinstance(value, float):
        raise CudaFault("arguments", f"argument {index} is {value}; `{parameter}` needs a whole number")
    if letter == "g":
        return struct.pack("<f", value)[2:]
    form = {"f4": "f", "f8": "d", "h2": "e", "b1": "?"}.get(parameter.code) or {1: "b", 2: "h", 4: "i", 8: "q"}[size]
    try:
        return struct.pack("<" + (form.upper() if letter == "u" else form), value)
    except (struct.error, OverflowError):
        raise CudaFault("arguments", f"argument {index} is {value}, which `{parameter}` cannot hold") from None


def _structure(parameter: Parameter, value: object, size: int) -> bytes:
    """Return the bytes of a structure: those of a `ctypes.Structure`, an array of NumPy's, or `bytes`."""
    way = f"`{parameter}` is a structure of {size} bytes: pass a ctypes.Structure with its fields, or its bytes"
    try:
        raw = bytes(memoryview(value))  # type: ignore[arg-type]
    except TypeError:
        raise CudaFault("arguments", way) from None
    if len(raw) != size:
        raise CudaFault("arguments", f"{way}; this has {len(raw)}")
    return raw
