"""Does lesson 13 run programs of others in a process of its own, also those that fail, and show their lines?"""

import re
from pathlib import Path

import pytest

import simgpu
from course_utils import programs
from gpu_course import lesson13
from gpu_course.lesson13 import running
from tests.simgpu.simulated import fork_children
from tests.simgpu.test_habits import reported

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
    assert said.startswith("['--a', 'b']\nThe program failed at large.py:5: out of memory: CUDA out of memory.")


def test_a_program_finds_the_files_beside_it_and_a_package_its_modules(tmp_path, capsys, monkeypatch):
    fork_children(monkeypatch)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "words.txt").write_text("words of the file", encoding="utf-8")
    (folder / "sizes.py").write_text("ROWS = 7\n", encoding="utf-8")
    text = "import torch\nfrom {}sizes import ROWS\nx = torch.ones(ROWS).cuda()\nprint({})\n"
    (folder / "train.py").write_text(text.format("", "open('words.txt').read()"), encoding="utf-8")
    (folder / "__main__.py").write_text(text.format(".", "'a package of', ROWS"), encoding="utf-8")
    for program, said in (folder / "train.py", "words of the file"), (folder, "a package of 7"):
        report = lesson13.run(program, gpu="T4")
        assert report.failure is None and capsys.readouterr().out.splitlines() == [said]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("raise SystemExit('no data')", "The program ended by itself at ends.py:2: no data"),
        ("raise KeyboardInterrupt", "The program was interrupted at ends.py:2."),
        ("torch.ones(2, 3) @ torch.ones(2, 3)", "The program failed at ends.py:2: RuntimeError: mat1 and mat2"),
    ],
)
def test_what_ended_a_program_is_said_with_its_line(tmp_path, capsys, monkeypatch, line, said):
    fork_children(monkeypatch)
    (tmp_path / "ends.py").write_text(f"import torch; x = torch.ones(1).cuda()\n{line}\n", encoding="utf-8")
    report = lesson13.run(tmp_path / "ends.py", gpu="T4")
    assert report.failure.where == "ends.py:2" and capsys.readouterr().out.startswith(said)


def test_what_is_no_program_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="a path counts from"):
        lesson13.run(Path("none.py"), gpu="T4")
    (tmp_path / "a.ipynb").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"python -m simgpu .*a\.ipynb"):
        lesson13.run(tmp_path / "a.ipynb", gpu="T4")


def test_an_excerpt_has_the_numbers_of_its_lines_and_a_line_that_is_not_there_is_refused():
    program = programs.path("train_vit.py")
    lines = program.read_text(encoding="utf-8").splitlines()
    shown = lesson13.excerpt(program, "def mirror", "return images").splitlines()
    for line in shown:
        assert lines[int(line[:4]) - 1] == line[5:]
    assert len(shown) == 6
    with pytest.raises(ValueError, match="'def fly'"):
        lesson13.excerpt(program, "def fly", "return images")


def test_the_guide_mends_a_program_remark_by_remark(tmp_path):
    """Each remark that it tells is there, and gone once its lines are changed; the last program has none."""
    guide = (Path(__file__).parents[2] / "docs" / "own_program.md").read_text(encoding="utf-8")
    section = guide.partition("remark by remark\n")[2].partition("\n## ")[0]
    (text,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert 20 < len(text.splitlines()) < 40
    changes = re.findall(r"^`([\w-]+)`: .*?\n```diff\n(.*?)```", section, re.DOTALL | re.MULTILINE)
    assert len(changes) == 5
    for number, (code, diff) in enumerate(changes):
        report = reported(text, tmp_path, f"train{number}")
        assert code in [one.code for one in report.suspects[:3]], [str(one) for one in report.suspects]
        old, new = ("".join(line[1:] + "\n" for line in diff.splitlines() if line[0] == sign) for sign in "-+")
        assert text.count(old) == 1
        text = text.replace(old, new)
    assert [(one.code, str(one)) for one in reported(text, tmp_path, "mended").suspects] == []


def test_how_far_a_program_is_is_printed_while_it_runs(tmp_path, capsys):
    told, printed = tmp_path / "steps", []
    told.touch()

    class Process:
        args, returncode = ("program",), None

        def wait(self, seconds):
            printed.append(capsys.readouterr().out)
            if len(printed) == 3:
                self.returncode = 0
                return
            with told.open("a") as lines:
                lines.write(f"simgpu: step {len(printed)}\n")
            raise running.subprocess.TimeoutExpired(self.args, seconds)

    running._shown(told, True, Process())
    assert printed == ["", "simgpu: step 1\n", "simgpu: step 2\n"]
