"""Pages of the site and their sources: `make site` writes it to build/site.

README, CONTRIBUTING and the stored notebooks are pages as they are; the rest stands in docs/ or is made here from the
lessons and the package: the examination, the glossary, the misconceptions, the reference, the table of GPUs, the error
of the simulated clock, and explorers that need no kernel, since their pictures are drawn beforehand. No notebook is
executed.
"""

import argparse
import concurrent.futures
import functools
import html
import itertools
import json
import operator
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nbformat

from gpu_course import catalogue
from tools import address, examination, glossary, misconceptions, plans, slides
from tools import notebooks as lessons

__all__ = ["EXPLORED", "explorer_page", "grid_of", "pages"]

ROOT = lessons.ROOT
SITE, SOURCES = ROOT / "build" / "site", ROOT / "build" / "site-sources"

# A place, and what stands there once `make pdf` has printed the site.
PDF_PLACE = '<p id="course-pdf"></p>'
PDF_LINK = '<p id="course-pdf"><a href="course.pdf">The course as one PDF, to print or to read offline</a></p>'
# Below the title of each lesson.
NO_KERNEL = """

```{note}
Nothing runs on this page: it shows what the cells gave on our machine. To run them and to write answers, [get the course](../index.md). You need no GPU.
```"""  # noqa: E501

GUESS = "Guess first, then open the result"
START = '<p><a class="start" href="notebooks/00_start_here.html">Start with lesson 00</a></p>'

# Explorers that answer on the site: the values of their controls over which pictures are drawn; the others keep theirs.
EXPLORED: dict[str, dict[str, tuple[Any, ...]]] = {
    "roofline": {
        "rows": (1, 64, 4096), "size": (1024, 4096), "machine": ("T4", "RTX 4090", "H100 SXM"),
        "layer": ("linear", "convolution", "attention, fused", "element-wise sum"),
    },
    "will_it_fit": {
        "model": ("GPT-2 XL", "Cerebras-GPT 6.7B", "GPT-3 175B"), "batch": (1, 8), "fmt": ("fp32", "bf16 autocast"),
        "gpus": (1, 64), "stage": (0, 3), "checkpointing": (False, True),
    },
    "ring": {"ranks": (2, 4, 8), "step": tuple(range(1, 15)), "nbytes": (2**10, 2**28)},
    "pipeline": {
        "schedule": ("GPipe", "1F1B", "interleaved, 2 stages a rank", "zero bubble (ZB-H1)"), "ranks": (2, 4, 8),
        "micro": (1, 4, 8, 32),
    },
}  # fmt: skip

# What a picture shows of an explorer's result, where it is not all of it: the rest stands in the caption.
DRAWN: dict[str, Callable[[Any], Any]] = {"will_it_fit": operator.attrgetter("moments")}


@functools.cache
def explorer_of(name: str) -> Any:
    """Return the explorer `name` with its defaults."""
    return catalogue.explorer(name).explore()


def chosen(name: str, place: tuple[int, ...]) -> dict[str, Any]:
    """Return the values of the controls at `place` in the grid of the explorer `name`."""
    return {key: values[at] for (key, values), at in zip(EXPLORED[name].items(), place, strict=True)}


def file_at(place: tuple[int, ...]) -> str:
    """Return the name of the file with the picture at `place`."""
    return f"{'-'.join(map(str, place))}.png"


def draw(name: str, place: tuple[int, ...], folder: Path) -> None:
    """Draw the explorer `name` at `place` in its grid to its file in `folder`."""
    from course_utils import plots

    (folder / file_at(place)).write_bytes(plots.png(explorer_of(name).figure(**chosen(name, place))))


def shown(name: str) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return for each place of the grid the one that is shown: what is not offered there becomes the last that is."""
    found, grid, places = explorer_of(name), EXPLORED[name], {}
    for place in itertools.product(*(range(len(values)) for values in grid.values())):
        offered = found.offered({**found.defaults, **chosen(name, place)})
        places[place] = tuple(
            min(at, offered.get(key, len(grid[key])) - 1) for key, at in zip(grid, place, strict=True)
        )
    return places


def drawn(name: str) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return for each place that is shown the first one with the same picture, which is drawn once."""
    found, part, first = explorer_of(name), DRAWN.get(name), {}
    shows = {place: part(found.compute(**chosen(name, place))) if part else place for place in shown(name).values()}
    return {place: first.setdefault(seen, place) for place, seen in shows.items()}


