"""In which order do tests run, and what does a run say of a cell that failed and of the machine on which it did?"""

import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from tests import children, machine
from tools import notebooks

NEW = nbformat.v4


@pytest.fixture
def ours(pytestconfig):
    """The conftest.py at the root."""
    return pytestconfig.pluginmanager.get_plugin(str(notebooks.ROOT / "conftest.py"))


class IPyNbCell(SimpleNamespace):
    """Named as nbval names its own, by which cells are known."""


def collected(tmp_path, *names):
    """Return tests, or cells where a name ends in .ipynb: one of each file, in this order."""
    made = []
    for name in names:
        path = tmp_path / name
        path.write_text("1")
        cell = path.suffix == ".ipynb"
        made.append((IPyNbCell if cell else SimpleNamespace)(path=path, nodeid=f"{name}::{len(made)}"))
    return made


def ordered(ours, items, *, seed=None, **attributes):
    items = list(items)
    ours.pytest_collection_modifyitems(SimpleNamespace(option=SimpleNamespace(order_seed=seed), **attributes), items)
    return items


def test_notebooks_come_first_and_then_the_largest_files_whatever_the_last_run_was(ours, tmp_path):
    items = collected(tmp_path, "test_small.py", "test_large.py", "lesson.ipynb")
    items[1].path.write_text("1" * 9)
    for order in (items, items[::-1]):
        found = ordered(ours, order, workerinput={})
        assert [item.path.name for item in found] == ["lesson.ipynb", "test_large.py", "test_small.py"]


