"""Do the lines of the engine's README run, and print what the README says?"""

import linecache
import re
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "engines" / "ranklaunch" / "README.md"
TEXT = README.read_text(encoding="utf-8")
FIRST, HANG, START = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def printed(code: str, capsys, monkeypatch) -> list[str]:
    """Return the lines that a piece of the README prints when it is a cell of a notebook."""
    cell = "<ipython-input-readme>"
    linecache.cache[cell] = len(code), None, code.splitlines(keepends=True), cell
    monkeypatch.setattr(sys.modules["__main__"], "_ih", ["", code], raising=False)  # the first of a notebook
    exec(compile(code, cell, "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out.splitlines()


def test_the_first_lines_print_what_their_comment_says(capsys, monkeypatch):
    (comment,) = re.findall(r"nprocs=3\)\)  # (.*)", FIRST)
    assert printed(FIRST, capsys, monkeypatch) == [comment]


def test_the_lines_that_hang_print_the_report_below_them(capsys, monkeypatch):
    (report,) = re.findall(r"```\n(1 of 2 ranks.*?)```", TEXT, re.DOTALL)
    assert printed(HANG, capsys, monkeypatch) == report.splitlines()


def test_the_lines_with_a_start_print_what_their_comment_says(capsys, monkeypatch):
    (comment,) = re.findall(r"seconds < 1\)  # (.*)", START)
    assert printed(START, capsys, monkeypatch) == [comment] * 2
