"""Paths of the programs that the lessons start.

Beside the lesson that is open (a reader may edit that copy), else in the repository, else in the installed package.
"""

from pathlib import Path

from course_utils import arguments

__all__ = ["path"]

_REPOSITORY = Path(__file__).parents[1] / "notebooks" / "programs"
_INSTALLED = Path(__file__).parent / "notebooks" / "programs"


def path(name: str) -> Path:
    """Return the absolute path of the program called `name`, such as "train_ddp.py".

    Raises ValueError that lists the programs where there is none of that name.
    """
    folders = [Path("programs"), _REPOSITORY, _INSTALLED]
    for folder in folders:
        if (folder / arguments.text("name", name)).is_file():
            return (folder / name).resolve()
    known = sorted({file.name for folder in folders for file in folder.glob("*.*")})
    raise ValueError(f"name is {name!r}, it must be one of: {', '.join(known)}")
