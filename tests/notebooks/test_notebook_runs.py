"""Does every lesson also run solved, on the bare CPU, and with each cell run twice? Does the executor itself work?"""

import ast
import contextlib
import copy
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

from tests import cells, kernels
from tests.notebooks.test_notebooks import deeper, stub_of
from tools import address, notebooks

LESSONS = notebooks.lessons()
LESSON = next(path for path in LESSONS if notebooks.number(path) == "05")
ASKS = re.compile(r"devices\.on_simulated\(")
ASKING = [lesson for lesson in LESSONS if ASKS.search(lesson.read_text(encoding="utf-8"))]
NEW = nbformat.v4


def solved(notebook: nbformat.NotebookNode) -> tuple[nbformat.NotebookNode, int]:
    """Return the notebook with every stub replaced by the reference without its decorator, and how many there were."""
    made, count = copy.deepcopy(notebook), 0
    for place, cell in enumerate(made.cells):
        stub = stub_of(cell.source) if cell.cell_type == "code" else None
        if stub:
            lesson = notebooks.CHECK.match(made.cells[place + 1].source)["lesson"]
            room = importlib.import_module(f"gpu_course.lesson{lesson}")
            reference = inspect.getsource(getattr(room, stub.name).reference)
            lines = cell.source.splitlines()
            first = min([stub.lineno, *(decorator.lineno for decorator in stub.decorator_list)])
            lines[first - 1 : stub.end_lineno] = reference.splitlines()[ast.parse(reference).body[0].lineno - 1 :]
            cell.source, count = "\n".join(lines), count + 1
    return made, count


@pytest.mark.slow
@pytest.mark.parametrize("way", ["with references", "on the bare CPU", "each cell twice", "the spine alone"])
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs(lesson, way):
    notebook, count = notebooks.read(lesson), 1
    if way == "with references":
        notebook, count = solved(notebook)
    elif way == "each cell twice":
        notebook = notebooks.twice(notebook)
    elif way == "the spine alone":
        left = deeper(notebook)
        notebook.cells = [cell for cell, out in zip(notebook.cells, left, strict=True) if not out]
    assert count
    notebooks.run(notebook, "cpu" if way == "on the bare CPU" else "sim")


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_the_whole_program_runs_by_itself(lesson, tmp_path):
    """In a process of its own, in an empty folder, without the course: as a reader takes it home."""
    for cell in (cell for cell in notebooks.read(lesson).cells if cell.id == "program"):
        assert "course_utils" not in cell.source
        notebooks.write(tmp_path / "program.py", cell.source)
        done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("lesson", ASKING, ids=lambda path: path.stem)
def test_beside_a_real_gpu_a_child_process_has_the_simulated_one(lesson):
    """Pretended: the kernel computes on the CPU and is told that it cannot have the simulated GPU itself."""
    notebook = notebooks.read(lesson)
    machine = next(cell for cell in notebook.cells if cell.id == "machine")
    machine.source += "\ndevices.simulated = lambda: None"
    ran = notebooks.run(notebook, "cpu")
    for cell in ran.cells:
        if cell.cell_type == "code" and ASKS.search(cell.source):
            shown = "".join(str(output) for output in cell.outputs)
            assert "simulated" in shown and "No simulated GPU" not in shown, cell.id


def test_lessons_show_the_simulated_gpu_beside_a_real_one():
    assert {notebooks.number(lesson) for lesson in ASKING} >= {"04", "07"}


def write(path, *sources, tags=()):
    """Write a notebook of code cells; `tags` are the last cell's."""
    cells = [NEW.new_code_cell(source) for source in sources]
    cells[-1].metadata["tags"] = list(tags)
    notebooks.write(path, notebooks.canonical(NEW.new_notebook(cells=cells)))
    return path


@pytest.mark.usefixtures("forked")
def test_execution_stores_stable_outputs_and_keeps_tagged_ones(tmp_path):
    prints = "import sys\nprint('out')\nprint('err', file=sys.stderr)"
    path = write(tmp_path / "00_a.ipynb", prints, "import time\ntime.time_ns()", tags=["nbval-ignore-output"])
    notebooks.write(path, notebooks.execute(path, {}))
    first = notebooks.read(path)
    assert [cell.execution_count for cell in first.cells] == [None, None]
    assert [(o.name, o.text) for o in first.cells[0].outputs] == [("stdout", "out\n")]
    before = {cell.id: cell for cell in first.cells}
    assert notebooks.execute(path, before) == path.read_text(encoding="utf-8")
    before[first.cells[1].id].source = "another source"
    assert notebooks.execute(path, before) != path.read_text(encoding="utf-8")


@pytest.fixture
def forked(monkeypatch):
    """Kernels that are forked: what they run here is no lesson."""
    monkeypatch.setattr(nbclient, "NotebookClient", kernels.client)


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are forked on Linux")
def test_a_kernel_that_is_forked_ends_with_what_forked_it():
    lines = "import os", "from ipykernel.kernelapp import IPKernelApp", "poller = IPKernelApp.instance().poller"
    cell = NEW.new_code_cell("\n".join((*lines, "print(poller.parent_pid == os.getppid())")))
    notebook = NEW.new_notebook(cells=[cell])
    kernels.client(notebook).execute()
    assert notebook.cells[0].outputs[0].text == "True\n"


