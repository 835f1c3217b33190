"""Which line first, which batch, which machine? The exercises of lesson 13 that decide by the numbers of a report."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpu_course.checks import Case, edges, edit, lesson
from gpu_course.common.left_out import TRAINING

__all__ = ["Offer", "batch_that_fits", "cheapest", "first_line"]

exercise = lesson("13")


@exercise(
    title="The line that waits",
    where="any machine: reports",
    minutes=5,
    difficulty=1,
    hints=(
        "While the GPU computes, it does not wait. Which of the three lists says how long it does nothing?",
        'report["waits"] has a row for each line, in any order. Which row has the most seconds?',
        'max(rows, key=lambda row: row["seconds"]) is that row. Without its wait a step takes step_time - seconds. '
        "Divide step_time by that.",
    ),
)
def first_line(report: dict) -> tuple[str, float]:
    """Return the line to repair first, and how many times as fast a step then is."""
    if not report["waits"]:
        return "", 1.0
    longest = max(report["waits"], key=lambda row: row["seconds"])
    left = report["step_time"] - longest["seconds"]
    return f"{longest['file']}:{longest['line']}", report["step_time"] / left


first_line.leaves_out("seconds are not below 0, and no limit is named", "number_negative number_large limit")
first_line.leaves_out("rows come in any order, which a case shows", "order")


@first_line.checks
def _(case: Case) -> None:
    for report in _REPORTS:
        case.equal(
            case.call(report),
            _first(report),
            rtol=1e-3,
            why="without this line's wait a step is shorter by that wait, and the rest of the step stays",
        )


def _row(line: int, seconds: float, count: int, nbytes: int = 0, file: str = "train.py") -> dict:
    return {"file": file, "line": line, "seconds": seconds, "count": count, "bytes": nbytes}


def _report(step_time: float, waits: list[dict], copies: list[dict], launches: list[dict]) -> dict:
    return {"step_time": step_time, "waits": waits, "copies": copies, "launches": launches}


_REPORTS = (
    _report(
        0.010,
        [_row(30, 0.004, 12)],
        [_row(25, 0.0005, 1, 512), _row(30, 0.0006, 12, 48), _row(39, 1e-5, 1, 4)],
        [_row(33, 0.008, 400), _row(30, 0.0001, 12)],
    ),
    _report(
        0.050,
        [_row(61, 0.001, 200), _row(44, 0.020, 1, 9000), _row(72, 0.005, 1)],
        [_row(40, 0.002, 1, 9999), _row(44, 0.019, 1, 9000), _row(61, 0.001, 200, 800), _row(72, 0.0001, 1, 4)],
        [_row(50, 0.030, 900), _row(61, 0.001, 200)],
    ),
    _report(
        0.025,  # "in any order"; a line is one of a file; a copy may take longer than any wait
        [
            _row(80, 0.003, 1, 4),
            _row(12, 0.002, 4, 4_000, "model.py"),
            _row(15, 0.008, 24, 96, "parts/model.py"),
            _row(15, 0.004, 30, 120),
            _row(90, 0.0045, 1, 4),
        ],
        [_row(70, 0.009, 2, 4_000), _row(15, 0.0003, 24, 96, "parts/model.py"), _row(80, 1e-5, 1, 4)],
        [_row(75, 0.011, 300), _row(15, 0.0002, 24, 0, "parts/model.py")],
    ),
    _report(0.030, [], [_row(20, 0.004, 1, 5000)], [_row(22, 0.025, 700)]),
)


def _first(report: dict) -> tuple[str, float]:
    """Return the line that would leave the shortest step, each tried, and how many times as fast that is."""
    best = "", report["step_time"]
    for row in report["waits"]:
        left = report["step_time"] - row["seconds"]
        if left < best[1]:
            best = f"{row['file']}:{row['line']}", left
    return best[0], report["step_time"] / best[1]


first_line.alternative(
    "a sorted list gives the same, and also shows which line comes second",
    edit("""
        -    longest = max(report["waits"], key=lambda row: row["seconds"])
        +    longest = sorted(report["waits"], key=lambda row: row["seconds"])[-1]
    """),
)


class _Runs:
    """Says the peak of so many steps with a batch, as a run would: what a model, its optimizer and its batch need."""

    def __init__(self, weights: int, sample: int, workspace: int = 0, block: int = 1) -> None:
        self.weights, self.sample, self.workspace, self.block = weights, sample, workspace, block
        self.made: list[int] = []

    def __repr__(self) -> str:
        return "peak_of"

    def __call__(self, batch: int, steps: int) -> int:
        if batch < 1 or steps < 1:
            raise ValueError(f"a run needs a batch and steps from 1, not {batch} and {steps}")
        self.made.append(batch)
        return self.bytes_of(batch, steps)

    def bytes_of(self, batch: int, steps: int) -> int:
        """Return the peak: AdamW has no state before its first step, which adds two numbers for each weight."""
        states = 2 * self.weights if steps > 1 else 0
        activations = math.ceil(batch * self.sample / self.block) * self.block
        return states + self.weights + max(self.weights + activations, self.workspace)


@exercise(
    title="The largest batch that fits",
    where="any machine: counted bytes",
    minutes=10,
    difficulty=2,
    hints=(
        "The peak of two steps contains the optimizer's state, the peak of one step does not. That peak and the room "
        "must fit together.",
        "Double the batch until it does not fit. The answer lies between the last batch that fitted and the first that "
        "did not.",
        "Let low be a batch that fits (0 at first) and high one that does not. While high - low > 1, try the middle: "
        "if it fits it becomes low, else it becomes high. Then return low.",
    ),
)
def batch_that_fits(peak_of: Callable, capacity: int, room: int) -> int:
    """Return the largest batch that leaves `room` of `capacity` free; 0 if none."""

    def fits(batch: int) -> bool:
        return peak_of(batch, 2) + room <= capacity  # the second step has the optimizer's state

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


batch_that_fits.leaves_out("bytes are whole numbers, from 0 on", "number_negative number_large")
batch_that_fits.leaves_out(TRAINING, "second_call unchanged")


@batch_that_fits.checks
def _(case: Case) -> None:
    edges.note("limit")  # a peak that fills the room exactly
    for runs, capacity, room in (
        (_Runs(100, 10), 1_000, 0),  # 60
        (_Runs(100, 10), 1_000, 150),  # 45
        (_Runs(400, 7, workspace=600, block=32), 4_000, 250),
        (_Runs(300, 90), 1_300, 10),  # 1 alone, which leaves exactly 10
        (_Runs(300, 90), 1_250, 0),  # none
        (_Runs(10, 3), 10_000, 40),  # thousands
    ):
        got = case.call(runs, capacity, room, modifies=True)
        tried = len(runs.made)
        fitting = [batch for batch in range(1, capacity) if runs.bytes_of(batch, 9) + room <= capacity]
        largest = max(fitting, default=0)
        case.equal(
            got,
            largest,
            why=f"its runs need {runs.bytes_of(max(largest, 1), 9)} bytes and {room} of room, of "
            f"{capacity}; one sample more does not fit"
            if largest
            else "batch 1 does not fit either: 0",
        )
        limit = max(30, 2 * largest.bit_length() + 10)  # "About 20 runs must be enough for a batch of hundreds."
        case.instead(
            tried > limit,
            f"the result is right, but it takes {tried} runs, and {limit} are enough",
            "each try is a run of your program: double the batch, then halve the range that is left",
        )


@batch_that_fits.mistake(
    "takes a line through two runs",
    "memory grows in blocks, and a small batch may have its "
    "peak elsewhere: a line says where to look, only a run says whether it fits",
)
def _(peak_of, capacity, room):
    small, large = peak_of(1, 2), peak_of(2, 2)
    return max((capacity - room - small) // max(large - small, 1) + 1, 0) if small + room <= capacity else 0


@batch_that_fits.alternative("Python's bisect searches the range: fewer lines, once the range is found")
def _(peak_of, capacity, room):
    from bisect import bisect_right

    high = 1
    while peak_of(high, 2) + room <= capacity:
        high *= 2
    return bisect_right(range(1, high), capacity - room, key=lambda batch: peak_of(batch, 2))


@dataclass(frozen=True)
class Offer:
    """A machine that somebody lets by the hour, and what a report says of the program on it.

    - `gpus`: how many GPUs it has;
    - `price`: what each of them costs for an hour;
    - `batch`: how many samples each GPU takes in a step;
    - `step_s`: how many seconds a step takes on one GPU, without messages;
    - `message_s`: how many seconds each step waits for the gradients of the other GPUs;
    - `load_s`: how many seconds the machine's processor needs to prepare one batch for one GPU, while the GPUs compute;
    - `start_h`: how many hours pass before the first step, to install and to fetch the data;
    - `peak_tflops`: the rate that the data sheet promises for matrix products.
    """

    name: str
    gpus: int
    price: float
    batch: int
    step_s: float
    message_s: float
    load_s: float
    start_h: float
    peak_tflops: float


@exercise(
    title="GPUs for a deadline",
    where="any machine: offers",
    minutes=8,
    difficulty=2,
    hints=(
        "How long is one step? The GPUs compute and exchange gradients. At the same time the processor prepares the "
        "next batches, one for each GPU. The longer of the two counts.",
        "All GPUs together see gpus * batch samples in a step. The hours are start_h, plus the number of steps times "
        "the seconds of a step, divided by 3600.",
        "You pay for every GPU during all hours. Of the offers within deadline and budget keep the one that costs "
        "least.",
    ),
)
def cheapest(offers: list, samples: int, deadline_h: float, budget: float) -> str:
    """Return the name of the cheapest offer within both limits; "" if none is."""
    best, least = "", math.inf
    for offer in offers:
        steps = math.ceil(samples / (offer.batch * offer.gpus))
        step_s = max(offer.step_s + offer.message_s, offer.load_s * offer.gpus)
        hours = offer.start_h + steps * step_s / 3600
        cost = hours * offer.gpus * offer.price
        if hours <= deadline_h and cost <= budget and cost < least:
            best, least = offer.name, cost
    return best


cheapest.leaves_out("what an offer has is in its fields", "number_zero number_negative number_large")


@cheapest.checks
def _(case: Case) -> None:
    edges.note("limit")  # a deadline and a budget that are met exactly
    for offers, samples, deadline_h, budget in _TASKS:
        got = case.call(list(offers), samples, deadline_h, budget)
        case.equal(got, _choice(offers, samples, deadline_h, budget), why=_told(offers, samples, deadline_h, budget))


def _needs(offer: Offer, samples: int) -> tuple[float, float]:
    """Return the hours and the cost of a run, its steps one by one."""
    seconds, seen = 0.0, 0
    while seen < samples:
        seen += offer.batch * offer.gpus
        loading = sum(offer.load_s for _ in range(offer.gpus))
        computing = offer.step_s + offer.message_s
        seconds += computing if computing > loading else loading
    hours = offer.start_h + seconds / 3600
    return hours, sum(hours * offer.price for _ in range(offer.gpus))


def _choice(offers: tuple[Offer, ...], samples: int, deadline_h: float, budget: float) -> str:
    within = [
        (_needs(offer, samples)[1], offer.name)
        for offer in offers
        if _needs(offer, samples)[0] <= deadline_h and _needs(offer, samples)[1] <= budget
    ]
    return min(within, default=(0, ""))[1]


def _told(offers: tuple[Offer, ...], samples: int, deadline_h: float, budget: float) -> str:
    needs = [(offer.name, *_needs(offer, samples)) for offer in offers]
    listed = ", ".join(f"{name} takes {hours:.1f} h and costs {cost:.1f}" for name, hours, cost in needs)
    return f"{listed}; there are {deadline_h:g} h and {budget:g}"


def _offer(
    name: str,
    gpus: int = 1,
    price: float = 1.0,
    step_s: float = 1.0,
    message_s: float = 0.0,
    load_s: float = 0.0,
    start_h: float = 0.0,
    peak: float = 100,
    batch: int = 10,
) -> Offer:
    return Offer(name, gpus, price, batch, step_s, message_s, load_s, start_h, peak)


_TASKS = (
    ((_offer("slow", price=0.5, step_s=3.6), _offer("fast", price=2.5, step_s=0.9)), 10_000, 1.1, 10.0),
    ((_offer("one", price=1.0, step_s=3.6, start_h=0.3), _offer("two", 2, 1.0, 3.6, start_h=0.3)), 10_000, 1.2, 10.0),
    ((_offer("four, loading", 4, 1.0, 3.6, load_s=1.8), _offer("two", 2, 1.8, 3.6, load_s=0.9)), 10_000, 1.0, 10.0),
    ((_offer("linked", 2, 2.0, 3.6, 0.4), _offer("unlinked", 2, 1.0, 3.6, 5.4)), 10_000, 0.7, 10.0),
    ((_offer("paper tiger", 1, 1.0, 3.6, peak=1000), _offer("modest", 1, 1.3, 2.0, peak=200)), 10_000, 0.8, 10.0),
    ((_offer("dear", 1, 12.0, 1.8), _offer("within", 1, 3.0, 2.9), _offer("late", 1, 1.0, 3.9)), 10_000, 0.9, 4.0),
    ((_offer("late", 1, 1.0, 7.2), _offer("beyond the budget", 8, 4.0, 3.6, 1.0)), 10_000, 1.0, 5.0),
    ((_offer("eight", 8, 1.2, 3.6, start_h=0.5), _offer("two", 2, 1.0, 3.6, start_h=0.5)), 10_000, 3.0, 30.0),
    ((_offer("many hours", 1, 1.0, 3.6), _offer("few hours", 1, 2.0, 1.2)), 10_000, 1.1, 9.0),
    ((_offer("starved", 1, 1.0, 1.0, load_s=3.6), _offer("fed", 1, 1.5, 1.0, load_s=0.8)), 10_000, 1.1, 9.0),
    ((_offer("hidden loading", 1, 1.0, 2.0, load_s=1.9), _offer("dearer", 1, 1.6, 2.0)), 10_000, 1.0, 9.0),
    # "You pay for all GPUs from the beginning, `start_h` included.", which is one start for all of them
    ((_offer("paid start", 1, 1.0, start_h=1.0), _offer("at once", 1, 2.0)), 18_000, 2.0, 9.0),
    ((_offer("one start", 4, 0.5, 2.0, start_h=0.25), _offer("alone", 1, 3.0)), 18_000, 1.0, 9.0),
    # computing and messages on one side, loading on the other: "The longer of the two is the length of the step."
    ((_offer("messages too", 2, 1.0, 1.0, 0.9, 0.9), _offer("alone", 1, 2.0, 1.1)), 18_000, 1.0, 9.0),
    ((_offer("sum counts", 2, 1.0, 1.0, 0.9), _offer("alone", 1, 2.0, 0.7)), 18_000, 1.0, 9.0),
    # "all exchange messages": `message_s` is the whole wait of a step, however many GPUs there are
    ((_offer("four", 4, 0.4, 1.0, 0.5, 0.3), _offer("alone", 1, 2.0, 0.4)), 18_000, 1.0, 9.0),
    # "the processor prepares the next batches, one after the other, for *all* GPUs": a batch is a batch, however large
    ((_offer("loads four", 4, 0.5, load_s=0.6), _offer("alone", 1, 2.0, 0.4)), 18_000, 1.0, 9.0),
    ((_offer("larger batches", 1, 1.0, load_s=0.9, batch=20), _offer("cheap", 1, 0.8)), 18_000, 1.0, 9.0),
    ((_offer("all wait", 4, 1.0, 2.0, start_h=0.5), _offer("alone", 1, 4.0)), 18_000, 1.0, 9.0),
    # "within `deadline_h` hours", "at most `budget`": a limit that is met exactly holds, and none may be left
    ((_offer("just in time", 1, 2.0, 2.0, start_h=0.5), _offer("dear", 1, 9.0)), 18_000, 1.5, 9.0),
    ((_offer("just enough", 1, 2.0, 2.0, start_h=0.5), _offer("dear", 1, 9.0)), 18_000, 9.0, 3.0),
    ((), 10_000, 1.0, 9.0),
    # 250 samples in steps of 200 take longer than one step; whether one and a quarter or two, the text leaves open
    ((_offer("a step and a part", 2, 1.0, 1800.0, batch=100),), 250, 0.55, 9.0),
    ((_offer("fast", price=2.5, step_s=0.9), _offer("slow", price=0.5, step_s=3.6)), 10_000, 1.1, 10.0),
)


@cheapest.alternative("a function of its own for the hours: you can call and test it for one offer")
def _(offers: list, samples: int, deadline_h: float, budget: float) -> str:
    """Return the name of the cheapest offer within both limits; "" if none is."""

    def hours(offer: Offer) -> float:
        steps = math.ceil(samples / (offer.batch * offer.gpus))
        step_s = max(offer.step_s + offer.message_s, offer.load_s * offer.gpus)
        return offer.start_h + steps * step_s / 3600

    costs = {offer.name: hours(offer) * offer.gpus * offer.price for offer in offers if hours(offer) <= deadline_h}
    within = {name: cost for name, cost in costs.items() if cost <= budget}
    return min(within, key=within.__getitem__, default="")
