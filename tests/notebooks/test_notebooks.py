"""Does every lesson keep the rules? Each gate is a sentence, and has a change of a good one that breaks it alone."""

import ast
import builtins
import functools
import inspect
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from gpu_course import catalogue, drawings
from gpu_course.checks import source_of
from tools import notebooks
from tools.exercises import deeper, minutes, with_title, words

ROOT = notebooks.ROOT
GOOD = ROOT / "tests" / "samples" / "00_good.ipynb"
LESSONS = notebooks.lessons()
MAX_BYTES, MAX_CELL_LINES, MAX_PROGRAM_LINES, MAX_WORDS, MIN_SHOWN = 500_000, 25, 45, 120, 5
MAX_COLUMNS = 92
MAX_SPINE_MINUTES, MAX_STRETCH_MINUTES, MAX_CLAIMS = 90, 35, 3
EVENING, MAX_EVENING_MINUTES, MAX_EVENING_CELLS, FIRST_STEP_MINUTES = "00b", 100, 60, 30
NETWORK = re.compile(
    r"https?://|\b(urllib|requests|httpx|socket)\b|torch\.hub|from_pretrained|download\s*=\s*True|fetch_\w+\("
)
FIXED_PORT = re.compile(r"MASTER_PORT\W+[1-9]|tcp://[\w.]+:[1-9]|\bport\s*=\s*[1-9]|--master.port[= ][1-9]")
TIMERS = re.compile(  # the names, called or not: `clock = time.perf_counter` makes another; `Timer(…).timeit(…)` waits
    r"\btime\.(time|monotonic)(_ns)?\b|\b(perf_counter|process_time|thread_time)(_ns)?\b|\bdefault_timer\b"
    r"|(?<![.\w])timeit\b|%%?time\b|\bimport (.*, *)?time as\b|\bfrom time import (?!sleep\s*$)",
    re.MULTILINE,
)
SHELL = re.compile(
    r"^\s*(!|%%(bash|sh|script|system|writefile)\b|%(sx|system|pip|conda|cd)\b)|os\.system\(", re.MULTILINE
)

PROGRAM, MESSAGE = "a program as it stands in its file", "a message as PyTorch, CUDA or NCCL words it"
TABLE, LABEL = "a table of PyTorch's profiler", "one line for a number and its label, with source and date"
RECORD = "a record, in one line"
WIDE = {  # by lesson: cells whose output may have longer lines, and why
    "02": {"empty": RECORD, "two-devices": MESSAGE},
    "03": {"precision-times": LABEL},
    "05": {"progress": "a widget, whose text is not shown where it is"},
    "06": {"profiled-step": TABLE, "ended": MESSAGE, "program": TABLE},
    "07": {"census": RECORD, "wide": LABEL},
    "08": {"shared-reverse": RECORD},
    "10": {"loss-parallel-run": RECORD},
    "11": {
        "in-place": MESSAGE, "hang": RECORD, "memory": MESSAGE, "fork": MESSAGE, "ranks": MESSAGE,
        "incidents-list": "the address of a source", "week-seen": "lines of a kernel's log",
    },
    "12": {
        "given-train": PROGRAM, "given-attention": PROGRAM, "reference-attention": PROGRAM, "reference-train": PROGRAM,
        "reference-sharded": PROGRAM, "reference-evaluate": PROGRAM, "images": PROGRAM,
        "full-run": "what a model writes",
    },
    "13": {"program-lines": PROGRAM},
}  # fmt: skip


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


def folded(cell: NotebookNode) -> bool:
    """Return whether the cell's source is hidden until a reader opens it."""
    return notebooks.FOLDED in tags(cell)


def spine_minutes(notebook: NotebookNode) -> float:
    """Return how long a newcomer needs for all but what goes deeper."""
    return sum(needed for needed, left in zip(minutes(notebook), deeper(notebook), strict=True) if not left)


def stub_of(source: str) -> ast.FunctionDef | ast.ClassDef | None:
    """Return the function or class of a cell that holds a stub: a docstring and `raise NotImplementedError`.

    The methods of a class consist of that line each, with a docstring or without. Where the task is a repair, the stub
    is the broken program, as the package has it.
    """
    for node in tree(source).body:
        if ast.dump(node) == BROKEN.get(getattr(node, "name", "")):
            return node
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


def the_first_cells_and_the_last_are_the_same_everywhere(path, notebook):
    first, second = code(notebook)[:2]
    assert first.source == notebooks.SETUP
    assert second.source == notebooks.MACHINE
    assert (notebook.cells[-1].id, notebook.cells[-1].source) == ("your-line", notebooks.LAST)


