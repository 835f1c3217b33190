"""Input fields where there are widgets, their text elsewhere, and the number that was entered."""

import contextlib
import math
import re
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["PassingLine", "bundle", "in_kernel", "read_number", "shell", "view"]


def view(widget: Any) -> dict[str, Any]:
    """Return what lets a browser show `widget`: by hand, since ipywidgets 7 has no method for it."""
    model = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": model}


def shell() -> Any:
    """Return IPython's shell, None where this process has none; IPython is not imported for it."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def in_kernel() -> bool:
    """Return whether this process is a notebook's kernel, where what is shown may be more than text."""
    return getattr(shell(), "kernel", None) is not None


def bundle(texts: dict[str, Any], make: Callable[[], Any]) -> dict[str, Any]:
    """Return the widget that `make` returns beside `texts`, by their kinds; the texts alone where it fails.

    It does without ipywidgets, or with one that does not work here.
    """
    try:
        return {**view(make()), **texts}
    except Exception:
        return texts


class PassingLine:
    """A line that a notebook shows until it is removed; stored notebooks do not keep it, and nbval does not see it.

    It is an output without content, which is filled and emptied again.
    """

    def __init__(self, text: str) -> None:
        from IPython.display import display

        self._output: Any = display({}, raw=True, display_id=True)
        self._output.update({"text/plain": text}, raw=True)

    def remove(self) -> None:
        """Leave nothing of the line."""
        self._output.update({}, raw=True)


def read_number(written: str, unit: str) -> float:
    """Return the number that a reader wrote, with its unit or without; ValueError says what may be written."""
    bare = written.strip().removesuffix(unit).strip()
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?", bare):
        bare = bare.replace(",", "")
    elif re.fullmatch(r"[+-]?\d+,\d{1,2}", bare):  # 1,5: a comma that groups no thousands
        bare = bare.replace(",", ".")
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(bare)):
            return number
    raise ValueError(f"write a number such as 12, 0.5 or 3e6, not {written.strip()!r}")
