"""Slides of a lesson: `make slides` writes them to build/slides.

slides.toml in the lesson's room names the cells. There is one source, the notebook: of a text its heading and first
paragraph are shown, of a folded cell what it draws, of an open cell code and output (two outputs at most). Code is
shown without its assertions. Where a cell answers a prediction, the question stands on the slide, and the result on the
next one; so it does where code and result are long. A slide begins with a text. The pages need no network.
"""

import ast
import copy
import itertools
import math
import multiprocessing
import re
import shutil
import sys
import tomllib
from multiprocessing.process import BaseProcess
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tools import notebooks

__all__ = ["PROCESSES", "deck", "main", "marks", "started"]

ROOT = notebooks.ROOT
SOURCES, TARGET = ROOT / "build" / "slides-sources", ROOT / "build" / "slides"
ROOM = 2  # of a cell that draws seven pictures, the first with its text
# Forked where that is safe: what Sphinx, Matplotlib and torch take to be imported is then spent once.
PROCESSES = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
SCREEN = 720  # pixels of a slide
HEADINGS = {"scene": "A problem", "recap": "So far"}  # of cells that have none
CONF = """extensions, templates_path = ["myst_nb", "sphinx_revealjs"], ["templates"]
project, root_doc, nb_execution_mode = "Slides", "index", "off"
revealjs_style_theme, revealjs_static_path, revealjs_css_files = "white", ["static"], ["slides.css"]
nb_mime_priority_overrides = [("revealjs", "text/html", 0), ("revealjs", "image/png", 1), ("revealjs", "text/plain", 2)]
revealjs_script_plugins = [{"name": "RevealHighlight", "src": "revealjs/plugin/highlight/highlight.js"}]
revealjs_script_conf = {"hash": True, "slideNumber": True, "width": 1200, "height": 760}
"""

# The theme's page, whose text can be enlarged with two fingers, and is the page's main part by itself.
PAGE = """{%- extends "!page.html" %}
{%- block extrahead %}{% endblock %}
{%- block content %}<main>{{ super() | replace(' role="main"', "") }}</main>{% endblock %}
"""


def shown(cell: NotebookNode, first: bool) -> NotebookNode:
    """Return the cell as a slide shows it; the `first` of a slide has a heading of the second level."""
    cell = copy.deepcopy(cell)
    if cell.cell_type == "code":
        cell["outputs"] = cell.outputs[:ROOM]
        cell.metadata["tags"] = ["remove-input"] if notebooks.FOLDED in cell.metadata.get("tags", []) else []
        cell.source = _read_aloud(cell.source)
        return cell
    begin = re.search("^#+ ", cell.source, re.MULTILINE)  # a text may first say what the output above it shows
    heading, _, text = cell.source[begin.start() :].partition("\n") if begin else ("", "", cell.source)
    paragraphs = _to_a_room(text).split("\n\n")
    more = itertools.takewhile(lambda text: re.match(r"(-|\d\.) ", text), paragraphs[1:])
    heading = re.sub("^#+", "##", heading) or (f"## {HEADINGS[cell.id.rstrip('-0123456789')]}" if first else "")
    cell.source = "\n\n".join(filter(None, [heading, paragraphs[0], *more]))
    return cell


def _to_a_room(text: str) -> str:
    """Return a text without its advice on when to stop and how to go on, which is for somebody alone."""
    return text.removesuffix(notebooks.STOP).strip()


def _to_its_end(text: str) -> str:
    """Return a text without the last sentence, where a colon leads to what the slide does not show."""
    if not text.endswith(":"):
        return text
    kept = re.sub(r"(?<=[.?!]) [^.?!\n]*:\Z", "", text)
    return kept if kept != text else f"{text[:-1]}."


def _read_aloud(source: str) -> str:
    """Return the code of a cell without its assertions, and without the line that reveals a result."""
    if source.startswith("%"):
        return source
    lines = source.splitlines()
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.Assert) or _revealed(node):
            del lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(lines).strip()