def grid_of(name: str) -> dict[str, Any]:
    """Return what the page of the explorer `name` shows: its controls, and file and caption at each place."""
    from gpu_course.explorers import Slider

    found, grid, places, pictured = explorer_of(name), EXPLORED[name], shown(name), drawn(name)
    controls = []
    for control in (control for key in grid for control in found.controls if control.name == key):
        values = grid[control.name]
        controls.append({
            "label": control.label, "values": [control.text(value) for value in values],
            "first": values.index(control.default), "ordered": isinstance(control, Slider),
        })  # fmt: skip
    captions = {place: found.caption(**chosen(name, place)) for place in dict.fromkeys(places.values())}
    pictures = {
        "-".join(map(str, asked)): {"file": file_at(pictured[place]), "text": captions[place]}
        for asked, place in places.items()
    }  # fmt: skip
    return {"folder": f"../_static/explorers/{name}", "controls": controls, "pictures": pictures}


def explorer_page(name: str, data: dict[str, Any]) -> str:
    """Return the page of an explorer: its question, controls, picture and caption."""
    found = explorer_of(name)
    question = (catalogue.explorer(name).__doc__ or "").strip().splitlines()[0]
    first = data["pictures"]["-".join(str(control["first"]) for control in data["controls"])]
    stored = json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
    return (
        f"# {found.title[0].upper()}{found.title[1:]}\n\n{question} Move a control. A notebook has more of them.\n\n"
        f'<div class="explorer"><div class="controls"></div><div class="picture">'
        f'<img src="{data["folder"]}/{first["file"]}" alt="{html.escape(first["text"])}"></div>'
        f'<p aria-live="polite">{html.escape(first["text"])}</p>'
        f'<script type="application/json">{stored}</script></div>\n'
    )


def with_alternatives(path: Path) -> str:
    """Return the notebook at `path` with an alternative text of each picture, and labels where terms are explained.

    Below its title stands that nothing runs here. The result of a prediction opens at a click.
    """
    notebook, heading = nbformat.read(path, as_version=4), path.stem
    for cell in notebook.cells:
        if cell.get("id") == "title":
            cell.source += NO_KERNEL
        if cell.cell_type == "markdown":
            cell.source = with_anchors(cell.source)
            cell.source = glossary.with_targets(cell.source, lessons.number(path))
        heading = ([heading] + re.findall(r"^#+ (.*)", cell.source, re.MULTILINE) * (cell.cell_type == "markdown"))[-1]
        title = re.match(r"# @title (.*)", cell.source)
        if cell.cell_type == "code":
            text = f"{title[1] if title else heading}: the picture that the cell above draws"
            cell.metadata["mystnb"] = {"image": {"alt": text}}
            if ".reveal(" in cell.source:
                cell.metadata["tags"] = [*cell.metadata.get("tags", []), "hide-output"]
                cell.metadata["mystnb"] |= {"code_prompt_show": GUESS, "code_prompt_hide": "Hide the result"}
    return nbformat.writes(notebook)


def reference() -> str:
    """Return the reference: each room of the package with what it exports, from the docstrings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (
        one for one in project["tool"]["importlinter"]["contracts"] if one.get("containers") == ["course_utils"]
    )
    layers = contract["layers"]
    rooms = [room.strip() for layer in layers for room in layer.split("|")]
    rooms = [room for room in rooms if room not in ("arguments", "tables", "precision")]
    parts = [
        f"## {room}\n\n```{{eval-rst}}\n.. automodule:: course_utils.{room}\n   :members:\n```\n" for room in rooms
    ]
    return "# Reference\n\nWhat lessons may import, from the docstrings of `course_utils`.\n\n" + "\n".join(parts)


def with_anchors(text: str) -> str:
    """Return `text` with its links to sections of notebooks as the site names these: in small letters."""
    return re.sub(r"(?<=\.ipynb#)[^)]+", lambda found: re.sub(r"[^\w-]", "", unquote(found[0]).lower()), text)


def unaddressed() -> list[str]:
    """Return the notebooks whose badges or set-up cells lack the repository's address."""
    wanted = address.REPOSITORY.removeprefix("https://github.com/")
    found = {path.name: path.read_text(encoding="utf-8") for path in lessons.lessons()}
    return [name for name, text in found.items() if not wanted or text.count(wanted) < 3]  # two badges, an install


def outside(text: str, beginning: str) -> str:
    """Return `text` with its links that begin so leading to the repository, or gone where there is no address."""
    target = rf"\]\(({beginning}[^)]*)\)"
    if address.REPOSITORY:
        return re.sub(target, rf"]({address.REPOSITORY}/blob/main/\1)", text)
    return re.sub(rf"\[([^\[\]]*){target}", r"\1", text)


