"""Faults of a kernel: kind, the reader's line, and the array element."""


class KernelFault(RuntimeError):
    """A kernel did what a GPU does not allow, or whose result it does not define. The message is one to three lines.

    - `kind`: "out of bounds", "race", "undefined", "endless", "arguments", "shapes", "error" …;
    - `line`: the reader's own line, "cell [5], line 3: tl.store(…)", or "";
    - `array`, `element`: the parameter's name and the index into its memory, or None where it is about neither;
    - `where`: the program, such as (3, 0, 0), or block and thread; None before the kernel runs.
    """

    def __init__(
        self, kind: str, what: str, line: str = "", *, array: str | None = None, element: int | None = None,
        where: object = None, why: str = "",
    ) -> None:  # fmt: skip
        super().__init__("\n".join(part for part in (what, line and f"  {line}", why) if part))
        self.kind, self.line, self.array, self.element, self.where = kind, line, array, element, where

    program = property(lambda self: self.where, doc="The program of a Triton kernel that did it.")


class CompileError(RuntimeError):
    """The text does not compile: `line` is the reader's line, from 1, or None; `reason` the compiler's own words."""

    def __init__(self, reason: str, line: int | None = None, text: str = "", column: int = 0) -> None:
        """Show the line, under it a caret at `column`, from 1, and then the reason, as a compiler does."""
        self.reason, self.line = reason, line
        head, cut = f"line {line}: ", len(text) - len(text.lstrip())
        shown = [head + text.strip()] if line else []
        if column > cut:
            shown.append(" " * (len(head) + column - 1 - cut) + "^")
        super().__init__("\n".join([*shown, reason]))
