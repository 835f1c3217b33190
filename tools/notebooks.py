"""Canonical form of the notebooks, and a check of their stored outputs.

python tools/notebooks.py --check [paths]     name what is not canonical; exit status 1 if anything is
python tools/notebooks.py --fix [paths]       write the canonical form, the address, links to neighbours, stubs and the
                                              title's minutes; without paths also what README, the map of lesson 00,
                                              rooms, misconceptions.toml, ways.toml and the guide to one's own
                                              program repeat; say what has changed
python tools/notebooks.py --execute [paths]   run in the reference environment and store the outputs
python tools/notebooks.py --address URL       write the repository's address into badges and set-up cells
python tools/notebooks.py --address none      take the address out again
python tools/notebooks.py --record            run on this machine's GPU with COURSE_RECORD=1; notebooks stay as they are
python tools/notebooks.py --new "Memory"      write the skeleton of a lesson under the next number, and what leads to it
"""

import argparse
import copy
import difflib
import itertools
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nbformat
from nbformat import NotebookNode

from tools import address, exercises
from tools.address import SETUP, STATED

__all__ = [
    "CHECK", "FOLDED", "LAST", "MACHINE", "SETUP", "STATED", "STOP", "TAGS", "canonical", "difference", "execute",
    "kernel_environment", "lessons", "links", "new", "not_reference", "number", "read", "run", "title", "twice",
    "with_files", "with_minutes",
]  # fmt: skip

ROOT = Path(__file__).resolve().parents[1]
HANG_S = 900  # for a cell, and for the start of a kernel
FOLDED = exercises.FOLDED
TAGS = frozenset({"nbval-ignore-output", "wrong-on-purpose", FOLDED})
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
# What Colab writes into a notebook for which a T4 was chosen: the lesson then opens on one.
ON_COLAB = {"accelerator": "GPU", "colab": {"gpuType": "T4", "provenance": []}}
# The second cell and the last one, the same in every lesson: progress comes from one machine and goes to the next.
MACHINE = """\
from gpu_course import your_line

DEVICE = devices.pick()
print(devices.describe(DEVICE))
your_line.paste("")  # Colab, Kaggle: between the quotes, the line of your last lesson"""
LAST = 'your_line.copy("")  # for a teacher who collects lines: your name between the quotes'
_RECAP = re.compile(r"A good place to stop\..*\Z", re.DOTALL)
WIDGET_MIMES = ("application/vnd.jupyter.widget-view+json", "application/vnd.jupyter.widget-state+json")
STOP = exercises.STOP
WORDS = re.compile(r"(?=.*[a-z]{2})(?!.*[0-9a-f]{8})[a-z0-9]+(-[a-z0-9]+)*")
LINKS = exercises.LINKS
CHECK = exercises.CHECK
NEW_MINUTES = 10  # of a lesson that says nothing yet
SHOWN = 110  # characters of a line that has changed
NEW_SLIDES = """# The slides of this lesson: a list of cells for each, by their ids. `make slides` makes them.
slides = [
  ["scene"],
  ["first-section", "first-claim"],
  ["second-section", "second-claim"],
  ["third-section", "third-claim"],
  ["what-to-remember"],
]
"""
# Startup file of the kernels that tests start: PYTHONWARNINGS cannot name a package with its submodules.
STRICT_WARNINGS = """import warnings
_strict = r"(torch|course_utils|gpu_course|simgpu|kernelcheck|ranklaunch|__main__)(\\.|$)"
for _category in (DeprecationWarning, FutureWarning):
    warnings.filterwarnings("error", category=_category, module=_strict)
# PyTorch's own compiler, and before 2.13 its DataLoader, use what PyTorch deprecates
_own = r".*torch\\.jit\\.|The argument 'device' of Tensor\\."
warnings.filterwarnings("ignore", _own, DeprecationWarning, module=r"torch\\.")
del warnings, _category, _own, _strict
"""
# Another one: what a lesson writes where it stands goes to a folder of its own, and not among the sources.
OWN_FOLDER = """import os
import tempfile
os.chdir(tempfile.mkdtemp(prefix="lesson-", dir={folder!r}))
del os, tempfile
"""
# And where ATEN_CPU_CAPABILITY lets PyTorch compute as an older processor does: cells ask for its instructions, too.
OLDER_PROCESSOR = """import torch
def _older(newer=torch.cpu.get_capabilities):
    return {name: "avx512" not in name and "amx" not in name and has for name, has in newer().items()}
torch.cpu.get_capabilities = _older
del torch, _older
"""


