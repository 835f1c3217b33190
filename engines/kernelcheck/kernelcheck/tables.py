"""Tables of names and values, in plain text and in HTML, and the cell of a notebook."""

import html
from collections.abc import Sequence
from pathlib import Path

Rows = Sequence[tuple[str, str]]


def lines(rows: Rows) -> str:
    """Return lines of text, the two columns two spaces apart."""
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in rows)


def html_of(rows: Rows, caption: str = "") -> str:
    """Return an HTML table whose first column names the rows; the texts are escaped."""
    above = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    body = "".join(
        f'<tr><th scope="row">{html.escape(name.strip())}</th><td>{html.escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table>{above}{body}</table>"


def in_cell(file: str) -> bool:
    """Return whether `file`, as a stack names it, is a cell."""
    path = Path(file)
    if path.parent.name.startswith("ipykernel_"):
        return True
    return path.name.startswith(("ipython-input-", "<ipython-input"))  # of Colab, of IPython