def pages(folder: Path) -> None:
    """Write the sources of all pages to `folder`."""
    import simgpu
    from course_utils import gpus

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    readme = with_anchors(outside(outside(readme, "LICENSE"), "engines/").replace("](docs/", "]("))
    explored = [f"explorers/{name}" for name in EXPLORED]
    books = [f"notebooks/{path.stem}" for path in lessons.lessons()]
    others = [
        path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts
    ]
    others.sort(key=lambda path: (path.parent, path.stem != "index", path.stem))
    guides = [str(path.with_suffix("").as_posix()) for path in others]
    tree = {
        "Lessons": books, "Examination": ["examination", "examination_answers"], "Explorers": explored,
        "For instructors": [
            *(name for name in guides if name.startswith("instructors/")),
            *(f"instructors/{plan.name}" for plan in plans.plans()),
        ],
        "Reference": ["glossary", "misconceptions", *(name for name in guides if "/" not in name), "gpus", "reference"],
        "For contributors": ["CONTRIBUTING", *(name for name in guides if name.startswith("contributing/"))],
    }  # fmt: skip
    readme = re.sub(r"(\A# .*\n\n(?:.+\n)+)", lambda first: f"{first[0]}\n{START}\n", readme)
    readme += f'\n{PDF_PLACE}\n\n<p><a href="slides/index.html">Slides of each lesson</a></p>\n'
    for caption, names in tree.items():
        readme += "\n```{toctree}\n:hidden:\n:caption: " + caption + "\n\n" + "\n".join(names) + "\n```\n"
    write = lessons.write
    write(folder / "index.md", readme)
    plan = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    plan = outside(plan, "docs/decisions/").replace("](docs/", "](")
    write(folder / "CONTRIBUTING.md", plan)
    for path in (ROOT / "docs").glob("*.*"):  # pictures, and the card to print
        if path.suffix in (".png", ".svg", ".pdf"):
            shutil.copy(path, folder)
    (folder / "notebooks").mkdir()
    for path in lessons.lessons():  # what lies in docs/ lies at the top of the site
        write(folder / "notebooks" / path.name, with_alternatives(path).replace("](../docs/", "](../"))
    bar = simgpu.error_bar()
    shown = {"error_bar": bar, "host_figures": bar.of_hosts, "call_figures": bar.of_calls}
    shown |= {"set_aside": bar.set_aside, "memory_figures": bar.of_memory}
    figures = {f"{{{{{name}}}}}": table.html() for name, table in shown.items()}
    for name in others:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        for mark, figure in figures.items():
            text = text.replace(mark, figure)
        write(folder / name, text)
    table = gpus.table()
    write(
        folder / "gpus.md",
        f"# GPUs\n\nWhat makers promise. `course_utils.gpus` has the source of each number.\n\n{table}\n",
    )
    write(folder / "examination.md", examination.paper())
    write(folder / "examination_answers.md", examination.answers())
    write(folder / "glossary.md", glossary.page())
    write(folder / "misconceptions.md", misconceptions.page())
    for plan in plans.plans():
        write(folder / "instructors" / f"{plan.name}.md", plans.page(plan))
    write(folder / "reference.md", reference())


def built(target: Path) -> int:
    """Make pages, slides and pictures of explorers in `target`, all at the same time; return the exit status."""
    import myst_nb.sphinx_ext  # noqa: F401  once, for both processes of Sphinx
    import torch

    torch.set_num_threads(1)  # a process with threads of its own cannot be forked
    folders = {name: target / "_static" / "explorers" / name for name in EXPLORED}
    shutil.rmtree(target / "_static" / "explorers", ignore_errors=True)
    building = [
        slides.sphinx("--fail-on-warning", "--keep-going", "-j", "2", "-b", "html", SOURCES, target),
        slides.started(target / "slides", home="../index.html"),
    ]
    with concurrent.futures.ProcessPoolExecutor(2, slides.PROCESSES) as pool:
        drawing = []
        for name, folder in folders.items():
            folder.mkdir(parents=True)
            drawing += [pool.submit(draw, name, place, folder) for place in dict.fromkeys(drawn(name).values())]
        for picture in drawing:
            picture.result()
    for process in building:
        process.join()
    return next((process.exitcode for process in building if process.exitcode), 0)


def main() -> int:
    """Build the site; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=SITE, help="folder of the site")
    parser.add_argument("--published", action="store_true", help="fail where the repository's address is missing")
    options = parser.parse_args()
    target = options.to
    if options.published and (missing := unaddressed()):
        print(f"No address: {', '.join(missing)}. make address URL=https://github.com/…", file=sys.stderr)
        return 1
    shutil.rmtree(SOURCES, ignore_errors=True)
    SOURCES.mkdir(parents=True)
    pages(SOURCES)
    (SOURCES / "explorers").mkdir()
    for name in EXPLORED:
        lessons.write(SOURCES / "explorers" / f"{name}.md", explorer_page(name, grid_of(name)))
    shutil.copytree(ROOT / "docs" / "static", SOURCES / "static")
    shutil.copy(ROOT / "docs" / "conf.py", SOURCES)
    status = built(target)
    if not status:
        print(f"The site is there: {(target / 'index.html').as_uri()}")
    return status


if __name__ == "__main__":
    sys.exit(main())
