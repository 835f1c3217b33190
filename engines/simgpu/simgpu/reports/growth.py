"""Memory that grows from turn to turn, and the value that keeps it alive.

A turn is a step, or a call of a model where nothing is trained. What grows in each step is found by the bytes alive at
their ends; what grows in some of them, such as at evaluations, by the turns of what is alive.
"""

import ast
import gc
import linecache
import sys
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from inspect import CO_OPTIMIZED
from itertools import pairwise
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any, cast

import torch

from simgpu.clock.lines import Line
from simgpu.device.tensor import SimTensor, values_of
from simgpu.ground import places
from simgpu.ground.nodes import graph_nodes, graph_of, is_leaf
from simgpu.reports import events
from simgpu.reports.holdings import MADE, Held, Holdings

_MOST_NODES = 200_000  # of graphs that are walked
_SEVERAL_CALLS = 6  # of models, from which all is kept
_SEVERAL = 3  # earlier steps: if the graphs of so many are alive, that is no delay by a step or two
_ALONE = 1.5  # of the bytes of a value: with more, it keeps others alive
_DEPTH, _MOST_ITEMS = 5, 10_000  # of lists of lists, in which a value is looked for
_LIMITED = ("_lru_cache_wrapper", "deque", "Queue", "PriorityQueue", "LifoQueue")
_SHORT, _FEW_BYTES = 100, 2**30  # values: a queue of so many is soon full; what one with a limit keeps that is no leak
_OF_THE_FRAME = 3  # references to a copy of variables that nobody else has: the frame's, ours, an argument
_LOOKED_AFTER = 4  # steps: the first ones make the optimizer's state, and caches


@dataclass(frozen=True)
class Growth(Line):
    """Memory that each step adds.

    The line is the one that keeps a value, such as `losses.append(loss)`, where that was found, else the one that
    makes it: `made_at`. `held_by` is what refers to the value, such as "losses (a list)", "" where nothing does;
    `graph`, whether the value has the graph that a backward pass would go through; `part`, whether it is a part of the
    memory that it keeps, as the mean that `mse_loss` returns.
    """

    bytes_per_step: int = 0  # or for each turn, of which not every step has one
    held_by: str = ""
    made_at: Line = field(default_factory=Line)
    graph: bool = False
    part: bool = False
    value: bool = False  # whether the bytes are those of the value alone, without activations
    each: str = "step"  # what adds them: "step", "turn" or "model"; "pass": one fails, by a state of the step before


