"""Report in plain text."""

from simgpu.clock.lines import Line, Row
from simgpu.ground import tables
from simgpu.ground.units import bytes_text, seconds_text
from simgpu.reports import words
from simgpu.reports.report import Kernel, Values

_MOST = 8  # rows of a list


def text(report: Values) -> str:
    """Return the report as lines of text, the most important first."""
    sections = [
        ("", words.answer(report)),
        ("Look at first", _suspects(report)),
        ("Errors", [f"{error.where}: {error.kind}: {error.text}" for error in report.errors]),
        ("Memory at the peak", _memory(report)),
    ]
    of_a_step = [
        ("Time of a step", _time(report)),
        ("What the host does, in a step", _host(report)),
        ("Where the GPU waits, in a step", _rows(report.waits)),
        ("Copies, in a step", _rows(report.copies)),
        ("Launches, in a step", _rows(report.launches)),
        ("Kernels, in a step", _kernels(report.kernels)),
        ("What torch.compile would bring", words.compiled_sentences(report)),
        ("What if", _options(report)),
        ("What is not in these times", list(words.not_simulated(report))),
    ]
    if words.finished_a_step(report):
        sections += of_a_step
    elif report.fits:
        sections = sections[:3]  # how far memory had come says nothing
    return "\n\n".join("\n".join([title, *lines] if title else lines) for title, lines in sections if lines)


def _suspects(report: Values) -> list[str]:
    lines = []
    for number, suspect in enumerate(report.suspects[:3], 1):
        lines += [f"{number}. {Line(*suspect.parts)}", f"   {suspect.text}"]
    return lines or list(filter(None, [words.nothing_sentence(report)]))


def _memory(report: Values) -> list[str]:
    rows = [[owner, bytes_text(size), f"{size / max(report.peak, 1):.0%}"] for owner, size in report.owners.items()]
    lines = [[bytes_text(row.bytes), str(Line(*row.parts))] for row in report.memory_lines[:_MOST]]
    growths = [one for one in report.growth if one.bytes_per_step]  # else only a graph grows, on the host
    grown = [f"grows by {bytes_text(one.bytes_per_step)} a {one.each}: {Line(*one.parts)}" for one in growths]
    return [tables.text(rows, right=(1, 2)), "", "by the program's line that allocated it:", tables.text(lines), *grown]


def _time(report: Values) -> list[str]:
    rows = [[phase, seconds_text(s), f"{s / report.step_time:.0%}"] for phase, s in report.phases.items()]
    said = [sentence(report) for sentence in words.STEP_SENTENCES]
    table = [tables.text(rows, right=(1, 2))] if rows else []
    return [*filter(None, said), *table, report.evidence.long, words.clock_sentence(report)]


def _host(report: Values) -> list[str]:
    rows = words.host_cells(report)
    return [tables.text(rows, right=(1, 2)), words.host_sentence(report)] if rows else []


def _rows(rows: list[Row]) -> list[str]:
    cells = [
        [seconds_text(row.seconds), f"{words.count_text(row.count)} ×", bytes_text(row.bytes) if row.bytes else "",
         row.cause, str(Line(*row.parts))]
        for row in rows[:_MOST]
    ]  # fmt: skip
    left = len(rows) - _MOST
    return [tables.text(cells, right=(0, 1, 2)), *([f"and {left:,} lines more"] if left > 0 else [])] if cells else []


def _kernels(kernels: list[Kernel]) -> list[str]:
    rows = [words.kernel_cells(kernel) for kernel in kernels[:_MOST]]
    return [tables.text(rows, words.KERNEL_HEAD, right=words.KERNEL_NUMBERS)] if rows else []


def _options(report: Values) -> list[str]:
    rows = [words.option_cells(option) for option in report.options]
    table = tables.text(rows, words.option_head(report.options), right=range(1, len(rows[0])))
    notes = [f"- {name}: {said}." for name, said in words.assumptions(report.options)]
    return [table, *words.money(report), "Assumptions:", *notes]