def test_a_seed_gives_an_order_in_which_the_cells_of_a_notebook_stay(ours, tmp_path):
    items = collected(tmp_path, *["lesson.ipynb"] * 9, *["test_a.py"] * 9, *["test_b.py"] * 9)
    orders = [[item.nodeid for item in ordered(ours, items, seed=seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[2]) == sorted(item.nodeid for item in items)
    for order in orders[1:]:
        files = [nodeid.partition("::")[0] for nodeid in order]
        assert all(len({*files[at : at + 9]}) == 1 for at in (0, 9, 18))  # each file in one piece
        assert [one for one in order if "ipynb" in one] == [item.nodeid for item in items[:9]]
        assert [one for one in order if "test_a" in one] != [item.nodeid for item in items[9:18]]


# Each cell with what it stores, and how it is judged.
CELLS = [
    ("import math\nrate = 2", "", "passed"),
    ("print(rate)", "3\n", "failed"),  # another output: all cells after it are judged
    ("double = rate * 2\nprint(double)", "4\n", "passed"),
    ("model = math.sqrt(-1)", "", "failed"),  # it raises, and makes no model
    ("print(model)", "1\n", "skipped"),
    ("loss = model + 1", "", "skipped"),
    ("print(loss)", "2\n", "skipped"),
    ("print(math.sqrt(4))", "2.0\n", "passed"),
    ("print(double)", "5\n", "failed"),  # a fault of its own
]


def test_one_fault_stays_one_failure_and_all_other_cells_are_judged(tmp_path):
    made = []
    for number, (source, printed, _) in enumerate(CELLS, start=1):
        outputs = [NEW.new_output("stream", name="stdout", text=printed)] if printed else []
        made.append(NEW.new_code_cell(source, outputs=outputs, execution_count=number))
    notebooks.write(tmp_path / "01_broken.ipynb", notebooks.canonical(NEW.new_notebook(cells=made)))
    options = "-v", "--color=no", "--nbval", "-p", "no:xdist", "--override-ini=addopts=", "--nbval-current-env"
    plugins = "-p", "tests.unneeded", "-p", "tests.cells", "-p", "conftest", "-c", notebooks.ROOT / "pyproject.toml"
    alone = {**os.environ, "COURSE_FORKED": "no"}  # its cells need no torch, which one that is forked would import
    words = "-m", "pytest", *options, *plugins, tmp_path / "01_broken.ipynb"
    said = children.run(*words, cwd=notebooks.ROOT, env=alone).stdout
    judged = dict(re.findall(r"::Cell (\d) (PASSED|FAILED|SKIPPED)", said))
    expected = {str(number): word.upper() for number, (_, _, word) in enumerate(CELLS)}
    assert judged == expected, said
    assert "01_broken.ipynb: Cell 3 raised, and 3 later cells need what it makes" in said
    assert re.search(r"Python .*; order seed: none$", said[said.index(" this machine ") :], re.MULTILINE)
    assert re.search(r"To repeat it: .*-m pytest --nbval", said)


BASH = pytest.mark.skipif(sys.platform == "win32", reason="the line is for another shell there")


def asked(folder, *typed, seed=None, marks="not slow"):
    """Return what `machine.command` reads of pytest's settings, for a command that was typed in `folder`."""
    option = SimpleNamespace(order_seed=seed, markexpr=marks)
    params = SimpleNamespace(dir=folder, args=typed)
    return SimpleNamespace(option=option, invocation_params=params, rootpath=notebooks.ROOT)


@BASH
def test_the_command_that_repeats_a_failure_names_the_environment(monkeypatch):
    import torch

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    cells = ["notebooks/05_a.ipynb::Cell 3", "notebooks/05_a.ipynb::Cell 9", "tests/test_b.py::test_c[1 2]"]
    words = shlex.split(machine.command(cells, asked(notebooks.ROOT)))
    assert {"ATEN_CPU_CAPABILITY=avx2", "ONEDNN_MAX_CPU_ISA=AVX2", "OMP_NUM_THREADS=3"} <= {*words}
    assert words[-5:] == ["-m", "pytest", "--nbval", "notebooks/05_a.ipynb", "tests/test_b.py::test_c[1 2]"]
    weekly = shlex.split(machine.command(cells, asked(notebooks.ROOT / "notebooks", marks="slow or not slow")))
    assert weekly[:3] == ["cd", "..", "&&"] and weekly[-4:-2] == ["-m", "slow or not slow"]
    shuffled = machine.command(cells, asked(notebooks.ROOT, "--nbval", "-n", "2", "--order-seed=4", seed=4))
    assert shuffled.endswith("-m pytest --nbval -n 2 --order-seed=4")
    monkeypatch.setattr(machine.platform, "machine", lambda: "arm64")
    assert "ATEN_CPU_CAPABILITY" not in machine.command(cells, asked(notebooks.ROOT))


def test_on_windows_the_line_is_for_its_shell():
    said = machine.line({"A": "1", "B": "2"}, ["python", "-m", "pytest", "a b"], "..", windows=True)
    assert said == 'cmd /c "cd ..&& set A=1&& set B=2&& python -m pytest "a b""'


@BASH
def test_the_command_that_repeats_a_failure_works_where_it_was_printed(tmp_path):
    """From another folder, with a mark and a parameter that a shell would take apart."""
    line = machine.command(
        ["tests/project/test_conftest.py::test_a_line[a b; c]"], asked(tmp_path, marks="slow or not slow")
    )
    done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("word", ["a b; c"])
def test_a_line(word):
    """What the test above runs again."""
    assert word == "a b; c"


def test_a_machine_is_described_in_a_line():
    name, sets = machine.processor()
    assert name and isinstance(sets, list) and ("sse4_2" in sets or sys.platform != "linux" or "asimd" in sets)
    assert "\n" not in machine.description() and " threads; " in machine.description()


@pytest.mark.parametrize(("capability", "has"), [("avx2", False), ("default", False), ("avx512", True), (None, True)])
def test_an_older_processor_names_no_newer_instructions_to_cells(tmp_path, monkeypatch, capability, has):
    import torch

    if capability is None:
        monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    else:
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
    known = {"avx2": True, "avx512_bf16": True, "amx_bf16": True, "cpu_name": "a new one"}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known)
    startup = Path(notebooks.kernel_environment(tmp_path)["IPYTHONDIR"], "profile_default", "startup")
    monkeypatch.chdir(tmp_path)  # one of the files goes to another folder
    with warnings.catch_warnings():
        for file in sorted(startup.iterdir()):
            exec(file.read_text(encoding="utf-8"), {})
    assert torch.cpu.get_capabilities() == known | {"avx512_bf16": has, "amx_bf16": has}
