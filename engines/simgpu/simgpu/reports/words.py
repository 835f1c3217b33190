"""Sentences and table cells that all forms of a report share."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from simgpu.clock.events import FIRST_BATCH, LOADING, SMALL_BYTES, Copy
from simgpu.clock.lines import ENDED, IN_A_THREAD, INTERRUPTED, KILLED, UNLIKE, Error, Line, Row
from simgpu.forecasts.whatif import LAUNCHES, Option
from simgpu.ground.units import bytes_text, seconds_text
from simgpu.reports.report import Kernel, Values

_CURES: dict[str, str] = tomllib.loads(Path(__file__).with_name("cures.toml").read_text(encoding="utf-8"))["cures"]
_ONLY_LAUNCHES = (
    "The host's own Python work between two operations takes no time here; only launches, waits, copies and the "
    "loading of batches by a DataLoader do. On a real machine a step of many small operations is slower."
)
_BY_CLASS = (
    "Of the host, operators take what a table of their classes says, within a factor of 3 where the host is assumed. "
    "The program's own Python between two operators takes no time here."
)
ENOUGH_TURNS = 8  # steps, or calls of a model: over fewer, that no memory grows says nothing


def not_simulated(report: Values) -> tuple[str, ...]:
    """Return what is left out of the times of a report, in sentences."""
    drivers = "CUDA's own part of the memory is off its size. That of other" if report.has_cuda else "Memory of"
    return (
        _ONLY_LAUNCHES if report.basis.machine.host.only_launches else _BY_CLASS,
        *own_sentence(report),
        f"{drivers} drivers, workspaces of libraries and fragmentation are not counted.",
        "Times come from data sheets and a few constants, not from a measurement on this GPU.",
    )


def nothing_asked(report: Values) -> str:
    """Say that a program has not used a GPU."""
    return (
        "nothing was asked of a GPU in this process. Its models and tensors stayed on the CPU "
        f"(`.to('{report.kind}')` moves them), or processes that it started have them."
    )


def own_sentence(report: Values) -> list[str]:
    """Say how long the program's own work takes on this machine, where that is more than a little."""
    seconds = sum(row.seconds for row in report.own)
    if seconds < max(0.1 * report.step_time, 5e-4):
        return []
    times = f"{seconds_text(seconds)}, {seconds_text(report.own[0].seconds)} of it at {report.own[0].where}"
    return [f"What a step does or awaits on this machine, and nothing here counts: at least {times}."]


def answer(report: Values) -> list[str]:
    """Return what a reader wants to know first: does it fit, how long is a step, what does the GPU do meanwhile."""
    of = f"{report.gpus} × simulated {report.gpu.name}" if report.gpus > 1 else f"simulated {report.gpu.name}"
    room = f"{bytes_text(report.peak)} of {bytes_text(report.capacity)}"
    title = f"Report for {of}"
    fits = f"It fits: {room} at the peak."
    if not report.fits:
        other = report.failure is not None and report.failure.rank
        on = f" on rank {other}" if other else f": {room} were in use at most"
        fits = f"It does not fit{on}, and more was asked for."
    what = "A step" if report.steps else "The run, in which no step was found,"
    what += f" of the first of {len(report.trainings)} trainings" if report.trainings else ""
    step = f"{what} takes {seconds_text(report.step_time)}; the GPU computes {report.busy:.0%} of it"
    step += f", and waits {report.launching:.0%} of it for launches." if report.launching >= 0.05 else "."
    if report.failure is None:
        return [title, fits, step] if report.used else [title, f"N{nothing_asked(report)[1:]}"]
    failure = report.failure
    ended = " ".join([_ended(failure), *_done_by_ranks(report)])
    if not report.fits:
        return [title, ended, fits]
    if any(report.ranks.values()) and not report.steps:
        return [title, ended, "Rank 0 has left no report, so nothing is known of memory and time."]
    if not finished_a_step(report):
        return [title, ended, "It had not finished a step, so nothing is known of its memory and its time."]
    until = "The rest went on. In all" if failure.kind.endswith(IN_A_THREAD) else "Until then"
    done = f"{until} {'rank 0' if report.ranks else 'it'} had done {_steps(report.steps)}"
    return [title, ended, f"{done}, and {room} were in use at most. {step}"]


def _done_by_ranks(report: Values) -> Iterator[str]:
    """Say how many steps each rank had done, ranks with the same number together."""
    done = sorted(set(report.ranks.values()))
    if len(done) == 1:
        yield f"Each of the {len(report.ranks)} ranks had done {_steps(done[0])}."
        return
    for steps in done:
        ranks = [str(rank) for rank, number in report.ranks.items() if number == steps]
        yield f"Rank{'s' * (len(ranks) > 1)} {', '.join(ranks)} had done {_steps(steps)}."