def cells_and_texts_are_small(path, notebook):
    count = 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            most = MAX_PROGRAM_LINES if cell.id == "program" else MAX_CELL_LINES
            assert len(cell.source.splitlines()) <= most, f"{cell.id} has more than {most} lines"
            count = 0
        elif notebook.cells.index(cell) > 1:
            count += words(cell)
            assert count <= MAX_WORDS, f"{count} words of text up to {cell.id} without a code cell"


def a_folded_cell_says_what_it_does(path, notebook):
    for cell in code(notebook):
        assert folded(cell) == cell.source.startswith("# @title "), f"{cell.id}: a title, or folded, but not both"
        assert not (folded(cell) and (stub_of(cell.source) or re.search(r"\bpredict\(", cell.source))), cell.id


def a_guess_is_revealed_where_it_is_seen(path, notebook):
    for cell in (cell for cell in code(notebook) if ".reveal(" in cell.source):
        parsed = tree(cell.source)
        unseen = [
            node for node in ast.walk(parsed)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node is not parsed.body[-1]
            and isinstance(node.value.func, ast.Attribute) and node.value.func.attr == "reveal"
        ]  # fmt: skip
        assert not unseen, f"{cell.id}: only the last line of a cell shows what it returns"


def no_answer_stands_open_where_it_is_revealed(path, notebook):
    for cell in (cell for cell in code(notebook) if ".reveal(" in cell.source and not folded(cell)):
        nodes = list(ast.walk(tree(cell.source)))
        revealed = [node.args[0] for node in nodes if isinstance(node, ast.Call) and node.args
                    and isinstance(node.func, ast.Attribute) and node.func.attr == "reveal"]  # fmt: skip
        for result in revealed:
            values = [node.value for node in nodes if isinstance(node, ast.Assign) and isinstance(result, ast.Name)
                      and result.id in [getattr(target, "id", "") for target in node.targets]]  # fmt: skip
            written = [
                isinstance(value, ast.Constant) or is_chosen_elsewhere(value, nodes) for value in values or [result]
            ]
            assert not all(written), f"{cell.id}: fold it, or reveal what was computed, not {ast.unparse(result)}"
        shown = {value for result in revealed for value in values_in(result)}
        shown |= {value.partition("[")[0] for value in shown}  # what is said of a whole list tells its elements
        for claim in (part for node in nodes if isinstance(node, ast.Assert) for part in parts_of(node.test)):
            compared = [claim.left, *claim.comparators] if isinstance(claim, ast.Compare) else [claim, ast.Constant(1)]
            sides = [values_in(side) for side in compared]
            told = [side for side in sides if side and {*side} <= shown]
            assert not (told and [] in sides), f"{cell.id}: fold it, {ast.unparse(claim)} gives the answer away"


def is_chosen_elsewhere(value: ast.expr, nodes: list[ast.AST]) -> bool:
    """Return whether an expression chooses between two written values by what another cell has settled."""
    if not (isinstance(value, ast.IfExp) and isinstance(value.body, ast.Constant)):
        return False
    made = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    used = {node.id for node in ast.walk(value.test) if isinstance(node, ast.Name)}
    return not used & made


def parts_of(test: ast.expr) -> list[ast.expr]:
    """Return the parts of a condition that `and` or `or` joins."""
    return test.values if isinstance(test, ast.BoolOp) else [test]


def values_in(node: ast.AST) -> list[str]:
    """Return the names, attributes and elements that an expression is computed from; [] for a constant."""
    match node:
        case ast.Call(ast.Attribute(owner), args):
            return [value for part in (owner, *args) for value in values_in(part)]
        case ast.Call(_, args):
            return [value for part in args for value in values_in(part)]
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return [ast.unparse(node)]
    return [value for part in ast.iter_child_nodes(node) for value in values_in(part)]


def machinery_is_folded(path, notebook):
    for cell in (cell for cell in code(notebook)[1:] if not folded(cell) and cell.id not in ("imports", "program")):
        nodes = list(ast.walk(tree(cell.source)))
        imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        claims = [node for node in nodes if isinstance(node, ast.Assert)]
        assert len(imports) <= 1, f"{cell.id}: {len(imports)} imports stand open"
        assert len(claims) <= MAX_CLAIMS and all(one.lineno == one.end_lineno for one in claims), f"{cell.id}: claims"
        drawn = re.search(r"\brecorded\.compare\(|\bplots\.new\(|\.axes\[|_xticks\(", cell.source)
        assert not drawn, f"{cell.id} draws"


