"""Does every lesson keep the rules? Each gate is a sentence, and has a sample in tests/samples that breaks it alone."""

import ast
import inspect
import json
import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from tools import notebooks

ROOT = notebooks.ROOT
SAMPLES = ROOT / "tests" / "samples"
LESSONS = notebooks.lessons()
MAX_BYTES, MAX_CELL_LINES, MAX_WORDS, MIN_SHOWN = 500_000, 25, 120, 5
NETWORK = re.compile(
    r"https?://|\b(urllib|requests|httpx|socket)\b|torch\.hub|from_pretrained|download\s*=\s*True|fetch_\w+\("
)
FIXED_PORT = re.compile(r"MASTER_PORT\W+\d|tcp://[\w.]+:[1-9]|\bport\s*=\s*[1-9]|--master.port[= ][1-9]")
TIMERS = re.compile(  # the names, called or not: `clock = time.perf_counter` makes another; `Timer(…).timeit(…)` waits
    r"\btime\.(time|monotonic)(_ns)?\b|\b(perf_counter|process_time|thread_time)(_ns)?\b|\bdefault_timer\b"
    r"|(?<![.\w])timeit\b|%%?time\b|\bimport (.*, *)?time as\b|\bfrom time import (?!sleep\s*$)",
    re.MULTILINE,
)
SHELL = re.compile(
    r"^\s*(!|%%(bash|sh|script|system|writefile)\b|%(sx|system|pip|conda|cd)\b)|os\.system\(", re.MULTILINE
)


def code(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def found(pattern: re.Pattern, notebook: NotebookNode) -> list[str]:
    """Return the sources of the code cells after the set-up cell in which the pattern occurs."""
    return [cell.source for cell in code(notebook)[1:] if pattern.search(cell.source)]


def tags(cell: NotebookNode) -> list[str]:
    """Return the cell's tags."""
    return cell.metadata.get("tags", [])


def tree(source: str) -> ast.Module:
    """Return the syntax tree of a cell; its magics count as `pass`."""
    return ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE))


