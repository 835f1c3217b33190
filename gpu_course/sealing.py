"""Sealed lines of text that survive being sent, and are refused when damaged or made up."""

import re
import secrets
import unicodedata
import zlib

_CODE = "abcdefghjkmnpqrstuvwxyz23456789"


def checksum(body: str) -> str:
    """Return eight signs that find a letter that was lost; anybody can compute them."""
    return f"{zlib.crc32(body.encode()):08x}"


def sealed(body: str) -> str:
    """Return `body` with its checksum."""
    return f"{body};{checksum(body)}"


def unsealed(line: str) -> str:
    """Return the body of a line that `sealed` made; ValueError where the checksum does not match."""
    body, _, stated = line.rpartition(";")
    if stated != checksum(body):
        raise ValueError("its checksum does not match")
    return body


def new_code() -> str:
    """Return four signs, by chance, that tell two people of one name apart; none looks like another one."""
    return "".join(secrets.choice(_CODE) for _ in range(4))


def code_of(text: str) -> str:
    """Parse a code, "" for none. Raises ValueError where `text` is no code."""
    if text and not re.fullmatch(f"[{_CODE}]{{4}}", text):
        raise ValueError(f"{text[:20]!r} is no code")
    return text


def printable(text: str, most: int) -> str:
    """Return the first `most` printable signs: others would move the cursor, or forge rows of a table.

    Of marks above and below a letter two remain: more of them would cover the rows beside it.
    """
    text = unicodedata.normalize("NFC", text)
    kept = [sign for sign in text if sign.isprintable()]
    marks = [unicodedata.combining(sign) != 0 for sign in kept]
    return "".join(sign for at, sign in enumerate(kept) if not all(marks[max(at - 2, 0) : at + 1]) or at < 2)[:most]
