"""Does lesson 13 run programs of others in a process of its own, also those that fail, and show their lines?"""

import pytest

import simgpu
from course_utils import programs
from gpu_course import lesson13
from tests.simgpu.simulated import fork_children

pytestmark = pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))


def test_a_program_that_needs_too_much_memory_is_reported_by_its_line(tmp_path, capsys, monkeypatch):
    fork_children(monkeypatch)
    program = tmp_path / "large.py"
    text = "import sys\nimport torch\n\nprint(sys.argv[1:])\nx = torch.ones(2**33, device='cuda')\n"
    program.write_text(text, encoding="utf-8")
    report = lesson13.run(program, "--a", "b", gpu="T4", shapes=True, data_ms=0)
    (error,) = report.errors
    assert not report.fits and (error.kind, error.where) == ("out of memory", "large.py:5")
    said = capsys.readouterr().out
    assert said.startswith("['--a', 'b']\nThe program ended with OutOfMemoryError: CUDA out of memory.")


def test_an_excerpt_has_the_numbers_of_its_lines_and_a_line_that_is_not_there_is_refused():
    program = programs.path("train_vit.py")
    lines = program.read_text(encoding="utf-8").splitlines()
    shown = lesson13.excerpt(program, "def mirror", "return images").splitlines()
    for line in shown:
        assert lines[int(line[:4]) - 1] == line[5:]
    assert len(shown) == 6
    with pytest.raises(ValueError, match="'def fly'"):
        lesson13.excerpt(program, "def fly", "return images")