def stub_of(source: str) -> ast.FunctionDef | ast.ClassDef | None:
    """Return the function or class of a cell that holds a stub: a docstring and `raise NotImplementedError`.

    The methods of a class consist of that line each, with a docstring or without.
    """
    for node in tree(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            methods = node.body[1:] if isinstance(node, ast.ClassDef) else [node]
            if methods and all(isinstance(method, ast.FunctionDef) and raises_alone(method) for method in methods):
                return node
    return None


def raises_alone(function: ast.FunctionDef) -> bool:
    """Return whether `raise NotImplementedError` is the whole body, but for a docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return [ast.unparse(line) for line in body] == ["raise NotImplementedError"]


def every_byte_is_canonical(path, notebook):
    assert notebooks.difference(path) is None, notebooks.difference(path)


def there_is_one_title_and_it_comes_first(path, notebook):
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    titles = re.findall(r"^# .+$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    assert len(titles) == 1, titles
    assert notebook.cells[0].source.startswith(titles[0])


def ids_are_unique_words(path, notebook):
    ids = [cell.get("id", "") for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]  # as stored
    assert len(set(ids)) == len(ids)
    assert all(notebooks.WORDS.fullmatch(name) for name in ids), ids


def tags_are_from_the_closed_list(path, notebook):
    assert {tag for cell in notebook.cells for tag in tags(cell)} <= notebooks.TAGS
    assert not any(re.search(r"#\s*(NBVAL|PYTEST_VALIDATE)_", cell.source) for cell in code(notebook))


def the_setup_cell_is_first_and_the_same_everywhere(path, notebook):
    first, second = code(notebook)[:2]
    assert first.source == notebooks.SETUP
    assert second.source == "print(devices.describe(DEVICE))"


def cells_and_texts_are_small(path, notebook):
    words = 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert len(cell.source.splitlines()) <= MAX_CELL_LINES, f"{cell.id} has more than {MAX_CELL_LINES} lines"
            words = 0
        elif notebook.cells.index(cell) > 1:
            words += len(re.sub(r"\]\([^)]*\)", "]", cell.source).split())
            assert words <= MAX_WORDS, f"{words} words of text up to {cell.id} without a code cell"


def the_stored_file_is_small(path, notebook):
    size = path.stat().st_size
    assert size < MAX_BYTES, f"{size} bytes"


def nothing_escapes_to_a_shell(path, notebook):
    assert found(SHELL, notebook) == []


def nothing_uses_the_network(path, notebook):
    assert found(NETWORK, notebook) == []


def no_port_is_fixed(path, notebook):
    assert found(FIXED_PORT, notebook) == []


def data_sets_used_with_workers_are_importable(path, notebook):
    nodes = [node for cell in code(notebook) for node in ast.walk(tree(cell.source))]
    typed = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    made = {
        name.id: {inner.id for inner in ast.walk(node.value) if isinstance(inner, ast.Name)}
        for node in nodes if isinstance(node, ast.Assign) for name in node.targets if isinstance(name, ast.Name)
    }  # fmt: skip
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        workers = [word.value for word in call.keywords if word.arg == "num_workers"]
        if workers and not (isinstance(workers[0], ast.Constant) and workers[0].value == 0):
            used = {inner.id for inner in ast.walk(call) if isinstance(inner, ast.Name)}
            used |= set().union(*(made.get(name, set()) for name in used))
            assert not used & typed, f"{used & typed} is typed in a cell and used with workers"


def nothing_is_timed_without_synchronising(path, notebook):
    timed = [cell for cell in code(notebook) if TIMERS.search(cell.source)]
    assert all("wrong-on-purpose" in tags(cell) for cell in timed), [cell.id for cell in timed]
    called = re.compile("|".join(rf"\b{name}\(\)" for cell in timed for name in clocks(cell)) or r"(?!)")
    for cell in (cell for cell in code(notebook) if "wrong-on-purpose" not in tags(cell)):
        lines = cell.source.splitlines()
        for before, line in zip(["", *lines], lines, strict=False):
            assert not called.search(line) or "synchronize(" in before, f"{cell.id}: no synchronisation before {line!r}"


def clocks(cell: NotebookNode) -> set[str]:
    """Return the names that the cell gives to something made of a timer: variables and functions."""
    nodes = [node for node in ast.walk(tree(cell.source)) if isinstance(node, ast.Assign | ast.FunctionDef)]
    made = [node for node in nodes if TIMERS.search(ast.unparse(getattr(node, "value", node)))]
    targets = [target for node in made for target in getattr(node, "targets", [])]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return {*names, *(node.name for node in made if isinstance(node, ast.FunctionDef))}


def no_except_is_bare(path, notebook):
    handlers = [n for c in code(notebook) for n in ast.walk(tree(c.source)) if isinstance(n, ast.ExceptHandler)]
    assert all(handler.type is not None for handler in handlers)


def every_exercise_is_a_triplet(path, notebook):
    cells, module = notebook.cells, f"lesson{path.stem[:2]}"
    checks = [c.source for c in code(notebook) if re.search(r"\blesson\d\d\.\w+\.check\(", c.source)]
    stubs = [(place, stub_of(cell.source)) for place, cell in enumerate(cells) if cell.cell_type == "code"]
    stubs = [(place, stub) for place, stub in stubs if stub]
    for place, stub in stubs:
        text = cells[place - 1]
        assert text.cell_type == "markdown" and "minutes" in text.source, f"{stub.name}: no text with minutes before it"
        wanted = f"{stub.name} = {module}.{stub.name}.check({stub.name})"
        assert cells[place + 1].source == wanted, f"{stub.name}: the cell after it is not {wanted!r}"
    assert len(checks) == len(stubs), f"{len(checks)} checks, {len(stubs)} stubs"


def it_is_stored_executed_in_order(path, notebook):
    counts = [cell.execution_count for cell in code(notebook)]
    assert counts == list(range(1, len(counts) + 1)), counts
    assert not [o for cell in code(notebook) for o in cell.outputs if o.output_type == "error"]


def five_cells_show_or_assert_a_claim(path, notebook):
    shown = [
        cell for cell in code(notebook)
        if "assert " in cell.source or (cell.outputs and "nbval-ignore-output" not in tags(cell))
    ]  # fmt: skip
    assert len(shown) >= MIN_SHOWN, f"{len(shown)} cells"


# A gate takes the path of a notebook and its contents, and asserts.
SIGNATURE = ["path", "notebook"]
GATES = [
    one for one in globals().values() if inspect.isfunction(one) and [*inspect.signature(one).parameters] == SIGNATURE
]
BY_NAME = {"ids": lambda gate: gate.__name__}


def broken(path: Path) -> set[str]:
    """Return the names of the gates that the notebook at `path` does not pass."""
    names, notebook = set(), notebooks.read(path)
    for gate in GATES:
        try:
            gate(path, notebook)
        except AssertionError:
            names.add(gate.__name__)
    return names


def test_there_are_lessons():
    numbers = [path.stem[:2] for path in LESSONS]
    assert numbers == sorted(set(numbers)) and numbers[0] == "00"


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_begins_and_ends_with_links_to_its_neighbours(lesson):
    place = LESSONS.index(lesson)
    wanted = [path.name for path in (*LESSONS[max(place - 1, 0) : place], *LESSONS[place + 1 : place + 2])]
    texts = [cell.source for cell in notebooks.read(lesson).cells if cell.cell_type == "markdown"]
    for text in (texts[0], texts[-1]):
        line = next((line for line in text.splitlines() if re.match(r"(Previous|Next): ", line)), "")
        assert re.findall(r"\((\d\d_\w+\.ipynb)\)", line) == wanted, line


@pytest.mark.parametrize("gate", GATES, **BY_NAME)
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_lesson(lesson, gate):
    gate(lesson, notebooks.read(lesson))


def test_a_stub_may_be_a_class_whose_methods_all_raise():
    body = 'class A(nn.Module):\n    """Doc."""\n    def __init__(self):\n        raise NotImplementedError\n'
    assert stub_of(body).name == "A"
    assert stub_of(body + "    def forward(self, x):\n        return x") is None
    assert stub_of('class A:\n    """Doc."""') is None


def test_the_good_sample_passes_every_gate_and_each_other_sample_belongs_to_one():
    assert broken(SAMPLES / "00_good.ipynb") == set()
    names = {path.stem.removeprefix("00_not_") for path in SAMPLES.glob("00_not_*.ipynb")}
    assert names == {gate.__name__ for gate in GATES if gate is not the_stored_file_is_small} and len(names) >= 15


@pytest.mark.filterwarnings("ignore:Non-unique cell id")
@pytest.mark.parametrize("gate", [gate for gate in GATES if gate is not the_stored_file_is_small], **BY_NAME)
def test_the_sample_of_a_gate_breaks_it_alone(gate):
    implied = {every_byte_is_canonical.__name__} if gate is ids_are_unique_words else set()
    assert broken(SAMPLES / f"00_not_{gate.__name__}.ipynb") == {gate.__name__} | implied


ALIAS = "clock = time.perf_counter"


@pytest.mark.parametrize("wrong", [
    [("import time; start = time.time()", "")], [("clock = time.perf_counter", "")], [("%timeit x @ x", "")],
    [("from time import monotonic", "")], [("from time import sleep, perf_counter_ns", "")],
    [("import sys, time as t", "")], [("import timeit", "")],
    [(ALIAS, "wrong-on-purpose"), ("begin = clock()", "")],
    [(ALIAS, "wrong-on-purpose"), ("backend.synchronize()\nbegin = clock()\ny = x @ x\nprint(clock())", "")],
    [("def now():\n    return time.time()", "wrong-on-purpose"), ("print(now())", "")],
])  # fmt: skip
def test_a_timer_is_found_also_by_another_name(wrong):
    with pytest.raises(AssertionError):
        nothing_is_timed_without_synchronising(Path(), notebook_of(wrong))


def test_what_synchronises_or_is_wrong_on_purpose_may_use_a_clock():
    honest = "backend.synchronize()\nbegin = clock()\ny = x @ x\nbackend.synchronize()\nprint(clock() - begin)"
    good = [
        (f"{ALIAS}\nbegin = clock()", "wrong-on-purpose"),
        (honest, ""),
        ("median_time_s(work, clock, backend.synchronize, 2, 5)", ""),
        ("from time import sleep\nimport time\nTimer('f()').timeit(3)", ""),
    ]
    nothing_is_timed_without_synchronising(Path(), notebook_of(good))


def notebook_of(cells: list[tuple[str, str]]) -> NotebookNode:
    """Return a notebook of code cells from their sources and tags."""
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(text, metadata={"tags": [tag] * bool(tag)}) for text, tag in cells]
    return made


def test_a_file_that_is_too_large_is_rejected(tmp_path):
    large = tmp_path / "large.ipynb"
    large.write_bytes(b" " * MAX_BYTES)
    with pytest.raises(AssertionError):
        the_stored_file_is_small(large, NotebookNode())


def test_every_program_is_started_by_a_lesson_or_a_test():
    programs = sorted((ROOT / "notebooks" / "programs").glob("*.py"))
    users = [path.read_text(encoding="utf-8") for path in [*LESSONS, *sorted((ROOT / "tests").glob("test_*.py"))]]
    assert users
    assert [p.name for p in programs if not any(p.name in text for text in users)] == []


def test_the_readme_and_the_course_map_repeat_what_the_title_cells_say():
    """The title cell is the one source of a lesson's minutes, and of its exercises, whose stubs are counted."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    cells = {cell.id: cell.source for cell in notebooks.read(LESSONS[0]).cells}
    titles, rows = {}, {}
    for path in LESSONS:
        notebook = notebooks.read(path)
        title = notebook.cells[0].source
        minutes, exercises = re.search(r" · (\d+) minutes · (\d+) exercises?\n", title).groups()
        assert int(exercises) == sum(stub_of(cell.source) is not None for cell in code(notebook)), path.name
        titles[path.name], rows[path.name] = (title.splitlines()[0], minutes), f"{minutes} | {exercises} |"
    assert dict(re.findall(r"^\|.*\(notebooks/(\d\d_\w+\.ipynb)\).* (\d+ \| \d+ \|)$", readme, re.MULTILINE)) == rows

    entries = re.findall(
        r"^- (\*\*)?\[?(\d\d .*?)(?:\]\((.*)\))?(?:\*\*)?, (\d+)( minutes)?$", cells["course-map"], re.MULTILINE
    )
    there = {f"# {name}": minutes for _, name, link, minutes, _ in entries if link or name.startswith("00")}
    assert there == dict(titles.values()) and {link for _, _, link, *_ in entries if link} == {*titles} - {
        LESSONS[0].name
    }
    hours = [
        round(sum(int(minutes) for bold, *_, minutes, _ in entries if bold or every) / 60) for every in (False, True)
    ]
    assert f"take about {hours[0]} hours, all lessons about {hours[1]}." in cells["course-map"]
