"""Explanations of errors: what happened, why, and what to do now.

    with explain.caught() as c:
        torch.ones(3, device=DEVICE) + torch.ones(3)
    print(c)

In a notebook `%explain` explains the last error, `%explain on` each one, under its traceback, and `%%explain` what is
pasted below it. Of an error that it does not know it says so.
"""

import functools
import html
import re
import sys
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["Caught", "Explanation", "caught", "explain", "names"]


def _filled(text: str, head: str) -> str:
    """Return `text` behind `head` in lines that a narrow page shows whole; in a longer one it breaks words."""
    indent = " " * len(head)
    return textwrap.fill(
        text, 92, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


@dataclass(frozen=True)
class Explanation:
    """What happened, why, and what to do now; `name` is the kind of error, "unknown" where it is not known here."""

    name: str
    what: str
    why: str
    now: str

    def __str__(self) -> str:
        parts = {"What: ": self.what, "Why:  ": self.why, "Now:  ": self.now}
        return "\n".join(_filled(text, head) for head, text in parts.items())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        rows = (("What", self.what), ("Why", self.why), ("Now", self.now))
        return "<table>{}</table>".format(
            "".join(
                f'<tr><th>{head}</th><td style="text-align: left">{html.escape(text)}</td></tr>' for head, text in rows
            )
        )


@dataclass
class Caught:
    """What `caught` caught: the error, once there was one, and its explanation; prints as the explanation."""

    error: BaseException | None = None
    explanation: Explanation | None = None

    def __str__(self) -> str:
        return str(self.explanation)

    def _repr_html_(self) -> str:
        return self.explanation._repr_html_() if self.explanation else ""


def explain(error: BaseException | str) -> Explanation:
    """Return the explanation of `error`, or of the text that one was printed as, in words that hold on every device.

    Of an error with causes (`raise … from`, a group), the innermost known one is explained, and `error` is named; the
    error during whose handling it came is explained where `error` itself is not known. One that is not known here is
    said to be unknown, with its type, the first line of its message, and what its text shows of where it comes from.
    """
    if not isinstance(error, (BaseException, str)):
        raise TypeError(f"error is a {type(error).__name__}, it must be an exception or its text")
    for one in _causes(error):
        known = next(filter(None, map(_explained, _messages(one))), None)
        if known:
            return known if one is error else replace(known, what=f"{known.what} Of it came {_headline(error)}")
    text = "\n".join(_messages(error))
    why, now = next((hint["why"], hint["now"]) for hint in _TABLE["hint"] if re.search(hint["pattern"], text))
    return Explanation("unknown", _headline(error), f"this course has no explanation of this error; {why}", now)


def _causes(error: BaseException | str) -> list[BaseException | str]:
    """Return `error` and the errors that it came of, the innermost first and the one that was being handled last."""
    causes: list[BaseException | str] = []
    todo = [error]
    while todo:
        one = todo.pop()
        if one not in causes:
            causes.insert(0, one)
            todo += [*getattr(one, "exceptions", ()), *filter(None, [getattr(one, "__cause__", None)])]
    handled = None if isinstance(error, str) or error.__suppress_context__ else error.__context__
    return causes if handled is None else [*causes, handled]


# A line that says which error was raised; what stands before it (a rank, a time, an E) begins the next lines too
_RAISED = re.compile(r"^(.*?)\b((?:\w+\.){,9}[A-Z]\w*(?:Error|Exception|Interrupt|Unsupported))(?:: |:?$)", re.M)

# Colours, with and without the letter that begins them, and Windows' ends of lines
_NOISE = re.compile(r"(?:\x1b|\\u001b|\\x1b|\\033)\[[\d;?]*[A-Za-z]|\[\d(?:;\d+)*m|\r(?=\n)")
_QUOTES = dict(zip(map(ord, "‘’“”"), "''\"\"", strict=True))  # as forums set them


def _messages(error: BaseException | str) -> Iterator[str]:
    """Yield each message in the text of `error` with its type: those of printed tracebacks first, then the whole."""
    text = html.unescape(_NOISE.sub("", str(error))).translate(_QUOTES)
    if len(text) > 60_000:  # a log: its end says most, and the patterns take a second for so much
        text = f"{text[:20_000]}\n{text[-40_000:]}"
    holds = isinstance(error, str) or re.search(r"Traceback \(most recent|\Aranks? \d[\d, and]* raised", text)
    raised = list(_RAISED.finditer(text)) if holds else []
    if raised:
        head = re.sub(r"\d+", r"\\d+", re.escape(raised[-1][1].rstrip()))
        plain = re.sub(rf"^{head} ?", "", text, flags=re.MULTILINE)
        first = _RAISED.split(plain)[0]
        yield "\n".join(re.findall("^.*Assertion `.*", first, re.M))  # by a kernel: what follows says less
        replica = re.search(r"Caught \w+ in replica \d+", text)
        place = f"\n{replica[0]}" if replica else ""  # of all that a copy of a model raised in DataParallel
        for part in reversed(plain.split("During handling of the above exception")):
            _, *parts = _RAISED.split(part)
            ends = [f"{said.strip()}\n\n{kind}{place}" for kind, said in zip(parts[1::3], parts[2::3], strict=True)]
            yield from ends if "direct cause of the following" in part else reversed(ends)
    yield text if isinstance(error, str) else f"{text}\n{type(error).__module__}.{type(error).__qualname__}"


@functools.lru_cache(100)  # one log may say the same a thousand times
def _explained(text: str) -> Explanation | None:
    """Return the explanation of the message `text`, which a terminal may have broken into lines; None if unknown."""
    forms = dict.fromkeys((text, re.sub(r"\s+", " ", text), re.sub(r"\n\s*", "", text)))
    for name, pattern, what, why, now in _KNOWN:
        for broken in forms:
            if match := _compiled(pattern, re.DOTALL).search(broken):
                parts = {key: value for key, value in match.groupdict().items() if value is not None}
                return Explanation(name, _fill(what, parts), why, now)
    return None


def _headline(error: BaseException | str) -> str:
    """Return the type and the first line of the message of `error`, cut to 200 letters."""
    if isinstance(error, str):
        raised = list(_RAISED.finditer(error))
        return error[raised[-1].start(2) if raised else 0 :].strip().partition("\n")[0][:200] or "no message"
    return f"{type(error).__name__}: {(str(error).strip().partition(chr(10))[0] or 'no message')[:200]}"


@contextmanager
def caught(*kinds: type[BaseException]) -> Iterator[Caught]:
    """Catch the error that the block is written to raise, so that a lesson can print its explanation.

    `kinds` are the types that may come (default: Exception). A block that raises nothing is an AssertionError: then the
    lesson would show an error that there is not.
    """
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"kinds holds {kind!r}, it may hold types of errors, such as RuntimeError")
    result, wanted = Caught(), kinds or (Exception,)
    try:
        yield result
    except wanted as error:
        result.error, result.explanation = error.with_traceback(None), explain(error)
    else:
        raise AssertionError("the block was to raise an error, and it raised none")


