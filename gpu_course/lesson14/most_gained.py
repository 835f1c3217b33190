"""The exercise “Who gains most?”."""

from dataclasses import dataclass

from gpu_course.checks import Case, edges, exercise


@dataclass(frozen=True)
class Kernel:
    """What a kernel moves and computes: `nbytes` that it reads and writes, and `flops`."""

    nbytes: float
    flops: float = 0.0


@dataclass(frozen=True)
class Program:
    """A program's kernels: `eager`, one for each operator, and `compiled`, those that a compiler would write."""

    name: str
    eager: tuple[Kernel, ...]
    compiled: tuple[Kernel, ...]


@dataclass(frozen=True)
class Card:
    """A GPU: the rates `gbps` of its memory and `tflops` of its products, and what a launch costs the host."""

    name: str
    gbps: float
    tflops: float
    launch_us: float


@exercise(
    minutes=8,
    difficulty=2,
    where="any machine: numbers of a forecast",
    hints=(
        "Write a function for the time of a list of kernels on this card. A program gains its eager time divided by "
        "its compiled time.",
        "A kernel takes the longer of nbytes / (gbps * 1e9) and flops / (tflops * 1e12) seconds. Kernels run one after "
        "the other.",
        "The host launches meanwhile: len(kernels) * launch_us * 1e-6 seconds. The longer of kernels and launches "
        "counts. max(programs, key=...) finds the program.",
    ),
)
def most_gained(programs: list, card: Card) -> str:
    """Return the name of the program that compiling makes most times as fast."""

    def seconds(kernels: tuple) -> float:
        working = sum(max(kernel.nbytes / (card.gbps * 1e9), kernel.flops / (card.tflops * 1e12)) for kernel in kernels)
        launching = len(kernels) * card.launch_us * 1e-6  # the host works ahead, so the longer of both counts
        return max(working, launching)

    return max(programs, key=lambda program: seconds(program.eager) / seconds(program.compiled)).name


most_gained.exempt("each program has kernels, and there is one program at least", "no_entries")

_SLOW, _MIDDLE, _FAST = Card("slow", 300, 30, 5.0), Card("middle", 1000, 100, 5.0), Card("fast", 3000, 600, 5.0)
_SLOW_HOST = Card("fast, with a slow host", 3000, 600, 40.0)
_TIMES = 1e6  # bytes and FLOPs below are in millions


def _program(name: str, eager: list[tuple[float, float]], compiled: list[tuple[float, float]]) -> Program:
    """Return a program whose kernels have so many million bytes, and million FLOPs."""
    both = [tuple(Kernel(nbytes * _TIMES, flops * _TIMES) for nbytes, flops in made) for made in (eager, compiled)]
    return Program(name, *both)


_CHAIN = _program("a chain of large tensors", [(200, 100)] * 8, [(200, 800)])
_SHORT_CHAIN = _program("a short chain", [(200, 100)] * 3, [(200, 300)])
_HALF = _program("half of the bytes", [(400, 1)] * 4, [(800, 1)])
_MIDDLING = _program("middling operators", [(12, 1)] * 100, [(12, 9)] * 14)
_TINY = _program("tiny operators", [(0.5, 0.1)] * 400, [(0.5, 5)] * 30)
_THIRD = _program("a third of the kernels", [(30, 1)] * 60, [(30, 60)] * 20)
_MIXED = _program("short and long", [(2, 1)] * 50 + [(150, 5)] * 6, [(2, 50)] * 5 + [(150, 30)] * 2)
_BLOCK = _program("a block", [(80, 2e5)] * 4 + [(100, 30)] * 16, [(80, 2e5)] * 4 + [(100, 90)] * 5)
_NORMS = _program("norms and products", [(50, 3e4)] * 8 + [(120, 10)] * 16, [(50, 3e4)] * 8 + [(120, 60)] * 6)
_BALANCED = _program("balanced products", [(90, 9e3)] * 6 + [(60, 6)] * 12, [(90, 9e3)] * 6 + [(60, 60)] * 4)
_ALMOST_ONE = _program("one product", [(1, 1)] * 40 + [(100, 4e5)], [(1, 1), (100, 4e5)])
_ONLY_PRODUCTS = _program("large products", [(300, 9e6), (100, 50)], [(300, 9e6), (100, 50)])
_FEW = _program("few products", [(120, 6e4)] * 4 + [(2, 1)] * 4, [(120, 6e4)] + [(2, 1)] * 4)
_LONG = _program("long copies", [(150, 9e3)] * 4 + [(100, 2e4)] * 2, [(150, 3.6e4)] + [(100, 2e4)] * 2)
_COPIES = _program("copies", [(60, 9e3)] * 60 + [(2, 2e5)] * 4, [(60, 9e3)] * 20 + [(2, 2e5)] * 4)
_EITHER = _program("products, then copies", [(15, 6e4)] * 8 + [(40, 1)] * 10, [(15, 6e4)] * 4 + [(40, 1)] * 10)
_PRODUCTS = _program("two long products", [(100, 9e7)] * 2, [(100, 1.7e8)])
_ONE_COPY = _program("a copy", [(300, 1)], [(100, 1)])
_TWO_COPIES = _program("two copies", [(60, 1)] * 3, [(60, 1)] * 2)
_TASKS = (
    ([_CHAIN], _SLOW),
    ([_SHORT_CHAIN, _CHAIN, _ONLY_PRODUCTS], _SLOW),
    ([_TINY, _CHAIN], _SLOW),
    ([_ALMOST_ONE, _NORMS, _BLOCK], _MIDDLE),
    ([_MIDDLING, _SHORT_CHAIN], _FAST),
    ([_NORMS, _ALMOST_ONE], _SLOW_HOST),
    ([_BALANCED, _NORMS], _SLOW_HOST),
    ([_HALF, _MIXED, _ONLY_PRODUCTS, _THIRD, _MIDDLING, _ALMOST_ONE], _SLOW_HOST),
    ([_FEW, _LONG], _SLOW_HOST),  # "the longer of two times", of each kernel; "the longer of both", of the program
    ([_COPIES, _EITHER], _SLOW_HOST),  # "kernels run one after the other"
    ([_PRODUCTS, _TWO_COPIES, _ONE_COPY], _SLOW),  # launches of microseconds: fewer kernels gain less than fewer bytes
)


def _gain(program: Program, card: Card) -> float:
    """Return the gain, kernel by kernel."""
    both = []
    for kernels in (program.eager, program.compiled):
        device = host = 0.0
        for kernel in kernels:
            memory, products = kernel.nbytes / card.gbps / 1e9, kernel.flops / card.tflops / 1e12
            device += memory if memory > products else products
            host += card.launch_us / 1e6
        both.append(device if device > host else host)
    return both[0] / both[1]


@most_gained.checks
def _(case: Case) -> None:
    for programs, card in _TASKS:
        got = case.call(list(programs), card)
        gains = {program.name: _gain(program, card) for program in programs}
        said = ", ".join(f"{name} gains {gain:.2f} times" for name, gain in gains.items())
        case.equal(got, max(gains, key=gains.__getitem__), why=f"on {card}: {said}")
    edges.note("order", "second_call")