def lessons() -> list[Path]:
    """Return the notebooks of the course, in order."""
    return sorted((ROOT / "notebooks").glob("[0-9][0-9]*_*.ipynb"))


def number(path: Path) -> str:
    """Return the number of a lesson, such as "08", or of an optional page, such as "08b"."""
    return path.stem.partition("_")[0]


def title(path: Path) -> str:
    """Return the title of a lesson, its number included."""
    return read(path).cells[0].source.splitlines()[0].removeprefix("# ")


def links(path: Path) -> str:
    """Return the line of a lesson that leads to its neighbours.

    An optional page, such as 08b, is skipped: its own links lead back.
    """
    way = [one for one in lessons() if one == path or number(one).isdecimal()]
    place = way.index(path)
    neighbours = [("Previous", one) for one in way[:place][-1:]] + [("Next", one) for one in way[place + 1 :][:1]]
    return " · ".join(f"{word}: [{title(one)}]({one.name})" for word, one in neighbours)


def _with_rows(text: str) -> str:
    """Return the README or the course map with a row for each lesson, below that of the lesson before it."""
    for before, path in itertools.pairwise(lessons()):
        if not re.search(rf"^\|.*{path.name}\)", text, re.MULTILINE):
            readme = rf"\g<0>| [{title(path)}](notebooks/{path.name}) | … | 0 | 0 | 0 |\n"
            text = re.sub(rf"^\| .*{before.name}\).*\n", readme, text, flags=re.MULTILINE)
            course_map = rf"\g<0>|[{title(path)}]({path.name})|0|0|\n"
            text = re.sub(rf"^\|[*\[].*{before.name}\).*\n", course_map, text, flags=re.MULTILINE)
    return text


def with_minutes(text: str) -> str:
    """Return the README or the course map with the minutes and exercises that the title cells of the lessons state.

    A lesson that has no row gets one, in which "…" stands where words are missing.
    """
    text = _with_rows(text)
    for path in lessons():
        stated = STATED.search(read(path).cells[0].source)
        if stated is None:
            raise ValueError(f"{path.name}: the title cell must state minutes and exercises")
        spine, every, exercises = stated.group("spine", "every", "exercises")
        row = f"{spine} | {every or spine} | {exercises} |"
        text = re.sub(rf"^(\|.*{path.name}\).*?)(\d+ \| )+\d+ \|$", rf"\g<1>{row}", text, flags=re.MULTILINE)
        entry = rf"^(\|.*{path.name}\)\**)\|\d+\|\d+\|$"
        text = re.sub(entry, rf"\g<1>|{spine}|{every or spine}|", text, flags=re.MULTILINE)
    entries = re.findall(r"^\|(\*\*)?(?!\[00b).*\|(\d+)\|(\d+)\|$", text, re.MULTILINE)  # 00b repeats lessons
    bold = round(sum(int(spine) for essential, spine, _ in entries if essential) / 60)
    everything = round(sum(int(every) for _, _, every in entries) / 60)
    return re.sub(r"about \d+ hours(.*) about \d+ hours", rf"about {bold} hours\g<1> about {everything} hours", text)


def _part(page: str) -> tuple[list[str], float]:
    """Return the exercises on the spine of a page or of one of its sections, and the minutes that it takes."""
    name, _, section = page.partition("#")
    (path,) = (path for path in lessons() if number(path) == name)
    notebook, heading, found, spent = read(path), "", [], 0.0
    for cell, needed in zip(notebook.cells, exercises.minutes(notebook), strict=True):
        if cell.cell_type == "markdown":
            heading = [heading, *re.findall(r"^## (.*)", cell.source, re.MULTILINE)][-1]
        if heading.startswith(section) if section else not heading.startswith(("Deeper: ", exercises.PRACTICE)):
            check, spent = CHECK.match(cell.source), spent + needed
            found += [f"{check['lesson']}.{check['name']}"] if check else []
    stated = STATED.search(notebook.cells[0].source)
    return found, spent if section or stated is None else float(stated["spine"])


