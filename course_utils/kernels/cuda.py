"""What does this CUDA C++ kernel do? Its unchanged text, compiled and run on the CPU, each access to memory looked at."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import html
import importlib.util
import itertools
import json
import math
import mmap
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs
import torch

from course_utils.base import tables
from course_utils.kernels import faults

__all__ = [
    "CompileError",
    "Compiler",
    "Kernel",
    "KernelFault",
    "Report",
    "Unavailable",
    "compile_cuda",
    "compiler",
    "why_not",
]

HERE = Path(__file__).parent
SHARED_LIMIT = 48 * 1024  # bytes of static shared memory a block, on every GPU
FLAGS = (
    "-std=c++17",
    "-w",
    "-O1",
    "-g1",
    "-fsanitize=thread",
    "-fno-finite-loops",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-exceptions",
)
CLANG = ("-fno-builtin-memset", "-fno-builtin-memcpy", "-mllvm", "-tsan-instrument-read-before-write=1")
Dim = int | Sequence[int]


class Unavailable(RuntimeError):
    """There is no compiler here that can build a kernel."""


class CompileError(RuntimeError):
    """The text does not compile: `line` is the reader's line, from 1, or None; `reason` the compiler's own words."""

    def __init__(self, reason: str, line: int | None = None, text: str = "", caret: str = "") -> None:
        """Say the reason, then the line and under it the caret, as a compiler does."""
        self.reason, self.line = reason, line
        shown = [f"line {line}: {text.strip()}"] if line else []
        if caret.strip():
            shown.append(" " * (len(f"line {line}: ") + caret.index("^") - len(text) + len(text.lstrip())) + "^")
        super().__init__("\n".join([*shown, reason]))


class KernelFault(faults.KernelFault):
    """What is wrong with a launch.

    `kind` is one of "out of bounds", "race", "uninitialised shared", "divergent barrier", "misaligned", "wild pointer",
    "stack", "endless", "division by zero", "assert", "trap", "abort", "exit", "arguments" and "launch". `line` is the
    line of the source from 1, `other_line` that of the other access of a race; `block` and `thread` are indices
    (x, y, z), `array` a name, `element` an index. What a fault does not have is None.
    """

    def __init__(self, kind: str, message: str, **known: object) -> None:
        """Keep what is known beside the message."""
        super().__init__(kind, f"{kind}: {message}")
        self.line: int | None = known.get("line")  # type: ignore[assignment]
        self.other_line: int | None = known.get("other_line")  # type: ignore[assignment]
        self.block: tuple[int, int, int] | None = known.get("block")  # type: ignore[assignment]
        self.thread: tuple[int, int, int] | None = known.get("thread")  # type: ignore[assignment]
        self.array: str | None = known.get("array")  # type: ignore[assignment]
        self.element: int | None = known.get("element")  # type: ignore[assignment]
        self.where = None if self.block is None else (self.block, self.thread)


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the command that starts it and the first line of what it says of its version."""

    command: tuple[str, ...]
    version: str

    @property
    def path(self) -> str:
        """Return the command as one would type it."""
        return " ".join(self.command)

    @property
    def is_clang(self) -> bool:
        """Return whether it takes clang's options."""
        return "clang" in self.version


def _asked(command: tuple[str, ...]) -> Compiler | None:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Compiler(command, done.stdout.splitlines()[0]) if done.returncode == 0 and done.stdout else None