def the_spine_is_short_and_has_places_to_stop(path, notebook):
    most = MAX_EVENING_MINUTES if notebooks.number(path) == EVENING else MAX_SPINE_MINUTES
    assert spine_minutes(notebook) <= most, f"the spine takes {spine_minutes(notebook):.0f} minutes"
    stretch, began = 0.0, "the start"
    for cell, needed, left in zip(notebook.cells, minutes(notebook), deeper(notebook), strict=True):
        stretch += 0 if left else needed
        assert stretch <= MAX_STRETCH_MINUTES, f"{stretch:.0f} minutes from {began} to {cell.id} without a stop"
        if cell.cell_type == "markdown" and "A good place to stop." in cell.source:
            assert cell.id.startswith("recap-") and cell.source.endswith(notebooks.STOP), cell.id
            stretch, began = 0.0, cell.id


def a_scene_opens_the_lesson_and_its_end_resolves_it(path, notebook):
    ids = [cell.id for cell in notebook.cells]
    assert {"scene", "scene-end"} <= {*ids}, "no cells with the ids scene and scene-end"
    assert ids.index("scene") == ids.index("machine") + 1 and ids.index("scene-end") > len(ids) / 2


def the_questions_of_an_explorer_are_answered(path, notebook):
    cells = code(notebook)
    for place, cell in enumerate(cells):
        if re.search(r"\bexplore\(", cell.source):
            near = [
                one for one in cells[place + 1 : place + 4] if one.id.endswith("answers") and "assert" in one.source
            ]
            assert near, f"no cell with the id …-answers follows {cell.id}"


def concepts_are_drawn(path, notebook):
    shown = [name for cell in code(notebook) for name in re.findall(r'\bdrawings\.show\("([\w-]+)"\)', cell.source)]
    assert shown or path.stem == "00_start_here", "no drawing is shown"
    assert set(shown) <= set(drawings.names()), shown


def the_whole_program_stands_at_the_end(path, notebook):
    headings = [line for cell in notebook.cells for line in re.findall(r"^## .*", cell.source, re.MULTILINE)]
    assert path.stem == "00_start_here" or "## The whole program" in headings[-3:], headings[-3:]


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
    cells, own = notebook.cells, notebooks.number(path)
    checks = [c.source for c in code(notebook) if re.search(r"\blesson\d\db?\.\w+\.check\(", c.source)]
    stubs = [(place, stub_of(cell.source)) for place, cell in enumerate(cells) if cell.cell_type == "code"]
    stubs = [(place, stub) for place, stub in stubs if stub]
    for place, stub in stubs:
        text = cells[place - 1]
        assert text.cell_type == "markdown" and "minutes" in text.source, f"{stub.name}: no text with minutes before it"
        check = notebooks.CHECK.match(cells[place + 1].source)
        room = f"lesson{check['lesson'] if check and own == EVENING else own}"
        wanted = f"{stub.name} = {room}.{stub.name}.check({stub.name})"
        assert cells[place + 1].source == wanted, f"{stub.name}: the cell after it is not {wanted!r}"
    assert len(checks) == len(stubs), f"{len(checks)} checks, {len(stubs)} stubs"


def no_stored_output_is_an_error(path, notebook):
    assert not [o for cell in code(notebook) for o in cell.outputs if o.output_type == "error"]


def no_line_of_text_is_wider_than_a_page(path, notebook):
    """At 900 px in JupyterLab and at 1,280 px on the site a line of 92 columns fits; WIDE says what may be longer."""
    cells = {cell.id: cell for cell in code(notebook)}
    wide = {name for name, cell in cells.items() if any(len(line) > MAX_COLUMNS for line in printed(cell))}
    assert wide == WIDE.get(notebooks.number(path), {}).keys() & cells.keys(), wide


def printed(cell: NotebookNode) -> list[str]:
    """Return the stored lines that are shown as text: what was printed, and results that have no other form."""
    texts = [output.text for output in cell.outputs if output.output_type == "stream"]
    shown = [output.data for output in cell.outputs if output.output_type in ("execute_result", "display_data")]
    texts += [data["text/plain"] for data in shown if data.keys() == {"text/plain"}]
    return "\n".join(texts).splitlines()


def five_cells_show_or_assert_a_claim(path, notebook):
    shown = [
        cell for cell in code(notebook)
        if "assert " in cell.source
        or (cell.outputs and "nbval-ignore-output" not in tags(cell) and cell.id != "your-line")
    ]  # fmt: skip
    assert len(shown) >= MIN_SHOWN, f"{len(shown)} cells"


