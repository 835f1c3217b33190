"""Memory of a Triton launch: reads, writes, bounds, and races between programs.

Bytes are those that a kernel asks for: caches are left out. A request is what 32 neighbours of a block ask for at once,
and its sectors are the different pieces of 32 bytes among them, along that axis of the block in which there are fewer.
A compiled kernel may ask in other groups.
"""

from __future__ import annotations

import array
import html
import linecache
import math
import sys
import threading
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from kernelcheck import tables
from kernelcheck.faults import KernelFault
from kernelcheck.traffic import Sums, Traffic

_SECTOR, _WARP = 32, 32
_MOST_TOUCHED = 1_000_000  # elements that a report remembers
_INT32 = 2**31 - 1
_MOST_TURNS = 10_000  # of loops of one program
_NOBODY, _SEVERAL = 0, -1  # programs count from 1
running: list[Launch] = []  # the innermost last


@dataclass
class Report(Sums):
    """Report of a checked launch; `fault` is None or a `KernelFault`.

    - `by_array`: a `Traffic` for each array, by the name of its parameter; the sums of its fields are properties here;
    - `flops`: floating-point operations: one for each element of a block in arithmetic, a function or a sum, and
      2·m·n·k for `tl.dot`. Elements that a mask leaves out are computed, and so counted;
    - `programs`: how many ran; with a fault, those before it too;
    - `touched`: array → program → the elements that it read or wrote, out of bounds ones too; {} beyond a million;
    - `results`: array → what the kernel left in it, as a CPU tensor of the same shape and strides;
    - `sizes`: array → elements from the first of the tensor to its last;
    - `unwritten`: array → how many of its elements no program wrote, of arrays that the kernel writes to;
    - `narrowed`: the first line that keeps a program's number in 8 or 16 bits, which a large grid outgrows; or "".
    """

    fault: KernelFault | None = None
    by_array: dict[str, Traffic] = field(default_factory=lambda: defaultdict(Traffic))
    flops: int = 0
    programs: int = 0
    touched: dict[str, dict[tuple[int, int, int], np.ndarray]] = field(default_factory=dict)
    results: dict[str, torch.Tensor] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    unwritten: dict[str, int] = field(default_factory=dict)
    narrowed: str = ""

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("programs", f"{self.programs:,}"),
            ("bytes loaded", f"{self.loaded_bytes:,}"),
            ("bytes stored", f"{self.stored_bytes:,}"),
            ("32-byte sectors", f"{self.sectors:,} in {self.requests:,} requests"),
            ("FLOPs", f"{self.flops:,}"),
        ]
        for name, traffic in self.by_array.items():
            missing = self.unwritten.get(name, 0)
            never = f", {missing:,} elements never written" if missing else ""
            rows.append((f"  {name}", f"{traffic.loaded_bytes:,} bytes loaded, {traffic.stored_bytes:,} stored{never}"))
        return rows

    def __str__(self) -> str:
        return "".join(f"{one}\n" for one in (self.fault,) if one) + tables.lines(self._rows())

    def _repr_html_(self) -> str:
        fault = f"<pre>{html.escape(str(self.fault))}</pre>" if self.fault else ""
        return fault + tables.html_of(self._rows())


