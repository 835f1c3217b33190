"""Which lines of learners are in a text, whatever mails, forms and chats made of them?

A line may follow a name or a time, be quoted, indented or a point of a list, stand in a table, be HTML, JSON or encoded
as mails are, and be broken into several. What stands around it is passed over. Of a line that cannot be read, it is
said which one it is, whose it seems to be, and what to do.

What changed a line is not guessed: each way back is tried, and the line's checksum says which one was right.
"""

import base64
import html
import quopri
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote_plus, unquote, unquote_plus

from gpu_course import exam, sealing
from gpu_course.classroom import written

__all__ = ["Line", "Unread", "lines"]

_MOST_PIECES = 60  # into which a mail may have broken one line
_MOST_BEFORE = 80  # signs of a name and a time before each of its rows
_KEPT = frozenset("%+-._~;:,!=")  # besides letters and digits, all that a line consists of
# Dashes of word processors, and signs of Chinese and Japanese keyboards: a line holds none of them.
_PLAIN = str.maketrans("‐‑‒–—−；：，！＝．％＋", "------;:,!=.%+")
# Neither does it hold signs that are not seen: where a word may break, where other directions of writing begin.
_UNSEEN = [0xAD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFE0E, 0xFE0F, 0xFEFF]
_PLAIN |= dict.fromkeys(_UNSEEN)
_COMMENT = re.compile(r"\s*#(?:\W|course-|$)")  # not "#channel Ada: …"
_TAG = re.compile(r"</?[a-zA-Z][a-zA-Z0-9]*(?:\s[^<>]*)?/?>")
# What may come between any two signs of a mark; at a hyphen also a new row, with a name or a time before what follows.
_JUNK = r"(?:[\s>|'\"]|\\[nrt]?|=\n|<[^<>\n]*>|&(?:gt|nbsp|shy);)*"
_HYPHEN = r"(?:-|&#(?:45|x2d|820[89]);|&(?:hyphen|dash|ndash|mdash|minus);|[%=]2d)(?:\n[^\n]{0,40}?)?"
_MARKS = ["".join((_HYPHEN if sign == "-" else sign) + _JUNK for sign in mark) for mark in (exam.MARK, written.MARK)]
_CHECKSUM = "[0-9a-f]{8}"
_SPLIT = rf" ?[\t,|](?=[^\n]*[\t,|] ?{_CHECKSUM}\b)"  # a spreadsheet gave each part of the line a column of its own
_START = re.compile(
    rf"(?:(?P<exam>{_MARKS[0]})|{_MARKS[1]})(?P<version>\d{{1,3}})(?:{_JUNK}(?:;|&#59;|&semi;|[%=]3b)|{_SPLIT})",
    re.IGNORECASE,
)
_HEADS = [f"{mark}{version};" for mark in (written.MARK, exam.MARK) for version in (3, 2, 1)]
_BASE64 = re.compile(r"(?m)(?:^[A-Za-z0-9+/]{60,76}\n)+^[A-Za-z0-9+/]*={0,2}$")  # as mails are saved
_AGAIN = "It must be copied again, with the button below it, or sent as a file."
_END = re.compile(f";{_CHECKSUM}")
_TAIL = re.compile(rf"(?<![^\s;])(?:!?\d\d\w?:[a-z_]|(?:before|after):[a-z]+=\d)[^\n]*;{_CHECKSUM}\b")
_OWNER = re.compile(r"([^;]+);[a-z2-9]{4};[\d.]+;$")  # name, code and version, as they stand before what is solved


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
    saved = _BASE64.sub(_out_of_base64, "\n".join(row.rstrip("\r\n") for row in given))
    rows = saved.translate(_PLAIN).split("\n")
    text = "\n".join("" if _COMMENT.match(row) else row for row in rows)
    starts = [*_START.finditer(text)]
    behind = 0  # what is before this place has been read
    for index, start in enumerate(starts):
        until = starts[index + 1].start() if index + 1 < len(starts) else len(text)
        yield from _ends_alone(text, behind, start.start())
        line, behind = _read(text, start, until)
        yield line
    yield from _ends_alone(text, behind, len(text))


def _out_of_base64(found: re.Match[str]) -> str:
    """Return what a mail says that is kept as base64, on the first of its rows; other rows of letters stay."""
    try:
        says = base64.b64decode("".join(found[0].split()), validate=True).decode()
    except ValueError:
        return found[0]
    return " ".join(says.splitlines()) + "\n" * found[0].count("\n")