def with_spines(text: str) -> str:
    """Return the list of ways with the exercises on the spine of each page and section, and those for practice."""
    sections = [page for way in tomllib.loads(text)["ways"] for page in way["pages"] if "#" in page]
    rows = []
    for page in [*map(number, lessons()), *sections]:
        names = "".join(f'\n  "{name}",' for name in _part(page)[0])
        rows.append(f'"{page}" = [{names}\n]\n')
    rows.append("\n[practice]\n")
    for page in map(number, lessons()):
        names = "".join(f'\n  "{name}",' for name in _part(f"{page}#{exercises.PRACTICE}")[0])
        rows.append(f'"{page}" = [{names}\n]\n' if names else "")
    return text.partition("[spine]\n")[0] + "[spine]\n" + "".join(rows)


def with_ways(text: str, folder: str = "") -> str:
    """Return the README or the map of lesson 00 with the table of ways: goals, pages that lead there, and time.

    The guides of teachers are named in the README alone, which says in which `folder` the notebooks are.
    """
    stated = tomllib.loads((ROOT / "gpu_course" / "ways.toml").read_text(encoding="utf-8"))["ways"]
    files = {number(path): path.name for path in lessons()}
    rows = []
    for way in stated:
        named = []
        for page, _, section in (page.partition("#") for page in way["pages"]):
            said, to = (
                (f"{page}, *{section}*", f"#{quote(section.replace(' ', '-'), safe='?')}") if section else (page, "")
            )
            named.append(f"[{said}]({folder}{files[page]}{to})")
        named += [way["guide"]] if folder and "guide" in way else []
        links = " · ".join(named if len(named) < 8 else [named[0], "…", named[-1]])
        spent = sum(_part(page)[1] for page in way["pages"])
        time = f"{5 * round(spent / 5)} min" if spent <= 120 else f"{round(spent / 60)} h"
        rows.append(f"| {way['goal']} | {links} | {time} |\n")
    table = "| I want to … | go to | it takes |\n|---|---|---|\n" + "".join(rows)
    return re.sub(r"\| I want to … \|.*\n(\|.*\n)+", lambda _: table, text)


def with_files(text: str) -> str:
    """Return the list of misconceptions with the file name of each lesson's notebook."""
    table = "".join(f'"{number(path)}" = "{path.name}"\n' for path in lessons())
    return re.sub(r'^\[notebooks\]\n("\w+" = ".*"\n)*', f"[notebooks]\n{table}", text, flags=re.MULTILINE)


def word_id(cell: NotebookNode, taken: set[str]) -> str:
    """Return the cell's id if it is made of words, else one made of the first words of its text; unique in `taken`."""
    base = cell.get("id", "")
    if not WORDS.fullmatch(base):
        plain = re.sub(r"\W+|_", " ", cell.source.lower(), flags=re.ASCII).split()
        base = "-".join([word for word in plain if re.fullmatch(r"[a-z]+[0-9]?", word)][:4])[:40].strip("-")
        base = base if WORDS.fullmatch(base) else f"{cell.cell_type}-cell"
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


def clean_outputs(cell: NotebookNode) -> list[NotebookNode]:
    """Return the outputs without what varies or misleads: stderr, widget views, metadata but sizes; streams joined."""
    kept: list[NotebookNode] = []
    for output in cell.get("outputs", []):
        output = copy.deepcopy(output)
        if output.output_type == "stream":
            if output.name == "stderr":
                continue
            if kept and kept[-1].output_type == "stream":
                kept[-1].text += output.text
                continue
        elif "data" in output:
            output.data = NotebookNode({mime: value for mime, value in output.data.items() if mime not in WIDGET_MIMES})
            sizes = {mime: it for mime, it in output.metadata.items() if mime in output.data and "width" in it}
            output.metadata = nbformat.from_dict(sizes)  # a picture is shown smaller than it is drawn
            if output.output_type == "execute_result":
                output.execution_count = None
            if not output.data:
                continue
        kept.append(output)
    return kept


def canonical(notebook: NotebookNode) -> str:
    """Return the one text in which `notebook` may be stored. `notebook` itself stays as it is."""
    cells, taken = [], set()
    for old in notebook.cells:
        cell = NotebookNode(
            cell_type=old.cell_type, metadata=NotebookNode(), source=address.with_address(old.source.rstrip())
        )
        tags = old.metadata.get("tags", [])
        if tags:
            cell.metadata["tags"] = sorted(set(tags))
        if FOLDED in tags:
            cell.metadata.update(jupyter=NotebookNode(source_hidden=True), cellView="form")  # JupyterLab's way, Colab's
        cell["id"] = word_id(old, taken)
        taken.add(cell.id)
        if cell.cell_type == "code":
            cell.outputs = clean_outputs(old)
            cell.execution_count = None  # a cell in the middle would number all below it anew
        cells.append(cell)
    metadata = nbformat.from_dict({**ON_COLAB, "kernelspec": KERNELSPEC})
    made = NotebookNode(cells=cells, metadata=metadata, nbformat=4, nbformat_minor=5)
    return nbformat.writes(made, version=nbformat.NO_CONVERT).rstrip("\n") + "\n"


