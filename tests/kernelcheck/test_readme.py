"""Do the lines of the engine's README run, and print what their comments say?"""

import re
from pathlib import Path

import pytest

import kernelcheck

README = Path(__file__).parents[2] / "engines" / "kernelcheck" / "README.md"
TRITON, CUDA = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def printed(code: str, capsys, tmp_path: Path) -> str:
    """Return what lines of the README print; a kernel in Triton's language needs them in a file."""
    file = tmp_path / "readme.py"
    file.write_text(code, encoding="utf-8")
    exec(compile(code, str(file), "exec"), {"__name__": "readme"})
    return capsys.readouterr().out


def test_the_lines_on_triton_print_what_is_wrong(capsys, tmp_path):
    said = printed(TRITON.replace("kernelcheck.triton()", "kernelcheck.triton(interpreter=True)"), capsys, tmp_path)
    (comment,) = re.findall(r"print\(report\.fault\)  # (.*) …", TRITON)
    assert said.startswith(comment)


@pytest.mark.skipif(bool(kernelcheck.why_not()), reason="no C++ compiler")
def test_the_lines_on_cuda_print_what_their_comment_says(capsys, tmp_path):
    (comment,) = re.findall(r"out\.sum\(\)\)  # (.*)", CUDA)
    assert printed(CUDA, capsys, tmp_path).strip() == comment
