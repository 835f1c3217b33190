"""Report as an HTML page that works offline, in light and dark, and with a screen reader."""

import html
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template

from simgpu.clock.lines import Line, Row
from simgpu.ground.units import bytes_text, seconds_text
from simgpu.reports import words
from simgpu.reports.report import Values

_HERE = Path(__file__).parent
_MOST = 15  # rows of a table
_OPEN = ("Look at first", "Errors")  # sections; the others are folded


def page(report: Values) -> str:
    """Return a whole page, without any address of another one."""
    return _template("page").substitute(title=html.escape(words.answer(report)[0]), content=fragment(report))


def fragment(report: Values) -> str:
    """Return what stands on the page, as a notebook shows it."""
    title, *answers = words.answer(report)
    kind = "good" if report.fits and report.failure is None else "bad"
    said = [_paragraphs(answers[:1], f"answer {kind}"), _paragraphs(answers[1:], "answer")]
    sections = [
        ("Look at first", _suspects(report)),
        ("Errors", _errors(report)),
        ("Memory at the peak", _memory(report)),
    ]
    of_a_step = [
        ("Time of a step", _time(report)),
        ("What the host does", _host(report)),
        ("Where the GPU waits", _rows(report.waits, "Idle time of the GPU in a step, by the program's own line")),
        ("Copies", _rows(report.copies, "Copies over the bus in a step, by line")),
        ("Launches", _rows(report.launches, "What the host launches in a step, by line")),
        ("Kernels", _kernels(report)),
        ("What torch.compile would bring", _paragraphs(words.compiled_sentences(report))),
        ("What if", _options(report)),
        ("What is not in these times", _list("ul", words.not_simulated(report))),
    ]
    if words.finished_a_step(report):
        sections += of_a_step
    elif report.fits:
        sections = sections[:2]  # how far memory had come says nothing
    parts = {title: f"<section><h2>{title}</h2>{content}</section>" for title, content in sections if content}
    details = "".join(part for title, part in parts.items() if title not in _OPEN)
    opened = [parts[title] for title in _OPEN if title in parts]
    if details:
        opened.append(f"<details><summary>Memory, times, other GPUs and settings</summary>{details}</details>")
    return _template("fragment").substitute(
        title=html.escape(title), answers="\n".join(said), sections="\n".join(opened)
    )


def _template(name: str) -> Template:
    return Template((_HERE / f"{name}.html").read_text(encoding="utf-8"))


# ---- sections ---------------------------------------------------------------------------------------------------
def _suspects(report: Values) -> str:
    items = [f"{_line(suspect)}<br>{_code(suspect.text)}" for suspect in report.suspects[:3]]
    return _items("ol", "suspects", items) or _paragraphs([words.nothing_sentence(report)])


def _errors(report: Values) -> str:
    items = [
        f"<strong>{html.escape(error.kind)}</strong>: {_line(error)}<br>{_code(error.text)}" for error in report.errors
    ]
    return _items("ul", "errors", items)


def _memory(report: Values) -> str:
    peak = max(report.peak, 1)
    rows = [
        [owner, bytes_text(size), f"{size / peak:.0%}", _meter(size / peak, owner)]
        for owner, size in report.owners.items()
    ]
    owners = _table("Whose the bytes are", ("owner", "bytes", "share", ""), rows, numbers=(1, 2), raw=(3,))
    lines = [[bytes_text(row.bytes), _line(row)] for row in report.memory_lines[:_MOST]]
    return owners + _table("Which line had allocated them", ("bytes", "line"), lines, numbers=(0,), raw=(1,))


def _time(report: Values) -> str:
    said = [sentence(report) for sentence in words.STEP_SENTENCES]
    rows = [
        [phase, seconds_text(s), f"{s / report.step_time:.0%}", _meter(s / report.step_time, phase)]
        for phase, s in report.phases.items()
    ]
    table = _table("Parts of a step", ("part", "time", "share", ""), rows, numbers=(1, 2), raw=(3,)) if rows else ""
    return _paragraphs(said) + table + _paragraphs([report.evidence.long, words.clock_sentence(report)], "quiet")


