"""How does something become one line of text that people send, and that is damaged, or made up, without harm?"""

import zlib


def checksum(body: str) -> str:
    """Return eight signs that find a letter that was lost; anybody can compute them."""
    return f"{zlib.crc32(body.encode()):08x}"


def sealed(body: str) -> str:
    """Return `body` with its checksum."""
    return f"{body};{checksum(body)}"


def unsealed(line: str) -> str:
    """Return the body of a line that `sealed` made; ValueError where the checksum does not match."""
    body, _, found = line.rpartition(";")
    if found != checksum(body):
        raise ValueError("its checksum does not match")
    return body


def printable(text: str, most: int) -> str:
    """Return the first `most` printable signs: others would move the cursor, or forge rows of a table."""
    return "".join(sign for sign in text if sign.isprintable())[:most]