# A gate takes the path of a notebook and its contents, and asserts.
PYTHON = {*dir(builtins), *(name for kind in (list, dict, str, tuple, set, int, float) for name in dir(kind)), "torch"}
BROKEN = {one.name: ast.dump(ast.parse(source_of(one.given)).body[0]) for one in catalogue.registry() if one.given}
REFERENCES = {(exercise.lesson, exercise.name): exercise.reference for exercise in catalogue.registry()}
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
    numbers = [notebooks.number(path) for path in LESSONS]
    assert numbers == sorted(set(numbers)) and numbers[0] == "00"


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_begins_and_ends_with_links_to_its_neighbours(lesson):
    """A page that nobody needs for the next lesson, such as 08b, is passed by: its own links lead back to the way."""
    way = [path for path in LESSONS if path == lesson or notebooks.number(path).isdecimal()]
    place = way.index(lesson)
    wanted = [path.name for path in (*way[max(place - 1, 0) : place], *way[place + 1 : place + 2])]
    texts = [cell.source for cell in notebooks.read(lesson).cells if cell.cell_type == "markdown"]
    for text in (texts[0], texts[-1]):
        line = next((line for line in text.splitlines() if re.match(r"(Previous|Next): ", line)), "")
        assert re.findall(r"\((\d\db?_\w+\.ipynb)\)", line) == wanted, line


read = functools.cache(notebooks.read)  # no gate changes what it reads


@pytest.mark.parametrize("gate", GATES, **BY_NAME)
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_lesson(lesson, gate):
    gate(lesson, read(lesson))


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_the_title_states_the_minutes_that_a_newcomer_needs_and_the_exercises(lesson):
    notebook = notebooks.read(lesson)
    wanted = with_title(notebook, notebooks.number(lesson))
    assert notebook.cells[0].source == wanted, "python -m tools.notebooks --fix writes it"
    notebook.cells[0].source = notebooks.STATED.sub("1 minutes · 99 exercise", wanted)
    assert notebook.cells[0].source != wanted == with_title(notebook, notebooks.number(lesson))


def test_lesson_00_shows_progress_in_all_exercises_that_there_are():
    (first,) = (path for path in LESSONS if notebooks.number(path) == "00")
    (shown,) = next(cell.outputs for cell in read(first).cells if cell.id == "progress")
    assert f" 0 of {sum(map(len, catalogue.names().values()))} " in shown["data"]["text/plain"]


def needed_names(function: Callable) -> set[str]:
    """Return the attributes, functions and keywords of torch and Python that the source of `function` uses."""
    made, found = set(), set()
    for node in ast.walk(ast.parse(textwrap.dedent(source_of(function)))):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Name):
            made.add(node.id)
        elif isinstance(node, ast.arg | ast.FunctionDef | ast.ClassDef):
            made.add(getattr(node, "arg", "") or node.name)
    return {name for name in found - made if name not in PYTHON and not name.startswith("_")}


def not_shown(notebook: NotebookNode, lesson: str, earlier: set[str]) -> dict[str, set[str]]:
    """Return for each exercise the names that its reference needs and no cell above or `earlier` shows."""
    missing, seen = {}, set(earlier)
    for place, cell in enumerate(notebook.cells):
        seen |= set(re.findall(r"[A-Za-z_]\w*", cell.source))
        stub = stub_of(cell.source) if cell.cell_type == "code" else None
        check = stub and notebooks.CHECK.match("".join(after.source for after in notebook.cells[place + 1 : place + 2]))
        of = check["lesson"] if check else lesson
        if stub and (absent := needed_names(REFERENCES[of, stub.name]) - seen):
            missing[stub.name] = absent
    return missing


def test_a_name_is_shown_before_an_exercise_needs_it_and_one_that_no_cell_shows_is_found():
    earlier, missing = set(), {}
    for lesson in LESSONS:
        notebook = notebooks.read(lesson)
        number = notebooks.number(lesson)
        missing |= {f"{number} {name}": names for name, names in not_shown(notebook, number, earlier).items()}
        if number == EVENING:  # which no lesson presupposes
            continue
        for cell, left in zip(notebook.cells, deeper(notebook), strict=True):
            earlier |= set() if left else set(re.findall(r"[A-Za-z_]\w*", cell.source))
    assert missing == {}
    stub = 'def huber(a):\n    """Doc."""\n    raise NotImplementedError'
    assert not_shown(notebook_of([("torch", ""), (stub, "")]), "03", set())["huber"] >= {"where", "mean"}


