"""C++ compiler of this machine, and its messages about the reader's text."""

import contextlib
import difflib
import functools
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelcheck.cuda import processes
from kernelcheck.cuda.rules import CUDA_HEADER, header
from kernelcheck.cuda.text import CudaText
from kernelcheck.faults import CompileError

HERE = Path(__file__).parent
# ruff: noqa: SIM905
FLAGS = (
    *"-std=c++17 -Werror=vla -O1 -g1 -fsanitize=thread -fno-finite-loops -fwrapv -fno-strict-aliasing".split(),
    *("-fno-exceptions", "-I", str(HERE / "include"), "-I", str(HERE / "types"), "-include", str(HERE / "cuda.h")),
    *("-x", "c++"),
)
GCC = ("-fsanitize=bounds,return",)
# clang leaves out the read of a value that is written at once, and makes loops into memset, which has no hook
CLANG = """-fsanitize=array-bounds,return -fno-builtin-memset -fno-builtin-memcpy
-mllvm -tsan-instrument-read-before-write=1""".split()
COMPILE_S = 180.0  # of the CPU; zig builds its C++ library at its first link
WALL_S = 1800.0


class Unavailable(RuntimeError):
    """There is no compiler here that can build a kernel."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the command that starts it and the first line of what it says of its version."""

    command: tuple[str, ...]
    version: str

    @property
    def path(self) -> str:
        """Return the command as one would type it."""
        return " ".join(self.command)


def _asked(command: tuple[str, ...]) -> Compiler | None:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Compiler(command, done.stdout.splitlines()[0]) if done.returncode == 0 and done.stdout else None


def _supported() -> bool:
    """Return whether fibers and the layout of programs are as runtime.cpp has them."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")


@functools.cache
def compiler() -> Compiler | None:
    """Return the C++ compiler that builds kernels: `CXX`, g++, clang++ or pip's ziglang; None if there is none."""
    commands = [tuple(os.environ.get("CXX", "").split()), ("g++",), ("clang++",)]
    if importlib.util.find_spec("ziglang"):
        commands.append((sys.executable, "-m", "ziglang", "c++"))
    there = (command for command in commands if command and shutil.which(command[0]))
    return next(filter(None, map(_asked, there)), None) if _supported() else None


def why_not() -> str:
    """Return why CUDA C++ cannot be built here, in one sentence; "" if it can."""
    other = "Triton's language, kernelcheck.triton(), needs none"
    if not _supported():
        return f"CUDA C++ runs on the CPU under 64-bit Linux alone, and this is {platform.system()}; {other}."
    if compiler() is None:
        return f"CUDA C++ on the CPU needs a C++ compiler (apt install g++, or pip install ziglang); {other}."
    return ""


def run(command: Sequence[str | Path]) -> processes.Done:
    """Run a tool and return what it said, in English. Raises `CompileError` where it does not end."""
    done = processes.run(command, cpu_s=COMPILE_S, wall_s=WALL_S, environment={**os.environ, "LC_ALL": "C"})
    if done.out_of_time:
        raise CompileError(f"the compiler did not end within {COMPILE_S:.0f} s of its own time")
    if done.late:
        raise CompileError(f"this machine is busy: the compiler did not end within {WALL_S:.0f} s")
    return done


def _said(command: Sequence[str | Path]) -> str:
    """Run a tool and return what it wrote."""
    return run(command).stdout.decode(errors="replace")


