"""Detection of a cell that was edited and not run."""

import ast
import re

from gpu_course import fields
from gpu_course.checks.finding import Finding

__all__ = ["syntax_error"]


def syntax_error(name: str) -> Finding | None:
    """Return what is wrong with the last cell that defines `name`, if Python could not read it; None elsewhere."""
    cells = [str(cell) for cell in getattr(fields.shell(), "user_ns", {}).get("In", [])]
    defines = re.compile(rf"^(?:(?:async )?def|class) +{name}\b|^{name} *=(?!=)(?!.*\.check\()", re.MULTILINE)
    last = next((cell for cell in reversed(cells) if defines.search(cell)), "")
    try:
        ast.parse(last)
    except SyntaxError as error:
        told = f"its cell has a syntax error in line {error.lineno}: {error.msg}"
        line = f"\n  {error.text.strip()}" if error.text and error.text.strip() else ""
        why = f"Python did not take the cell, so `{name}` is what it was before, and that was not judged"
        return Finding(told + line, why)
    return None
