"""Does lesson 13 run programs of others in a process of its own, also those that fail, and show their lines?"""

import json
import re
from pathlib import Path

import pytest

import simgpu
from course_utils import programs
from gpu_course import lesson13
from gpu_course.lesson13 import running
from tests.simgpu.conftest import _available, _fresh  # noqa: F401
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


def test_what_is_no_program_is_refused_with_what_to_do():
    with pytest.raises(FileNotFoundError, match="a path counts from"):
        lesson13.run(Path("none.py"), gpu="T4")


STEPS = """import torch
net = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.randn(64, 8, device="cuda")).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("last", "where"), [("print(sorted(names))", ""), ("net(torch.ones(3).cuda())", ", line 2")])
def test_a_notebook_is_a_program_too(tmp_path, capsys, monkeypatch, last, where):
    fork_children(monkeypatch)
    (tmp_path / "words.txt").touch()
    cells = [STEPS, "import os\nnames = os.listdir()", f"# the end\n{last}"]
    made = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": source} for source in cells]
    (tmp_path / "mine.ipynb").write_text(json.dumps({"cells": made}), encoding="utf-8")
    report = lesson13.run(tmp_path / "mine.ipynb", gpu="T4")
    said = capsys.readouterr().out
    assert report.steps == 3 and (report.failure.where if where else "") == (where and f"cell [3]{where}")
    expected = "The program failed at cell [3], line 2: RuntimeError: " if where else "['mine.ipynb', 'words.txt']"
    assert expected in said


def test_a_file_of_a_package_runs_as_a_part_of_it(tmp_path, capsys, monkeypatch):
    fork_children(monkeypatch)
    inner = tmp_path / "mine" / "inner"
    inner.mkdir(parents=True)
    for folder in inner, inner.parent:
        (folder / "__init__.py").touch()
    (inner.parent / "sizes.py").write_text("ROWS = 7\n", encoding="utf-8")
    text = "import torch\nfrom ..sizes import ROWS\nprint(torch.ones(ROWS).cuda().shape, __name__)\n"
    (inner / "train.py").write_text(text, encoding="utf-8")
    assert lesson13.run(inner / "train.py", gpu="T4").failure is None
    assert capsys.readouterr().out == "torch.Size([7]) __main__\n"


def test_a_program_that_asks_nothing_of_a_gpu_gets_no_good_news(tmp_path, capsys, monkeypatch):
    fork_children(monkeypatch)
    (tmp_path / "train.py").write_text(STEPS.replace(".cuda()", "").replace(', device="cuda"', ""), encoding="utf-8")
    report = lesson13.run(tmp_path / "train.py", gpu="T4")
    assert not report.used and "It fits" not in str(report)
    assert capsys.readouterr().out.startswith("Nothing was asked of a GPU in this process.")


def test_a_program_may_ask_first_whether_there_is_a_gpu_and_finds_one(tmp_path, capsys, monkeypatch):
    """Also where a notebook asks for colours, which its output would show as a terminal's commands."""
    fork_children(monkeypatch)
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = """import os
import torch
device = torch.accelerator.current_accelerator() if torch.cuda.is_available() else "cpu"
print(torch.ones(3, device=device).device, torch.cuda.device_count(), os.environ.get("FORCE_COLOR"))
"""
    (tmp_path / "asks.py").write_text(text, encoding="utf-8")
    assert lesson13.run(tmp_path / "asks.py", gpu="T4").used
    assert capsys.readouterr().out == "cuda:0 1 None\n"


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
    """Each remark is there in the guide's words, and gone once its lines are changed; the last program has none."""
    guide = (Path(__file__).parents[2] / "docs" / "own_program.md").read_text(encoding="utf-8")
    section = guide.partition("remark by remark\n")[2].partition("\n## ")[0]
    (text,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert 20 < len(text.splitlines()) < 40
    form = r"^`([\w-]+)`\n\n```text\n(.*?)```.*?\n```diff\n(.*?)```"
    changes = re.findall(form, section, re.DOTALL | re.MULTILINE)
    assert len(changes) == 5
    for code, said, diff in changes:
        first = reported(text, tmp_path, "train").suspects[:3]
        assert (code, said.split()) in [(one.code, f"{one} {one.text}".split()) for one in first]
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