def find(*names: str) -> str | None:
    """Return the path of the first of these tools that there is."""
    return next(filter(None, map(shutil.which, names)), None)


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes when this process ends."""
    return tempfile.TemporaryDirectory(prefix="kernelcheck-")


def _kept() -> Path:
    """Return the folder for what other processes use, too; where nothing can be written to it, one of this process."""
    with contextlib.suppress(OSError, RuntimeError):  # a home that cannot be written to, or none
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kernelcheck")
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return Path(_scratch().name)


@functools.cache
def _runtime(chosen: Compiler) -> Path:
    """Return the compiled runtime, built once for each compiler and version of its source."""
    key = hashlib.sha256((HERE / "runtime.cpp").read_bytes() + chosen.version.encode()).hexdigest()[:16]
    if not (built := _kept() / f"runtime-{key}.o").exists():
        part = built.with_name(f"{built.name}.{os.getpid()}")
        done = run([*chosen.command, "-std=c++17", "-O2", "-w", "-c", "-o", str(part), str(HERE / "runtime.cpp")])
        if done.code:
            raise Unavailable(f"{chosen.path} cannot build the runtime of kernels: {done.stderr.strip()[:300]}")
        part.replace(built)  # other processes may build it too: the last one wins
    return built


def _prepared(source: str) -> str:
    """Return the text as the compiler gets it: the same lines, three of CUDA's notations written for C++."""
    text, parts, end = CudaText(source), list[str](), 0
    for start, stop, instead in _changes(text):
        parts += [source[end:start], instead]
        end = stop
    return "".join(parts) + source[end:]


def _changes(text: CudaText) -> Iterator[tuple[int, int, str]]:
    """Yield what is written in another way: where it begins and ends, and how."""
    for n, token in enumerate(text.tokens):
        following = text.tokens[n + 1].text if n + 1 < len(text.tokens) else ""
        name = header(token.text) if token.kind == "directive" else None
        ours = name and any((HERE / folder / name).exists() for folder in ("types", "include"))
        theirs = name and CUDA_HEADER.fullmatch(name) and not ours
        if theirs or name in ("assert.h", "cassert"):
            yield token.start, token.start + len(token.text), ""
        elif token.text == "static" and following == "__shared__":
            yield token.start, text.tokens[n + 1].start, ""
        elif token.text == "alignas" and n and text.tokens[n - 1].text == "__shared__":
            yield token.start, token.start + len(token.text), "__align__"
        elif (dynamic := text.dynamic(n)) is not None:
            name, kind, stop = dynamic
            yield token.start, stop, f"static {kind}* const {name} = ({kind}*)kc_dynamic;"


_NAMES = {"kc_sync": "__syncthreads", "kc_sync_warp": "__syncwarp"}  # what stands behind a macro of cuda.h
_INCLUDED = re.compile(r"In file included from|\s+from ")
_NEAR = r"(?:; did you mean '(\w+)'\?)?"
_UNDECLARED = re.compile(  # as g++ says it, or clang++
    rf"(?:'(\w+)' (?:was not declared in this scope|does not name a type)"
    rf"|(?:use of undeclared identifier|unknown type name) '(\w+)'){_NEAR}"
)
_OWN_WORDS = "__syncthreads", "__syncwarp", "__shared__", "__device__", "threadIdx", "blockIdx", "blockDim", "gridDim"
_OF_CUDA = re.compile(
    r"__[a-z]|atomic[A-Z]|make_|cuda|tex[A-Z1-3]|surf[A-Z1-3]|h2?(?:exp|log|sin|cos|sqrt|tanh|rcp|rsqrt)\d*$"
)
_NO_SEMICOLON = r"^expected (?:(?:\W,\W or )?\W;\W|initializer(?= before))"


def _unknown(name: str, known: str | None, source: str) -> str:
    """Return what is said of a name that nobody declared; `known` is one like it, as the compiler finds."""
    if name.startswith("cuda"):
        return f"{name} is of CUDA's library for the host, which is not here: leave the host code out"
    reason = f'identifier "{name}" is undefined'  # nvcc's words
    if re.fullmatch("__shfl(_up|_down|_xor)?|__(any|all|ballot)", name):
        first = "whose first argument is the mask of threads, 0xffffffff for a whole warp"
        return f"{reason}: CUDA has {name}_sync, {first}"
    known = next(iter(difflib.get_close_matches(name, _OWN_WORDS, 1, 0.9)), known)
    if _OF_CUDA.match(name) and known not in _OWN_WORDS:
        return f"{reason}. If CUDA has it, kernelcheck does not have it yet"
    near = known and (known in _OWN_WORDS or re.search(rf"\b{re.escape(known)}\b", source))
    return f"{reason}; did you mean {known}?" if near else reason


