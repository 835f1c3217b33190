"""Explanations of errors: what happened, why, and what to do now.

    with explain.caught() as c:
        torch.ones(3, device=DEVICE) + torch.ones(3)
    print(c)

In a notebook `%explain` explains the last error, and `%explain on` each one, under its traceback. Of an error that it
does not know it says so.
"""

import html
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["Caught", "Explanation", "caught", "explain", "names"]

_WIDTH = 92  # letters of a line


def _filled(text: str, head: str) -> str:
    """Return `text` behind `head` in lines that a narrow page shows whole; in a longer one it breaks words."""
    indent = " " * len(head)
    return textwrap.fill(
        text, _WIDTH, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
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

    def _repr_html_(self) -> str:
        rows = (("What", self.what), ("Why", self.why), ("Now", self.now))
        return "<table>{}</table>".format(
            "".join(f"<tr><th>{head}</th><td>{html.escape(text)}</td></tr>" for head, text in rows)
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


def explain(error: BaseException) -> Explanation:
    """Return the explanation of `error`, in words that hold on every device.

    Of an error with causes (`raise … from`), the innermost known one is explained, and `error` is named; the error
    during whose handling it came is explained where `error` itself is not known. One that is not known here is said to
    be unknown, with its type and the first line of its message.
    """
    if not isinstance(error, BaseException):
        raise TypeError(f"error is a {type(error).__name__}, it must be an exception")
    causes = [error]
    while (inner := causes[-1].__cause__) is not None and inner not in causes:
        causes.append(inner)
    if not error.__suppress_context__ and error.__context__ is not None:
        causes.insert(0, error.__context__)
    for one in reversed(causes):
        known = _explained(one)
        if known:
            return known if one is error else replace(known, what=f"{known.what} Of it came {_headline(error)}")
    return Explanation(
        "unknown",
        _headline(error),
        "this course has no explanation of this error.",
        "read the message and the last line of your own code in the traceback; print shapes, dtypes and devices there.",
    )


def _explained(error: BaseException) -> Explanation | None:
    """Return the explanation of `error` by its own message and type alone; None where neither is known."""
    text = f"{error}\n{type(error).__module__}.{type(error).__qualname__}"
    for name, pattern, what, why, now in _KNOWN:
        match = re.search(pattern, text, re.DOTALL)
        if match:
            parts = {key: value for key, value in match.groupdict().items() if value is not None}
            return Explanation(name, _fill(what, parts), why, now)
    return None


def _headline(error: BaseException) -> str:
    """Return the type and the first line of the message of `error`, cut to 200 letters."""
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
    """`%explain` explains the last error; `%explain on` each one, under its traceback, until `%explain off`."""

    def explains(line: str) -> Explanation | None:
        """Explain the last error; on, off: each one, or no more."""
        if line in ("on", "off"):
            shell.set_custom_exc((Exception,) if line == "on" else (), _under_traceback)
            return None
        error = getattr(sys, "last_value", None)
        return explain(error) if error is not None else None

    shell.register_magic_function(explains, "line", "explain")


def _under_traceback(shell: Any, kind: type[BaseException], error: BaseException, where: Any, tb_offset: Any) -> None:
    shell.showtraceback((kind, error, where), tb_offset=tb_offset)
    known = explain(error)
    if known.name != "unknown":
        print(known)


def names() -> tuple[str, ...]:
    """Return the kinds of errors that are known here."""
    return tuple(name for name, *_ in _KNOWN)


def _fill(text: str, parts: dict[str, str]) -> str:
    """Put the parts of the message into `text`, or use its general form, after the bar, where a part is missing."""
    special, _, general = text.partition(" | ")
    try:
        return special.format(**parts)
    except KeyError:
        return general


_DEVICE = r"(?:cpu|cuda|sim|mps|xpu|meta)(?::\d+)?"


def _known() -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the kinds of errors in the file beside this module: name, pattern, what, why and now."""
    for error in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["error"]:
        pattern = error["pattern"] if isinstance(error["pattern"], str) else "|".join(error["pattern"])
        yield error["name"], pattern.replace("<device>", _DEVICE), error["what"], error["why"], error["now"]


_KNOWN = tuple(_known())
if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()) is not None:
    load_ipython_extension(_shell)
