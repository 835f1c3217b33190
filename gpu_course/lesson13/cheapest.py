"""The exercise “GPUs for a deadline”."""

import math
from dataclasses import dataclass

from gpu_course.checks import Case, edges, exercise


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


cheapest.exempt("what an offer has is in its fields", "number_zero number_negative number_large")


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