def read(path: Path) -> NotebookNode:
    """Return the notebook at `path`, brought to nbformat 4."""
    return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)


def write(path: Path, text: str) -> None:
    """Write `text` with Unix line ends, on every system."""
    path.write_text(text, encoding="utf-8", newline="\n")


def difference(path: Path) -> str | None:
    """Return the first line in which the file is not canonical, or None if every byte is."""
    stored = path.read_bytes().decode("utf-8")
    wanted = canonical(read(path))
    if stored == wanted:
        return None
    pairs = zip([*stored.splitlines(), ""], [*wanted.splitlines(), ""], strict=False)
    for number, (got, expected) in enumerate(pairs, 1):
        if got != expected:
            return f"{path.name}:{number}: {got.strip()[:80]!r}, canonical: {expected.strip()[:80]!r}"
    return f"{path.name}: line ends or the end of the file"


def pinned_torch() -> str:
    """Return the version of torch in constraints.txt."""
    (pinned,) = re.findall(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    return pinned


def not_reference() -> str | None:
    """Return why stored outputs do not belong to this environment, or None in the reference environment."""
    torch = version("torch").split("+")[0]
    if not sys.platform.startswith("linux"):
        return f"the system is {sys.platform}, stored outputs are from Linux"
    if torch != pinned_torch():
        return f"torch is {torch}, stored outputs are from {pinned_torch()}"
    if os.environ.get("COURSE_DEVICE") != "sim":
        return f"COURSE_DEVICE is {os.environ.get('COURSE_DEVICE')!r}, stored outputs are from 'sim'"
    return None


def kernel_environment(folder: Path, device: str | None = "sim", **extra: str) -> dict[str, str]:
    """Return the environment of a kernel under test: `device`, strict warnings, its own progress file in `folder`.

    With ATEN_CPU_CAPABILITY "default" or "avx2" PyTorch names no newer instructions to the kernel, either.

    Each kernel works in a new folder inside `folder`.
    """
    startup = folder / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True, exist_ok=True)
    write(startup / "00-strict-warnings.py", STRICT_WARNINGS)
    write(startup / "01-own-folder.py", OWN_FOLDER.format(folder=str(folder)))
    if os.environ.get("ATEN_CPU_CAPABILITY") in ("default", "avx2"):
        write(startup / "02-older-processor.py", OLDER_PROCESSOR)
    made = {"IPYTHONDIR": str(folder / "ipython"), "COURSE_PROGRESS": str(folder / "progress.json")}
    if device is not None:
        made |= dict.fromkeys(("COURSE_DEVICE", "RANKLAUNCH_DEVICE", "KERNELCHECK_DEVICE"), device)
    if device in ("cpu", "sim"):
        made["CUDA_VISIBLE_DEVICES"] = ""
    return {**os.environ, **made, **extra}


def run(notebook: NotebookNode, device: str | None = "sim", **extra: str) -> NotebookNode:
    """Return `notebook` executed in order by a fresh kernel in an empty folder; raises CellExecutionError.

    The limits end what hangs: beside twenty other programs a cell of 20 s takes minutes, and so does a kernel's start.
    """
    from nbclient import NotebookClient

    executed = copy.deepcopy(notebook)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        limits: dict[str, Any] = {"timeout": HANG_S, "startup_timeout": HANG_S}
        client = NotebookClient(executed, **limits, kernel_name="python3", store_widget_state=False)
        client.execute(env=kernel_environment(Path(temporary), device, **extra))
    return executed


def twice(notebook: NotebookNode) -> NotebookNode:
    """Return a notebook in which every code cell stands twice in a row, as when a reader runs it again."""
    made = copy.deepcopy(notebook)
    cells = []
    for cell in made.cells:
        cells.append(cell)
        if cell.cell_type == "code":
            again = copy.deepcopy(cell)
            again["id"] = f"{cell.id[:50]}-again"
            cells.append(again)
    made.cells = cells
    return made


