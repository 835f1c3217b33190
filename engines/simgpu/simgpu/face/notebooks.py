"""Notebooks that say `cuda`: run whole from the command line, or by `%load_ext simgpu`."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simgpu.face import options, switch

_MAGIC = "simgpu"


def _nobody(error: BaseException) -> None:
    """Tell nobody of an error."""


def run(
    notebook: Path, *, keep_going: bool, failed: Callable[[BaseException], object] = _nobody, traces: bool = True
) -> int:
    """Run the code cells of a notebook in order, in its own folder; return 1 if one failed, which ends it, else 0.

    A cell that has the tag `raises-exception` may fail, and one that ends the program with status 0, as `--steps` does,
    is the last. `keep_going` runs the other cells too; `failed` is told of each error.
    Without `traces` the last line of an error is printed, and no more. Raises SystemExit where IPython is missing.
    """
    try:
        from IPython.core.interactiveshell import InteractiveShell
    except ImportError:
        sys.exit("python -m simgpu: notebooks need IPython: pip install ipython")
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except (ValueError, KeyError):
        sys.exit(f"python -m simgpu: {notebook} is no notebook of Jupyter: it cannot be read as one")
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    cells = [cell for cell in cells if "".join(cell["source"]).strip()]
    os.environ.setdefault("MPLBACKEND", "agg")
    os.chdir(notebook.resolve().parent)
    sys.path[0], sys.argv = "", [notebook.name]
    shell, ran = InteractiveShell.instance(), 0
    if not traces:
        shell.InteractiveTB.set_mode("Minimal")
    shell.enable_gui = lambda gui=None: None  # what the magics for pictures ask for: there are no windows here
    for number, cell in enumerate(cells, 1):
        result = shell.run_cell("".join(cell["source"]), store_history=True)
        allowed = "raises-exception" in cell["metadata"].get("tags", ())
        ended = isinstance(result.error_in_exec, SystemExit) and not result.error_in_exec.code
        ran += result.success or allowed or ended
        if ended:
            print(f"{notebook.name}: ended in code cell {number} of {len(cells)}", file=sys.stderr)
            return 0
        if not result.success and not allowed:
            print(f"{notebook.name}: code cell {number} of {len(cells)} failed", file=sys.stderr)
            error = result.error_in_exec or result.error_before_exec
            if error is not None:
                failed(error)
            if not keep_going:
                break
    print(f"{notebook.name}: {ran} of {len(cells)} code cells ran", file=sys.stderr)
    return 0 if ran == len(cells) else 1


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext simgpu`: switch CUDA's face on in a notebook, and record for `simgpu.report()`.

    `%simgpu --gpu "H100 SXM"` chooses another GPU, and records anew.
    """
    if not switch.is_on():
        switch.cuda(record=True)

    def choose(line: str) -> None:
        """Set the simulated GPU, by the options of `python -m simgpu`, such as --gpu and --kind."""
        given = vars(options.parser().parse_args(shlex.split(line)))
        _all_off()
        switch.of_kind(**given, record=True)

    shell.register_magic_function(choose, "line", _MAGIC)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext simgpu`: switch the face off."""
    _all_off()
    shell.magics_manager.magics["line"].pop(_MAGIC, None)


def _all_off() -> None:
    while switch.is_on():
        switch.last().off()
