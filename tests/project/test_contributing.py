"""Can a contributor do what the guides say: does the code that they show work, and is each command there, and tried?"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from course_utils import devices
from gpu_course.checks import Exercise, WrongAnswer, alike, engine
from tools import notebooks

SAMPLE = notebooks.ROOT / "tests" / "samples" / "clip.py"
PAGES = [notebooks.ROOT / "CONTRIBUTING.md", *sorted((notebooks.ROOT / "docs" / "contributing").glob("*.md"))]
TEXT = (notebooks.ROOT / "docs" / "contributing" / "exercises.md").read_text(encoding="utf-8")


def load(path: Path) -> Exercise:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(importlib.sys.modules, path.stem, module)
        spec.loader.exec_module(module)
    return next(found for found in vars(module).values() if isinstance(found, Exercise))


def test_the_exercise_of_the_text_and_one_written_from_it_name_their_mistakes(tmp_path):
    for name, language in (("double.py", "python"), ("double.diff", "diff")):
        (shown,) = re.findall(rf"```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
        (tmp_path / name).write_text(shown, encoding="utf-8")
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "double.py").write_text(IMPORTS + in_docstring(), encoding="utf-8")
    place = devices.check_devices()[-1]
    for path, count in ((tmp_path / "double.py", 2), (SAMPLE, 3), (tmp_path / "engine" / "double.py", 0)):
        exercise = load(path)
        rights = [answer for _, answer in exercise.stored("right")]
        for right in (exercise.reference, *(one.answer for one in exercise.alternatives), *rights):
            exercise.examine(right, devices.check_devices())
        seen = {mistake.name: exercise.recording(mistake, place) for mistake in exercise.mistakes}
        assert len(seen) == count
        wrong = [(mistake.name, mistake.answer) for mistake in exercise.mistakes]
        for phrase, answer in [*wrong, *((row.name, answer) for row, answer in exercise.stored("wrong"))]:
            with pytest.raises(WrongAnswer, match=re.escape(phrase)):
                exercise.examine(answer, [place])
        for name, notes in seen.items():
            assert [other for other, others in seen.items() if alike(notes, others)] == [name]


IMPORTS = "import torch\n\nfrom gpu_course.checks import Case, exercise\n\n"


def in_docstring() -> str:
    """Return the code with which the engine of checks explains itself."""
    lines = engine.__doc__.splitlines()
    shown = [line[4:] for line in lines if line.startswith("    ") or not line]
    return "\n".join(shown)


def commands() -> list[tuple[str, str]]:
    """Return the commands that the guides show, each with the name of its page; words in capitals stand for others."""
    found = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        spans = re.findall(r"`((?:python|make|pytest|pyright|cd|pip) ?[^`]*)`", text)
        found += [(page.name, " ".join(span.split())) for span in spans]
    return [(page, command) for page, command in found if command != "python -m benchmarks.NAME"]


def started(command: str) -> Path | None:
    """Return the file that a command gives to Python, or None where it starts another program."""
    module = re.match(r"python (?:-m ([\w.]+)|(tools/\w+\.py))", command)
    path = module and (module[2] or module[1].replace(".", "/") + ".py")
    return notebooks.ROOT / path if path else None


def test_each_command_that_the_guides_show_is_there_with_its_options():
    shown = commands()
    assert len(shown) > 40
    makefile = (notebooks.ROOT / "Makefile").read_text(encoding="utf-8")
    for page, command in shown:
        words = command.split()
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), f"{page}: {command}"
        elif (path := started(command)) is not None:
            assert path.is_file(), f"{page}: {command}"
            text = path.read_text(encoding="utf-8")
            options = [word for word in words if word.startswith("--")]
            missing = [option for option in options if option not in text and f'"{option[2:]}"' not in text]
            assert missing == [], f"{page}: {command}"
        elif words[0] == "cd":
            assert (notebooks.ROOT / words[1]).is_dir(), f"{page}: {command}"


UNTRIED = {  # commands that no test runs, and why
    "benchmarks/cluster.py": "it stores what it measures",
    "benchmarks/memory.py": "it forecasts 143 programs, which takes minutes",
    "tests/notebooks/on_face.py": "it takes a minute for each lesson; test_cuda_branches.py looks at what it reads",
    "tools/wheels.py": "it needs the network; test_repository.py tries its checks, the workflow of releases all of it",
}


def test_each_command_that_python_runs_is_run_by_a_test():
    tests = "".join(path.read_text(encoding="utf-8") for path in (notebooks.ROOT / "tests").rglob("test_*.py"))
    files = {path for _, command in commands() if (path := started(command))}
    names = {path.relative_to(notebooks.ROOT).as_posix() for path in files}
    assert len(names) > 12 and set(UNTRIED) <= names
    untried = set()
    for name in names:
        module = name.removesuffix(".py").replace("/", ".")
        package, _, last = module.rpartition(".")
        alias = re.findall(rf"from {package} import (?:.*, )?{last} as (\w+)", tests) or [last]
        imported = re.search(rf"from {package} import .*\b{last}\b", tests) and f"{alias[0]}.main(" in tests
        if not imported and not re.search(rf'"-m", "{module}"|"{module}"', tests):
            untried.add(name)
    assert untried == set(UNTRIED)


def test_a_lesson_is_read_as_the_guide_says():
    command = [sys.executable, "-m", "tests.notebooks.plain", "notebooks/13_your_own_program.ipynb"]
    done = subprocess.run(command, cwd=notebooks.ROOT, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_room_and_engine_stands_on_the_page():
    page = (notebooks.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    places = [*(notebooks.ROOT / "course_utils").iterdir(), *(notebooks.ROOT / "engines").iterdir()]
    rooms = {path.stem for path in places if path.suffix == ".py" or path.is_dir()}
    shared = {"arguments", "tables", "precision"}  # what rooms share and no lesson calls
    assert rooms - {"__init__", "__pycache__"} - shared <= set(re.findall(r"`([\w]+)`", page))
    assert len(page.splitlines()) <= 90


LINK = re.compile(r"\]\(<?(?!https?:|mailto:)([^)\s>…]+)>?\)|(?:href|src)=\"(?!https?:|data:)([^\"]+)\"")
ON_THE_SITE = {"../slides/index.html"}  # what the site makes, and no folder has
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def written(path: Path) -> str:
    """Return the text of a page: of a notebook, that of its cells of text; without blocks of code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = nbformat.reads(text, as_version=4).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return FENCED.sub("", text)