def test_a_stub_may_be_a_class_whose_methods_all_raise():
    body = 'class A(nn.Module):\n    """Doc."""\n    def __init__(self):\n        raise NotImplementedError\n'
    assert stub_of(body).name == "A"
    assert stub_of(body + "    def forward(self, x):\n        return x") is None
    assert stub_of('class A:\n    """Doc."""') is None


def test_a_stub_may_be_the_broken_program_of_the_package_and_no_other():
    broken_ones = [one for one in catalogue.registry() if one.given is not None]
    assert len(broken_ones) >= 8
    for one in broken_ones:
        program = source_of(one.given)
        assert stub_of(f"# a comment\n{program}").name == one.name
        assert stub_of(source_of(one.reference)) is None and stub_of(program.replace("return", "return 1,")) is None
        assert 8 <= len(program.splitlines()) <= MAX_CELL_LINES


def source(name: str, text: str) -> Callable:
    """Return the change that gives the cell `name` the source `text`."""
    return lambda cells: cells[name].update(source=text)


def tagged(name: str, tag: str) -> Callable:
    """Return the change that tags the cell `name`."""
    return lambda cells: cells[name].metadata.update(tags=[tag])


EXERCISE = "## Exercise\n\nAdd one, about 1 line, {} minutes."
CHANGES = [  # a gate, and a change of the good sample that breaks this gate and no other
    (there_is_one_title_and_it_comes_first, source("exercise", EXERCISE.format(2)[1:])),
    (tags_are_from_the_closed_list, tagged("claim-one", "raises-exception")),
    (the_first_cells_and_the_last_are_the_same_everywhere, source("set-up", notebooks.SETUP + "\n# more")),
    (the_first_cells_and_the_last_are_the_same_everywhere, source("machine", "print(DEVICE)")),
    (the_first_cells_and_the_last_are_the_same_everywhere, source("your-line", "your_line.copy()")),
    (cells_and_texts_are_small, source("claim-one", "x = 0\n" * (MAX_CELL_LINES + 1) + "x")),
    (cells_and_texts_are_small, source("exercise", EXERCISE.format(2) + " word" * MAX_WORDS)),
    (a_folded_cell_says_what_it_does, source("picture", 'drawings.show("host-queue-device")')),
    (a_folded_cell_says_what_it_does, source("ring-answers", "# @title Answers\nassert ring\npredict('How many?')")),
    (a_guess_is_revealed_where_it_is_seen, source("claim-one", "guess.reveal(x)\nx = len('1')")),
    (no_answer_stands_open_where_it_is_revealed, source("claim-one", "guess.reveal('twice')")),
    (no_answer_stands_open_where_it_is_revealed, source("claim-one", "found = 'twice'\nguess.reveal(found)")),
    (no_answer_stands_open_where_it_is_revealed, source("claim-one", "guess.reveal('no' if DEVICE else 'yes')")),
    (no_answer_stands_open_where_it_is_revealed, source("claim-one", "assert x == 2\nguess.reveal(str(x), 'counted')")),
    (machinery_is_folded, source("claim-one", "import math\nimport torch")),
    (machinery_is_folded, source("claim-one", "assert 1\n" * (MAX_CLAIMS + 1))),
    (machinery_is_folded, source("claim-one", "recorded.compare('00.x', [1], [2])")),
    (the_spine_is_short_and_has_places_to_stop, source("exercise", EXERCISE.format(MAX_STRETCH_MINUTES))),
    (a_scene_opens_the_lesson_and_its_end_resolves_it, lambda cells: cells["scene-end"].update(id="an-end")),
    (the_questions_of_an_explorer_are_answered, lambda cells: cells["ring-answers"].update(id="ring-facts")),
    (concepts_are_drawn, source("picture", '# @title Draw\ndrawings.show("no-such-drawing")')),
    (the_whole_program_stands_at_the_end, source("whole-program", "## A program")),
    (nothing_escapes_to_a_shell, source("claim-one", "!nvidia-smi")),
    (nothing_uses_the_network, source("claim-one", "torchvision.datasets.MNIST('data', download=True)")),
    (no_port_is_fixed, source("claim-one", "os.environ['MASTER_PORT'] = '29500'")),
    (data_sets_used_with_workers_are_importable,
     source("claim-one", "class A(Dataset):\n    pass\n\n\na = A()\nDataLoader(a, num_workers=2)")),
    (nothing_is_timed_without_synchronising, source("claim-one", "import time\nstart = time.perf_counter()")),
    (no_except_is_bare, source("claim-one", "try:\n    x = 1\nexcept:\n    pass")),
    (every_exercise_is_a_triplet, source("add-check", "add_one(1)")),
    (no_stored_output_is_an_error,
     lambda cells: cells["claim-one"].update(outputs=[nbformat.v4.new_output("error", ename="E", evalue="")])),
    (no_line_of_text_is_wider_than_a_page,
     lambda cells: cells["claim-one"].update(outputs=[nbformat.v4.new_output("stream", text="=" * 93)])),
    (five_cells_show_or_assert_a_claim, tagged("claim-one", "nbval-ignore-output")),
]  # fmt: skip
ON_BYTES = {every_byte_is_canonical, ids_are_unique_words, the_stored_file_is_small}


