"""Report of a launch: what it did, and what is wrong with it."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelcheck import faults, tables
from kernelcheck.cuda.text import CudaText
from kernelcheck.traffic import Sums, Traffic

Three = tuple[int, int, int]
VERBS = ("reads", "writes", "changes by an atomic", "begins a copy to")
PAST = ("read", "wrote", "changed by an atomic")
ENDS = {
    "exit": "the kernel called exit()",
    "abort": "the kernel called abort()",
    "trap": "the kernel called __trap()",
    "division by zero": "a whole number is divided by zero",
    "stack": "it needs more than 256 KiB of local memory: recursion without end, or large local arrays",
}


class CudaFault(faults.KernelFault):
    """Fault of a launch of a CUDA kernel.

    `kind` is one of "out of bounds", "race", "uninitialised shared", "undefined", "divergent barrier", "misaligned",
    "wild pointer", "stack", "endless", "division by zero", "assert", "trap", "abort", "exit", "arguments", "launch" and
    "busy", which blames the machine and not the kernel. `line` is the line of the source, from 1, `other_line` that of
    the other access of a race; `block` and `thread` are indices (x, y, z), `array` a name, `element` an index. What a
    fault does not have is None.
    """

    line: int | None  # type: ignore[assignment]  # of a text that is in no file

    def __init__(
        self, kind: str, message: str, *, line: int | None = None, other_line: int | None = None,
        block: Three | None = None, thread: Three | None = None, array: str | None = None, element: int | None = None,
    ) -> None:  # fmt: skip
        """Keep what is known beside the message."""
        where = None if block is None else (block, thread)
        super().__init__(kind, f"{kind}: {message}", array=array, element=element, where=where)
        self.line, self.other_line, self.block, self.thread = line, other_line, block, thread


@dataclass
class Memory:
    """A storage that arguments point into: bytes `lo` to `hi` of it are theirs."""

    names: list[str]
    tensor: torch.Tensor
    lo: int
    hi: int

    @property
    def name(self) -> str:
        """Return the name of the argument; of several that share the storage all."""
        return "/".join(self.names)

    @property
    def count(self) -> int:
        """Return the number of elements."""
        return (self.hi - self.lo) // self.tensor.element_size()


@dataclass(frozen=True)
class SharedArray:
    """An array in shared memory: its bytes, None where the launch says how many, and those of an element."""

    name: str
    bytes: int | None
    item: int


@dataclass
class Report(Sums):
    """What a launch did. Bytes are of global memory; sectors are the 32-byte pieces that each warp's request touches.

    `requests` are accesses of a warp to global memory, `barriers` the passes of a block through `__syncthreads()`,
    `bank_conflicts` the further passes that accesses to shared memory need. `by_array` has a `Traffic` for each array,
    `sizes` its elements, `unwritten` the number of elements that no thread wrote, of arrays that the kernel writes to,
    `touched` the tuples (element, block, thread, "read" | "write" | "atomic") of each array in order, where they are at
    most 40,000, else nothing. `notes` say what is not wrong and may surprise. A block or thread is a number, x first.
    """

    kernel: str
    grid: Three = (0, 0, 0)
    block: Three = (0, 0, 0)
    barriers: int = 0
    shared_accesses: int = 0
    bank_conflicts: int = 0
    atomics: int = 0
    by_array: dict[str, Traffic] = field(default_factory=dict)
    unwritten: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    touched: dict[str, list[tuple[int, int, int, str]]] = field(default_factory=dict)
    printed: str = ""
    notes: tuple[str, ...] = ()
    ran_on: str = "CPU"
    fault: CudaFault | None = None

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
            ("blocks x threads", f"{self.blocks:,} x {math.prod(self.block):,}, ran on {self.ran_on}"),
            ("bytes loaded", f"{self.loaded_bytes:,}"),
            ("bytes stored", f"{self.stored_bytes:,}"),
            ("32-byte sectors", f"{self.sectors:,} in {self.requests:,} requests of warps"),
            ("barriers", f"{self.barriers:,}"),
            ("shared accesses", f"{self.shared_accesses:,}, bank conflicts {self.bank_conflicts:,}"),
        ]
        rows += [("atomics", f"{self.atomics:,}")] if self.atomics else []
        for name, traffic in self.by_array.items():
            missing = self.unwritten.get(name, 0)
            never = f", {missing:,} elements never written" if missing else ""
            rows.append((f"  {name}", f"{traffic.loaded_bytes:,} loaded, {traffic.stored_bytes:,} stored{never}"))
        rows += [("note", note) for note in self.notes]
        return rows + ([("fault", str(self.fault))] if self.fault else [])

    def __str__(self) -> str:
        """Return the counts, a line each."""
        return f"{self.kernel}\n{tables.lines(self._rows())}" + (f"\nprinted:\n{self.printed}" if self.printed else "")

    def _repr_html_(self) -> str:
        printed = f"<pre>{html.escape(self.printed)}</pre>" if self.printed else ""
        return tables.html_of(self._rows(), self.kernel) + printed

    def fill(self, memories: Sequence[Memory], outcome: dict[str, Any]) -> None:
        """Take the counts from what the runtime found."""
        self.barriers, self.shared_accesses, self.bank_conflicts, self.atomics = outcome["counts"]
        for memory, (loaded, stored, sectors, requests, missing) in zip(memories, outcome["arrays"], strict=True):
            self.by_array[memory.name] = Traffic(loaded, stored, requests, sectors)
            self.sizes[memory.name] = memory.count
            if stored:
                self.unwritten[memory.name] = missing
        names, per_block, flat = list(self.by_array), math.prod(self.block), outcome["touched"]
        self.touched = {name: [] for name in names}
        for array, thread, element, how in zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True):
            block, inside = divmod(thread, per_block)
            self.touched[names[array]].append((element, block, inside, ("read", "write", "atomic")[how]))
        self.printed = outcome["printed"]


# ---- a fault in words


def _xyz(index: Sequence[int], dims: Sequence[int]) -> str:
    """Return an index as CUDA writes it, without the axes that a launch does not use."""
    if dims[1] == dims[2] == 1:
        return str(index[0])
    return f"({', '.join(map(str, index[: 2 if dims[2] == 1 else 3]))})"


def _place(number: int, dims: Three) -> str:
    """Return the index of block or thread `number`."""
    return _xyz((number % dims[0], number // dims[0] % dims[1], number // dims[0] // dims[1]), dims)


def _global_element(memory: Memory, fault: dict[str, Any]) -> tuple[int, str]:
    address, size = fault["at"], memory.tensor.element_size()
    if fault["kind"] == "out of bounds" and memory.lo <= address < memory.hi:
        address = memory.hi  # a wide access that begins inside
    element = (address - memory.lo) // size
    if fault["kind"] == "out of bounds":
        has = f"which has {memory.count} (0 to {memory.count - 1})" if memory.count else "which is empty"
        wrapped = f" ({element - 2**32} as an unsigned number)" if 2**31 <= element < 2**32 else ""
        return element, f"element {element}{wrapped} of `{memory.name}`, {has}"
    words = f"`{memory.name}`[{element}]"
    if memory.tensor.dim() > 1 and memory.tensor.is_contiguous() and element < memory.tensor.numel():
        words += f" (at {[int(i) for i in torch.unravel_index(torch.tensor(element), memory.tensor.shape)]})"
    return element, f"{words} in global memory"


def _shared_element(array: SharedArray, fault: dict[str, Any]) -> tuple[int, str]:
    """Return index and words for an element in shared memory."""
    element = fault["at"] // array.item
    if fault["kind"] != "out of bounds":
        return element, f"`{array.name}`[{element}] in shared memory"
    has = "beyond the shared_mem of the launch" if array.bytes is None else f"which has {array.bytes // array.item}"
    return element, f"element {element} of `{array.name}` in shared memory, {has}"


def _divergent(fault: dict[str, Any], who: str, other: str) -> str:
    if fault["text"] == "mask":
        return f"{who} calls a warp function whose mask does not name it"
    if fault["text"] == "warp":
        return f"{who} waits in a warp function for threads of its mask, and {other} does not come"
    if fault["text"] == "ended":
        return f"{who} waits at __syncthreads(), and {other} of its block has ended"
    return f"{who} waits at __syncthreads(), and {other} of its block at another one, line {fault['other_line']}"


def _race(
    report: Report, fault: dict[str, Any], who: str, what: str, line: int | None, other_line: int | None, source: str
) -> str:
    block, thread = divmod(fault["other"], math.prod(report.block))
    other, why = f"thread {_place(thread, report.block)}", ", with no __syncthreads() between"
    if line and other_line and CudaText(source).turns_between(line, other_line):
        low, high = sorted((line, other_line))
        why = f": line {low} runs again in the next turn of the loop, with no __syncthreads() after line {high}"
    if f"block {_place(block, report.grid)}," not in who:
        other = f"block {_place(block, report.grid)}, {other}"
        why = "; blocks run in no order: use an atomic, or let one thread alone use each element"
    where = f" (line {other_line})" if other_line and other_line != line else ""
    if fault["other_how"] == len(PAST):
        why = "wait for it with __pipeline_wait_prior before anybody uses the place"
        return f"{who} {VERBS[fault['how']]} {what}, to which {other} is still copying{where}: {why}"
    return f"{who} {VERBS[fault['how']]} {what}, which {other} {PAST[fault['other_how']]}{where}{why}"


def _message(fault: dict[str, Any], who: str, what: str, limit: float) -> str:
    kind, verb = fault["kind"], VERBS[fault["how"]]
    if kind == "out of bounds":
        return f"{who} {'uses' if fault['space'] == 'local' else verb} {what}"
    if kind == "uninitialised shared":
        return f"{who} reads {what}, which no thread of its block has written"
    if kind == "misaligned":
        return f"{who} {verb} {fault['size']} bytes at {what}, whose address is no multiple of {fault['size']}"
    if kind == "wild pointer":
        address = fault["at"] & (2**64 - 1)
        what = "a null pointer" if address < 65536 else "which is in none of its arrays"
        return f"{who} uses address {address:#x}, {what}"
    if kind == "endless":
        return f"{who} had not ended after {limit:g} s: a loop without end, or too much work for the CPU"
    if kind == "undefined" and fault["text"] == "return":
        return f"{who} comes to the end of a function that returns a value, and there is no `return`"
    if kind == "undefined":
        why = "no thread gives one there, so the value is undefined, and a result depends on it"
        return f"{who} takes the value of lane {fault['at']} of its warp, but {why}"
    if kind == "assert":
        return f"{who}: assert({fault['text']}) does not hold"
    return f"{who}: {ENDS[kind]}"


def describe(
    report: Report, memories: Sequence[Memory], shared: SharedArray, fault: dict[str, Any],
    lines: Sequence[int | None], source: str, limit: float,
) -> CudaFault:  # fmt: skip
    """Return the fault that the runtime found, in words; `shared` is the array if it is shared."""
    line, other_line = lines
    who = f"block {_xyz(fault['block'], report.grid)}, thread {_xyz(fault['thread'], report.block)}"
    name, element, what = None, None, ""
    if fault["space"] == "global":
        name = memories[fault["array"]].name
        element, what = _global_element(memories[fault["array"]], fault)
    elif fault["space"].startswith("shared"):
        name = shared.name
        element, what = _shared_element(shared, fault)
    elif fault["space"] in ("device", "local"):
        name, element = fault["text"], fault["at"] if fault["space"] == "local" else None
        what = f"index {element} of `{name}`, a {fault['type']}" if fault["space"] == "local" else f"`{name}`"
    if fault["kind"] == "race":
        message = _race(report, fault, who, what, line, other_line, source)
    elif fault["kind"] == "divergent barrier":
        message = _divergent(fault, who, f"thread {_place(fault['other'] % math.prod(report.block), report.block)}")
    else:
        message, line = _message(fault, who, what, limit), line or other_line
    own = source.splitlines()
    shown = f"\nline {line}: {own[line - 1].strip()}" if line and line <= len(own) else ""
    return CudaFault(
        fault["kind"], message + shown, line=line, other_line=other_line, array=name, element=element,
        block=tuple(fault["block"]), thread=tuple(fault["thread"]),
    )  # fmt: skip
