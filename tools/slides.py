"""How does a lesson become slides?  `make slides` writes them to build/slides.

slides.toml in the lesson's room names the cells. There is one source, the notebook: of a text its heading and first
paragraph are shown, of a folded cell what it draws, of an open cell code and output (two outputs at most). A slide
begins with a text. The pages need no network.
"""

import copy
import itertools
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
HEADINGS = {"scene": "A problem", "recap": "So far"}  # of cells that have none
CONF = """extensions, templates_path = ["myst_nb", "sphinx_revealjs"], ["templates"]
project, root_doc, nb_execution_mode = "Slides", "index", "off"
revealjs_style_theme, revealjs_static_path, revealjs_css_files = "white", ["static"], ["slides.css"]
nb_mime_priority_overrides = [("revealjs", "text/html", 0), ("revealjs", "image/png", 1), ("revealjs", "text/plain", 2)]
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
        return cell
    begin = re.search("^#+ ", cell.source, re.MULTILINE)  # a text may first say what the output above it shows
    heading, _, text = cell.source[begin.start() :].partition("\n") if begin else ("", "", cell.source)
    paragraphs = text.strip().split("\n\n")
    more = itertools.takewhile(lambda text: re.match(r"(-|\d\.) ", text), paragraphs[1:])
    heading = re.sub("^#+", "##", heading) or (f"## {HEADINGS[cell.id.rstrip('-0123456789')]}" if first else "")
    cell.source = "\n\n".join(filter(None, [heading, paragraphs[0], *more]))
    return cell


def marks() -> dict[str, list[list[str]]]:
    """Return the slides of each lesson that has some, by its number: for each slide the ids of its cells."""
    files = {
        path: ROOT / "gpu_course" / f"lesson{notebooks.number(path)}" / "slides.toml" for path in notebooks.lessons()
    }
    texts = {path: file.read_text(encoding="utf-8") for path, file in files.items() if file.is_file()}
    return {notebooks.number(path): tomllib.loads(text)["slides"] for path, text in texts.items()}


def deck(path: Path, slides: list[list[str]]) -> NotebookNode:
    """Return the notebook of a deck: for each slide the cells that are named; KeyError for one that is missing."""
    lesson = notebooks.read(path)
    cells = {cell.id: cell for cell in lesson.cells}
    chosen = [shown(cells[name], name == slide[0]) for slide in slides for name in slide]
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