def test_the_good_sample_passes_every_gate_and_each_gate_has_a_change_that_breaks_it():
    assert broken(GOOD) == set()
    assert {gate for gate, _ in CHANGES} | ON_BYTES == {*GATES} and len(GATES) >= 20


@pytest.mark.parametrize(("gate", "change"), CHANGES, **BY_NAME)
def test_a_change_breaks_its_gate_alone(gate, change, tmp_path):
    made = notebooks.read(GOOD)
    change({cell.id: cell for cell in made.cells})
    path = tmp_path / "01_sample.ipynb"
    notebooks.write(path, notebooks.canonical(made).replace("lesson00", "lesson01"))
    assert broken(path) == {gate.__name__}


@pytest.mark.filterwarnings("ignore:Non-unique cell id")
@pytest.mark.parametrize(("old", "new", "gates"), [
    ('"claim-one"', '"3f2a9c1b"', {every_byte_is_canonical, ids_are_unique_words}),
    ('"claim-one"', '"claim-two"', {every_byte_is_canonical, ids_are_unique_words}),
    ('"cells": [', '"cells":  [', {every_byte_is_canonical}),
])  # fmt: skip
def test_bytes_and_ids_are_read_as_they_are_stored(tmp_path, old, new, gates):
    path = tmp_path / "00_sample.ipynb"
    notebooks.write(path, GOOD.read_text(encoding="utf-8").replace(old, new))
    assert broken(path) == {gate.__name__ for gate in gates}


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
    users = [path.read_text(encoding="utf-8") for path in [*LESSONS, *sorted((ROOT / "tests").rglob("test_*.py"))]]
    assert users
    assert [p.name for p in programs if not any(p.name in text for text in users)] == []


def test_the_readme_and_the_course_map_repeat_what_the_title_cells_say():
    """The title cell is the one source of a lesson's minutes, and of its exercises, whose stubs are counted."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    course_map = next(cell.source for cell in notebooks.read(LESSONS[0]).cells if cell.id == "course-map")
    assert notebooks.with_minutes(readme) == readme and notebooks.with_minutes(course_map) == course_map
    wrong = re.sub(r"\|\d+", "|7", course_map)
    assert wrong != course_map and notebooks.with_minutes(wrong) == course_map
    for path in LESSONS:
        notebook = notebooks.read(path)
        stated = notebooks.STATED.search(notebook.cells[0].source)
        assert int(stated["exercises"]) == sum(stub_of(cell.source) is not None for cell in code(notebook)), path.name
        named = rf"^\| \[{notebooks.number(path)} .*{path.name}\)"
        row = f"{stated['spine']} | {stated['every'] or stated['spine']} | {stated['exercises']} |"
        assert re.search(rf"{named}.* [^…]+ \| {re.escape(row)}$", readme, re.MULTILINE), row
        assert path is LESSONS[0] or re.search(rf"{path.name}\)\**\|{stated['spine']}\|", course_map), path.name


def test_an_evening_has_sixty_cells_seven_exercises_of_lessons_and_a_first_step_after_half_an_hour():
    (path,) = (path for path in LESSONS if notebooks.number(path) == EVENING)
    evening = read(path)
    assert len(evening.cells) <= MAX_EVENING_CELLS
    solved = [check["lesson"] for check in (notebooks.CHECK.match(cell.source) for cell in code(evening)) if check]
    assert len(solved) == 7 and EVENING not in solved
    step = next(place for place, cell in enumerate(evening.cells) if "optimizer.step()" in cell.source)
    assert sum(minutes(evening)[: step + 1]) <= FIRST_STEP_MINUTES