def anchors(path: Path) -> set[str]:
    """Return what `#…` may name in a page: its headings, as GitHub, Sphinx or Jupyter write them."""
    headings = re.findall(r"^#+ (.+)$", written(path), re.MULTILINE)
    if path.suffix == ".ipynb":
        return {heading.replace(" ", "-") for heading in headings}
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def dead(path: Path) -> list[str]:
    """Return the links of a page that name no file, or no heading of it."""
    lost = []
    for links in LINK.findall(written(path)):
        (link,) = filter(None, links)
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if link not in ON_THE_SITE and not (target.exists() and (not anchor or anchor in anchors(target))):
            lost.append(link)
    return lost


def test_each_link_between_pages_and_lessons_leads_to_a_file_and_to_a_heading(tmp_path):
    folders = [notebooks.ROOT.glob("*.md"), (notebooks.ROOT / "docs").rglob("*.md")]
    folders += [(notebooks.ROOT / "engines").glob("*/*.md"), notebooks.lessons()]
    pages = [page for folder in folders for page in folder]
    assert sum(len(LINK.findall(written(page))) for page in pages) > 100
    assert {page.name: lost for page in pages if (lost := dead(page))} == {}
    planted = tmp_path / "page.md"
    planted.write_text('# One `name`, two\n[a](page.md#one-name-two) [b](gone.md) [c](#three) <img src="no.svg">\n')
    assert dead(planted) == ["gone.md", "#three", "no.svg"]
