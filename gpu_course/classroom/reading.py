"""Reader of learners' lines in text from chats, mails and forms.

A line may follow a name or a time, be quoted or indented, stand in a table or in HTML, and be broken into several rows.
What stands around it is passed over, and its checksum says where it ends. Of a line that cannot be read, it is said
which one it is, whose it seems to be, and what to do.
"""

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote_plus

from gpu_course import exam, sealing
from gpu_course.classroom import written

__all__ = ["Line", "Unread", "lines"]

_MOST_ROWS = 60  # into which a mail may have broken one line
_KEPT = frozenset("%+-._~;:,!=")  # besides letters and digits, all that a line consists of
_DASHES = str.maketrans("‐‑‒–—−", "------")  # of word processors: a line holds none of them
# Neither does it hold signs that are not seen: where a word may break, where other directions of writing begin.
_UNSEEN = [0xAD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFE0E, 0xFE0F, 0xFEFF]
_PLAIN = _DASHES | dict.fromkeys(_UNSEEN)
_COMMENT = re.compile(r"\s*#(?:\W|course-|$)")  # not "#channel Ada: …"
_TAG = re.compile(r"</?[a-zA-Z][a-zA-Z0-9]*(?:\s[^<>]*)?/?>")
_BREAK = r"(?:<\w+>|&gt;|[\s>])*"  # which a mail may put behind a hyphen of the mark
_START = re.compile(rf"course-{_BREAK}(progress|exam)-{_BREAK}(\d{{1,3}})\s*;", re.IGNORECASE)
_CHECKSUM = "[0-9a-f]{8}"
_END = re.compile(f";{_CHECKSUM}")
_TAIL = re.compile(rf"(?<![^\s;])(?:!?\d\d\w?:[a-z_]|(?:before|after):[a-z]+=\d)[^\n]*;{_CHECKSUM}\b")
_OWNER = re.compile(r"([^;\s]+);[a-z2-9]{4};[\d.]+;$")  # name, code and version, as they stand before what is solved
_AGAIN = "It must be copied again, with the button below it, or sent as a file."


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
    """Yield each line of a learner in a text, given as its lines, in order; comments, which begin with #, are none."""
    rows = (row.rstrip("\r\n").translate(_PLAIN) for row in given)
    text = "\n".join("" if _COMMENT.match(row) else row for row in rows)
    starts = [*_START.finditer(text)]
    behind = 0  # what is before this place has been read
    for at, start in enumerate(starts):
        until = starts[at + 1].start() if at + 1 < len(starts) else len(text)
        yield from _ends_alone(text, behind, start.start())
        line, behind = _read(text, start, until)
        yield line
    yield from _ends_alone(text, behind, len(text))


def _read(text: str, start: re.Match[str], until: int) -> tuple[Line | Unread, int]:
    """Return what the line says that begins at `start`, and where the text goes on behind it."""
    number, begin = _number(text, start), start.end()
    prefix = f"course-{start[1].lower()}-{int(start[2])};"
    ends = [found.start() for found in re.finditer(r"\n|\Z", text[begin:until])][:_MOST_ROWS]
    for change in (str, _as_page):
        if _whole(prefix, change(text[begin : begin + ends[-1]])):
            wholes = ((_whole(prefix, change(text[begin : begin + end])), begin + end) for end in ends)
            whole, behind = next(each for each in wholes if each[0])
            return _said(number, whole), behind
    piece = text[begin : begin + ends[0]]
    whose = _name(_squeezed(re.split("[;…]", piece)[0])) or _before(text, start)
    return Unread(number, whose, _fault(_squeezed(piece))), begin + ends[0]


def _number(text: str, found: re.Match[str]) -> int:
    return text.count("\n", 0, found.start()) + 1


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


def _as_page(text: str) -> str:
    """Return the text of a mail in HTML, which may have been made twice: &amp;#235; for a letter."""
    return html.unescape(html.unescape(_TAG.sub("", text))).translate(_PLAIN)


def _fault(piece: str) -> str:
    if piece.isupper() and _END.search(piece.lower()):
        return "its letters were made capitals."
    if not _END.search(piece):
        return "its end is missing."
    return "something in it was changed on its way, since its checksum does not match."


def _name(encoded: str) -> str:
    """Return the name that a damaged line gives, as far as it can be read."""
    return "" if re.search("[:=]", encoded) else sealing.printable(unquote_plus(encoded), 80).strip()


def _before(text: str, found: re.Match[str]) -> str:
    """Return whose line may begin there: its head names somebody, or a chat or a table does in words before it."""
    row = _TAG.sub("", text[text.rfind("\n", 0, found.start()) + 1 : found.start()])
    if owner := _OWNER.search(row):
        return _name(owner[1])
    words = re.findall(r"[^\W\d_][\w'’.-]*(?: [^\W\d_][\w'’.-]*){0,3}", row)
    return sealing.printable(words[-1], 80) if words else ""


def _ends_alone(text: str, begin: int, end: int) -> Iterator[Unread]:
    """Yield what looks like the end of a line whose beginning is missing."""
    for tail in _TAIL.finditer(text, begin, end):
        yield Unread(_number(text, tail), _before(text, tail), f"its beginning, {written.MARK}…, is missing.")
