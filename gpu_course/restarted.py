"""A word under a NameError after a restart: the cells above have to run again.

An extension of IPython. The configuration in tools/jupyterlab/ipython, which is installed with the package, loads it
into each kernel of its environment.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

__all__ = ["advice", "load_ipython_extension"]

_EDITORS = {
    "JupyterLab": "Run, Run All Above Selected Cell",
    "VS Code": "Execute Above Cells in its menu",
    "Colab": "Runtime, Run before",
}


def load_ipython_extension(shell: Any) -> None:
    """Print advice under each NameError that a restart explains."""

    def on_run(result: Any) -> None:
        error = result.error_in_exec
        if isinstance(error, NameError) and error.name:
            path = _notebook(shell.user_ns)
            if said := advice(error.name, result.info.raw_cell, _sources(path), _editor(shell.user_ns)):
                print(said)

    shell.events.register("post_run_cell", on_run)


def advice(name: str, cell: str, sources: list[str], editor: str = "JupyterLab") -> str:
    """Return what to do where a cell above `cell` defines `name` and has not run; "" where none does.

    `sources` are the code cells of the notebook, in order.
    """
    above = sources[: sources.index(cell)] if cell in sources else sources
    defines = rf"(?:def|class) +{name}\b|(?:from \S+ )?import .*\b{name}\b|    {name},$"
    binds = rf"(?m)^(?:{defines}|[\w, ]*\b{name}\b[\w, ]*(?::.*)?=[^=]|(?:for|with) .*\b{name}\b)"
    if not any(re.search(binds, source) for source in above):
        return ""
    return (
        f"A cell above defines {name}, and has not run since the kernel started. Click this cell and choose "
        f"{_EDITORS[editor]}; then run it again. Your answers are still there."
    )


def _editor(names: dict[str, Any]) -> str:
    if "COLAB_RELEASE_TAG" in os.environ:
        return "Colab"
    return "VS Code" if "__vsc_ipynb_file__" in names else "JupyterLab"


def _notebook(names: dict[str, Any]) -> Path | None:
    """Return the file of the notebook, as VS Code or Jupyter's server names it; None where neither does."""
    named = names.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME")
    return Path.cwd() / Path(named).name if named else None


def _sources(path: Path | None) -> list[str]:
    """Return the code cells of a notebook, none where it cannot be read."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"] if path else []
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
