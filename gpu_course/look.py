"""Look of the course's messages: one frame for checks, guesses, questions and results.

Colours are JupyterLab's own, light or dark; elsewhere greys that let the page through, and hues that can be told from
black and from white.
"""

import html
import re
from collections.abc import Sequence

__all__ = ["FOCUS", "STYLE", "compared", "frame", "headline", "inline", "map_strip", "mono", "quiet"]

_LINE, _TINT = "rgba(128,128,128,.35)", "rgba(128,128,128,.07)"
_HUES = {
    "ask": "var(--jp-brand-color1,#3b7dd8)",
    "right": "var(--jp-success-color1,#1f9d55)",
    "wrong": "var(--jp-warn-color1,#c2570c)",
    "plain": _LINE,
}
_MONO = "font-family:var(--jp-code-font-family,ui-monospace,Menlo,Consolas,monospace);font-size:.93em"
_WRAPS = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
_MARK = "background:#ffd08a;color:#000"  # not the page's colour: a page that is not trusted takes that out, here black
_FRAME = f"background:{_TINT};padding:.5em .9em;margin:.2em 0;max-width:62em;line-height:1.5;overflow-wrap:break-word"
_TOKEN = re.compile(r"[\w.+-]+|\s+|.", re.DOTALL)

# For widgets, which take classes and no styles: put these into an HTML widget inside the box with the class.
# What the keyboard is at: ipywidgets' own pale line of one pixel is hard to see. And what a widget is whose kernel has
# ended, in words for the outermost one, instead of a sign of a broken chain on each.
FOCUS = (
    "<style>.jupyter-widgets-disconnected::before{content:'From an earlier session, so nothing happens here. Run this "
    "cell again; if it needs the cells above: Run, Run All Above Selected Cell.'!important;color:inherit!important;"
    "font:italic 13px/1.5 system-ui,sans-serif!important;white-space:normal}"
    ".jupyter-widgets-disconnected .jupyter-widgets-disconnected::before{content:none!important}"
    ".jupyter-widgets-disconnected :is(input,select,button,.noUi-target){opacity:.5;pointer-events:none}</style>"
    "<style>.jupyter-widgets :is(input,select,.noUi-handle,.widget-readout):focus-visible,.widget-button:focus-visible"
    "{outline:2px solid var(--jp-ui-font-color0,currentColor)!important;outline-offset:2px}</style>"
)
STYLE = (
    f"{FOCUS}<style>.course-ask{{border-left:3px solid {_HUES['ask']};background:{_TINT};padding:.4em .9em}}"
    ".course-ask{max-width:62em}"
    ".course-ask .widget-html-content{line-height:1.5;white-space:normal}"
    ".course-ask .widget-radio-box label{height:auto;line-height:1.5;white-space:normal}</style>"
)


def frame(kind: str, *parts: str) -> str:
    """Return HTML `parts` in a frame: "ask", "right", "wrong" or "plain"."""
    return f'<div style="border-left:3px solid {_HUES[kind]};{_FRAME}">{"".join(parts)}</div>'


def headline(text: str) -> str:
    """Return the line that is read first, as HTML."""
    return f'<div style="font-size:1.1em;font-weight:600;margin:.15em 0">{inline(text)}</div>'


def quiet(text: str) -> str:
    """Return a line of secondary text as HTML."""
    return f'<div style="opacity:.8;font-size:.93em">{inline(text)}</div>'


def inline(text: str) -> str:
    """Return a sentence as HTML; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def mono(text: str) -> str:
    """Return lines of code or output as HTML; long ones go on in the next line, at words where there are any."""
    return f'<div style="{_MONO};{_WRAPS}">{html.escape(text)}</div>'


def compared(rows: dict[str, str]) -> str:
    """Return labelled values side by side, or below each other where the page is narrow, as HTML.

    Of two values the first difference is marked.
    """
    values = [*rows.values()]
    marked = _marked(*values) if len(values) == 2 else [html.escape(value) for value in values]
    card = f"{_MONO};{_WRAPS};padding:.2em .5em;background:{_TINT};border:1px solid {_LINE}"
    boxes = (
        f'<div>{quiet(label)}<div style="{card}">{value}</div></div>' for label, value in zip(rows, marked, strict=True)
    )
    grid = "display:grid;grid-template-columns:repeat(auto-fit,minmax(min(18em,100%),1fr));gap:.3em 1em;margin:.4em 0"
    return f'<div style="{grid}">{"".join(boxes)}</div>'


def _marked(one: str, other: str) -> list[str]:
    """Return both texts as HTML, marked where they first differ: a word, or all that one of them lacks."""
    first, second = _TOKEN.findall(one), _TOKEN.findall(other)
    begin = _common(first, second)
    end = _common(first[begin:][::-1], second[begin:][::-1])
    lacks = begin + end in (len(first), len(second))
    marked = []
    for tokens in (first, second):
        upto = max(len(tokens) - end, begin) if lacks else begin + 1
        before, middle, after = ("".join(part) for part in (tokens[:begin], tokens[begin:upto], tokens[upto:]))
        mark = f'<mark style="{_MARK}">{html.escape(middle)}</mark>' if middle else ""
        marked.append(f"{html.escape(before)}{mark}{html.escape(after)}")
    return marked


def _common(one: list[str], other: list[str]) -> int:
    """Return how many words two texts have in common from the beginning on."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def map_strip(lessons: Sequence[tuple[str, int, int]], here: str) -> str:
    """Return the lessons as a row of HTML boxes, each filled by how much of it is solved; `here` has a frame.

    A lesson is its number, how many of its exercises are solved, and how many there are. The row is hidden from screen
    readers: say what it shows beside it.
    """
    boxes = []
    for number, solved, count in lessons:
        share = 100 * solved // count if count else 0
        fill = f"background:linear-gradient(to right,rgba(31,157,85,.35) {share}%,transparent {share}%)"
        edge = f"border:2px solid {_HUES['ask']};font-weight:600" if number == here else f"border:1px solid {_LINE}"
        boxes.append(f'<span style="{edge};{fill};padding:0 .45em">{html.escape(number)}</span>')
    look = "display:flex;flex-wrap:wrap;gap:3px;font-size:.85em;margin:.3em 0"
    return f'<div aria-hidden="true" style="{look}">{"".join(boxes)}</div>'
