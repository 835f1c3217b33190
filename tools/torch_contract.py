"""Names of PyTorch that it does not document and this repository uses: who uses each, and which are gone.

`python -m tools.torch_contract` looks for each on the PyTorch that is installed, prints those that it lacks with what
then happens and the files that use them, and exits with 1 if there are any; `--all` prints them all.
"""

import argparse
import ast
import functools
import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Row", "main", "missing", "rows", "users", "uses"]

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".toml")
PARTS = {
    "simgpu": "engines/simgpu/simgpu", "kernelcheck": "engines/kernelcheck/kernelcheck",
    "ranklaunch": "engines/ranklaunch/ranklaunch", "course_utils": "course_utils", "gpu_course": "gpu_course",
}  # fmt: skip
_ROOTS = {"torch": "torch", "TORCH": "torch", "BASE": "torch._C.TensorBase"}
_NAME = re.compile(r"torch(\.\w+)+")
_TAIL = re.compile(r"\.(__\w+__|append|get|items|patch|remove|sort|values)\b.*")  # of any object, mapping or list
_REPLACING = ("put", "keep", "object", "multiple")  # attributes, by name
# Of named tuples, cloudpickle and multiprocessing.
_OTHERS = {
    "_DYNAMIC_CLASS_TRACKER_BY_CLASS", "_DYNAMIC_CLASS_TRACKER_BY_ID", "_exit_function", "_replace", "_shutdown",
}  # fmt: skip
_OWN = ("torch.sim", "torch.ops.exercise08")  # what the simulated GPU and an answer add themselves


@dataclass(frozen=True)
class Row:
    """A private name of PyTorch: its use, what happens without it, and the versions that have it."""

    name: str
    purpose: str
    without: str
    since: str = "0"
    until: str = "999"
    only: str = ""  # where alone it can be found, such as "CUDA builds" or "instances"; it is not asked for

    def expected(self, version: str) -> bool:
        """Return whether PyTorch of this version must have the name, and it can be asked for."""
        return not self.only and _numbers(self.since) <= _numbers(version) < _numbers(self.until)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def rows() -> dict[str, dict[str, Row]]:
    """Return the table: for each part of the repository its rows by name."""
    found: dict[str, dict[str, Row]] = {}
    for part, groups in tomllib.loads(TABLE.read_text(encoding="utf-8")).items():
        made = [Row(name=name, **{k: v for k, v in one.items() if k != "names"})
                for one in groups for name in one["names"].split()]  # fmt: skip
        found[part] = {row.name: row for row in made}
    return found


def uses(part: str) -> dict[str, list[str]]:
    """Return the private names of PyTorch that the code of a part uses, each with its files.

    An attribute of what the code does not name, such as `x._base`, is that of PyTorch which nothing here defines:
    "._base".
    """
    found: dict[str, set[str]] = {}
    for file, one in _files()[part].items():
        members = (f".{name}" for name in one.members() - _defined() - _OTHERS)
        for name in (*one.private(), *members):
            found.setdefault(name, set()).add(file)
    return {name: sorted(files) for name, files in sorted(found.items())}


def users(row: Row, used: dict[str, list[str]]) -> list[str]:
    """Return the files that use the name of a row, of those that `uses` found."""
    exact = {row.name, row.name[row.name.rindex(".") :]} & used.keys()
    names = exact or [name for name in used if row.name.startswith(f"{name}.")]
    return sorted({file for name in names for file in used[name]})


@functools.cache
def _files() -> dict[str, dict[str, "_File"]]:
    return {
        part: {
            file.relative_to(ROOT).as_posix(): _File(ast.parse(file.read_text(encoding="utf-8")))
            for file in sorted((ROOT / folder).rglob("*.py"))
        }
        for part, folder in PARTS.items()
    }


@functools.cache
def _defined() -> frozenset[str]:
    """Return all names of attributes that the code of the repository gives to objects itself."""
    return frozenset(name for files in _files().values() for one in files.values() for name in one.defined())