def _error(said: str, source: str, kernel: str) -> CompileError:
    """Return the first error of a compiler, at the reader's line."""
    lines, own = said.splitlines(), source.splitlines()
    errors = [i for i, line in enumerate(lines) if re.search(r"\b(error|undefined reference)\b", line)]
    index = next(
        (i for i in errors if "declared void" not in lines[i]), next(iter(errors), None)
    )  # it follows from others
    index = next(
        (i for i, line in enumerate(lines) if "missing terminating" in line), index
    )  # it makes all that follow
    if index is None:
        return CompileError(said.strip()[:500] or "the compiler failed and did not say why")
    reason = re.sub(r"^.*?(?:(?:fatal )?error|warning): |^.*(?=undefined reference)| \[-\S+\]$", "", lines[index])
    reason = re.sub(_NO_SEMICOLON, 'expected a ";"', reason)  # as nvcc says it
    if match := _UNDECLARED.match(reason):
        reason = _unknown(match[1] or match[2], match[3], source)
    for ours, name in _NAMES.items():
        reason = re.sub(rf"\b{ours}\b", name, reason)
    if re.match(r"no matching function for call to 'call\b", reason):  # in the line that starts the kernel
        reason = f"no kernel is {kernel}: its template takes other arguments between < and >"
    if "-Werror=vla" in lines[index]:
        reason = "the length of an array must be known when the kernel is compiled, as in float row[64]"
    if "of read-only location" in reason:
        reason = "this is const: it can be read, not written"
    # an error inside cuda.h is followed, or led, by the line of the reader that led there
    ordered = [line for line in (*lines[index:], *lines[:index]) if not _INCLUDED.match(line)]
    places = [re.search(r"kernel\.cu:(\d+)(?::(\d+))?", line) for line in ordered]
    if (place := next(filter(None, places), None)) is None:
        return CompileError(reason)
    line = int(place[1])
    if line > len(own):
        open_end = source.count("{") > source.count("}")
        return CompileError("the text ends inside a function or a comment" if open_end else reason)
    column = int(place[2]) if places[0] and place[2] else 0
    head = own[line - 1][:column]
    if head.count("(") > head.count(")") and not re.search(r"\bfor\b", head):
        reason = reason.replace('expected a ";"', 'expected a ")"')  # g++ gives up inside a condition
    return CompileError(reason, line, own[line - 1], column)


@dataclass(frozen=True)
class Shared:
    """A variable in shared memory: its place and size in bytes; `own` if no other kernel has it.

    One without a name is a compiler's own.
    """

    name: str
    offset: int
    size: int
    own: bool


class _InMemory:
    """A file that no folder has: it goes when nobody holds this object any more, however the process ends."""

    def __init__(self, file: Path) -> None:
        self._number = os.memfd_create(file.name)
        os.write(self._number, file.read_bytes())
        weakref.finalize(self, os.close, self._number)

    @property
    def path(self) -> Path:
        """Return a path of the file for this process and those that it starts."""
        return Path(f"/proc/{os.getpid()}/fd/{self._number}")


