"""Which lines of learners are in a text, whatever mails, forms and chats made of them?

A line may follow a name or a time, be quoted, indented or a point of a list, stand in a table, be HTML or encoded as
mails are, and be broken into several. What stands around it is passed over. Of a line that cannot be read, it is said
which one it is, whose it seems to be, and what to do.
"""

import html
import quopri
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote_plus

from gpu_course import exam, sealing
from gpu_course.classroom import written

__all__ = ["Line", "Unread", "lines"]

_MOST_PIECES = 60  # into which a mail may have broken one line
_KEPT = frozenset("%+-._~;:,!=")  # besides letters and digits, all that a line consists of
# Dashes of word processors, and signs of Chinese and Japanese keyboards: a line holds none of them.
_PLAIN = str.maketrans("‐‑‒–—−；：，！＝．％＋", "------;:,!=.%+")
_TAG = re.compile(r"</?[a-zA-Z][a-zA-Z0-9]*(?:\s[^<>]*)?/?>")
_BREAK = r"(?:[ \t]*(?:<br ?/?>)?=?\n(?:[>\s|]|&gt;)*|</?[a-zA-Z]+/?>)?"  # at which a mail may break a word
_MARKS = "|".join(_BREAK.join(map(re.escape, mark)) for mark in (written.MARK, exam.MARK))
_START = re.compile(rf"(?:{_MARKS}){_BREAK}\d+{_BREAK}(?:;|&#59;)", re.IGNORECASE)
_AGAIN = "It must be copied again, with the button below it, or sent as a file."
_END = re.compile(r";[0-9a-f]{8}")  # a checksum
_TAIL = re.compile(r"(?<![^\s;])(?:\d\d\w?:[a-z_]|(?:before|after):[a-z]+=\d)[^\n]*;[0-9a-f]{8}\b")


@dataclass(frozen=True)
class Line:
    """A line that could be read: the number of the line of the text where it begins, and what it says."""

    number: int
    says: written.Progress | exam.Person


@dataclass(frozen=True)
class Unread:
    """A line that could not be read: where it begins, whose it seems to be ("": nothing tells), why, and the cure."""

    number: int
    whose: str
    fault: str
    cure: str = _AGAIN

    def __str__(self) -> str:
        whose = f"seems to be of {self.whose}" if self.whose else "does not say whose it is"
        return f"line {self.number} {whose} and could not be read: {self.fault} {self.cure}"


def lines(given: Iterable[str]) -> Iterator[Line | Unread]:
    """Yield each line of a learner in a text, given as its lines, in order; those that begin with # are passed over."""
    rows = [row.rstrip("\r\n") for row in given]
    text = "\n".join("" if row.lstrip("\ufeff \t").startswith("#") else row for row in rows).translate(_PLAIN)
    starts = [*_START.finditer(text)]
    behind = 0  # what is before this place has been read
    for index, start in enumerate(starts):
        until = starts[index + 1].start() if index + 1 < len(starts) else len(text)
        yield from _ends_alone(text, behind, start.start())
        line, behind = _read(text, start, until)
        yield line
    yield from _ends_alone(text, behind, len(text))


def _read(text: str, start: re.Match[str], until: int) -> tuple[Line | Unread, int]:
    """Return what the line says that begins at `start`, and where the text goes on behind it."""
    number = text.count("\n", 0, start.start()) + 1
    end = first = _row_end(text, start.end(), until)
    for _ in range(_MOST_PIECES):
        for changed in _CHANGES:
            if whole := _whole(_prefix(start), changed(text[start.end() : end])):
                return _said(number, whole), end
        if end >= until:
            break
        end = _row_end(text, end + 1, until)
    piece = _squeezed(text[start.end() : first])
    whose = _name(piece.partition(";")[0]) or _before(text, start.start())
    return Unread(number, whose, _fault(piece, until == end)), first


def _row_end(text: str, start: int, until: int) -> int:
    end = text.find("\n", start, until)
    return until if end < 0 else end


def _prefix(start: re.Match[str]) -> str:
    return _squeezed(_as_page(re.sub(r"=\n", "", start.group()))).lower()


def _said(number: int, whole: str) -> Line | Unread:
    try:
        says = exam.read(whole) if whole.startswith(exam.MARK) else written.read(whole)
    except (ValueError, TypeError):
        if int(whole.partition(";")[0].rpartition("-")[2]) > 3:
            return Unread(number, "", "it comes from a later version of the course.", "Update the course here.")
        fault = "its checksum is right, but the course writes no such line."
        return Unread(number, _name(whole.split(";")[1]), fault, "It must be copied as it was printed.")
    return Line(number, says)


def _whole(prefix: str, rest: str) -> str:
    """Return the line with this beginning, up to a checksum that matches; "" where there is none."""
    text = prefix + _squeezed(rest)
    for end in _END.finditer(text):
        try:
            sealing.unsealed(text[: end.end()])
        except ValueError:
            continue
        return text[: end.end()]
    return ""


def _squeezed(text: str) -> str:
    """Return what of a text a line can consist of: no white space, quotes, marks of lists or of emphasis."""
    return "".join(sign for sign in unicodedata.normalize("NFC", text) if sign.isalnum() or sign in _KEPT)


def _as_mail(text: str) -> str:
    """Return the text as it was before a mail encoded it: =3D for an equals sign, = at the end of a broken line."""
    text = re.sub(r"\n[> \t]*", "\n", text)
    return quopri.decodestring(text.encode("utf-8", "replace")).decode("utf-8", "replace")


def _as_page(text: str) -> str:
    """Return the text of a mail in HTML."""
    return html.unescape(_TAG.sub("", text))


def _both(text: str) -> str:
    return _as_page(_as_mail(text))


_CHANGES: tuple[Callable[[str], str], ...] = (str, _as_mail, _as_page, _both)


def _fault(piece: str, at_end: bool) -> str:
    if not _END.search(piece):
        return "its end is missing."
    return "something in it was changed on its way, since its checksum does not match."


def _name(encoded: str) -> str:
    """Return the name that a damaged line gives, as far as it can be read."""
    return "" if re.search("[:=]", encoded) else sealing.printable(unquote_plus(encoded), 80).strip()


def _before(text: str, end: int) -> str:
    """Return the last words before a line, which in a chat or a table often are a name."""
    row = _TAG.sub("", text[text.rfind("\n", 0, end) + 1 : end])
    words = re.findall(r"[^\W\d_][\w'’.-]*(?: [^\W\d_][\w'’.-]*){0,3}", row)
    return sealing.printable(words[-1], 80) if words else ""


def _ends_alone(text: str, begin: int, end: int) -> Iterator[Unread]:
    """Yield what looks like the end of a line whose beginning is missing."""
    for tail in _TAIL.finditer(text, begin, end):
        number = text.count("\n", 0, tail.start()) + 1
        yield Unread(number, _before(text, tail.start()), f"its beginning, {written.MARK}…, is missing.")