@functools.cache
def compiler() -> Compiler | None:
    """Return the C++ compiler that builds kernels: `CXX`, g++, clang++ or pip's ziglang; None if there is none."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return None
    commands = [tuple(os.environ.get("CXX", "").split()), ("g++",), ("clang++",)]
    if importlib.util.find_spec("ziglang"):
        commands.append((sys.executable, "-m", "ziglang", "c++"))
    return next(
        (found for command in commands if command and shutil.which(command[0]) and (found := _asked(command))), None
    )


def why_not() -> str:
    """Return why CUDA C++ cannot be built here, in one sentence; "" if it can."""
    other = "Triton's language in kernels.language needs none"
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return f"CUDA C++ runs on the CPU under 64-bit Linux alone, and this is {platform.system()}; {other}."
    if compiler() is None:
        return f"CUDA C++ on the CPU needs a C++ compiler (apt install g++, or pip install ziglang); {other}."
    return ""


# ---- compiling


def _run(command: Sequence[str], seconds: float = 60) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, env=environment, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise CompileError(f"the compiler did not end within {seconds:.0f} s") from None


@functools.cache
def _runtime() -> Path:
    """Return the compiled runtime, built once for each compiler and version of its source."""
    found = compiler()
    assert found is not None
    key = hashlib.sha256((HERE / "runtime.cpp").read_bytes() + found.version.encode()).hexdigest()[:16]
    folder = Path(platformdirs.user_cache_dir("course_utils")) / "kernels"
    if not (built := folder / f"runtime-{key}.o").exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = built.with_name(f"{built.name}.{os.getpid()}")
        done = _run([*found.command, "-std=c++17", "-O2", "-w", "-c", "-o", str(part), str(HERE / "runtime.cpp")])
        if done.returncode:
            raise Unavailable(f"{found.path} cannot build the runtime of kernels: {done.stderr.strip()[:300]}")
        part.replace(built)
    return built


_NO_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_KERNEL = re.compile(
    r"__global__[^;{}()]*?(?:__launch_bounds__\s*\([^)]*\)[^;{}()]*?)?\b(\w+)\s*\((.*?)\)\s*\{", re.DOTALL
)
_HEADERS = re.compile(
    r"#[ \t]*include[ \t]*[<\"](?:cuda|device_|vector_|math_constants|sm_|crt/|helper_|c?assert)[^>\"]*[>\"]"
)
_REFUSED = {
    r"<<<": "a kernel is started from Python, kernel(grid=…, block=…, args=…): leave host code with <<<…>>> out",
    r"\bcuda(Malloc|Memcpy|Free|DeviceSync)": "memory is allocated and copied in Python: leave the host code out",
    r"\bcooperative_groups": "cooperative groups cannot run here: use __syncthreads(), __syncwarp() and shuffles",
    r"\bwmma\b|\bmma_sync\b": "the matrix units (wmma) cannot run here",
    r"\basm\b": "PTX in asm statements cannot run here",
    r"\btex[123]D|\btexture\s*<|cudaTextureObject_t": "textures cannot run here",
    r"\bmalloc\s*\(|\bnew\s+\w": "memory that a kernel allocates itself cannot be looked at here",
    r"__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(?:int|float|double|bool|unsigned)\b": "a kernel returns void",
}


def _blank(text: str) -> str:
    """Return the text with comments and strings blanked, lines kept."""
    return _NO_COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def _refused(source: str, plain: str) -> None:
    """Raise for what is CUDA and cannot run here."""
    for pattern, why in _REFUSED.items():
        if found := re.search(pattern, plain):
            line = plain.count("\n", 0, found.start()) + 1
            raise CompileError(why, line, source.splitlines()[line - 1])


def _prepared(source: str) -> str:
    """Return the text as the compiler gets it: the same lines, three of CUDA's notations written for C++."""
    text = _HEADERS.sub("", source)
    text = re.sub(r"\bstatic\s+__shared__", "__shared__", text)
    return re.sub(
        r"\bextern\s+(?:volatile\s+)?__shared__\s+((?:__align__\s*\(\w+\)|alignas\s*\(\w+\)|volatile|\s)*)([\w:\s]+?)\s*(\w+)\s*\[\s*\]\s*;",
        r"static \2* const \3 = (\2*)course_dynamic;",
        text,
    )


def _compile_error(said: str, source: str) -> CompileError:
    """Return the first error of a compiler at the reader's line."""
    lines, own = said.splitlines(), source.splitlines()
    at = next((i for i, line in enumerate(lines) if re.search(r"\b(error|undefined reference)\b", line)), None)
    if at is None:
        return CompileError(said.strip()[:500] or "the compiler failed and did not say why")
    reason = re.sub(r"^.*?(?:fatal )?error: |^.*(?=undefined reference)", "", lines[at])
    places = [re.search(r"kernel\.cu:(\d+)(?::(\d+))?", lines[i]) for i in (at, *range(at + 1, len(lines)), *range(at))]
    if (place := next(filter(None, places), None)) is None:
        return CompileError(reason)
    line = int(place[1])
    if line > len(own):
        return CompileError(
            "the text ends inside a function or a comment" if source.count("{") > source.count("}") else reason
        )
    caret = " " * (int(place[2]) - 1) + "^" if places[0] and place[2] else ""
    return CompileError(reason, line, own[line - 1], caret)