class _File:
    """The names of PyTorch in one file: what its names stand for, and what is reached from there."""

    def __init__(self, tree: ast.Module) -> None:
        self._nodes, self._known = list(ast.walk(tree)), dict(_ROOTS)
        imports = [node for node in self._nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        self._modules = {one.asname or one.name for node in imports for one in node.names}
        for node in self._nodes:
            if isinstance(node, ast.Import):
                self._known |= {one.asname: one.name for one in node.names if one.asname and _is_torch(one.name)}
            elif isinstance(node, ast.ImportFrom) and _is_torch(node.module or ""):
                self._known |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        for _ in range(2):  # names for names
            for node in self._nodes:
                self._learn(node)

    def _learn(self, node: ast.AST) -> None:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            return
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=False)
            for one, value in pairs:
                path = self._path(value)
                if isinstance(one, ast.Name) and path and one.id not in _ROOTS:
                    self._known[one.id] = path

    def _path(self, node: ast.AST | None) -> str:
        """Return what an expression names, such as "torch._C._nn", or ""."""
        if isinstance(node, ast.Name):
            return self._known.get(node.id, "")
        if isinstance(node, ast.Attribute):
            owner = self._path(node.value)
            return owner and f"{owner}.{node.attr}"
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
            words = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if called in ("import_module", "get") and words and _is_torch(words[0]):
                return words[0]
            if called == "cast":
                return self._path(node.args[-1])
            if called in ("getattr", "hasattr") and words:
                owner = self._path(node.args[0])
                return owner and f"{owner}.{words[0]}"
        return ""

    def private(self) -> Iterator[str]:
        """Yield each private name once for each use, and of what is reached through one the longest."""
        inner = {id(node.value) for node in self._nodes if isinstance(node, ast.Attribute)}
        for node in self._nodes:
            for path in self._named(node):
                name = _TAIL.sub("", path)
                if id(node) not in inner and _is_private(name) and not name.startswith(_OWN):
                    yield name

    def members(self) -> set[str]:
        """Return the private attributes of what this file does not name."""
        attributes = [node for node in self._nodes if isinstance(node, ast.Attribute)]
        return {
            node.attr for node in attributes
            if node.attr.startswith("_") and not node.attr.startswith("__") and not self._path(node)
            and ast.unparse(node.value) not in self._modules  # such as sys._getframe
        }  # fmt: skip

    def defined(self) -> Iterator[str]:
        """Yield the names of attributes that this file gives to objects of its own classes."""
        for node in self._nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield from [node.attr] if getattr(node.value, "id", "") == "self" else []
            for one in node.body if isinstance(node, ast.ClassDef) else ():
                named = [one, *getattr(one, "targets", ()), getattr(one, "target", None)]
                named += [name for target in named for name in getattr(target, "elts", ())]  # of a tuple
                yield from (getattr(name, "id", "") or getattr(name, "name", "") for name in named)

    def _named(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if _is_torch(one.name))
        elif isinstance(node, ast.ImportFrom) and _is_torch(node.module or ""):
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
            yield node.value
        elif isinstance(node, ast.Attribute | ast.Call):
            yield self._path(node)
            if (
                isinstance(node, ast.Call)
                and node.args
                and ast.unparse(node.func).endswith((".put", ".keep", ".object"))
            ):
                words = [
                    one.value for one in node.args[1:] if isinstance(one, ast.Constant) and isinstance(one.value, str)
                ]
                owner = self._path(node.args[0])
                words += [key.arg for key in node.keywords if key.arg not in (None, "create")]  # that is mock's own
                yield from (f"{owner}.{one}" for one in words if owner)


def _is_torch(name: str) -> bool:
    return name.partition(".")[0] == "torch"


def _is_private(name: str) -> bool:
    return any(one.startswith("_") and not one.startswith("__") for one in name.split("."))


def exists(name: str) -> bool:
    """Return whether the PyTorch that is installed has a name; `()` behind a part of it means what a call returns."""
    parts = name.split(".")
    value, place = importlib.import_module(parts[0]), 1
    while place < len(parts):
        try:
            value = importlib.import_module(".".join(parts[: place + 1]))
        except ImportError:
            break
        place += 1
    try:
        for part in parts[place:]:
            value = getattr(value, part.removesuffix("()"))
            value = value() if part.endswith("()") else value
    except AttributeError:
        return False
    return True


def missing(version: str) -> list[tuple[str, Row]]:
    """Return the rows, with their parts, of names that the installed PyTorch must have and has not."""
    return [
        (part, row)
        for part, table in rows().items()
        for row in table.values()
        if row.expected(version) and not exists(row.name)
    ]


def main(words: list[str] | None = None) -> int:
    """Print the names that are gone, or all of them, and return 1 if one is gone that must be there."""
    parser = argparse.ArgumentParser(prog="python -m tools.torch_contract", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="print every name, not only those that are gone")
    everything = parser.parse_args(words).all
    version = importlib.import_module("torch").__version__
    gone, table = missing(version), rows()
    shown = [(part, row) for part, one in table.items() for row in one.values()] if everything else gone
    files = {part: uses(part) for part in {part for part, _ in shown}}
    for part, row in shown:
        print(f"{row.name}\n  {part}, for {row.purpose}\n  without it: {row.without}")
        print(*(f"  in {file}" for file in users(row, files[part])), sep="\n")
    count = sum(map(len, table.values()))
    print(f"torch {version} lacks {len(gone)} of the {count} names without documentation that this repository needs")
    return bool(gone)


if __name__ == "__main__":
    sys.exit(main())
