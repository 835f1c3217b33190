"""Glossary of the terms that lessons explain; a term is bold where it is explained, and nowhere else.

The site's glossary is made from these places: each term with the sentence that explains it, and a link to it.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

from tools import notebooks as lessons

__all__ = ["Entry", "entries", "page", "with_targets"]

_BOLD = re.compile(r"\*\*(?!\s)([^*\n]+?)\*\*")
_SENTENCE_END = re.compile(r"(?<=[.?!])(?<!e\.g\.)(?<!i\.e\.)\)?\s+(?=[A-Z0-9`*\"(])")
_LIST_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+", re.MULTILINE)
_SHORT = 9  # words: such a sentence gives a name to what the one before has told
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class Entry:
    """A term, the sentence that explains it, and where that stands: the lesson's title and the label of the place."""

    term: str
    sentence: str
    lesson: str
    label: str


def _blocks(source: str) -> list[str]:
    """Return the paragraphs, lists and tables of a text cell; code that is fenced stays whole and has no terms."""
    return re.split(r"\n\s*\n", source)


def _terms(block: str) -> Iterator[str]:
    """Yield what is bold and no whole sentence, which is the heading of an item, and no link."""
    if not block.lstrip().startswith("```"):
        yield from (found[1] for found in _BOLD.finditer(block) if found[1][-1] not in ".?!)")


def _label(term: str, lesson: str) -> str:
    return f"term-{lesson}-" + re.sub(r"[^a-z0-9]+", "-", term.casefold()).strip("-")


def _sentence(block: str, term: str) -> str:
    """Return the sentence, item or row in which the term is bold, with the sentence before a short one."""
    parts = [re.sub(r"^#+ .*\n?", "", part) for part in _LIST_ITEM.split(block)]
    if "\n|" in f"\n{block}":
        parts = [": ".join(filter(None, row.strip().strip("|").split("|"))) for row in block.splitlines()]
    part = next(part for part in parts if f"**{term}**" in part)
    sentences = _SENTENCE_END.split(" ".join(part.split()))
    at = next(number for number, each in enumerate(sentences) if f"**{term}**" in each)
    begins = max(at - 1, 0) if len(sentences[at].split()) < _SHORT else at
    found = " ".join(sentences[begins : at + 1])
    text = _LINK.sub(r"\1", _BOLD.sub(r"\1", found)).strip().rstrip(":")
    return text[1:].removesuffix(")") if text.startswith("(") else text


def entries(paths: Iterable[Path] | None = None) -> list[Entry]:
    """Return what the lessons explain, in the order of the lessons."""
    found = []
    for path in lessons.lessons() if paths is None else paths:
        cells = nbformat.read(path, as_version=4).cells
        title, number = cells[0].source.splitlines()[0].lstrip("# "), lessons.number(path)
        for block in (block for cell in cells if cell.cell_type == "markdown" for block in _blocks(cell.source)):
            found += [Entry(term, _sentence(block, term), title, _label(term, number)) for term in _terms(block)]
    return found


def with_targets(source: str, lesson: str) -> str:
    """Return the text of a cell of a lesson with a label, which MyST hides, before each block that explains a term."""
    blocks = []
    for block in _blocks(source):
        labels = [f"({_label(term, lesson)})=\n" for term in _terms(block)]
        blocks.append("".join(labels) + block)
    return "\n\n".join(blocks)


def page() -> str:
    """Return the page of the site: all terms in the order of the alphabet."""
    rows = [
        f"**{entry.term}**\n: {entry.sentence} [{entry.lesson}](#{entry.label})\n"
        for entry in sorted(entries(), key=lambda entry: entry.term.casefold())
    ]
    return (
        "# Glossary\n\nEach term with the sentence that explains it, and the lesson where it stands.\n\n"
        + "\n".join(rows)
    )