_TORCH = {
    "f4": torch.float32, "f8": torch.float64, "h2": torch.float16, "g2": torch.bfloat16, "b1": torch.bool,
    "i1": torch.int8, "i2": torch.int16, "i4": torch.int32, "i8": torch.int64,
    "u1": torch.uint8, "u2": torch.uint16, "u4": torch.uint32, "u8": torch.uint64,
}  # fmt: skip


@dataclass(frozen=True)
class _Parameter:
    name: str
    type: str  # as the reader wrote it
    pointer: bool
    constant: bool
    code: str  # letter and bytes, as `_TORCH` has them


def compile_cuda(source: str, name: str | None = None) -> Kernel:
    """Compile the text of a .cu file for the CPU and return its kernel `name`, which one kernel alone need not have.

    The signature is that of `torch.cuda._compile_kernel`. A template is named with its arguments, "scale<float, 4>".
    Where a compiler is missing this raises `Unavailable`, for wrong text `CompileError` with the reader's line.
    """
    if why := why_not():
        raise Unavailable(why)
    plain = _blank(source)
    _refused(source, plain)
    if not (kernels := list(_KERNEL.finditer(plain))):
        raise CompileError("there is no kernel: a function marked __global__ that returns void")
    if name is None:
        if len(kernels) > 1:
            raise CompileError(f"there are several kernels, say which: {', '.join(m[1] for m in kernels)}")
        name = kernels[0][1]
    own = next((m for m in kernels if m[1] == name.split("<")[0].strip().split("::")[-1]), None)
    if own is None:
        raise CompileError(f"there is no kernel {name}; there is {', '.join(m[1] for m in kernels)}")
    head = plain[max(0, own.start() - 300) : own.start()]
    if "<" not in name and re.search(r"template\s*<[^;{}]*>\s*(?:static\s+|inline\s+)*$", head):
        raise CompileError(f"{name} is a template: name it with its arguments, such as '{name}<float>'")
    return _built(source, name, own[1], source[own.start(2) : own.end(2)])


@functools.lru_cache(maxsize=256)
def _built(source: str, name: str, base: str, parameters: str) -> Kernel:
    found = compiler()
    assert found is not None
    folder = tempfile.TemporaryDirectory(prefix="kernel-")
    file, program = Path(folder.name, "kernel.cu"), str(Path(folder.name, "kernel"))
    file.write_text(
        f"{_prepared(source)}\n"
        f'extern "C" void course_call(void** a) {{ course::call(&{name}, a); }}\n'
        f'extern "C" void course_describe() {{ course::describe(&{name}); }}\n',
        encoding="utf-8",
    )
    done = _run(
        [
            *found.command,
            *FLAGS,
            *(CLANG if found.is_clang else ()),
            "-include",
            str(HERE / "cuda.h"),
            "-x",
            "c++",
            "-c",
            "-o",
            f"{program}.o",
            str(file),
        ]
    )
    if done.returncode:
        raise _compile_error(done.stderr, source)
    done = _run([*found.command, "-o", program, f"{program}.o", str(_runtime())])
    if done.returncode:
        raise _compile_error(done.stderr, source)
    described = _run([program]).stdout.splitlines()
    texts = [re.sub(r"\s+", " ", _blank(text)).strip() for text in _split(parameters)] if len(described) else []
    known = []
    for place, line in enumerate(described):
        form, letter, size = line.split()
        text = texts[place] if len(texts) == len(described) else ""
        own_name = re.search(r"(\w+)\s*(?:\[\s*\])?$", text)
        kind = re.sub(r"\s*(\w+)\s*(?:\[\s*\])?$", "", text.replace("__restrict__", ""))
        known.append(
            _Parameter(
                own_name[1] if own_name else f"argument {place}", kind, form[0] == "*", "c" in form, letter + size
            )
        )
    return Kernel(name, source, tuple(known), Path(program), tuple(_symbols(program, base, source)), folder)


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


@dataclass(frozen=True)
class _Shared:
    name: str
    at: int
    size: int
    own: bool  # whether the kernel that is launched has it, rather than another one of the file