def _steps(number: int) -> str:
    return "one step" if number == 1 else f"{number:,} steps" if number else "no step"


def _ended(failure: Error) -> str:
    """Say what ended the program, where, and what helps where the message does not say it."""
    what = "The program" if failure.rank is None else f"Rank {failure.rank}"
    where = f" at {failure.where}" if failure.line else ""
    if failure.kind == KILLED:
        return f"{what} was ended by {failure.text}."
    if failure.kind == INTERRUPTED:
        return f"{what} was interrupted at {failure.where}{f' by {failure.text}' * failure.text.startswith('SIG')}."
    if failure.kind == ENDED:
        why = re.sub(r"^: (\d+)(?=$|\. It began)", r" with status \1", f": {failure.text}")
        return f"{what} ended by itself{where}{why}{'.' * (why[-1] not in '.!?')}"
    said = f"{failure.kind}: {failure.text} {failure.source}"
    instead = next((cure for words, cure in _CURES.items() if re.search(words, said)), "")
    failed = f"{what} failed at {failure.where}: {failure.kind}: {failure.text}"
    return f"{failed}{'.' * (failed[-1] not in '.!?')} {instead}".strip()


def finished_a_step(report: Values) -> bool:
    """Return whether the rows are of a step, and not of what a program did before it failed."""
    return report.used and (report.failure is None or report.steps > 0)


def nothing_sentence(report: Values) -> str:
    """Say that no line stands out, and where to look instead; nothing of a program that failed."""
    if report.failure is not None or not report.used:
        return ""
    looked = report.growth_turns >= ENOUGH_TURNS and not report.growth
    grows = f", and no memory was seen to grow in {report.growth_turns} turns" * looked
    if not report.kernels:
        return "The GPU has computed nothing."
    longest = next((row for row in report.waits if row.seconds >= 0.01 * report.step_time), None)
    if longest is not None:
        wait = f"{longest.where}: {longest.cause}, {seconds_text(longest.seconds)} "
        wait += f"{'a step' if report.steps else 'in all'}{_why_not(longest, report)}"
        return " ".join([f"No line is worth a change{grows}. The GPU waits longest at {wait}.", *own_sentence(report)])
    launches = report.launching >= 0.05
    where = "It waits for launches: see the time of a step." if launches else "Its kernels say where the time goes."
    said = f"No line keeps the GPU waiting for 1 % of {'a step' if report.steps else 'the run'} or more{grows}. {where}"
    return " ".join([said, *own_sentence(report)])


def _why_not(row: Row, report: Values) -> str:
    """Return why a line that keeps the GPU waiting longest gets no remark."""
    if row.parts in report.must_read and row.cause != LOADING and ("to the host" in row.cause or report.steps < 2):
        return ", where the program needs the value" if "to the host" in row.cause else ", which comes once"
    share = row.seconds / report.step_time
    said = f", {share:.0%} of it" + ", in few steps" * (row.count < 0.5)
    if "a copy to the GPU" in row.cause and share >= 0.1:
        return f"{said}; each copy takes {seconds_text(row.seconds / max(row.count, 1))}, which is short"
    if row.cause == LOADING and share >= 0.1 and row.parts in report.epochs:
        epoch_s = row.seconds / max(row.count, 1e-9) * report.epochs[row.parts]
        return f"{said}, but only {seconds_text(epoch_s)} an epoch, for which more workers bring little"
    return said


def steps_sentence(report: Values) -> str:
    """Say what a step is, and of how many the figures are means."""
    if not report.steps:
        return (
            "No step was found: no optimizer made one, and simgpu.step() was not called. The whole run counts as one "
            "step."
        )
    ends = f"A step ends with {report.step_kind}"
    of = (
        f"{report.recorded:,} of {count_text(report.trainings[0].count if report.trainings else report.steps)} steps"
        if report.steps > 1
        else "one step, the first, in which much is done once"
    )
    left = "the first one, in which much is done once, is" if report.basis.first < 2 else "the first two are"
    first = f"; {left} left out" if report.steps > 1 else ""
    once = "; ".join(map(_once, report.once))
    seldom = f" Left out, too, is what comes seldom: {once}." if once else ""
    return f"{ends}. The figures are means over {of}{first}.{seldom}{_others(report.trainings[1:])}"


def _once(row: Row) -> str:
    """Say what comes seldom, where, and how long it takes, or how much longer than the other steps."""
    time = seconds_text(row.seconds)
    if row.cause == UNLIKE:
        return f"{row.cause}{'' if time == seconds_text(0) else f', {time} longer'}, as at {row.where}"
    return f"{row.cause}, {time} at {row.where}"


