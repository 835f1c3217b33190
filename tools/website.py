"""Which pages does the site have, and where do they come from?  `make site` writes it to build/site.

README, CONTRIBUTING and the stored notebooks are pages as they are; the rest stands in docs/ or is made here from the
lessons and the package: the glossary, the misconceptions, the reference, the table of GPUs, the error of the simulated
clock, and explorers that need no kernel, since their pictures are drawn beforehand. No notebook is executed.
"""

import argparse
import concurrent.futures
import functools
import html
import itertools
import json
import multiprocessing
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat

from gpu_course import catalogue
from tools import glossary, misconceptions, slides, tutors
from tools import notebooks as lessons

__all__ = ["EXPLORED", "explorer_page", "grid_of", "pages"]

ROOT = lessons.ROOT
SITE, SOURCES = ROOT / "build" / "site", ROOT / "build" / "site-sources"

# Explorers that answer on the site: the values of their controls over which pictures are drawn; the others keep theirs.
EXPLORED: dict[str, dict[str, tuple[Any, ...]]] = {
    "roofline": {
        "rows": (1, 64, 4096), "size": (256, 1024, 4096), "machine": ("T4", "RTX 4090", "H100 SXM"),
        "layer": ("linear", "convolution", "attention, fused", "element-wise sum"),
    },
    "will_it_fit": {
        "model": ("GPT-2", "GPT-2 XL", "Cerebras-GPT 6.7B", "GPT-3 175B"), "batch": (1, 8),
        "fmt": ("fp32", "bf16 autocast"), "gpus": (1, 8, 64), "stage": (0, 3), "checkpointing": (False, True),
    },
    "ring": {"ranks": (2, 4, 8), "step": tuple(range(1, 15)), "nbytes": (2**10, 2**28), "latency_us": (1.0, 10.0)},
    "pipeline": {
        "schedule": ("GPipe", "1F1B", "interleaved, 2 stages a rank", "zero bubble (ZB-H1)"), "ranks": (2, 4, 8),
        "micro": (1, 2, 4, 8, 32),
    },
}  # fmt: skip


@functools.cache
def explorer_of(name: str) -> Any:
    """Return the explorer `name` with its defaults."""
    return catalogue.explorer(name).explore()


def drawn(name: str, place: tuple[int, ...], folder: Path) -> dict[str, str]:
    """Draw the explorer `name` at `place` in its grid to a file in `folder`; return the file's name and the caption."""
    from course_utils import plots

    values = {key: grid[at] for (key, grid), at in zip(EXPLORED[name].items(), place, strict=True)}
    path = folder / f"{'-'.join(map(str, place))}.png"
    path.write_bytes(plots.png(explorer_of(name).figure(**values)))
    return {"file": path.name, "text": explorer_of(name).caption(**values)}


def grid_of(name: str, pool: concurrent.futures.Executor, folder: Path) -> dict[str, Any]:
    """Return what the page of the explorer `name` shows. Settings that it does not offer show the last that it does."""
    from gpu_course.explorers import Slider

    found, grid = explorer_of(name), EXPLORED[name]
    shown: dict[str, tuple[int, ...]] = {}
    for place in itertools.product(*(range(len(values)) for values in grid.values())):
        chosen = {key: values[at] for (key, values), at in zip(grid.items(), place, strict=True)}
        offered = found.offered({**found.defaults, **chosen})
        shown["-".join(map(str, place))] = tuple(
            min(at, offered.get(key, len(grid[key])) - 1) for key, at in zip(grid, place, strict=True)
        )
    folder.mkdir(parents=True)
    tasks = {place: pool.submit(drawn, name, place, folder) for place in dict.fromkeys(shown.values())}
    controls = []
    for control in (control for key in grid for control in found.controls if control.name == key):
        values = grid[control.name]
        controls.append({
            "label": control.label, "values": [control.text(value) for value in values],
            "first": values.index(control.default), "ordered": isinstance(control, Slider),
        })  # fmt: skip
    pictures = {key: tasks[place].result() for key, place in shown.items()}
    return {"folder": f"../_static/explorers/{name}", "controls": controls, "pictures": pictures}


def explorer_page(name: str, data: dict[str, Any]) -> str:
    """Return the page of an explorer: its question, controls, picture and caption."""
    found = explorer_of(name)
    question = (catalogue.explorer(name).__doc__ or "").strip().splitlines()[0]
    first = data["pictures"]["-".join(str(control["first"]) for control in data["controls"])]
    stored = json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
    return (
        f"# {found.title[0].upper()}{found.title[1:]}\n\n{question} Move a control. A notebook has more of them.\n\n"
        f'<div class="explorer"><div class="controls"></div><img src="{data["folder"]}/{first["file"]}" '
        f'alt="{html.escape(first["text"])}"><p aria-live="polite">{html.escape(first["text"])}</p>'
        f'<script type="application/json">{stored}</script></div>\n'
    )


