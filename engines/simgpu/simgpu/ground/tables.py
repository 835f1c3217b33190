"""Tables of rows and cells, in plain text and in HTML."""

import html
from collections.abc import Callable, Collection, Mapping, Sequence

__all__ = ["Table", "text", "to_html"]


def text(rows: Sequence[Sequence[str]], head: Sequence[str] = (), *, right: Collection[int] = ()) -> str:
    """Return lines of text, `head` first, columns two spaces apart; those at the places in `right` end at the right."""
    lines = [head, *rows] if head else rows
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = [">" if place in right else "<" for place in range(len(widths))]
    cells = [[f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in cells)


def to_html(
    rows: Sequence[Sequence[str]],
    head: Sequence[str] = (),
    *,
    caption: str = "",
    named: bool = False,
    attributes: Mapping[int, str] | None = None,
) -> str:
    """Return an HTML table; cells, `head` and `caption` are escaped.

    Where `named` is true the first cell of each row is its name. `attributes` of cells, such as a style, are given by
    the place of their column; those of the head are left alone.
    """
    opened = {place: f"td {extra}" for place, extra in (attributes or {}).items()}
    if named:
        opened[0] = 'th scope="row"'

    def line(cells: Sequence[str], tags: Mapping[int, str]) -> str:
        tagged = [(tags.get(index, "td"), html.escape(cell)) for index, cell in enumerate(cells)]
        return f"<tr>{''.join(f'<{tag}>{cell}</{tag[:2]}>' for tag, cell in tagged)}</tr>"

    above = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    body = "".join(line(row, opened) for row in rows)
    if not head:
        return f"<table>{above}{body}</table>"
    heads = line(head, {place: 'th scope="col"' for place, name in enumerate(head) if name})  # no heading is empty
    return f"<table>{above}<thead>{heads}</thead><tbody>{body}</tbody></table>"


class Table:
    """Base of results shown as tables, with `head`, `cells()`, `caption()` and right-aligned columns `right`."""

    head: Sequence[str]
    cells: Callable[[], list[list[str]]]
    right: Collection[int] = (1, 2, 3)

    def caption(self) -> str:
        return ""

    def __str__(self) -> str:
        rows = self.cells()
        table = text(rows, self.head, right=self.right) if rows else ""
        return "\n".join(filter(None, [self.caption(), table]))

    __repr__ = __str__

    def html(self) -> str:
        """Return the table as HTML, as a notebook shows it."""
        right = dict.fromkeys(self.right, "style='text-align: right'")
        return to_html(self.cells(), self.head, caption=self.caption(), attributes=right)

    def _repr_html_(self) -> str:
        return self.html()