def _host(report: Values) -> str:
    rows = words.host_cells(report)
    table = _table("What a step takes the host", ("part", "time", "of a step"), rows, numbers=(1, 2))
    return table + _paragraphs([words.host_sentence(report)]) if rows else ""


def _rows(rows: Sequence[Row], caption: str) -> str:
    if not rows:
        return ""
    cells = [
        [seconds_text(row.seconds), words.count_text(row.count), bytes_text(row.bytes) if row.bytes else "", row.cause,
         _line(row)]
        for row in rows[:_MOST]
    ]  # fmt: skip
    left = len(rows) - _MOST
    more = _paragraphs([f"And {left:,} lines more."], "quiet") if left > 0 else ""
    return _table(caption, ("time", "times", "bytes", "what", "line"), cells, numbers=(0, 1, 2), raw=(4,)) + more


def _kernels(report: Values) -> str:
    rows = [words.kernel_cells(kernel) for kernel in report.kernels]
    caption = "Operators whose kernels take most time of a step"
    return _table(caption, words.KERNEL_HEAD, rows, numbers=words.KERNEL_NUMBERS) if rows else ""


def _options(report: Values) -> str:
    rows, head = [words.option_cells(option) for option in report.options], words.option_head(report.options)
    table = _table("The same program with other settings and on other GPUs", head, rows, numbers=range(2, len(head)))
    notes = [f"{name}: {said}." for name, said in words.assumptions(report.options)]
    return table + _paragraphs(words.money(report)) + "<h3>Assumptions</h3>" + _list("ul", notes)


# ---- pieces -----------------------------------------------------------------------------------------------------
def _line(line: Line) -> str:
    """Return a line's place, which may break after each part of its path, and text."""
    source = f" <code>{html.escape(line.source)}</code>" if line.source else ""
    where = re.sub(r"([/_])", r"\1<wbr>", html.escape(line.where))
    return f"<strong>{where}</strong>{source}"


def _code(text: str) -> str:
    """Return a sentence in which what stands between backticks is code."""
    parts = html.escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


def _meter(share: float, name: str) -> str:
    return f'<meter value="{min(share, 1):.3f}" aria-label="share of {html.escape(name)}">{share:.0%}</meter>'


def _paragraphs(texts: Sequence[str], kind: str = "") -> str:
    return "".join(f'<p class="{kind}">{_code(text)}</p>' for text in texts if text)


def _list(tag: str, texts: Sequence[str]) -> str:
    return _items(tag, "", [_code(text) for text in texts])


def _items(tag: str, kind: str, items: Sequence[str]) -> str:
    if not items:
        return ""
    return f'<{tag} class="{kind}">{"".join(f"<li>{item}</li>" for item in items)}</{tag}>'


def _table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int], raw: Sequence[int] = ()
) -> str:
    """Return a table; cells in the columns `raw` are HTML, those in `numbers` end at the right."""
    heads = "".join(_head(column, name, numbers) for column, name in enumerate(head))
    cells = [[_cell(column, cell, head[column], numbers, raw) for column, cell in enumerate(row)] for row in rows]
    body = "".join(f'<tr class="simgpu-row">{"".join(line)}</tr>' for line in cells)
    name = html.escape(caption)
    table = f"<table><caption>{name}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">{table}</div>'


def _head(column: int, name: str, numbers: Sequence[int]) -> str:
    tag = 'th scope="col"' if name else "td"
    return f"<{tag} {_class(column, numbers)}>{html.escape(name)}</{tag[:2]}>"


def _cell(column: int, cell: str, name: str, numbers: Sequence[int], raw: Sequence[int]) -> str:
    """Return a cell; `name` is that of its column, which a narrow page shows beside it."""
    content = cell if column in raw else html.escape(cell)
    label = f' data-name="{html.escape(name)}"' if name and content else ""
    if column == 0 and column not in numbers:
        return f'<th scope="row" {_class(column, numbers)}>{content}</th>'
    return f"<td {_class(column, numbers)}{label}>{content}</td>"


def _class(column: int, numbers: Sequence[int]) -> str:
    return f'class="simgpu-cell{" number" * (column in numbers)}"'