class GrowthWatch:
    """Looks at the ends of steps 4, 8, 16 … whether memory grew in each of the last steps."""

    def __init__(self, holdings: Holdings) -> None:
        self.found: list[Growth] = []
        self._holdings = holdings
        self._numbers: list[int] = []  # of the first node of autograd after each step
        self._ends: list[int] = []  # bytes alive at the last ends of steps, or calls
        self._next = self._next_call = _LOOKED_AFTER
        self._sites: list[tuple[str, ...]] = []  # the lines that ran at each call of a model
        self._through: list[Growth] = []  # the state by which the backward pass that runs comes to an earlier step
        self._queued: set[str] = set()  # lines whose values a short queue keeps
        self.turns = 0  # over how many growth was looked for
        self.cut = False  # whether a backward pass would have come, as after a loop over time: graphs go with it

    def step(self, number: int) -> None:
        """Step `number`, from 1, has ended."""
        if number == 1:  # calls in the first step, as by a closure, were no turns
            self.found, self.turns = [], 0
        self._numbers.append(cast(Any, torch.autograd)._get_sequence_nr())  # which stubs leave out
        if number > self._next - 3:
            self._ends = [*self._ends[-2:], self._holdings.made_bytes()]
        if number < self._next:
            return
        self._next, self.turns = 2 * number, number
        first, second, third = self._ends
        size = (third - first) // 2 if first < second < third else 0
        self.found = self._look(size) or ([] if size else self._look_at_turns()) or self._models()

    def called(self, site: Iterable[str]) -> None:
        """Look for growth where a model is called, and no step ends; `site` are the lines that run."""
        if not self._holdings.step:
            self._sites.append(tuple(site))
        calls = self._holdings.calls = self._holdings.calls + 1
        if not self._holdings.step and calls >= self._next_call:
            self._ends = [*self._ends[-1:], self._holdings.made_bytes()]
            self._next_call, self.turns = 2 * calls, calls * (self._ends[0] >= self._ends[-1])  # a cache is no list
            self.found = self._look_at_turns()

    def on_backward(self, event: events.Backward) -> None:
        """Look in the second step, and the next ones, for a state whose graph is that of the step before as well."""
        self._through = []
        if not 0 < self._holdings.step < _LOOKED_AFTER:
            return
        nodes = graph_nodes(map(graph_of, event.roots), most=_MOST_NODES)
        old = {one for one in nodes if one._sequence_nr() < self._numbers[-1]}
        if not old or nodes[0] in old:  # all are: a step by hand has ended just now
            return
        states = _carried(_kept(self._holdings, until=self._holdings.step + 1))
        through = [pair for pair in states if not old.isdisjoint(graph_nodes([graph_of(pair[0])], most=_MOST_NODES))]
        self._through = [_growth(of.line, 0, tensor, "pass") for tensor, of in through[:1]]

    def on_backward_end(self, event: events.BackwardEnd) -> None:
        self._through = []

    def end(self) -> None:
        """Look once more where the program ends, early or not, but for what was found already."""
        if not self.found:
            self.found = self._through or self._look_at_turns() or self._models()
        if self.cut:
            self.found = [one for one in self.found if one.held_by and not one.graph]

    def _models(self) -> list[Growth]:
        """Return the line that makes a model anew for each training, where all earlier ones stay."""
        learned = self._holdings.learned()
        born = {(one.line, one.step) for one in learned if one.owner == "weights" and one.line}
        line, models = next(iter(Counter(line for line, _ in born).most_common(1)), ("", 0))
        self.turns *= models < 2
        made, nbytes = Line.of(line), sum(one.nbytes for one in learned) // max(models, 1)
        return [Growth(*made.parts, nbytes, made_at=made, each="model")] if models > _SEVERAL else []

    def _look_at_turns(self) -> list[Growth]:
        """Return the lines that have kept what they made since they ran first, in several turns.

        A list of the last ones, or one that is emptied now and then, has let go of the first.
        """
        by_step, holdings = bool(self._holdings.step), self._holdings
        now = holdings.step if by_step else holdings.calls - 1  # what the last call made is still in use
        made: dict[str, Counter[int]] = defaultdict(Counter)  # bytes by line and turn
        for one in holdings.made():
            if one.line and one.turn(by_step) < now:
                made[one.line][one.turn(by_step)] += one.nbytes
        growing = {line: turns for line, turns in made.items() if self._grows(line, sorted(turns), by_step)}
        if not growing:
            return []
        plain, graphs = (_kept(holdings, until=holdings.step + 1, graphs=graphs) for graphs in (False, True))
        older, plain = ([pair for pair in pairs if pair[1].turn(by_step) < now] for pairs in (graphs, plain))
        nbytes = {line: turns.total() // len(turns) for line, turns in growing.items()}
        held: dict[str, torch.Tensor] = {}  # by line, what a variable refers to; else what has a graph
        plainly: set[str] = set()  # lines whose values without a graph a variable refers to
        tops = _roots(graphs)
        carried = [(one, {*graph_nodes([graph_of(one)])}) for one, _ in _carried(graphs)]
        outer = {id(one) for one, _ in tops}  # a tensor whose graph is a part of another one's keeps nothing itself
        for line in nbytes:
            first, second, third = (
                [one for one, of in some if of.line == line][::-1] for some in (older, plain, graphs)
            )
            inner = first and outer.isdisjoint(map(id, first))
            sums = [one for one, nodes in carried if inner and graph_of(first[0]) in nodes]
            candidates = [*sums, *(one for one, of in tops if inner and of.line != line)]
            candidates = [*second[:1] * (len(second) > len(first)), *candidates, *first[:1], *second[:1], *third]
            found = [one for one in candidates if _holder(one) is not None]
            plainly |= {line} if found and second and found[0] is second[0] else set()
            held |= {line: (found or [*third, *second])[0]} if found or third or second else {}
        roots = {one.line for _, one in tops if one.turn(by_step) < now} & nbytes.keys()
        if len(roots) == 1:  # the graph of what this line makes keeps what others make
            others = nbytes.keys() - plainly - roots
            nbytes[next(iter(roots))] += sum(nbytes.pop(line) for line in others)
        self._queued |= {line for line, tensor in held.items() if _in_a_short_queue(tensor)}
        self.turns *= not self._queued  # then it is not said that none grows
        most = [(line, size) for line, size in nbytes.items() if line not in self._queued]
        return _joined(_growth(line, size, held.get(line), "turn") for line, size in most)[:3]

    def _grows(self, line: str, turns: list[int], by_step: bool) -> bool:
        # a step calls models in many places: turns of a loop are those of one
        sites = Counter([self._sites[call] for call in turns if call < len(self._sites)])
        if len(turns) < _SEVERAL or not (by_step or max(sites.values(), default=0) >= _SEVERAL_CALLS):
            return False
        now = self._holdings.step if by_step else self._holdings.calls
        if now < _LOOKED_AFTER and not self._holdings.refusals:
            return False  # the last values of a program that was ended early
        widest = max(after - before for before, after in pairwise(turns))
        return not self._lets_go(line, turns, by_step) and now - turns[-1] <= 2 * widest

    def _lets_go(self, line: str, turns: list[int], by_step: bool) -> bool:
        """Return whether a line has let go of what it made first; `turns` are those of what is alive."""
        first = self._holdings.first_turns[line][not by_step]
        return len(turns) > 1 and turns[0] > first + turns[1] - turns[0]

    def _look(self, bytes_per_step: int) -> list[Growth]:
        """Return the lines that made what keeps memory of earlier steps alive, first that of most values.

        Where no value of an earlier step is held, that is one with a graph of several steps, such as a sum of losses.
        """
        now = self._holdings.step
        values = _kept(self._holdings, until=now + 1)
        tops = _roots(values)
        kept = [pair for pair in tops if bytes_per_step and pair[1].step < now]
        several = len({of.step for _, of in kept}) > 1  # those of one step may be what the variable of a loop has left
        kept = kept * several or self._growing(_carried(values)) or self._growing([] if bytes_per_step else tops)
        if not (kept or bytes_per_step):
            return []
        turns: dict[str, Counter[int]] = defaultdict(Counter)  # bytes by line and step
        for held in self._holdings.made():
            turns[held.line][held.step] += held.nbytes
        lines = Counter(held.line for _, held in kept)
        if not kept:  # lines that keep what they made in two earlier steps at least
            earlier = {line: [n for step, n in sizes.items() if 2 <= step < now] for line, sizes in turns.items()}
            lines = Counter({line: sum(sizes) for line, sizes in earlier.items() if len(sizes) > 1})
        if not lines:  # one value that grows, as by `torch.cat`
            plain = _carried(_kept(self._holdings, until=now + 1, graphs=False))
            kept = [pair for pair in plain if 2 * pair[1].nbytes >= bytes_per_step * now]
            lines, self.turns = Counter(held.line for _, held in kept), 0  # what grows unnamed is not said to stay
        own = {line: sizes.total() // len(sizes) for line, sizes in turns.items()}
        large = {line for line, n in own.items() if 10 * n >= 9 * bytes_per_step > 0 and len(turns[line]) >= _SEVERAL}
        inner = {pair[1].line: pair for pair in values[::-1] if pair[1].line in large and pair[1].step < now}
        if inner.keys().isdisjoint(lines):  # beside a value of their graph that keeps little, a variable keeps these
            mine = [pair for pair in inner.values() if _holder(pair[0]) is not None]
            kept, lines = mine or kept, Counter(held.line for _, held in mine) or lines
        lines = Counter({line: n for line, n in lines.items() if not self._lets_go(line, sorted(turns[line]), True)})
        plain = not kept and bool(lines)  # values that keep nothing of others
        kept = _kept(self._holdings, until=now, graphs=False) if plain else kept
        last = {held.line: tensor for tensor, held in kept}
        self._queued |= {line for line, tensor in last.items() if _in_a_short_queue(tensor)}
        self.turns *= not self._queued
        most = [line for line, _ in lines.most_common(3) if line not in self._queued]
        if len(most) == 1 or 10 * sum(own[line] for line in most) < 9 * bytes_per_step:  # others made what these keep
            self.turns *= not plain or 2 * sum(own[line] for line in most) >= bytes_per_step  # as where batches grow
            own = {line: own[line] if plain and line in last else bytes_per_step for line in most}
        return _joined(_growth(line, own[line], last.get(line)) for line in most)

    def _growing(self, kept: list[tuple[torch.Tensor, Held]]) -> list[tuple[torch.Tensor, Held]]:
        """Return those tensors whose graphs have parts of several steps, and which still grow.

        A sum that had ended before the last one began, such as that of an epoch, grows no more.
        """
        steps = [self._steps_of(graph_of(tensor)) for tensor, _ in kept]
        long = [(pair, of) for pair, of in zip(kept, steps, strict=True) if len(of) >= _SEVERAL]
        last = max((of for _, of in long), key=max, default=set())
        return [pair for pair, of in long if max(of) > min(last)]

    def _steps_of(self, graph: Any) -> set[int]:
        """Return the steps of which a graph has parts; none where threads, which count their nodes apart, made some."""
        nodes = [node for node in graph_nodes([graph], most=_MOST_NODES) if not is_leaf(node)]
        if any(node.name().startswith("Gather") for node in nodes):
            return set()
        return {bisect_right(self._numbers, node._sequence_nr()) for node in nodes}


def _joined(growths: Iterable[Growth]) -> list[Growth]:
    """Return one growth for each line that keeps something, with the bytes of all that it keeps, the most first."""
    kept: dict[Line, Growth] = {}
    for one in sorted(growths, key=lambda one: -one.bytes_per_step):
        first = kept.get(Line(*one.parts), replace(one, bytes_per_step=0))
        kept[Line(*one.parts)] = replace(first, bytes_per_step=first.bytes_per_step + one.bytes_per_step)
    return sorted(kept.values(), key=lambda one: -one.bytes_per_step)


def _growth(line: str, bytes_per_step: int, tensor: torch.Tensor | None, each: str = "step") -> Growth:
    made = Line.of(line)
    holder = None if tensor is None else _holder(tensor)
    graph = tensor is not None and graph_of(tensor) is not None
    part = tensor is not None and 2 * tensor.nbytes < values_of(tensor).untyped_storage().nbytes()
    value = tensor is not None and not part and bytes_per_step <= _ALONE * tensor.nbytes
    keeping_line = made if holder is None else _line_that_keeps(holder) or made
    held_by = "" if holder is None else holder.text
    return Growth(*keeping_line.parts, bytes_per_step, held_by, made, graph, part, value, each)


def _kept(holdings: Holdings, until: int, graphs: bool = True) -> list[tuple[torch.Tensor, Held]]:
    """Return the tensors of steps before `until` that Python still holds, those with `graphs` or those without."""
    kept = []
    for candidate in gc.get_objects():
        if issubclass(type(candidate), SimTensor) and (graph_of(candidate) is not None) is graphs:
            held = holdings.held(candidate)
            # what was there before the recording has no line
            if held is not None and held.line and held.step < until and held.owner in MADE:
                kept.append((candidate, held))
    return sorted(kept, key=lambda pair: pair[1].born)


def _roots(kept: list[tuple[torch.Tensor, Held]]) -> list[tuple[torch.Tensor, Held]]:
    """Return those tensors whose graph is part of no other one's: the others are alive because of them."""
    graphs = [graph_of(tensor) for tensor, _ in kept if graph_of(tensor) is not None]
    inner = set(graph_nodes((below for graph in graphs for below, _ in graph.next_functions), most=_MOST_NODES))
    return [pair for pair in kept if graph_of(pair[0]) not in inner]


@dataclass(frozen=True)
class _Holder:
    """A variable, or an attribute of one, that refers to a value: its name in the code of a file, and words for it.

    `lines` are those of the function that runs.
    """

    name: str
    text: str
    file: str
    lines: frozenset[int | None]


def _holder(tensor: torch.Tensor) -> _Holder | None:
    """Return which of the program's variables refers to a tensor, or to a list or dict of it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if places.is_readers(code.co_filename, code.co_name):
            for name, value in _variables(frame):
                text = _holds(name, value, tensor)
                if text:
                    return _Holder(name, text, code.co_filename, frozenset(line for _, _, line in code.co_lines()))
        frame = frame.f_back
    return _attribute(tensor)


def _carried(values: list[tuple[torch.Tensor, Held]]) -> list[tuple[torch.Tensor, Held]]:
    """Return those values that a variable has, and that the program makes anew of what it had, as a state."""
    frame, known = sys._getframe(1), set[int]()
    while frame is not None:
        if places.is_readers(frame.f_code.co_filename, frame.f_code.co_name):
            known |= {id(item) for _, value in _variables(frame) for item in (value, *_items(value))}
        frame = frame.f_back
    holders = [(pair, _holder(pair[0])) for pair in values if id(pair[0]) in known]
    return [pair for pair, of in holders if of is not None and _line_that_keeps(of, (_puts_into, _makes_anew))]


def _attribute(tensor: torch.Tensor) -> _Holder | None:
    """Return which attribute of the program's objects, wherever they are, refers to a tensor, or to a list of it."""
    values: list[Any] = [tensor]
    for _ in range(_DEPTH):  # the tensor, a list of it, a list of lists, the dict of an object
        containers: list[Any] = []
        for owner in gc.get_referrers(*values):
            code = [one.__code__ for one in vars(type(owner)).values() if isinstance(one, FunctionType)]
            if code and places.is_readers(code[0].co_filename, code[0].co_name):
                for name, value in vars(owner).items() if hasattr(owner, "__dict__") else ():
                    text = _holds(f"{type(owner).__name__}.{name}", value, tensor)
                    if text:
                        lines = frozenset(line for one in code for _, _, line in one.co_lines())
                        return _Holder(f"self.{name}", text, code[0].co_filename, lines)
            elif isinstance(owner, list | tuple | deque | dict | FunctionType | CellType) and owner is not values:
                containers.append(owner)
        values = containers
    return None


def _in_a_short_queue(tensor: torch.Tensor) -> bool:
    """Return whether a queue or a cache keeps a tensor, or a list of it, that fills up soon or never takes much."""
    nbytes = values_of(tensor).untyped_storage().nbytes() if graph_of(tensor) is None else _FEW_BYTES
    most = max(_FEW_BYTES // (nbytes or 1), _SHORT)
    values: list[Any] = [tensor]
    for _ in range(4):  # the tensor, a list of it, the deque of a queue, its dict where it was asked for
        owners = gc.get_referrers(*values)
        limited = (one for one in owners if type(one).__name__ in _LIMITED)
        bounds = [getattr(one, "cache_info", lambda one=one: one)() for one in limited]
        if any(0 < (getattr(one, "maxlen", 0) or getattr(one, "maxsize", 0) or 0) <= most for one in bounds):
            return True
        values = [one for one in owners if isinstance(one, list | tuple | deque | dict) and one is not values]
    return False


def _variables(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the variables that a function sees, and the attributes of those that are objects of the program."""
    known, own = {**frame.f_globals, **frame.f_locals}, frame.f_locals
    if isinstance(own, dict) and frame.f_code.co_flags & CO_OPTIMIZED and sys.getrefcount(own) <= _OF_THE_FRAME:
        own.clear()  # before Python 3.13 a function keeps this copy, and all that is in it, until it ends
    for name, value in known.items():
        yield name, value
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict) and not isinstance(value, type | ModuleType):
            yield from ((f"{name}.{attribute}", inner) for attribute, inner in list(attributes.items()))


def _holds(name: str, value: Any, tensor: torch.Tensor) -> str:
    """Return words for a variable that refers to a tensor, "" for another one."""
    items = [value]
    for _ in range(_DEPTH):
        if any(item is tensor for item in items):
            return name if value is tensor else f"{name} (a {type(value).__name__})"
        items = [inner for item in items[:_MOST_ITEMS] for inner in _items(item)]
    return ""


def _items(value: Any) -> Iterable[Any]:
    """Return what a list or a dict refers to, or a function by its defaults and its closure; else nothing."""
    if isinstance(value, FunctionType):
        return value.__defaults__ or (), value.__closure__ or ()
    if isinstance(value, dict):
        return list(value.values())
    return gc.get_referents(value) if isinstance(value, list | tuple | deque | CellType) else ()


_ADD = ("append", "extend", "add", "insert", "appendleft", "update", "setdefault")


def _line_that_keeps(holder: _Holder, ways: Iterable[Callable[[ast.AST, str], bool]] = ()) -> Line | None:
    """Return the one line of the holder's file that puts something into it; None where there is none, or several.

    Where no line adds to it, that is the one that makes it anew of itself, else the one that gives it a value. Where
    several functions have such lines, those of the function that runs count.
    """
    lines = linecache.getlines(holder.file)
    try:
        nodes = [node for node in ast.walk(ast.parse("".join(lines))) if isinstance(node, ast.stmt | ast.expr)]
    except SyntaxError:
        return None
    names = [holder.name, *([f"self.{holder.name.rpartition('.')[2]}"] if "." in holder.name else [])]
    for does in ways or (_puts_into, _makes_anew, _gives_a_value):
        numbers = {node.lineno for node in nodes for name in names if does(node, name)}
        if len(numbers) > 1:
            numbers &= holder.lines
        if numbers:
            return Line.of(places.named(holder.file, numbers.pop())) if len(numbers) == 1 else None
    return None


def _puts_into(node: ast.AST, name: str) -> bool:
    """Return whether a piece of code adds to what is called `name`: a method, `+=`, or an item."""
    match node:
        case ast.Call(func=ast.Attribute(value=target, attr=method)):
            return method in _ADD and _is_part(ast.unparse(target), name)
        case ast.AugAssign(target=target):
            return ast.unparse(target) == name
        case ast.Assign(targets=[ast.Subscript(value=target)]):
            return _is_part(ast.unparse(target), name)
        case _:
            return False


def _is_part(text: str, name: str) -> bool:
    """Return whether code is `name`, or something in it, such as `name["train"]`."""
    return text == name or text.startswith((f"{name}.", f"{name}["))


def _makes_anew(node: ast.AST, name: str) -> bool:
    """Return whether a piece of code assigns to `name` what is made of it, such as `kept = kept + [loss]`."""
    value = _assigned(node, name)
    return value is not None and any(
        ast.unparse(part) == name for part in ast.walk(value) if isinstance(part, ast.expr)
    )


def _gives_a_value(node: ast.AST, name: str) -> bool:
    """Return whether a piece of code assigns to `name` what is made of variables, unlike `kept = []`."""
    value = _assigned(node, name)
    return value is not None and any(isinstance(part, ast.Name) for part in ast.walk(value))


def _assigned(node: ast.AST, name: str) -> ast.expr | None:
    """Return what a piece of code assigns to `name`, alone or among others; None where it does not."""
    match node:
        case ast.Assign(targets=targets, value=value):
            names = (ast.unparse(one) for target in targets for one in getattr(target, "elts", (target,)))
            return value if name in names else None
        case ast.AnnAssign(target=target, value=value):
            return value if ast.unparse(target) == name else None
        case _:
            return None