class Memory:
    """The storages of a launch's tensors on the host: themselves, or copies of them that leave the tensors alone."""

    def __init__(self, copy: bool) -> None:
        self._copy = copy
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.books: dict[tuple[int, int], dict[str, Any]] = {}
        self.back: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return `tensor` over its storage here."""
        storage = tensor.untyped_storage()  # of a simulated GPU, too, this is memory of the host
        with _disable_current_modes():
            if storage._cdata not in self._storages:
                here = storage.clone() if self._copy else storage
                if storage.device.type != "cpu":
                    here = storage.cpu()
                    self.back.append((storage, here))
                self._storages[storage._cdata] = here, storage  # the second stays alive, and so its address its own
            here = self._storages[storage._cdata][0]
            empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
            return empty.set_(here, tensor.storage_offset(), tensor.shape, tensor.stride())

    def write_back(self) -> None:
        """Copy results back to the tensors of a device."""
        for storage, here in self.back:
            storage.copy_(here)


class Buffer:
    """The memory of one tensor argument, from its first to its last element, as a pointer walks over it."""

    def __init__(self, name: str, tensor: torch.Tensor, dtype: Any, memory: Memory) -> None:
        self.name, self.dtype, self.tensor = name, dtype, memory.host(tensor)
        self.item, storage = tensor.element_size(), self.tensor.untyped_storage()
        self.size, self.base = _size(tensor.shape, tensor.stride()), self.tensor.storage_offset()
        with _disable_current_modes():
            raw = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
        stop = (self.base + self.size) * self.item
        self.array = raw[self.base * self.item : stop].view(dtype.stored)
        self.book = memory.books.setdefault((storage._cdata, self.item), {"elements": storage.nbytes() // self.item})

    def column(self, name: str) -> np.ndarray:
        """Return the record of each element: its last writer, when …; 0 takes no memory before it is written."""
        if name not in self.book:
            self.book[name] = np.zeros(self.book["elements"], np.int32)
        return self.book[name][self.base :]

    def summed(self) -> bool:
        """Return whether an element was changed by atomic operations."""
        return bool((self.column("added") != _NOBODY).any())

    def unwritten(self) -> int:
        """Return how many elements of the tensor no program has written."""
        never = (self.column("wrote") == _NOBODY) & (self.column("added") == _NOBODY)
        own = np.lib.stride_tricks.as_strided(never, self.tensor.shape, self.tensor.stride())
        return int(own.sum()) if self.size else 0

    def read(self, elements: np.ndarray) -> np.ndarray:
        """Return `elements` of the tensor, as the numbers with which NumPy computes."""
        return self.dtype.decode(self.array[elements])

    def write(self, elements: np.ndarray, values: np.ndarray) -> None:
        self.array[elements] = self.dtype.encode(values)


@dataclass(frozen=True)
class Addresses:
    """Stands for a tensor that this machine has no room for: `checked` looks at which elements a kernel touches.

    They may be billions apart. Loads give 0, stores are forgotten, and races are not looked for.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype = torch.float32


class FarBuffer(Buffer):
    """The addresses of an argument that has no values."""

    def __init__(self, name: str, addresses: Addresses, dtype: Any) -> None:
        self.name, self.dtype, self.item, self.base = name, dtype, addresses.dtype.itemsize, 0
        self.size = _size(addresses.shape, addresses.strides)

    def read(self, elements: np.ndarray) -> np.ndarray:
        return np.zeros(np.shape(elements), self.dtype.numpy)

    def write(self, elements: np.ndarray, values: np.ndarray) -> None: ...


