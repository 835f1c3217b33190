"""Lines of a stack belong to the reader, or to Python, a library or this course."""

import json
import linecache
import os
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch

import simgpu
from simgpu import places
from simgpu.clock.lines import Line
from simgpu.ground import by_value
from tests.by_value import files_of_sent


@pytest.mark.parametrize(
    "file", ["/tmp/ipykernel_71/1234.py", "/tmp/ipython-input-5-12.py", "<ipython-input-3-ab>", __file__, "<stdin>"]
)
def test_cells_and_files_of_the_reader_are_the_readers(file):
    assert places.is_readers(file, "work") and bool(places.cell(file)) == ("ipy" in file)


@pytest.mark.parametrize("file", ["/tmp/ipykernel_71/12.py", "/tmp/ipython-input-3217.py", "<ipython-input-3-ab>"])
def test_cells_are_named_by_the_number_that_the_notebook_shows(file, monkeypatch):
    """Of Jupyter, of Colab (IPython 7, no number in the name), of IPython; cells that ran again have their last one."""
    text = "x = 1\nplace = places.place()"
    linecache.cache[file] = len(text), None, [line + "\n" for line in text.splitlines()], file
    cells = ["", "import simgpu", text + "\n", "x"]
    monkeypatch.setattr(sys.modules["__main__"], "_ih", cells, raising=False)
    magic = f"get_ipython().run_cell_magic('capture', 'out', {text + chr(10)!r})\n"
    for more, name in ([], "cell [2]"), ([text], "cell [4]"), ([magic], "cell [5]"):
        cells += more
        exec(compile(text, file, "exec"), space := {"places": places})
        assert space["place"] == f"{name}, line 2: place = places.place()" == str(Line.of(space["place"]))
        assert (Line.of(space["place"]).file, Line.of(space["place"]).line) == (name, 2)


@pytest.mark.parametrize("file", [
    simgpu.__file__,
    *map(str, Path(simgpu.__file__).parent.rglob("p*.py")),
    torch.nn.Linear.forward.__code__.co_filename, json.__file__, pytest.__file__, "<frozen runpy>",
    "/home/reader/lib/site-packages/einops/layers.py", "/usr/local/lib/python3.12/dist-packages/torchvision/utils.py",
], ids=lambda file: Path(file).name)  # fmt: skip
def test_what_others_wrote_is_not_the_readers(file):
    assert not places.is_readers(file, "work") and not places.cell(file)


def test_a_program_that_lies_among_installed_packages_is_the_readers_while_it_runs(tmp_path, monkeypatch):
    """So do the programs of a course that was installed; what `python -m` runs stays a library."""
    program, beside = tmp_path / "train.py", tmp_path / "package" / "model.py"
    monkeypatch.setattr(places, "_installed", lambda: (f"{tmp_path}/",))
    assert not places.is_readers(str(program), "work")  # a program that runs later in this process changes the verdict
    main = types.ModuleType("__main__")
    main.__file__ = str(program)
    for spec, mine in ((None, True), (ModuleSpec("package.__main__", None), False)):
        main.__spec__ = spec
        monkeypatch.setitem(sys.modules, "__main__", main)
        assert places.is_readers(str(program), "work") == mine and not places.is_readers(str(beside), "work")


def test_packages_in_a_folder_of_pip_target_are_not_the_readers(tmp_path, monkeypatch):
    (tmp_path / "made-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert f"{tmp_path}{os.sep}" in places._installed.__wrapped__()


def test_functions_of_python_c_are_the_readers_and_generated_methods_are_not():
    assert places.is_readers("<string>", "work")
    assert not places.is_readers("<string>", "__init__") and not places.is_readers("<string>", "<module>")


def test_a_child_gets_the_lines_of_the_cells_that_a_function_of_a_cell_calls():
    room = {"__name__": "__main__"}
    cells = {"cell-1": "def inner():\n    return outer\n", "cell-2": "def outer():\n    return inner(), inner()\n"}
    for name, text in cells.items():
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec"), room)
    assert simgpu.sources(room["outer"]) == {name: text.splitlines(True) for name, text in cells.items()}
    assert simgpu.sources(3) == {}


def test_a_function_keeps_its_file_whatever_cloudpickle_writes(monkeypatch):
    assert files_of_sent(by_value.dumps, monkeypatch) == ["<cell 7>"] * 2