def _symbols(program: str, base: str, source: str) -> list[_Shared]:
    """Return the shared variables of a program, as its symbol table has them."""
    if not (tool := shutil.which("nm") or shutil.which("llvm-nm")):
        return []
    found = []
    others = {m[1] for m in _KERNEL.finditer(_blank(source))} - {base}
    for line in _run([tool, "--format=sysv", program]).stdout.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 5 or cells[3] != "TLS" or "course_pad_" in cells[0] or not cells[4]:
            continue
        name = re.match(r"_ZZ.*E(\d+)(\w+?)(?:_\d+)?$|(?:_ZL\d+)?(\w+)$", cells[0])
        own = cells[0].startswith("_ZZ") and any(
            f"{len(other)}{other}" in cells[0] or f"ZZ{other}E" in cells[0] for other in others
        )
        plain = name[2] if name and name[2] else re.sub(r"^_ZL?\d+", "", cells[0])
        found.append(_Shared(plain, int(cells[1], 16), int(cells[4], 16), not own))
    return sorted(found, key=lambda one: one.at)


# ---- launching


def _three(what: str, dim: Dim) -> tuple[int, int, int]:
    values = (dim,) if isinstance(dim, int) else tuple(int(v) for v in dim)
    if not 1 <= len(values) <= 3:
        raise KernelFault("launch", f"{what} has {len(values)} dimensions; it takes one to three")
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def _check_dims(grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    for what, dims, limits in (
        ("grid", grid, (2**31 - 1, 65535, 65535)),
        ("block", block, (1024, 1024, 64)),
    ):
        for axis, value, limit in zip("xyz", dims, limits, strict=True):
            if not 1 <= value <= limit:
                raise KernelFault("launch", f"{what}.{axis} is {value}; it may be 1 to {limit}")
    if math.prod(block) > 1024:
        raise KernelFault("launch", f"a block of {block} has {math.prod(block)} threads; a GPU takes at most 1024")
    if math.prod(grid) * math.prod(block) >= 2**32 - 1:
        raise KernelFault("launch", "this grid is too large to be run on the CPU")


def _inner(tensor: torch.Tensor) -> torch.Tensor:
    """Return the CPU tensor that a simulated one wraps."""
    return getattr(tensor, "_inner", tensor)


@dataclass
class _Memory:
    """One storage that arguments point into."""

    names: list[str]
    tensor: torch.Tensor
    lo: int  # bytes of the storage that the arguments span
    hi: int
    constant: bool
    offset: int = 0  # in the file


@dataclass
class Report:
    """What a launch did. Bytes are of global memory; sectors are the 32-byte pieces that each warp's request touches.

    `requests` are accesses of a warp to global memory, `barriers` the passes of a block through `__syncthreads()`,
    `bank_conflicts` the further passes that accesses to shared memory need. `by_array` has (loaded, stored) bytes,
    `unwritten` the elements that no thread wrote of arrays that the kernel writes to, `touched` the tuples
    (element, block, thread, "read" | "write" | "atomic") of each array, in small launches, else it is empty.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    loaded_bytes: int = 0
    stored_bytes: int = 0
    sectors: int = 0
    requests: int = 0
    barriers: int = 0
    shared_accesses: int = 0
    bank_conflicts: int = 0
    atomics: int = 0
    by_array: dict[str, tuple[int, int]] = field(default_factory=dict)
    unwritten: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    touched: dict[str, list[tuple[int, int, int, str]]] = field(default_factory=dict)
    printed: str = ""
    notes: tuple[str, ...] = ()
    ran_on: str = "CPU"
    fault: KernelFault | None = None

    @property
    def blocks(self) -> int:
        """Return the number of blocks."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """Return the number of threads of all blocks."""
        return self.blocks * math.prod(self.block)

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("blocks x threads", f"{self.blocks} x {math.prod(self.block)}"),
            ("bytes loaded", f"{self.loaded_bytes:,}"),
            ("bytes stored", f"{self.stored_bytes:,}"),
            ("32-byte sectors", f"{self.sectors:,} in {self.requests:,} requests of warps"),
            ("barriers", f"{self.barriers:,}"),
            ("shared accesses", f"{self.shared_accesses:,}, bank conflicts {self.bank_conflicts:,}"),
        ]
        rows += [("atomics", f"{self.atomics:,}")] if self.atomics else []
        rows += [(f"  {name}", f"{r:,} loaded, {w:,} stored") for name, (r, w) in self.by_array.items()]
        rows += [(f"  {name}", f"{n:,} elements never written") for name, n in self.unwritten.items() if n]
        rows += [("note", note) for note in self.notes]
        return rows + ([("fault", str(self.fault))] if self.fault else [])

    def __str__(self) -> str:
        """Return the counts, a line each."""
        return f"{self.kernel}\n{tables.text(self._rows())}" + (f"\nprinted:\n{self.printed}" if self.printed else "")

    def _repr_html_(self) -> str:
        printed = f"<pre>{html.escape(self.printed)}</pre>" if self.printed else ""
        return tables.to_html([(a.strip(), b) for a, b in self._rows()], caption=self.kernel, named=True) + printed


class Kernel:
    """A compiled kernel: call it with a grid, a block and arguments."""

    def __init__(
        self,
        name: str,
        source: str,
        parameters: tuple[_Parameter, ...],
        program: Path,
        shared: tuple[_Shared, ...],
        folder: tempfile.TemporaryDirectory[str],
    ) -> None:
        """Keep what `compile_cuda` built; the folder goes with the kernel."""
        self.name, self.source = name, source
        self._parameters, self._program, self._shared, self._folder = parameters, program, shared, folder

    def __repr__(self) -> str:
        """Return its name and parameters."""
        return f"<kernel {self.name}({', '.join(f'{p.type} {p.name}' for p in self._parameters)})>"

    def __call__(
        self,
        grid: Dim = (1, 1, 1),
        block: Dim = (1, 1, 1),
        args: Sequence[object] = (),
        shared_mem: int = 0,
        *,
        limit: float = 5.0,
    ) -> Report:
        """Run the kernel and return what it did; what is wrong with it raises `KernelFault`, and nothing is written.

        A tensor is passed as its memory, from its first element on, as `data_ptr` is; on a simulated GPU that is the CPU
        memory behind it. Tensors on a GPU: the launch runs on copies of them on the CPU first, and where nothing is
        wrong for real, by `torch.cuda._compile_kernel`. `limit` is in seconds of the CPU.
        """
        report = self.check(grid, block, args, shared_mem, limit=limit)
        if report.fault:
            raise report.fault
        return report

    def check(
        self,
        grid: Dim = (1, 1, 1),
        block: Dim = (1, 1, 1),
        args: Sequence[object] = (),
        shared_mem: int = 0,
        *,
        limit: float = 5.0,
    ) -> Report:
        """Do as a call does, but return what is wrong as the report's `fault`."""
        report = Report(self.name, (0, 0, 0), (0, 0, 0))
        try:
            report.grid, report.block = _three("grid", grid), _three("block", block)
            _check_dims(report.grid, report.block)
            self._check_shared(shared_mem)
            memories, words, notes = self._arguments(args)
            report.notes = tuple(notes)
            self._launch(report, memories, words, shared_mem, limit)
        except KernelFault as fault:
            report.fault = fault
        return report

    def _check_shared(self, shared_mem: int) -> None:
        used = sum(one.size for one in self._shared if one.own)
        if used > SHARED_LIMIT:
            raise KernelFault("launch", f"the kernel has {used} bytes of shared memory; a block has {SHARED_LIMIT}")
        if not 0 <= shared_mem <= 227 * 1024 - used:
            raise KernelFault("launch", f"shared_mem is {shared_mem} bytes; no GPU has more than {227 * 1024} a block")

    def _arguments(self, args: Sequence[object]) -> tuple[list[_Memory], list[tuple[int, bytes]], list[str]]:
        """Return the memories that the arguments point into, and each argument: (memory, offset) or (-1, its bytes)."""
        if len(args) != len(self._parameters):
            wanted = ", ".join(f"{p.type} {p.name}".strip() for p in self._parameters)
            raise KernelFault(
                "arguments", f"{self.name}({wanted}) takes {len(self._parameters)} arguments, not {len(args)}"
            )
        memories: dict[int, _Memory] = {}
        words: list[tuple[int, bytes]] = []
        notes = []
        for place, (one, value) in enumerate(zip(self._parameters, args, strict=True)):
            if not one.pointer:
                words.append((-1, _scalar(place, one, value)))
                continue
            if value is None:
                words.append((-1, bytes(8)))
                continue
            tensor = _pointed(place, one, value)
            if not tensor.is_contiguous():
                notes.append(
                    f"`{one.name}` is not contiguous: a kernel sees its memory, strides {tensor.stride()}, not its shape"
                )
            size = tensor.element_size()
            lo = tensor.storage_offset() * size
            span = (
                1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
                if tensor.numel()
                else 0
            )
            key = tensor.untyped_storage().data_ptr() or -place - 1
            memory = memories.setdefault(key, _Memory([], tensor, lo, lo + span * size, True))
            memory.names.append(one.name)
            memory.lo, memory.hi = min(memory.lo, lo), max(memory.hi, lo + span * size)
            memory.constant &= one.constant
            words.append((list(memories).index(key), struct.pack("<q", lo)))
        return list(memories.values()), words, notes

    def _launch(
        self, report: Report, memories: list[_Memory], words: list[tuple[int, bytes]], shared_mem: int, limit: float
    ) -> None:
        with tempfile.TemporaryDirectory(
            prefix="launch-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        ) as folder:
            data, launch = Path(folder, "data"), Path(folder, "launch")
            total = 0
            for memory in memories:
                memory.offset, total = total, total + -(-memory.hi // mmap.PAGESIZE) * mmap.PAGESIZE
            with data.open("w+b") as file:
                file.truncate(max(total, 1))
                for memory in memories:
                    file.seek(memory.offset + memory.lo)
                    file.write(_bytes(memory))
            text = [*report.grid, *report.block, shared_mem, limit, len(memories)]
            for memory in memories:
                text += [memory.offset, memory.hi, memory.lo, memory.hi, memory.tensor.element_size()]
            text += [len(words)]
            for array, value in words:
                text += [array, *(f"{v:x}" for v in struct.unpack("<QQ", value.ljust(16, b"\0")))]
            text += [len(self._shared), *itertools.chain.from_iterable((one.at, one.size) for one in self._shared)]
            launch.write_text(" ".join(map(str, text)), encoding="ascii")
            try:
                done = subprocess.run(
                    [self._program, launch, data], capture_output=True, timeout=limit * 3 + 3, check=False, cwd=folder
                )
            except subprocess.TimeoutExpired:
                raise KernelFault("endless", f"the kernel did not end within {limit:g} s") from None
            try:
                found = json.loads(done.stdout)
            except ValueError:
                raise KernelFault("exit", f"the kernel ended its process (code {done.returncode})") from None
            self._read(report, memories, found, limit)
            if report.fault is None:
                written = data.read_bytes()
                for memory, (_, stored, *_) in zip(memories, found["arrays"], strict=True):
                    if stored:
                        where = memory.offset + memory.lo
                        ctypes.memmove(
                            _pointer(memory), written[where : where + memory.hi - memory.lo], memory.hi - memory.lo
                        )

    def _read(self, report: Report, memories: list[_Memory], found: dict, limit: float) -> None:
        """Fill in the report from what the runtime found."""
        (
            report.sectors,
            report.requests,
            report.barriers,
            report.shared_accesses,
            _,
            report.bank_conflicts,
            report.atomics,
        ) = found["counts"]
        for memory, (loaded, stored, missing, _) in zip(memories, found["arrays"], strict=True):
            name = "/".join(memory.names)
            report.by_array[name] = (loaded, stored)
            report.sizes[name] = (memory.hi - memory.lo) // memory.tensor.element_size()
            report.shapes[name] = tuple(memory.tensor.shape)
            report.loaded_bytes += loaded
            report.stored_bytes += stored
            if stored:
                report.unwritten[name] = missing
        names, per_block = list(report.by_array), math.prod(report.block)
        flat = found["touched"]
        if found["all_touched"]:
            report.touched = {name: [] for name in names}
            for array, thread, element, how in zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True):
                kind = ("read", "write", "atomic")[how]
                report.touched[names[array]].append((element, thread // per_block, thread % per_block, kind))
        report.printed = found["printed"]
        fault, soft = found["fault"], found["uninitialised"]
        if soft and (
            not fault
            or (
                not (fault["kind"] == "race" and fault["space"].startswith("shared"))
                and fault["kind"] != "divergent barrier"
            )
        ):
            fault = soft if not fault or fault["kind"] not in ("out of bounds", "misaligned") else fault
        if fault:
            report.fault = self._fault(report, memories, fault, limit)

    # ---- messages

    def _lines(self, *places: int) -> list[int | None]:
        """Return the reader's lines of places in the program."""
        if not any(places) or not (tool := shutil.which("addr2line") or shutil.which("llvm-symbolizer")):
            return [None] * len(places)
        lines: list[int | None] = []
        for place in places:
            extra = ["-i", "-e"] if "addr2line" in tool else ["--inlines", "--functions=none", "-e"]
            said = _run([tool, *extra, str(self._program), hex(place - 1)]).stdout if place else ""
            mine = re.search(r"kernel\.cu:(\d+)", said)
            lines.append(int(mine[1]) if mine else None)
        return lines

    def _shown(self, line: int | None) -> str:
        own = self.source.splitlines()
        return f"\nline {line}: {own[line - 1].strip()}" if line and line <= len(own) else ""

    def _fault(self, report: Report, memories: list[_Memory], found: dict, limit: float) -> KernelFault:
        kind, line, other_line = found["kind"], found["line"] or None, found["other_line"] or None
        if line is None:
            line, other_line = self._lines(found["place"], found["other_place"])
            line = line or other_line
        block, thread = tuple(found["block"]), tuple(found["thread"])
        array, element, what = self._element(memories, found)
        who = f"block {_xyz(block, report.grid)}, thread {_xyz(thread, report.block)}"
        if kind == "race":
            other_block, other = divmod(found["other"], math.prod(report.block))
            message = self._race(report, found, who, what, line, other_line, other_block, other)
        else:
            message = self._message(report, found, who, what, limit)
        return KernelFault(
            kind, message + self._shown(line), line=line, other_line=other_line, block=block, thread=thread,
            array=array, element=element,
        )  # fmt: skip

    def _element(self, memories: list[_Memory], found: dict) -> tuple[str | None, int | None, str]:
        """Return name, index and words for the element that a fault is about."""
        space, at = found["space"], found["at"]
        if space == "global" and found["array"] >= 0:
            memory = memories[found["array"]]
            size, name = memory.tensor.element_size(), "/".join(memory.names)
            if found["kind"] == "out of bounds" and memory.lo <= at < memory.hi:
                at = memory.hi  # a wide access that begins inside
            element, count = (at - memory.lo) // size, (memory.hi - memory.lo) // size
            has = f"which has {count} (0 to {count - 1})" if count else "which is empty"
            if found["kind"] != "out of bounds":
                return name, element, f"`{name}`[{element}]" + _index(element, memory.tensor)
            wrapped = f" ({element - 2**32} as an unsigned number)" if 2**31 <= element < 2**32 else ""
            return name, element, f"element {element}{wrapped} of `{name}`, {has}"
        if space.startswith("shared"):
            dynamic = space == "shared dynamic"
            one = None if dynamic or not self._shared else self._shared[found["array"]]
            name = one.name if one else self._dynamic()
            size = found["size"] or 4
            element = at // size
            if found["kind"] != "out of bounds":
                return name, element, f"`{name}`[{element}]"
            if one is None:
                return name, element, f"element {element} of `{name}`, beyond the shared_mem of the launch"
            return name, element, f"element {element} of `{name}` in shared memory, which has {one.size // size}"
        return None, None, ""

    def _dynamic(self) -> str:
        named = re.search(r"extern\s+__shared__[^;\[]*?(\w+)\s*\[", self.source)
        return named[1] if named else "shared memory"

    def _race(
        self,
        report: Report,
        found: dict,
        who: str,
        what: str,
        line: int | None,
        other_line: int | None,
        block: int,
        thread: int,
    ) -> str:
        verbs = ("reads", "writes", "changes by an atomic")
        past = ("read", "wrote", "changed by an atomic")
        across = block != _linear(found["block"], report.grid)
        place = f"thread {_xyz(_split3(thread, report.block), report.block)}"
        place = f"block {_xyz(_split3(block, report.grid), report.grid)}, {place}" if across else place
        at = f" (line {other_line})" if other_line and other_line != line else ""
        space = "global" if found["space"] == "global" else "shared"
        why = ", with no __syncthreads() between"
        if across:
            why = "; blocks run in no order: use an atomic, or let one thread alone use each element"
        return (
            f"{who} {verbs[found['how']]} {what} in {space} memory, which {place} {past[found['other_how']]}{at}{why}"
        )

    def _message(self, report: Report, found: dict, who: str, what: str, limit: float) -> str:
        kind, verb = found["kind"], ("reads", "writes", "changes by an atomic")[found["how"]]
        if kind == "out of bounds":
            return f"{who} {verb} {what}"
        if kind == "uninitialised shared":
            return f"{who} reads {what} in shared memory, which no thread of its block has written"
        if kind == "misaligned":
            return f"{who} {verb} {found['size']} bytes at {what}, whose address is no multiple of {found['size']}"
        if kind == "divergent barrier":
            return self._divergent(report, found, who)
        if kind == "wild pointer":
            at = found["at"] & (2**64 - 1)
            return f"{who} uses address {at:#x}" + (
                ", a null pointer" if at < 65536 else ", which is in none of its arrays"
            )
        if kind == "stack":
            return f"{who} needs more than 256 KiB of local memory: recursion without end, or large local arrays"
        if kind == "endless":
            return f"{who} had not ended after {limit:g} s"
        if kind == "assert":
            return f"{who}: assert({found['text']}) does not hold"
        return f"{who}: {_ENDS.get(kind, kind)}"

    def _divergent(self, report: Report, found: dict, who: str) -> str:
        other = f"thread {_xyz(_split3(found['other'] % math.prod(report.block), report.block), report.block)}"
        if found["text"] == "mask":
            return f"{who} calls a warp function whose mask does not name it"
        if found["text"] == "warp":
            return f"{who} waits in a warp function for threads of its mask, and {other} does not come"
        if found["text"] == "ended":
            return f"{who} waits at __syncthreads(), and {other} of its block has ended"
        return f"{who} waits at __syncthreads(), and {other} of its block at another one, line {found['other_line']}"


_ENDS = {
    "exit": "the kernel called exit()",
    "abort": "the kernel called abort()",
    "trap": "the kernel called __trap(), or reached the end of a function that returns a value",
    "division by zero": "a whole number is divided by zero",
}


def _xyz(index: Sequence[int], dims: Sequence[int]) -> str:
    """Return an index as CUDA writes it, without the axes that a launch does not use."""
    if dims[1] == dims[2] == 1:
        return str(index[0])
    return f"({', '.join(map(str, index[: 2 if dims[2] == 1 else 3]))})"


def _split3(linear: int, dims: Sequence[int]) -> tuple[int, int, int]:
    return linear % dims[0], linear // dims[0] % dims[1], linear // dims[0] // dims[1]


def _linear(index: Sequence[int], dims: Sequence[int]) -> int:
    return index[0] + dims[0] * (index[1] + dims[1] * index[2])


def _index(element: int, tensor: torch.Tensor) -> str:
    """Return where an element stands in a tensor of several dimensions."""
    if tensor.dim() < 2 or not tensor.is_contiguous() or not 0 <= element < tensor.numel():
        return ""
    return f" (at {[int(i) for i in torch.unravel_index(torch.tensor(element), tensor.shape)]})"


def _pointer(memory: _Memory) -> int:
    return memory.tensor.untyped_storage().data_ptr() + memory.lo


def _bytes(memory: _Memory) -> memoryview:
    if memory.hi == memory.lo:
        return memoryview(b"")
    return memoryview((ctypes.c_char * (memory.hi - memory.lo)).from_address(_pointer(memory)))


def _pointed(place: int, one: _Parameter, value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise KernelFault(
            "arguments", f"argument {place} is {type(value).__name__}; `{one.type} {one.name}` needs a tensor"
        )
    wanted = _TORCH.get(one.code)
    if (
        wanted
        and value.dtype != wanted
        and {value.dtype, wanted} not in ({torch.int32, torch.uint32}, {torch.int64, torch.uint64})
    ):
        raise KernelFault("arguments", f"argument {place} is {value.dtype}; `{one.type} {one.name}` needs {wanted}")
    tensor = _inner(value.detach())
    if tensor.device.type != "cpu":
        raise KernelFault("arguments", f"argument {place}, `{one.name}`, is on {tensor.device}")
    return tensor


def _scalar(place: int, one: _Parameter, value: object) -> bytes:
    """Return the bytes of a scalar parameter."""
    letter, size = one.code[0], int(one.code[1:])
    if letter not in "fiubhg":
        raise KernelFault("arguments", f"`{one.type} {one.name}` is a structure, which Python cannot pass")
    if not isinstance(value, bool | int | float):
        raise KernelFault(
            "arguments", f"argument {place} is {type(value).__name__}; `{one.type} {one.name}` needs a number"
        )
    if letter == "h":
        return struct.pack("<e", value)
    if letter == "g":
        return struct.pack("<f", value)[2:]
    if letter != "f" and isinstance(value, float):
        raise KernelFault("arguments", f"argument {place} is {value}; `{one.type} {one.name}` needs a whole number")
    form = {"f4": "f", "f8": "d", "b1": "?"}.get(one.code) or {1: "b", 2: "h", 4: "i", 8: "q"}[size]
    try:
        return struct.pack("<" + (form.upper() if letter == "u" else form), value)
    except (struct.error, OverflowError):
        raise KernelFault(
            "arguments", f"argument {place} is {value}, more than `{one.type} {one.name}` holds"
        ) from None