def committed(path: Path) -> dict[str, NotebookNode]:
    """Return the code cells by id of the last committed version of `path`; none where there is no such version."""
    done = subprocess.run(["git", "show", f"HEAD:./{path.name}"], cwd=path.parent, capture_output=True, check=False)
    if done.returncode:
        return {}
    return {cell.id: cell for cell in nbformat.reads(done.stdout.decode("utf-8"), as_version=4).cells if "id" in cell}


def execute(path: Path, before: dict[str, NotebookNode]) -> str:
    """Return the canonical text of the notebook at `path` with the outputs of a fresh run.

    A cell tagged `nbval-ignore-output` whose source equals that in `before` keeps the output it had there.
    """
    source = nbformat.reads(canonical(read(path)), as_version=4)
    executed = run(source)
    for cell in executed.cells:
        if cell.cell_type != "code":
            continue
        old = before.get(cell.id)
        if "nbval-ignore-output" in cell.metadata.get("tags", []) and old and old.outputs and old.source == cell.source:
            cell.outputs = copy.deepcopy(old.outputs)
    return canonical(executed)


def new(title: str) -> Path:
    """Write the skeleton of a lesson under the next number, its notebook and its room; return the notebook's path."""
    number = 1 + max(int(path.name[:2]) for path in lessons())
    made = ROOT / "notebooks" / address.file_of(f"{number:02d} {title}")
    heading = f"# {number:02d} {title}\n\nA promise.\n\n{address.badges(made.name)}{NEW_MINUTES} minutes · 0 exercises"
    write(made, canonical(nbformat.v4.new_notebook(cells=_skeleton(heading, "Previous: [a](a.ipynb)"))))
    room = ROOT / "gpu_course" / f"lesson{number:02d}"
    room.mkdir(parents=True, exist_ok=True)
    write(room / "__init__.py", f'"""A question? The exercises of lesson {number:02d}."""\n\n__all__: list[str] = []\n')
    write(room / "slides.toml", NEW_SLIDES)
    return made


def _skeleton(heading: str, neighbours: str) -> list[NotebookNode]:
    """Return the cells of a lesson that says nothing yet; `neighbours` is the line that leads to them."""
    text, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    claim = "x = torch.ones(3, device=DEVICE)\nassert x.device == DEVICE"
    program = "import torch\n\nx = torch.ones(3)\nassert x.sum() == 3"
    folded = {"tags": [FOLDED]}
    cells = [
        text(f"{heading}\n\n{neighbours}", id="title"),
        text("After this lesson you can\n\n- …\n\nBefore: …", id="goals"),
        code(SETUP, id="set-up", metadata={"tags": [FOLDED]}),
        code(MACHINE, id="machine"),
        text("The problem of somebody who does this for a living.", id="scene"),
        code("import torch\n\nfrom gpu_course import drawings", id="imports"),
        code('# @title Host, queue and device\ndrawings.show("host-queue-device")', id="drawing", metadata=folded),
    ]
    for name in ("first", "second", "third"):
        said = f"## The {name} section\n\nA **{name} term** is what the claim needs."
        cells += [text(said, id=f"{name}-section"), code(claim, id=f"{name}-claim")]
    remember = f"## What to remember\n\n…\n\n### Common errors\n\n…\n\nRead on: …\n\n{neighbours}"
    return [
        *cells,
        text("## The whole program", id="whole-program"),
        code(program, id="program"),
        text("How the problem ends.", id="scene-end"),
        text(remember, id="what-to-remember"),
        code(LAST, id="your-line"),
    ]


def record(paths: list[Path]) -> int:
    """Run every lesson on this machine's accelerator with COURSE_RECORD=1; return the exit status."""
    from course_utils import devices

    if devices.pick().type in ("cpu", "sim"):
        print("No GPU can be used here, so nothing was recorded. Lesson 01 finds out why.", file=sys.stderr)
        return 1
    for path in paths:
        run(read(path), None, COURSE_RECORD="1")
        print(f"{path.name}: recorded")
    return 0