@dataclass(frozen=True)
class KernelProgram:
    """A kernel as a program of its own, which is kept in memory."""

    file: _InMemory
    parameters: tuple[tuple[bool, bool, str], ...]  # pointer, to constants, letter of the type with its bytes
    shared: tuple[Shared, ...]

    @property
    def path(self) -> Path:
        """Return where the program is."""
        return self.file.path

    def lines(self, *places: int) -> list[int | None]:
        """Return the reader's lines of places behind calls in the program; None for 0, and where no tool tells."""
        tool = find("addr2line", "llvm-addr2line", "llvm-symbolizer")
        lines: list[int | None] = []
        for place in places:
            said = _said([tool, "-i", "-e", self.path, hex(place - 1)]) if tool and place else ""
            mine = re.search(r"kernel\.cu:(\d+)", said)
            lines.append(int(mine[1]) if mine else None)
        return lines

    def variable(self, offset: int) -> str:
        """Return the name of the `__device__` variable at an offset of the program."""
        for name, kind, start, size in _symbol_table(self.path):
            if kind == "OBJECT" and start <= offset < start + size:
                return re.sub(r"^_ZL?(?:N\d+\w+?)?\d+", "", name)
        return "a variable of the file"


def build(source: str, name: str, others: Sequence[str]) -> KernelProgram:
    """Compile the text of a .cu file and its kernel `name`, as C++ writes it; `others` are the names of its others."""
    chosen = compiler()
    if chosen is None:
        raise Unavailable(why_not())
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        return _built(chosen, Path(folder), source, name, others)


def _built(chosen: Compiler, folder: Path, source: str, name: str, others: Sequence[str]) -> KernelProgram:
    file, program = folder / "kernel.cu", folder / "kernel"
    overloaded = re.fullmatch(r"([\w:]+)(\(.*\))", name)  # one of several kernels of this name
    chosen_one = f"static_cast<void (*){overloaded[2]}>(&{overloaded[1]})" if overloaded else f"&{name}"
    file.write_text(
        f"{_prepared(source)}\n"
        f'extern "C" void kc_call(void** a) {{ kc::call({chosen_one}, a); }}\n'
        f'extern "C" void kc_describe() {{ kc::describe({chosen_one}); }}\n',
        encoding="utf-8",
    )
    extra = CLANG if "clang" in chosen.version else GCC
    for command in (
        [*chosen.command, *FLAGS, *extra, "-c", "-o", f"{program}.o", str(file)],
        [*chosen.command, "-o", str(program), f"{program}.o", str(_runtime(chosen))],
    ):
        done = run(command)
        if done.code:
            raise _error(done.stderr, source, name)
    described = [line.split() for line in _said([program]).splitlines()]
    parameters = tuple((form[0] == "*", "c" in form, letter + size) for form, letter, size in described)
    return KernelProgram(_InMemory(program), parameters, tuple(_shared(program, others)))


def _shared(program: Path, others: Sequence[str]) -> list[Shared]:
    """Return the shared variables of a program, as its symbol table has them, in order."""
    variables = []
    for symbol, kind, offset, size in _symbol_table(program):
        if kind != "TLS" or "kc_pad_" in symbol:
            continue
        # _ZZ6kernelPfE4part is `part` inside `kernel`, _ZL4part one of the file
        name = re.match(r"_ZZ.*E\d+([a-zA-Z_]\w*?)(?:_\d*)?$|_ZL\d+(\w+)$", symbol)
        theirs = any(f"{len(other)}{other}" in symbol or f"_ZZ{other}E" in symbol for other in others)
        plain = next(filter(None, name.groups()), "") if name else symbol
        guard = symbol.startswith("_ZGV")
        variables.append(Shared("" if guard else plain, offset, size, not theirs and not guard))
    return sorted(variables, key=lambda variable: variable.offset)


def _symbol_table(program: Path) -> Iterator[tuple[str, str, int, int]]:
    """Yield name, kind, place and size of each symbol of a program that has them."""
    if tool := find("nm", "llvm-nm"):
        for line in _said([tool, "--format=sysv", program]).splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            if len(cells) > 4 and re.fullmatch(r"[0-9a-f]+", cells[1]) and re.fullmatch(r"[0-9a-f]+", cells[4]):
                yield cells[0], cells[3], int(cells[1], 16), int(cells[4], 16)
