"""Does `python -m simgpu` run programs, packages and notebooks as Python and Jupyter do, on simulated GPUs?"""

import json

import pytest
import torch

from simgpu.face import programs
from tests import children
from tests.simgpu.simulated import read_programs

TRAIN = read_programs("cuda_programs")["train"]


def run(folder, *command):
    return children.run(*command, cwd=folder)


@pytest.fixture
def folder(tmp_path):
    for place in (tmp_path, tmp_path / "package"):
        place.mkdir(exist_ok=True)
        (place / "helper.py").write_text("LR = 0.1\n")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "__main__.py").write_text(TRAIN.replace("from helper", "from .helper"))
    return tmp_path


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What Python prints of the program, on the CPU."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "helper.py").write_text("LR = 0.1\n")
    (folder / "train.py").write_text(TRAIN)
    done = run(folder, "train.py", "--lr", "1")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("what", [("train.py",), ("-m", "package")])
def test_a_program_has_its_arguments_its_neighbours_and_the_losses_of_the_cpu(folder, what, plain):
    ours = run(folder, "-m", "simgpu", "--gpus", "2", "--memory", "64 MiB", *what, "--lr", "1")
    assert ours.returncode == 0, ours.stderr
    first, second = ours.stdout.splitlines()
    assert first == plain[0] and first.startswith("__main__ ['--lr', '1']")
    assert second == "cuda:0 2" and plain[1] == "cpu 0"


def test_an_error_of_the_program_is_its_own(folder):
    ours = run(folder, "-m", "simgpu", "train.py", "fail")
    assert ours.returncode == 1
    assert ours.stderr.count("File ") == 1 and 'train.py", line 17, in <module>' in ours.stderr
    assert ours.stderr.endswith("ValueError: as asked\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "which program? Give a file, or -m and the name of a package"),
        (("nothing.py",), "can't open file 'nothing.py'"),
        (("--gpu", "H1000", "train.py"), "H1000"),
        (("--memory", "much", "train.py"), "capacity must be a positive number of bytes"),
    ],
)
def test_a_wrong_command_is_told_in_a_line(folder, options, words, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as caught:
        programs.main(options)
    assert words in f"{caught.value}{capsys.readouterr().err}" and not torch.cuda.is_available()


def notebook(folder, *cells):
    code = [{"cell_type": "code", "metadata": {"tags": tags}, "source": text} for text, *tags in cells]
    (folder / "try.ipynb").write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "# x"}, *code]}))
    return folder / "try.ipynb"


def test_the_cells_of_a_notebook_run_until_one_fails(folder):
    pytest.importorskip("IPython")
    cells = ("import torch\nx = torch.ones(2).cuda()",), ("1 / 0", "raises-exception"), ("x + torch.ones(2)",)
    path = notebook(folder, *cells, ("print('on', x.device)",))
    done = run(folder, "-m", "simgpu", path.name)
    assert done.returncode == 1 and "code cell 3 of 4 failed" in done.stderr and "2 of 4 code cells ran" in done.stderr
    assert "at least two devices, cuda:0 and cpu!" in done.stdout and "on cuda" not in done.stdout
    done = run(folder, "-m", "simgpu", "--keep-going", path.name)
    assert done.returncode == 1 and "3 of 4 code cells ran" in done.stderr and "on cuda:0" in done.stdout


def test_a_notebook_that_wants_its_pictures_inline_runs_and_a_file_that_is_none_is_told_in_a_line(folder):
    pytest.importorskip("IPython")
    pytest.importorskip("matplotlib")
    path = notebook(folder, ("%matplotlib inline\nprint('shown')",))
    done = run(folder, "-m", "simgpu", path.name)
    assert done.returncode == 0 and "shown" in done.stdout and "1 of 1 code cells ran" in done.stderr
    path.write_text("{", encoding="utf-8")
    done = run(folder, "-m", "simgpu", path.name)
    said = "python -m simgpu: try.ipynb is no notebook of Jupyter: it cannot be read as one"
    assert done.returncode == 1 and done.stderr.splitlines() == [said]


def test_the_extension_of_notebooks(folder):
    pytest.importorskip("IPython")
    lines = [
        "%load_ext simgpu",
        "import torch\nprint(torch.cuda.get_device_name())",
        '%simgpu --gpu "A100 80GB" --memory "1 GiB"',
        "print(torch.cuda.get_device_name(), torch.cuda.mem_get_info())",
        "%unload_ext simgpu",
        "print(torch.cuda.is_available())",
    ]
    path = notebook(folder, *((line,) for line in lines))
    code = "import sys; from pathlib import Path; from simgpu.face.notebooks import run"
    done = run(folder, "-c", f"{code}; sys.exit(run(Path('{path.name}'), keep_going=False))")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["Simulated T4", f"Simulated A100 80GB {(2**30, 2**30)}", "False"]