class IPyNbCell:
    """A cell of a lesson that nbval has run."""

    name = "cell 3"

    def __init__(self, *streams):
        self.test_outputs = [{"output_type": "stream", "name": name, "text": text} for name, text in streams]


def test_a_cell_that_writes_to_standard_error_fails():
    def run(*streams):
        hook = cells.pytest_runtest_call(IPyNbCell(*streams))
        next(hook)
        with contextlib.suppress(StopIteration):
            hook.send(None)

    run(("stdout", "a result\n"))
    with pytest.raises(pytest.fail.Exception, match=r"cell 3 writes to standard error.*\n.*UserWarning: old"):
        run(("stdout", "a result\n"), ("stderr", "x.py:3: UserWarning: old\n"))


@pytest.mark.usefixtures("forked")
def test_a_cell_run_twice_runs_twice_and_a_deprecation_is_an_error(tmp_path):
    strict = """import warnings
for category in (DeprecationWarning, FutureWarning):
    try:
        warnings.warn("old", category)
    except category:
        continue
    raise AssertionError(category)"""
    count = "try:\n    count += 1\nexcept NameError:\n    count = 1"
    notebooks.run(notebooks.twice(notebooks.read(write(tmp_path / "00_a.ipynb", count, "assert count == 2", strict))))


@pytest.mark.usefixtures("forked")
def test_what_a_lesson_writes_beside_itself_stays_in_a_folder_of_its_own(tmp_path):
    write_one = "from pathlib import Path\nassert not list(Path().iterdir())\nPath('mine.py').write_text('1')"
    path = write(tmp_path / "00_a.ipynb", write_one, "print(Path('mine.py').resolve())")
    written = [Path(notebooks.run(notebooks.read(path)).cells[1].outputs[0].text.strip()) for _ in range(2)]
    assert list(tmp_path.iterdir()) == [path] and written[0] != written[1]
    assert not any(one.is_relative_to(notebooks.ROOT) or one.parent.exists() for one in written)


def test_canonical_form_is_a_fixed_point_and_drops_what_varies():
    data = {"text/plain": "x", notebooks.WIDGET_MIMES[0]: {"model_id": "1"}}
    outputs = [
        NEW.new_output("display_data", data, metadata={"a": 1}),
        NEW.new_output("stream", name="stderr", text="w"),
    ]
    cell = NEW.new_code_cell("x = 1\n", outputs=outputs, execution_count=1)
    cell["id"], cell.metadata["collapsed"] = "3f2a9c1b", True
    metadata = {"widgets": {}, "language_info": {"name": "python"}}
    text = notebooks.canonical(NEW.new_notebook(cells=[cell], metadata=metadata))
    again = nbformat.reads(text, as_version=4)
    assert notebooks.canonical(again) == text and text.endswith("}\n")
    assert again.metadata == {**notebooks.ON_COLAB, "kernelspec": notebooks.KERNELSPEC}
    assert again.cells[0].metadata == {}
    assert [dict(output.data) for output in again.cells[0].outputs] == [{"text/plain": "x"}]
    assert notebooks.WORDS.fullmatch(again.cells[0].id) and again.cells[0].source == "x = 1"


@pytest.fixture
def publish(monkeypatch):
    """Let the course have an address, and a commit, as pyproject.toml would say it."""

    def publish(repository, commit=""):
        monkeypatch.setattr(address, "REPOSITORY", repository)
        monkeypatch.setattr(address, "COMMIT", commit)
        monkeypatch.setattr(address, "BRANCH", "published" if commit else "main")

    return publish


def test_an_address_comes_into_title_and_set_up_cells_and_goes_again(publish):
    publish("")
    title, set_up = (address.with_address(cell.source) for cell in notebooks.read(LESSON).cells[:3:2])
    assert title.count("](") == 2 and re.search(r"\n\n\d+ minutes", title), "the lessons before and after, and no badge"
    assert "upload dist/*.whl" in set_up and "--no-index" in set_up and "://" not in title + set_up
    publish("https://github.com/a/b", "0" * 40)
    there = [address.with_address(source) for source in (title, set_up)]
    path = f"github.com/a/b/blob/published/notebooks/{LESSON.name}) · "
    assert f"colab.research.google.com/{path.replace('.com', '', 1)}" in there[0]
    assert re.search(rf"src=https://{re.escape(path)}\d+ minutes", there[0])
    assert f'"git+https://github.com/a/b@{"0" * 40}"' in there[1] and "upload" not in there[1]
    publish("https://github.com/c/d")
    moved = [address.with_address(source) for source in there]
    assert (
        "a/b" not in "".join(moved)
        and moved[0].count("c/d/blob/main/") == 2
        and '"git+https://github.com/c/d"' in moved[1]
    )
    publish("")
    assert [address.with_address(source) for source in moved] == [title, set_up]
    readme = (notebooks.ROOT / "README.md").read_text(encoding="utf-8")
    assert f"git clone {address.HERE} gpu-course" in address.with_clone_line(readme)
    publish("https://github.com/a/b")
    there = address.with_clone_line(readme)
    assert "git clone https://github.com/a/b gpu-course" in there and there != readme
    publish("")
    assert address.with_clone_line(there) == address.with_clone_line(readme)
    assert address.with_address(text := "[code](https://github.com/pytorch/pytorch)\n5 minutes") == text