def _read(text: str, start: re.Match[str], until: int) -> tuple[Line | Unread, int]:
    """Return what the line says that begins at `start`, and where the text goes on behind it."""
    number = text.count("\n", 0, start.start()) + 1
    begin, prefix = start.end(), _prefix(start)
    ends = [_row_end(text, begin, until)]
    while len(ends) < _MOST_PIECES and ends[-1] < until:
        ends.append(_row_end(text, ends[-1] + 1, until))
    before = text[text.rfind("\n", 0, start.start()) + 1 : start.start()]
    for change in (*_CHANGES, lambda rows: _alone(rows, before)):
        if whole := _whole(prefix, change(text[begin : ends[-1]])):
            behind = next(end for end in ends if _whole(prefix, change(text[begin:end])))
            return _said(number, whole), behind
    piece = text[begin : ends[0]]
    whose = _name(_squeezed(re.split("[;…]", piece)[0])) or _before(before)
    return Unread(number, whose, _fault(_squeezed(piece))), ends[0]


def _row_end(text: str, start: int, until: int) -> int:
    end = text.find("\n", start, until)
    return until if end < 0 else end


def _prefix(start: re.Match[str]) -> str:
    return f"{exam.MARK if start['exam'] else written.MARK}{int(start['version'])};"


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
    """Return the text of a mail in HTML, which may have been made twice: &amp;#235; for a letter."""
    return html.unescape(html.unescape(_TAG.sub("", text))).translate(_PLAIN)


def _as_both(text: str) -> str:
    return _as_page(_as_mail(text))


def _as_string(text: str) -> str:
    """Return what a string of JSON or Python says: \u00eb for a letter, \n for the end of a row."""
    coded = r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|\\[nrt]"
    return re.sub(coded, lambda found: chr(int(found[1] or found[2] or "20", 16)), text)


def _as_columns(text: str) -> str:
    """Return the line whose parts a spreadsheet put into columns: commas also stand inside a part."""
    head, colon, rest = text.partition(":")
    rest = re.sub(rf",(?=!|\d\d\w?:|before:|after:|{_CHECKSUM}\b)", ";", rest)
    return re.sub(r"[\t|]", ";", head.replace(",", ";") + colon + rest)


def _as_form(text: str) -> str:
    """Return the line that a form has decoded: a space for +, quotes for %27."""
    return "".join(sign if sign.isalnum() or sign in _KEPT else quote_plus(sign) for sign in text.strip())


def _as_windows(text: str) -> str:
    """Return the text that was read as if Windows had written it: Ã« for a letter."""
    return text.encode("cp1252", "replace").decode("utf-8", "replace")


def _alone(text: str, before: str) -> str:
    """Return the text without what stands before each row as `before` does before the first: a time and a name."""
    if not before.strip() or len(before) > _MOST_BEFORE:
        return text
    return re.sub("\n" + re.sub(r"\d+", r"\\d+", re.escape(before)), "\n", text)


_CHANGES: tuple[Callable[[str], str], ...] = (
    str, _as_mail, _as_page, _as_both, _as_string, unquote, _as_columns, _as_form, _as_windows,
)  # fmt: skip


def _fault(piece: str) -> str:
    if piece.isupper() and _END.search(piece.lower()):
        return "its letters were made capitals."
    if not _END.search(piece):
        return "its end is missing."
    return "something in it was changed on its way, since its checksum does not match."


def _name(encoded: str) -> str:
    """Return the name that a damaged line gives, as far as it can be read."""
    return "" if re.search("[:=]", encoded) else sealing.printable(unquote_plus(encoded), 80).strip()


def _before(row: str) -> str:
    """Return the last words of what stands before a line, which in a chat or a table often are a name."""
    words = re.findall(r"[^\W\d_][\w'’.-]*(?: [^\W\d_][\w'’.-]*){0,3}", _TAG.sub("", row))
    return sealing.printable(words[-1], 80) if words else ""


def _ends_alone(text: str, begin: int, end: int) -> Iterator[Line | Unread]:
    """Yield what looks like the end of a line whose beginning is missing; it is read where only its mark is."""
    for tail in _TAIL.finditer(text, begin, end):
        number = text.count("\n", 0, tail.start()) + 1
        row = text[text.rfind("\n", 0, tail.start()) + 1 : tail.start()]
        head = _squeezed(re.split(r"\s", row)[-1])
        rests = (head + tail.group(), (head + tail.group()).partition(";")[2])
        whole = next(filter(None, (_whole(mark, rest) for mark in _HEADS for rest in rests)), "")
        if whole:
            yield _said(number, whole)
            continue
        owner = _OWNER.search(head)
        whose = _name(owner[1]) if owner else _before(row)
        yield Unread(number, whose, f"its beginning, {written.MARK}…, is missing.")
