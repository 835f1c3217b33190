"""Drawings of concepts, one SVG file each, on a white card that any page can show."""

import base64
import html
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Drawing", "names", "show"]

_FOLDER = Path(__file__).parent
_SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Drawing:
    """A drawing that a notebook shows: its title, the words that say what it shows, and the text of its SVG file."""

    title: str
    description: str
    svg: str

    def __str__(self) -> str:
        return f"Drawing: {self.title}. {self.description}."

    __repr__ = __str__

    def _repr_html_(self) -> str:
        # An image, not inline SVG: notebooks that are not trusted strip that, and images have alternative texts.
        data = base64.b64encode(self.svg.encode()).decode()
        alternative = html.escape(f"{self.title}. {self.description}.")
        return f'<img alt="{alternative}" style="max-width: 100%" width="720" src="data:image/svg+xml;base64,{data}"/>'


def _files() -> dict[str, Path]:
    """Return the file of each drawing by its name: they lie in the folders of lessons."""
    return {path.stem: path for path in sorted(_FOLDER.glob("lesson*/drawings/*.svg"), key=lambda path: path.stem)}


def names() -> list[str]:
    """Return the names of all drawings."""
    return list(_files())


def show(name: str) -> Drawing:
    """Return the drawing `name`, for the last line of a cell. Raises ValueError for a name that no drawing has."""
    files = _files()
    if name not in files:
        raise ValueError(f"no drawing is named {name!r}; there are: {', '.join(files)}")
    svg = files[name].read_text(encoding="utf-8")
    root = ElementTree.fromstring(svg)
    title, description = (" ".join(root.findtext(f"{_SVG}{part}", "").split()) for part in ("title", "desc"))
    return Drawing(title, description.rstrip("."), svg)
