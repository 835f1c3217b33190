"""Address of the published course, for title cells, set-up cells and the site.

The address stands in pyproject.toml alone. As long as there is none, nothing names one: title cells have no badges, and
the set-up cell installs the wheel that a reader of Colab or Kaggle has uploaded.
"""

import re
import tomllib
from pathlib import Path

__all__ = [
    "BRANCH", "COMMIT", "REPOSITORY", "SETUP", "STATED", "badges", "read", "with_address", "with_clone_line",
    "write",
]  # fmt: skip

ROOT = Path(__file__).resolve().parents[1]
NAME = r"[\w.-]+/[\w.-]+"  # an account and its repository
OTHERS = ("REPLACE_ME", "you/", "YOU/")  # what stands in guides for a name of one's own
KAGGLE = "/kaggle/input/course"  # where Kaggle puts the files of a data set called "course"
STATED = re.compile(
    r"(?m)(?:^| · )(?P<spine>\d+) minutes(?:, or (?P<every>\d+) with the \S+ sections)? · (?P<exercises>\d+) exercise"
)
HERE = "<the address of this page>"  # what the README says for an address
_TITLE = re.compile(r"# (?P<title>\d\d[a-z]? .+)\n")
_BADGES = re.compile(r"^(\[Open in Colab\]\(\S+\) · \[Open in Kaggle\]\(\S+\) · )?(?=\d+ minutes\b)", re.MULTILINE)
_INSTALL = re.compile(r"(?m)^( *)%pip install -qq? --no-deps .*$")
_EXCEPT = re.compile(r"(?m)^except ModuleNotFoundError:  # Colab, Kaggle.*$")


def read(root: Path = ROOT) -> tuple[str, str]:
    """Return the repository's address, and the commit that set-up cells install; "" where there is none."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return project["project"]["urls"].get("Repository", ""), project["tool"]["course"]["commit"]


REPOSITORY, COMMIT = read()
BRANCH = "published" if COMMIT else "main"  # where the notebooks lie that the badges open
PACKAGE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]


def write(url: str, commit: str = "", root: Path = ROOT) -> None:
    """Write the repository's address, and the commit that set-up cells install, to pyproject.toml; "none": no address.

    Raises ValueError where they are none.
    """
    url = "" if url == "none" else url.rstrip("/").removesuffix(".git") or "nothing"
    name = url.removeprefix("https://github.com/")
    if url and (not re.fullmatch(rf"https://github\.com/{NAME}", url) or name.startswith(OTHERS)):
        raise ValueError(f"The address is {url!r}; it must be https://github.com/<account>/<repository>")
    if not re.fullmatch(r"|[0-9a-f]{40}", commit):
        raise ValueError(f"The commit is {commit!r}; it must be 40 hexadecimal digits, or nothing")
    path = root / "pyproject.toml"
    text = re.sub(r"^Repository = .*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if url:
        text = text.replace("[project.urls]\n", f'[project.urls]\nRepository = "{url}"\n')
    text = re.sub(r'^commit = ".*"', f'commit = "{commit}"', text, flags=re.MULTILINE)
    path.write_text(text, encoding="utf-8", newline="\n")


def _set_up() -> tuple[str, str]:
    """Return the two lines of the set-up cell that know the address: when it installs the course, and how."""
    if REPOSITORY:
        place = f"{REPOSITORY}@{COMMIT}" if COMMIT else REPOSITORY
        return "except ModuleNotFoundError:  # Colab, Kaggle", f'%pip install -q --no-deps "git+{place}"'
    return (
        "except ModuleNotFoundError:  # Colab, Kaggle: run `make wheel` in the course's folder, upload dist/*.whl, "
        "run this again",
        # -qq: pip would warn of the folder that only the other platform has
        f"%pip install -qq --no-deps --no-index --find-links . --find-links {KAGGLE} {PACKAGE}",
    )


SETUP = """# @title Set up: load the course (on Colab and Kaggle: install it)
try:
    import course_utils
{}
    {}
from course_utils import devices""".format(*_set_up())


def badges(notebook: str) -> str:
    """Return the links that open the notebook called so elsewhere, and what parts them from the minutes; "": none."""
    if not REPOSITORY:
        return ""
    path = f"{REPOSITORY.removeprefix('https://github.com/')}/blob/{BRANCH}/notebooks/{notebook}"
    colab = f"[Open in Colab](https://colab.research.google.com/github/{path})"
    return f"{colab} · [Open in Kaggle](https://kaggle.com/kernels/welcome?src=https://github.com/{path}) · "


def with_clone_line(text: str) -> str:
    """Return the README with the command that clones the repository."""
    return re.sub(rf"(?m)^git clone (<.*?>|https://github\.com/{NAME}) ", f"git clone {REPOSITORY or HERE} ", text)


def file_of(title: str) -> str:
    """Return the name of the notebook with the title "05 The training loop": 05_the_training_loop.ipynb."""
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_") + ".ipynb"


def with_address(source: str) -> str:
    """Return the source of a cell: of a title cell with its badges, of a set-up cell with what it installs."""
    title = _TITLE.match(source)
    if title:
        return _BADGES.sub(badges(file_of(title["title"])), source, count=1)
    if "\ntry:\n    import course_utils\nexcept " in source:
        when, install = _set_up()
        return _INSTALL.sub(rf"\g<1>{install}", _EXCEPT.sub(when, source))
    return source