def load_ipython_extension(shell: Any) -> None:
    """Make `%explain` and `%%explain` magics of `shell`, as the head of this file says."""

    def explains(line: str, cell: str = "") -> Explanation | None:
        """Explain the last error, or the pasted one; on, off: each one, or no more."""
        if line in ("on", "off"):
            shell.set_custom_exc((Exception,) if line == "on" else (), _under_traceback)
            return None
        error = f"{line}\n{cell}".strip() or getattr(sys, "last_value", None)
        return None if error is None else explain(error)

    shell.register_magic_function(explains, "line_cell", "explain")


def _under_traceback(shell: Any, kind: type[BaseException], error: BaseException, where: Any, tb_offset: Any) -> None:
    from IPython.display import display

    shell.showtraceback((kind, error, where), tb_offset=tb_offset)
    sys.stderr.flush()  # where the traceback of a group stands
    known = explain(error)
    if known.name != "unknown":
        display(known)


def names() -> tuple[str, ...]:
    """Return the kinds of errors that are known here."""
    return tuple(name for name, *_ in _KNOWN)


def _fill(text: str, parts: dict[str, str]) -> str:
    """Put the parts of the message into `text`, or into what stands behind a bar of it, where one is missing."""
    forms = text.split(" | ")
    filled = next((form for form in forms if parts.keys() >= set(re.findall(r"\{(\w+)", form))), forms[-1])
    return filled.format_map(defaultdict(lambda: "something", parts))


_DEVICE = r"(?:cpu|cuda|sim|mps|xpu|meta)(?::\d+)?"
_compiled = functools.cache(re.compile)  # re itself keeps no more than 512 patterns
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _known() -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the kinds of errors in the file beside this module: name, pattern, what, why and now."""
    for error in _TABLE["error"]:
        pattern = error["pattern"] if isinstance(error["pattern"], str) else "|".join(error["pattern"])
        yield error["name"], pattern.replace("<device>", _DEVICE), error["what"], error["why"], error["now"]


_KNOWN = tuple(_known())
if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()) is not None:
    load_ipython_extension(_shell)