def fix(paths: list[Path]) -> None:
    """Write the canonical form of the notebooks at `paths`, and what follows from others; print what has changed.

    That is links to neighbours, stubs, minutes and the number of exercises; of all lessons also rows and doors.
    """
    every = lessons()
    for path in paths:
        renew(path, canonical(_followed(path) if path in every else read(path)))
    if paths != every:
        return
    written = {
        "README.md": _readme,
        "gpu_course/misconceptions.toml": with_files,
        "gpu_course/ways.toml": with_spines,
        "docs/own_program.md": with_rules,
    }
    for name, renewed in written.items():
        renew(ROOT / name, renewed((ROOT / name).read_text(encoding="utf-8")))
    for path in every:
        if (_room(path) / "__init__.py").exists():
            renew(_room(path) / "__init__.py", exercises.door(_room(path), read(path)))
    first = read(every[0])
    for cell in first.cells:
        if cell.get("id") == "course-map":  # which repeats what the titles say by now
            cell.source = with_minutes(cell.source)
        if cell.get("id") == "goals":
            cell.source = with_ways(cell.source)
    renew(every[0], canonical(first))


def _followed(path: Path) -> NotebookNode:
    """Return a lesson with what follows from its neighbours, its exercises, and its own cells."""
    notebook, line = exercises.with_stubs(read(path), ROOT / "gpu_course"), links(path)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = LINKS.sub(lambda old, new=line: old[0] if _same(old[0], new) else new, cell.source)
        if cell.get("id") == "machine":
            cell.source = MACHINE
        if cell.get("id", "").startswith("recap-"):
            cell.source = _RECAP.sub(STOP, cell.source)
    if notebook.cells[-1].get("id") != "your-line":
        notebook.cells.append(nbformat.v4.new_code_cell(LAST, id="your-line"))
    notebook.cells[0].source = exercises.with_title(notebook, number(path))
    return notebook


def _room(path: Path) -> Path:
    """Return the folder of a lesson's exercises."""
    return ROOT / "gpu_course" / f"lesson{number(path)}"


def renew(path: Path, text: str) -> None:
    """Write `text` where the file has another, and print the lines that are new."""
    before = path.read_bytes().decode("utf-8")
    if before == text:
        return
    write(path, text)
    print(f"{path.relative_to(ROOT)} has changed:")
    lines = difflib.unified_diff(before.splitlines(), text.splitlines(), n=0, lineterm="")
    for line in [line[:SHOWN] for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]:
        print(f"  {line}")


def _readme(text: str) -> str:
    """Return the README with the lessons' minutes, and the command that clones the repository."""
    return address.with_clone_line(with_ways(with_minutes(text), "notebooks/"))


def with_rules(guide: str) -> str:
    """Return the guide to one's own program with a row for each rule of the report."""
    import simgpu  # not above: it loads PyTorch

    costs = {"result": "results", "time": "time", "memory": "memory"}
    rows = [f"| `{code}` | {costs[rule.about]} | {rule.seen} | {rule.cure} |" for code, rule in simgpu.RULES.items()]
    head, _, tail = guide.partition("| code | costs |")
    columns, line, *below = tail.splitlines(keepends=True)
    rest = itertools.dropwhile(lambda row: row.startswith("| `"), below)
    return "".join([head, "| code | costs |", columns, line, *(f"{row}\n" for row in rows), *rest])


def _same(line: str, other: str) -> bool:
    """Return whether two lines lead to the same neighbours, whatever they call them."""
    return re.findall(r"\((\w+\.ipynb)\)", line) == re.findall(r"\((\w+\.ipynb)\)", other)


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line asks; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks; all lessons where none is named")
    for name in ("check", "fix", "execute", "record", "fresh"):
        parser.add_argument(f"--{name}", action="store_true", help="new outputs for tagged cells" * (name == "fresh"))
    parser.add_argument("--address", nargs="+", metavar=("URL", "COMMIT"))
    parser.add_argument("--new", metavar="TITLE")
    options = parser.parse_args(arguments)
    paths = [path.resolve() for path in options.paths] or lessons()
    try:
        if options.new:
            path = new(options.new)
            fix(lessons())
            print(f"{path}: written, with links from its neighbours and rows in README.md and lesson 00")
            print("Say in the row of README.md what one can do after the lesson.")
            return 0
        if options.address:
            address.write(*options.address)
            return subprocess.run([sys.executable, __file__, "--fix"], check=False).returncode  # reads it anew
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if options.record:
        return record(paths)
    if options.execute:
        os.environ.setdefault("COURSE_DEVICE", "sim")
        if reason := not_reference():
            print(f"Not executed: {reason}.", file=sys.stderr)
            return 1
        for path in paths:
            write(path, execute(path, {} if options.fresh else committed(path)))
            print(f"{path.name}: executed")
    if options.fix:
        fix(paths)
    problems = [found for path in paths if (found := difference(path))]
    print("\n".join(problems) or f"{len(paths)} notebooks are canonical")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