def _others(trainings: list[Row]) -> str:
    """Tell of the trainings beside the first."""
    told = [
        f"{row.cause} at {row.where}, {count_text(row.count)} steps of {seconds_text(row.seconds)}"
        for row in trainings if row.seconds
    ]  # fmt: skip
    left = len(trainings) - len(told)
    told += [f"{left:,} whose steps were not timed"] * bool(left)
    return f" Other trainings: {'; '.join(told)}. Memory and remarks are those of the whole run." if told else ""


def busy_sentence(report: Values) -> str:
    """Say what the GPU does in a step, and whether launches keep it waiting."""
    each = "a step" if report.steps else "in all"
    said = f"{seconds_text(report.step_time)} {each}: the GPU computes {report.busy:.0%} of it"
    if report.launching < 0.05:
        return f"{said}."
    helps = ["Larger batches"]
    if report.steps and report.what_if(fused=True).step_time < report.step_time:
        helps.append("a fused optimizer")
    if not report.has_compiled:
        helps.append("compiling")
    return (
        f"{said}, and waits {report.launching:.0%} of it for the host, which launches one small operation after the "
        f"other. {' or '.join(filter(None, (', '.join(helps[:-1]), helps[-1])))} help."
    )


def phases_sentence(report: Values) -> str:
    """Say why there are no phases, where there are none."""
    return "" if report.phases else "Phases cannot be told apart, since there was no backward pass."


def data_sentence(report: Values) -> str:
    """Say where the time of loading data comes from."""
    if "data" not in report.phases and not any(
        row.cause in (LOADING, FIRST_BATCH) for row in [*report.waits, *report.once]
    ):
        return ""
    if report.data_ms is not None:
        return f"A batch of a DataLoader takes {report.data_ms:g} ms: an input of this run."
    return (
        "How long a DataLoader takes for a batch was measured on this machine. Workers have more time here than beside "
        "a real GPU, so that with num_workers above 0 it is too short."
    )


def shapes_sentence(report: Values) -> str:
    """Say that no values were computed, where that is so."""
    nothing = "No values were computed, only shapes: losses that the program printed mean nothing."
    return nothing if report.shapes else ""


def copies_sentence(report: Values) -> str:
    """Say which lines without a remark copy from memory that is not pinned, and what pinning it would save."""
    events = [event for event in report.basis.events if isinstance(event, Copy) and event.direction == "H2D"]
    unpinned = {Line.of(event.line).parts for event in events if not event.pinned and event.nbytes > SMALL_BYTES}
    unpinned -= {suspect.parts for suspect in report.suspects}
    copies = [row for row in report.copies if row.cause == "to the GPU"]
    lines = [row.where for row in copies if row.parts in unpinned and row.count >= 0.5]
    if not lines or not report.steps or not report.pins:
        return ""
    saved_s = max(report.step_time - report.what_if(pinned=True).step_time, 0.0)
    return (
        f"Memory that is not pinned is copied at {' and '.join(lines[:2])}{', and other lines' * (len(lines) > 2)}. "
        f"If all copies came from pinned memory, with `non_blocking=True`, a step would take {seconds_text(saved_s)} "
        f"({saved_s / report.step_time:.0%}) less."
    )


STEP_SENTENCES = (steps_sentence, busy_sentence, phases_sentence, data_sentence, copies_sentence, shapes_sentence)


# Of KernelBench's 196 published gains beyond the first, on two H100, the clock had the sign of 183. Where the host
# decides it was wrong of two or three light operators in a row, which it took to gain less than the second.
TOLD_GAIN, TOLD_BY_HOST = 1.1, 1.5


def compiled_sentences(report: Values) -> list[str]:
    """Say what a step would take with its models compiled, where its graphs break, and how sure that is."""
    compiled = report.compiled
    if compiled is None:
        return []
    eager = seconds_text(compiled.eager_time)
    if compiled.step_time is None:
        return [f"What `torch.compile` would bring is not known: {compiled.error}. As it is, a step takes {eager}."]
    said = f"Compiled, a step would take {seconds_text(compiled.step_time)} instead of {eager}; {compiled.evidence}."
    told = TOLD_BY_HOST if report.evidence.regime.startswith("host ") else TOLD_GAIN
    if 1 / told < compiled.eager_time / compiled.step_time < told:
        said += " That is no difference that this clock can tell."
    uncompiled = [f"{remark}." for remark in compiled.remarks]
    if not compiled.breaks:
        return [said, *uncompiled, "No graph breaks."]
    number = "One graph break" if len(compiled.breaks) == 1 else f"{len(compiled.breaks)} graph breaks"
    lines = ", ".join(dict.fromkeys(one.line or "outside of the program" for one in compiled.breaks))
    return [said, *uncompiled, f"{number}: {lines}.", *(f"{one.line}: {one.reason}" for one in compiled.breaks)]