def _size(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last."""
    return sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1 if math.prod(shape) else 0


class _Stopped(Exception):
    """Ends a program that waits when another one has failed."""


class Launch:
    """One run of a kernel: which program is running, whose lines, and, where it is watched, what it touched."""

    computes = True  # and does not only look at types and shapes
    word = "program"  # for one of those that run at the same time
    own = "program", "me", "_turns", "_open", "_asked", "_before", "_seen", "_barriers", "_reductions"  # of each

    def __init__(self, grid: tuple[int, int, int], watched: bool, changed: str | None = None) -> None:
        self.grid, self.watched = grid, watched
        self.changed = changed  # the line whose undefined elements get other numbers than in the first run; "": all
        self.report, self.program = Report(), (0, 0, 0)
        self.codes: set[types.CodeType] = set()
        self.undefined: dict[str, KernelFault] = {}  # by line: loads whose masked elements have no value
        self.buffers: list[Buffer] = []
        self._turns, self._open = 0.0, dict[int, int]()
        self._asked, self._before = 0, dict[int, int]()  # of memory in this turn of a `while` loop, and in the last one
        self._left, self._waiting = deque[tuple[int, int, int]](), deque[threading.Event]()
        self._idle, self._failed = 0, list[BaseException]()
        self._touched: dict[tuple[str, tuple[int, int, int]], list[np.ndarray]] = defaultdict(list)
        self._remembered, self._clock = 0, 0
        self._lines = array.array("i")  # of the access at each time of the clock
        self._seen: np.ndarray | None = None
        self._released: dict[tuple[int, int], np.ndarray] = {}
        self._barriers = self._passed = 0  # of all programs, one at the start of each: between two there is no order
        self._reductions = 0  # of a block to one number: what lanes read before was read when one writes behind it
        self._alike: list[tuple[Buffer, KernelFault]] = []  # elements to which several programs wrote one number

    def call(self, kernel: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Call a kernel from a kernel, and return what it returns."""
        raise NotImplementedError

    def each(self, programs: Iterable[tuple[int, int, int]], run: Callable[[], Any]) -> None:
        """Run a function for each program, one after the other. Where one waits for others, in a loop, they go on."""
        self._left.extend(programs)
        self._run, self._ended = run, threading.Event()
        self._go_on()
        self._ended.wait()
        if self._failed:
            raise self._failed[0]

    def _go_on(self) -> None:
        """Run the programs that have not begun, then wake one that waits."""
        try:
            with np.errstate(all="ignore"):
                while self._left and not self._failed:
                    self.start(self._left.popleft())
                    self._run()
        except _Stopped:
            pass
        except BaseException as error:
            self._failed.append(error)
        (self._waiting.popleft() if self._waiting else self._ended).set()

    def _let_others_go_on(self) -> bool:
        """Wait for a turn of every other program, in threads of which one runs. Return False if there is none."""
        mine, state = threading.Event(), {name: vars(self)[name] for name in self.own}
        self._waiting.append(mine)
        if self._left:
            try:
                threading.Thread(target=self._go_on, daemon=True).start()
            except RuntimeError:  # a browser has no threads
                self._waiting.pop()
                return False
        elif (other := self._waiting.popleft()) is mine:
            return False
        else:
            other.set()
        mine.wait()
        if self._failed:
            raise _Stopped
        vars(self).update(state)
        return True

    def start(self, program: tuple[int, int, int]) -> None:
        """Go on with another program."""
        self.program, self._turns, self._idle = program, 0.0, 0
        self._open, self._before = {}, {}
        self.report.programs += 1
        self.barrier()
        x, y, z = program
        self.me = 1 + x + self.grid[0] * (y + self.grid[1] * z)
        self._seen = None  # of each program, until when what it did comes before what follows: nothing, at first

    def turns(self, numbers: Iterable[Any]) -> Iterator[Any]:
        """Yield the numbers of a `for` loop, which are counted: a tenth of a turn each, for they end some day."""
        for number in numbers:
            self._turn(0.1)
            yield number

    def goes_on(self, line: int, condition: Any) -> bool:
        """Return whether a `while` loop goes on, whose turns are counted."""
        if not bool(condition):
            self._open.pop(line, None)
            self._idle = 0
            return False
        self._open[line] = self._open.get(line, 0) + 1
        asked, self._asked = self._asked, 0
        waits = asked and asked == self._before.get(line)  # it asks for what it has asked for
        self._before[line] = asked
        self._idle += 1
        if not (waits and self._idle < max(1000, 20 * len(self._waiting)) and self._let_others_go_on()):
            self._turn(1.0)
        return True

    def _turn(self, share: float) -> None:
        self._turns += share
        if self._turns > _MOST_TURNS:
            what = f"{self.word} {self.name()} goes on after very many turns of a loop: does it never end?"
            others = f"{len(self._waiting):,} other {self.word}s wait too, and the rest has ended"
            busiest = max(self._open, key=lambda line: self._open[line], default=None)
            raise KernelFault("endless", what, self.line(busiest), where=self.program, why=others * bool(self._waiting))

    def fault(self, kind: str, what: str, why: str = "", **more: Any) -> KernelFault:
        """Return a fault at the line of the kernel that is running."""
        return KernelFault(kind, what, self.line(), why=why, where=self.program if self.codes else None, **more)

    def line(self, number: int | None = None) -> str:
        """Return the innermost line of a kernel that is running, or another line of that kernel."""
        frame = self._frame()
        return line_of(frame.f_code.co_filename, number or frame.f_lineno) if frame else ""

    def _frame(self) -> types.FrameType | None:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code not in self.codes:
            frame = frame.f_back
        return frame

    def name(self) -> str:
        """Return the running program as messages name it: as many numbers as the grid has."""
        used = max([place for place, n in enumerate(self.grid) if n > 1], default=0) + 1
        return str(self.program[0]) if used == 1 else str(self.program[:used])

    def barrier(self) -> None:
        """Pass a barrier of the running program."""
        self._passed += 1
        self._barriers = self._passed

    def left_open(self, what: str, why: str, shape: tuple[int, ...], floats: bool = False, **more: Any) -> np.ndarray:
        """Return stand-ins for undefined values, NaN for floats, and other numbers in further runs of a check.

        The fault that they are is remembered: it is one where the results of these runs differ.
        """
        line = self.line()
        changed = self.watched and self.changed in ("", line)
        if self.watched and line not in self.undefined:
            self.undefined[line] = self.fault("undefined", what, why, **more)
        if floats and not changed:
            return np.full(shape, math.nan)
        return np.resize(np.array([119, -50] if changed else [100, -40]), shape)

    def divided(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return stand-ins for the results of divisions by the whole number 0. Raises where there is but one result."""
        what, why = f"{self.word} {self.name()} divides by 0", "a whole number that is divided by 0 has no value"
        if self.computes and self.watched and not shape:
            raise self.fault("undefined", what, why)
        return self.left_open(what, f"{why}, and the result depends on it", shape)

    def reduced(self) -> None:
        """Pass a reduction of a block to one number, for which the numbers of all its lanes are needed."""
        self._reductions += 1

    def touch(
        self, kind: str, buffer: Buffer, offsets: np.ndarray, active: np.ndarray | None, data: np.ndarray | None = None,
        chosen: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """Note an access ("load", "store" or "atomic") and return to which elements. Raises what is wrong with it.

        `data` is what a store writes, `chosen` says that numbers in memory choose where.
        """
        elements = offsets.reshape(-1) if active is None else offsets[active]
        self._asked = hash((self._asked, kind, buffer.name, elements[:1].tobytes(), elements.size))
        if self.watched:
            self._remember(buffer, elements)
        if elements.size:
            low, high = elements.min(), elements.max()
            if low < 0 or high >= buffer.size:
                raise self._outside(kind, buffer, elements, active is not None)
        if self.watched and elements.size:
            self._count(kind, buffer, offsets, active, elements.size)
        if self.watched and elements.size and type(buffer) is Buffer:
            alike = None
            if data is not None:
                new, old = data.reshape(-1) if active is None else data[active], buffer.read(elements)
                alike = (new == old) | ((new != new) & (old != old))
            self._order(kind, buffer, elements, alike, chosen)
            if kind == "load":
                self.look_at_lanes("load", buffer, offsets, active, np.array(True))
            elif kind == "atomic" and not offsets.ndim:
                self.barrier()  # its result goes to all lanes of the program behind one
        return elements

    def look_at_lanes(
        self, kind: str, buffer: Buffer, offsets: np.ndarray, active: np.ndarray | None, matters: np.ndarray
    ) -> None:
        """Raise a race where another lane of this program touched an element, and no barrier is between the two.

        A lane is a place in a block, counted row by row: blocks of as many elements are taken to lie on threads alike.
        `matters` says for which elements the order does: not where a store leaves what was there.
        """
        if kind == "load" and offsets.size > 1:
            places, count = np.unique(offsets if active is None else offsets[active], return_counts=True)
            buffer.column("read by several")[places[count > 1]] = self.me
        lanes = np.arange(offsets.size) * 64 + offsets.size.bit_length()
        elements = offsets.reshape(-1)
        if active is not None:
            elements, lanes = offsets[active], lanes[active.reshape(-1)]
        for column in ("stored",) if kind == "load" else ("stored", "loaded"):
            when, lane = buffer.column(f"{column} between")[elements], buffer.column(f"{column} by lane")[elements]
            now = self._barriers + self._reductions * (column == "loaded")
            first = (lane // 64 == 0) & (lanes // 64 == 0) & (kind == "store")  # a number too is written by the first
            if (late := matters & (when == now) & (lane != lanes) & ~first).any():
                element, did = int(elements[np.argmax(late)]), {"stored": "wrote", "loaded": "read"}[column]
                verb = {"load": "reads", "store": "writes"}[kind]
                what = f"{self.word} {self.name()} {verb} element {element:,} of {buffer.name}, which another lane"
                what = f"{what} {did}"
                line = buffer.column(f"{column} at line")[element]
                there = f" (line {line})" if (frame := self._frame()) and frame.f_lineno != line else ""
                why = "lanes lie on different threads, which are not in step: put tl.debug_barrier() between the two"
                raise self.fault("race", what + there, why, array=buffer.name, element=element)
        column = {"load": "loaded", "store": "stored"}[kind]
        when, lane = buffer.column(f"{column} between"), buffer.column(f"{column} by lane")
        now = self._barriers + self._reductions * (kind == "load")
        several = (when[elements] == now) & (lane[elements] != lanes)
        when[elements], lane[elements] = now, lanes
        lane[elements[several | (lane[elements] != lanes)]] = _SEVERAL
        buffer.column(f"{column} at line")[elements] = self._lines[-1]

    def read_by_several(self, buffer: Buffer, elements: np.ndarray) -> np.ndarray:
        """Return which elements several elements of one block of the running program have read."""
        return buffer.column("read by several")[elements] == self.me

    def _outside(self, kind: str, buffer: Buffer, elements: np.ndarray, masked: bool) -> KernelFault:
        bad = elements[(elements < 0) | (elements >= buffer.size)]
        verb = {"load": "reads", "store": "writes", "atomic": "changes"}[kind]
        more = f", and {bad.size - 1:,} more outside" if bad.size > 1 else ""
        ends = f"whose last is {buffer.size - 1:,}" if buffer.size else "which has none"
        what = f"{self.word} {self.name()} {verb} element {bad[0]:,} of {buffer.name}, {ends}{more}"
        below = "elements begin at 0, and a number of 8 or 16 bits turns negative beyond 127 or 32,767"
        limit = below if bad[0] < 0 else "compare it with the size"
        why = f"the mask lets it through: {limit}" if masked else "there is no mask at this access"
        if bad[0] < 0 and buffer.size > _INT32:
            why = f"32 bits hold offsets up to {_INT32:,}, then they turn negative: "
            why += "use .to(tl.int64) before you multiply"
        return self.fault("out of bounds", what, why, array=buffer.name, element=int(bad[0]))

    def _remember(self, buffer: Buffer, elements: np.ndarray) -> None:
        self._remembered += elements.size
        if self._remembered <= _MOST_TOUCHED:
            self._touched[buffer.name, self.program].append(elements)

    def close(self) -> None:
        """Sum up what was touched."""
        if self._remembered <= _MOST_TOUCHED:
            for (name, program), elements in self._touched.items():
                self.report.touched.setdefault(name, {})[program] = np.unique(np.concatenate(elements))

    def sum_up(self) -> None:
        """Put what lies in the buffers into the report."""
        self.report.results = {one.name: one.tensor for one in self.buffers}
        self.report.sizes = {one.name: one.size for one in self.buffers}
        stored = [one for one in self.buffers if self.report.by_array[one.name].stored_bytes]
        self.report.unwritten = {one.name: one.unwritten() for one in stored}
        for buffer, race in self._alike:
            if self.report.fault is None and (missing := self.report.unwritten[buffer.name]):
                why = f"both write the same number, and no {self.word} writes {missing:,} other elements: "
                why += f"where one writes must depend on the {self.word}'s number"
                self.report.fault = KernelFault(
                    "race", str(race).partition("\n")[0], race.line, why=why, array=race.array, element=race.element,
                    where=race.where,
                )  # fmt: skip

    def _count(self, kind: str, buffer: Buffer, offsets: np.ndarray, active: np.ndarray | None, number: int) -> None:
        traffic = self.report.by_array[buffer.name]
        if kind == "load":
            traffic.loaded_bytes += number * buffer.item
        else:
            traffic.stored_bytes += number * buffer.item
        sectors, requests = self._wanted(buffer, offsets, active)
        traffic.sectors += sectors
        traffic.requests += requests

    def _wanted(self, buffer: Buffer, offsets: np.ndarray, active: np.ndarray | None) -> tuple[int, int]:
        """Return how many sectors and requests an access takes."""
        sectors = (offsets + buffer.base) * buffer.item // _SECTOR
        sectors = sectors if active is None else np.where(active, sectors, -1)
        ways = [sectors, sectors.swapaxes(-1, -2)] if sectors.ndim > 1 else [sectors]
        return min(_grouped(one.reshape(-1)) for one in ways)

    def _order(self, kind: str, buffer: Buffer, elements: np.ndarray, alike: np.ndarray | None, chosen: bool) -> None:
        """Raise a race where another program touched these elements, with nothing that orders the two.

        `alike` says where a store leaves the number that is there: several programs may all write the same.
        """
        self._clock += 1
        frame = self._frame()
        self._lines.append(frame.f_lineno if frame else 0)
        if (
            kind == "atomic" and elements.size == 1
        ):  # a counter or a lock: what came before it elsewhere is seen from now on
            key = id(buffer.book), int(elements[0]) + int(buffer.base)
            nothing = np.zeros(math.prod(self.grid) + 1, int) if self._seen is None else self._seen
            self._seen = np.maximum(nothing, self._released.get(key, 0))
            self._seen[self.me] = self._clock
            self._released[key] = self._seen.copy()
        others = {"load": ("wrote", "added"), "store": ("wrote", "added", "read"), "atomic": ("wrote", "read")}[kind]
        for column in others:
            if column not in buffer.book:  # nobody did so
                continue
            who, when = buffer.column(column)[elements], buffer.column(f"{column} at")[elements]
            late = self._unordered(who, when)
            if not late.any():
                continue
            differs = late & ~alike if alike is not None and column == "wrote" else late
            first = int(np.argmax(differs if differs.any() else late))
            race = self._race(kind, buffer, int(elements[first]), column, int(who[first]), int(when[first]))
            if differs.any():
                raise race
            self._alike += [] if chosen else [(buffer, race)]
        mine = {"load": "read", "store": "wrote", "atomic": "added"}[kind]
        who, when = buffer.column(mine), buffer.column(f"{mine} at")
        late = self._unordered(before := who[elements], when[elements])
        stays = late & (alike if kind == "store" and alike is not None else False)
        who[elements] = np.where(stays, before, np.where(late, _SEVERAL, self.me))
        when[elements] = np.where(stays, when[elements], self._clock)
        if kind == "store":
            buffer.column("read")[elements] = _NOBODY  # what was read before was read in order

    def _unordered(self, who: np.ndarray, when: np.ndarray) -> np.ndarray:
        """Return which of the accesses, by `who` at `when`, nothing puts before those of the running program."""
        others = (who > 0) & (who != self.me)
        return (who == _SEVERAL) | (others if self._seen is None else others & (when > self._seen[who]))

    def _race(self, kind: str, buffer: Buffer, element: int, before: str, who: int, when: int) -> KernelFault:
        x, y, _ = self.grid
        other = ((who - 1) % x, (who - 1) // x % y, (who - 1) // (x * y)) if who > 0 else None
        name = self.name()
        mine, self.program = self.program, other or self.program
        them = f"{self.word} {self.name()}" if other else f"several other {self.word}s"
        self.program = mine
        now = {"load": "reads", "store": "writes", "atomic": "changes"}[kind]
        did = {"read": "reads", "wrote": "writes", "added": "changes by an atomic operation"}[before]
        did = did if other else did.replace("reads", "read").replace("changes", "change")
        there = f" (line {self._lines[when - 1]})" if other and self._lines[when - 1] != self._lines[-1] else ""
        what = f"{self.word} {name} {now} element {element:,} of {buffer.name}, which {them} {did} too{there}"
        why = f"{self.word}s run in any order, and at the same time: the result depends on which comes first"
        return self.fault("race", what, why, array=buffer.name, element=element)


def wrong(what: str, kind: str = "arguments") -> KernelFault:
    """Return a fault at the running kernel's line."""
    return running[-1].fault(kind, what) if running else KernelFault(kind, what)


def line_of(file: str, number: int) -> str:
    """Return a line of the source as messages show it."""
    text, cell = linecache.getline(file, number).strip(), tables.cell(file)
    return f"{f'{cell}, line {number}' if cell else f'{Path(file).name}:{number}'}: {text}"


def _grouped(sectors: np.ndarray) -> tuple[int, int]:
    """Return how many sectors the groups of 32 elements want, each group by itself, and how many groups want any."""
    padded = np.full((-(-sectors.size // _WARP), _WARP), -1)
    padded.reshape(-1)[: sectors.size] = sectors
    padded.sort(axis=1)
    new = (padded[:, 1:] != padded[:, :-1]) & (padded[:, 1:] >= 0)
    first = padded[:, 0] >= 0
    return int(new.sum() + first.sum()), int((padded[:, -1] >= 0).sum())