def _revealed(node: ast.stmt) -> str:
    """Return the name of the guess that a statement reveals; "" where it reveals none."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "reveal"))):
            return name
    return ""


def _question(cell: NotebookNode, lesson: NotebookNode) -> str:
    """Return the prediction that a cell answers, with its choices; "" where it answers none."""
    if cell.cell_type != "code" or ".reveal(" not in cell.source:
        return ""
    (name,) = filter(None, map(_revealed, ast.parse(cell.source).body))
    asked = [before for before in lesson.cells[: lesson.cells.index(cell)] if f"{name} = predict(" in before.source]
    (text,) = (output.data["text/plain"] for output in asked[-1].outputs if "data" in output)
    return text.replace("Predict:", "**Predict:**")


def _slides(names: list[str], cells: dict[str, NotebookNode], lesson: NotebookNode) -> list[NotebookNode]:
    """Return the cells of a slide, or of several with the same heading where they do not fit on one screen.

    The result of a prediction always stands on a slide of its own.
    """
    made = [shown(cells[names[0]], True)]
    if len(names) == 1:
        made[0].source = _to_its_end(made[0].source)
    heading = nbformat.v4.new_markdown_cell(made[0].source.partition("\n")[0])
    room = SCREEN - _height(made[0])
    for name in names[1:]:
        question = _question(cells[name], lesson)
        for part in _parts(shown(cells[name], False), question):
            if _height(part) > room or (question and part.get("outputs")):
                made.append(copy.deepcopy(heading))
                room, question = SCREEN - _height(heading), ""
            made.append(part)
            room -= _height(part)
    return made


def _parts(cell: NotebookNode, question: str) -> list[NotebookNode]:
    """Return a cell as its code, the question that it answers, and each of its outputs."""
    if cell.cell_type != "code":
        return [cell]
    code = [] if "remove-input" in cell.metadata["tags"] else [copy.deepcopy(cell)]
    for part in code:
        part["outputs"] = []
    outputs = []
    for output in cell.outputs:
        part = copy.deepcopy(cell)
        part["outputs"], part.metadata["tags"] = [output], ["remove-input"]
        outputs.append(part)
    return [*code, *([nbformat.v4.new_markdown_cell(question)] if question else []), *outputs]


def _height(cell: NotebookNode) -> int:
    """Return about how many pixels a part of a slide takes."""
    if cell.cell_type == "markdown":
        lines = cell.source.splitlines()
        heading = 90 if lines and lines[0].startswith("#") else 0
        return heading + sum(37 * math.ceil(len(line) / 85) for line in lines if line and not line.startswith("#")) + 20
    if not cell.outputs:
        return 24 * len(cell.source.splitlines()) + 30
    (output,) = cell.outputs
    data = output.get("data", {})
    page = data.get("text/html", "")
    if "image/png" in data or "<img" in page:
        return 380
    return 30 + 24 * (page.count("<tr") or len(output.get("text", data.get("text/plain", "")).splitlines()))


def marks() -> dict[str, list[list[str]]]:
    """Return the slides of each lesson that has some, by its number: for each slide the ids of its cells."""
    files = {path: ROOT / f"gpu_course/lesson{notebooks.number(path)}/slides.toml" for path in notebooks.lessons()}
    texts = {path: file.read_text(encoding="utf-8") for path, file in files.items() if file.is_file()}
    return {notebooks.number(path): tomllib.loads(text)["slides"] for path, text in texts.items()}


def deck(path: Path, slides: list[list[str]]) -> NotebookNode:
    """Return the notebook of a deck: for each slide the cells that are named; KeyError for one that is missing."""
    lesson = notebooks.read(path)
    cells = {cell.id: cell for cell in lesson.cells}
    said = [slide for slide in slides if _to_a_room(cells[slide[0]].source)]
    chosen = [cell for slide in said for cell in _slides(slide, cells, lesson)]
    title = "\n\n".join(lesson.cells[0].source.split("\n\n")[:2])
    for number, cell in enumerate(chosen):
        cell["id"] = f"slide-{number}"  # a cell may stand on several
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(title), *chosen])
    made.metadata["kernelspec"] = dict(notebooks.KERNELSPEC)
    return made


def _run_sphinx(arguments: list[str]) -> None:
    """Run Sphinx with `arguments`, and end this process with its exit status."""
    from sphinx.cmd import build

    sys.exit(build.main(arguments))


def sphinx(*arguments: str | Path) -> BaseProcess:
    """Return a process in which Sphinx runs with `arguments`; its `exitcode` is Sphinx's."""
    process = PROCESSES.Process(target=_run_sphinx, args=(["--quiet", *map(str, arguments)],))
    process.start()
    return process


def started(target: Path, home: str = "") -> BaseProcess:
    """Return a process that builds the slides of all lessons that have some.

    The index leads to each deck and, where there is one, back to `home`; the first slide of a deck leads to the index.
    """
    chosen = marks()
    shutil.rmtree(SOURCES, ignore_errors=True)
    SOURCES.mkdir(parents=True)
    names = []
    for path in notebooks.lessons():
        if (number := notebooks.number(path)) in chosen:
            names.append(path.stem)
            made = deck(path, chosen[number])
            made.cells[0].source += "\n\n[All slides](index.md)"
            nbformat.write(made, SOURCES / path.name)
    listed = "\n".join(names)
    back = f'<p><a href="{home}">Back to the course</a></p>\n' if home else ""
    notebooks.write(SOURCES / "index.md", f"# Slides\n\n```{{toctree}}\n:titlesonly:\n\n{listed}\n```\n\n{back}")
    notebooks.write(SOURCES / "conf.py", CONF)
    (SOURCES / "templates").mkdir()
    notebooks.write(SOURCES / "templates" / "page.html", PAGE)
    shutil.copytree(ROOT / "docs" / "static", SOURCES / "static")
    return sphinx("-b", "revealjs", SOURCES, target)


def main(target: Path = TARGET) -> int:
    """Build the slides; return the exit status."""
    building = started(target)
    building.join()
    return building.exitcode or 0


if __name__ == "__main__":
    sys.exit(main())