def with_alternatives(path: Path) -> str:
    """Return the notebook at `path` with an alternative text of each picture, and labels where terms are explained."""
    notebook, heading = nbformat.read(path, as_version=4), path.stem
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = glossary.with_targets(cell.source, lessons.number(path))
        heading = ([heading] + re.findall(r"^#+ (.*)", cell.source, re.MULTILINE) * (cell.cell_type == "markdown"))[-1]
        title = re.match(r"# @title (.*)", cell.source)
        if cell.cell_type == "code":
            text = f"{title[1] if title else heading}: the picture that the cell above draws"
            cell.metadata["mystnb"] = {"image": {"alt": text}}
    return nbformat.writes(notebook)


def reference() -> str:
    """Return the reference: each room of the package with what it exports, from the docstrings."""
    (contract,) = (
        one
        for one in lessons.PYPROJECT["tool"]["importlinter"]["contracts"]
        if one.get("containers") == ["course_utils"]
    )
    layers = contract["layers"]
    rooms = [room.strip() for layer in layers for room in layer.split("|")]
    rooms = [room for room in rooms if room not in ("arguments", "tables", "precision")]
    parts = [
        f"## {room}\n\n```{{eval-rst}}\n.. automodule:: course_utils.{room}\n   :members:\n```\n" for room in rooms
    ]
    return "# Reference\n\nWhat lessons may import, from the docstrings of `course_utils`.\n\n" + "\n".join(parts)


def unaddressed() -> list[str]:
    """Return the notebooks whose badges or set-up cells have no real address."""
    return [path.name for path in lessons.lessons() if "REPLACE_ME" in path.read_text(encoding="utf-8")]


def pages(folder: Path) -> None:
    """Write the sources of all pages to `folder`."""
    import simgpu
    from course_utils import gpus

    repository = lessons.REPOSITORY + "/blob/main/"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    readme = re.sub(r"\]\((LICENSE[\w-]*)\)", rf"]({repository}\1)", readme).replace("](docs/", "](")
    readme = readme.replace("](engines/", f"]({repository}engines/")
    explored = [f"explorers/{name}" for name in EXPLORED]
    books = [f"notebooks/{path.stem}" for path in lessons.lessons()]
    others = [
        path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts
    ]
    others.sort(key=lambda path: (path.parent, path.stem != "index", path.stem))
    guides = [str(path.with_suffix("").as_posix()) for path in others]
    tree = {
        "Lessons": books, "Explorers": explored,
        "For instructors": [*(name for name in guides if name.startswith("instructors/")), "instructors/tutors"],
        "Reference": ["glossary", "misconceptions", *(name for name in guides if "/" not in name), "gpus", "reference"],
        "For contributors": ["CONTRIBUTING", *(name for name in guides if name.startswith("contributing/"))],
    }  # fmt: skip
    for caption, names in tree.items():
        readme += "\n```{toctree}\n:hidden:\n:caption: " + caption + "\n\n" + "\n".join(names) + "\n```\n"
    write = lessons.write
    write(folder / "index.md", readme)
    plan = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    plan = plan.replace("](docs/decisions/", f"]({repository}docs/decisions/").replace("](docs/", "](")
    write(folder / "CONTRIBUTING.md", plan)
    for path in (ROOT / "docs").glob("*.*"):  # pictures, and the card to print
        if path.suffix in (".png", ".svg", ".pdf"):
            shutil.copy(path, folder)
    (folder / "notebooks").mkdir()
    for path in lessons.lessons():  # what lies in docs/ lies at the top of the site
        write(folder / "notebooks" / path.name, with_alternatives(path).replace("](../docs/", "](../"))
    error_bar = simgpu.error_bar().html()
    for name in others:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        write(folder / name, text.replace("{{error_bar}}", error_bar))
    table = gpus.table()
    write(
        folder / "gpus.md",
        f"# GPUs\n\nWhat makers promise. `course_utils.gpus` has the source of each number.\n\n{table}\n",
    )
    write(folder / "glossary.md", glossary.page())
    write(folder / "misconceptions.md", misconceptions.page())
    write(folder / "instructors" / "tutors.md", tutors.page())
    write(folder / "reference.md", reference())


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
    static = SOURCES / "static" / "explorers"
    (SOURCES / "explorers").mkdir()
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for name in EXPLORED:
            lessons.write(SOURCES / "explorers" / f"{name}.md", explorer_page(name, grid_of(name, pool, static / name)))
    shutil.copytree(ROOT / "docs" / "static", SOURCES / "static", dirs_exist_ok=True)
    shutil.copy(ROOT / "docs" / "conf.py", SOURCES)
    sphinx = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-j", "2", "-b", "html"]
    status = subprocess.run([*sphinx, str(SOURCES), str(target)], check=False).returncode
    status = status or slides.main(target / "slides")
    if not status:
        print(f"The site is there: {(target / 'index.html').as_uri()}")
    return status


if __name__ == "__main__":
    sys.exit(main())
