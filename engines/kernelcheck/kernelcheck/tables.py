"""Tables of names and values, in plain text and in HTML, and the cell of a notebook."""

import html
import linecache
import sys
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


def cell(file: str) -> str:
    """Return the name of the cell in `file`, as a stack names it: "cell [5]", "cell" without its number; "" if none."""
    path = Path(file)
    if not path.parent.name.startswith("ipykernel_") and not path.name.startswith(("ipython-input-", "<ipython-input")):
        return ""
    inputs, text = getattr(sys.modules.get("__main__"), "_ih", ()), "".join(linecache.getlines(file)).rstrip()
    magic = f", {text + chr(10)!r})"  # what ends the call of a magic such as `%%capture`, which runs what is below it
    numbers = (n for n in range(len(inputs) - 1, 0, -1) if inputs[n].rstrip() == text or magic in inputs[n])
    return next((f"cell [{n}]" for n in numbers), "cell")  # not by IPython's names: Colab's have no number