def clock_sentence(report: Values) -> str:
    """Say how long the run took, and what a simulated second costs."""
    times = f"{seconds_text(report.simulated)} on the GPU's clock and {seconds_text(report.real)} here"
    return f"The whole run took {times}: each second of the GPU takes {report.slowdown:,.0f} s on this machine."


def host_cells(report: Values) -> list[list[str]]:
    """Return what the host takes for a step, by part, as the cells of rows."""
    return [[part, seconds_text(s), f"{s / report.step_time:.0%}"] for part, s in report.host.items()]


_RELIEFS: dict[str, dict[str, Any]] = {  # what takes work from the host
    "CUDA graphs": {"compiled": True},
    "kernels launched without operators around them, as compiled ones are,": {"compiled": LAUNCHES},
    "a fused optimizer": {"fused": True},
    "a foreach optimizer": {"foreach": True},
}


def host_sentence(report: Values) -> str:
    """Say how busy host and GPU are in a step, on which host, and what would help most."""
    busy = min(sum(report.host.values()) / report.step_time, 1.0)
    host = report.basis.machine.host
    per = f"{host.operator_us:g} µs for {'a launch' if host.only_launches else 'an operator of a library'}"
    said = f"The host is busy for {busy:.0%} of a step, the GPU for {report.busy:.0%}. It takes {per} ({host.name})"
    reliefs = {name: setting for name, setting in _RELIEFS.items() if report.has_cuda or "compiled" not in setting}
    times = {name: report.what_if(**setting).step_time for name, setting in reliefs.items()}
    best = min(times, key=times.__getitem__)
    if times[best] > 0.95 * report.step_time:
        return f"{said}. Nothing that takes work from the host makes a step 5 % shorter."
    double = report.what_if(batch=2).step_time / 2
    more = f"; at twice the batch, as many samples take {seconds_text(double)}" if double < report.step_time else ""
    return f"{said}. With {best} a step would take {seconds_text(times[best])}{more}."


def count_text(count: float) -> str:
    """Return how often something happens in a step: "4", "0.25"."""
    return f"{count:,.0f}" if count == round(count) or count >= 100 else f"{count:.2g}"


KERNEL_HEAD = ("operator", "calls", "time", "of the step", "bound by", "FLOPs", "bytes")
KERNEL_NUMBERS = (1, 2, 3, 5, 6)  # columns that end at the right


def kernel_cells(kernel: Kernel) -> list[str]:
    """Return what the kernels of an operator take as the cells of a row."""
    return [
        kernel.name, count_text(kernel.count), seconds_text(kernel.seconds), f"{kernel.share:.0%}", kernel.bound,
        f"{kernel.flops:.3g}", bytes_text(kernel.bytes),
    ]  # fmt: skip


def option_head(options: Sequence[Option]) -> tuple[str, ...]:
    """Return the head of the table of options; hours and cost only where they are known."""
    more = (("hours",) if options[0].hours is not None else ()) + (("cost",) if options[0].cost is not None else ())
    return ("what", "fits", "peak", "of", "a step", "GPU idle", *more)


def option_cells(option: Option) -> list[str]:
    """Return an option as the cells of a row."""
    cells = [
        option.name, "yes" if option.fits else "no", bytes_text(option.peak), bytes_text(option.capacity),
        seconds_text(option.step_time), f"{option.idle:.0%}",
    ]  # fmt: skip
    cells += [] if option.hours is None else [f"{option.hours:.3g}"]
    return cells + ([] if option.cost is None else [f"{option.cost:,.2f}"])


def assumptions(options: Sequence[Option]) -> list[tuple[str, str]]:
    """Return what options take for granted, each sentence once, with the name of the first that does."""
    result: dict[str, str] = {}
    for option in options:
        for said in option.assumptions:
            name = "another GPU" if option.name == option.gpu else option.name
            result.setdefault(said, "another batch" if name.startswith("batch") else name)
    return [(name, said) for said, name in result.items()]


def money(report: Values) -> list[str]:
    """Say what hours and cost are of."""
    option = report.options[0]
    if option.hours is None:
        return []
    price = "" if option.cost is None else f"; the cost takes {report.price:g} an hour for each GPU"
    return [f"Hours are those of {option.steps:,} steps of the batch of this run, or as many samples{price}."]
