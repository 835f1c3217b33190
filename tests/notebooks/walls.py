"""What does a text take from another storey that its doors do not show? Read from the text alone; nothing is run.

A door is the `__all__` of a package, or of a single module (there, without one, every name without an underscore). A
package whose `__init__` shows nothing is a shelf: each module on it has a door of its own.
"""

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools import notebooks

__all__ = ["ENGINES", "STOREYS", "forbidden", "home_of", "is_shelf", "rooms", "shown", "taken", "texts"]

ROOT = notebooks.ROOT
ENGINES = ("simgpu", "kernelcheck", "ranklaunch")
STOREYS = ("gpu_course", "course_utils", *ENGINES)
_FOLDERS = {name: ROOT / "engines" / name / name if name in ENGINES else ROOT / name for name in STOREYS}
_NEVER = ("world", "_inner")  # of the simulated GPU, by whatever way somebody came to what has them
_TORCHS = ("_cdata",)  # PyTorch's own, of a storage that an engine returns
_MAGIC = re.compile(r"^(\s*)[%!].*", re.MULTILINE)


# ---- what there is ------------------------------------------------------------------------------------------------
@functools.cache
def texts(top: str) -> dict[str, str]:
    """Return the Python texts under a storey or a folder of the repository, by path; of a notebook its cells."""
    folder = _FOLDERS.get(top, ROOT / top)
    found = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}
    for path in notebooks.lessons() if top == "notebooks" else ():
        cells = [cell.source for cell in notebooks.read(path).cells if cell.cell_type == "code"]
        found[str(path.relative_to(ROOT))] = _MAGIC.sub(r"\1pass", "\n".join(cells))
    return found


def home_of(path: str) -> str:
    """Return what a text may use without a door: its engine, its room, or the engine that it tests; else ""."""
    parts = Path(path).with_suffix("").parts
    if parts[0] == "engines":
        return parts[1]
    if parts[0] == "tests":
        return parts[1] if parts[1] in ENGINES else ""
    return ".".join(parts[:2]) if parts[0] in STOREYS else ""


@functools.cache
def _file(module: str) -> Path | None:
    """Return the file of a module of the storeys, or None where there is none of that name."""
    top, *rest = module.split(".")
    path = _FOLDERS[top].joinpath(*rest) if top in _FOLDERS else None
    known = [one for one in (path / "__init__.py", path.with_suffix(".py")) if one.is_file()] if path else []
    return known[0] if known else None


@functools.cache
def shown(module: str) -> frozenset[str]:
    """Return the names that the door of a module shows."""
    path = _file(module)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    values = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    if "__all__" in values:
        return frozenset(ast.literal_eval(values["__all__"]))
    names = [] if path.name == "__init__.py" else [*values, *(node.name for node in own)]
    return frozenset(name for name in names if not name.startswith("_"))


def is_shelf(module: str) -> bool:
    """Return whether a module is a package that shows nothing itself."""
    return _file(module).name == "__init__.py" and not shown(module)


@functools.cache
def _handed_on(package: str) -> frozenset[str]:
    """Return the modules that a package shows and that stand in its rooms: simgpu.gpus is simgpu.machine.gpus."""
    return frozenset(name for name in map(_real, (f"{package}.{last}" for last in shown(package))) if _file(name))


@functools.cache
def _real(name: str) -> str:
    """Return the dotted name under which a package found what it shows by `name`, or `name` itself."""
    package, _, last = name.rpartition(".")
    if not package or _file(name) is not None or _file(package) is None or last not in shown(package):
        return name
    return taken(_file(package).read_text(encoding="utf-8")).get(last, name)


def _is_door(module: str) -> bool:
    """Return whether others may import from a module: a package, what one shows, or what stands on a shelf.

    The rooms of an engine are none: what of them is for others, the engine itself shows.
    """
    package, _, last = module.rpartition(".")
    if _file(module) is None or not package:
        return _file(module) is not None
    top = module.split(".")[0]
    if module in _handed_on(top) or (is_shelf(module) and top not in ENGINES):
        return True
    return _is_door(package) and (is_shelf(package) or last in shown(package))


def _gives(module: str, name: str) -> bool:
    """Return whether a module's door has a name, or a shelf a module; names such as `__file__` are Python's."""
    dunder, module = name.startswith("__") and name.endswith("__"), _real(module)
    return dunder or name in shown(module) or (is_shelf(module) and _file(f"{module}.{name}") is not None)


@functools.cache
def _is_module(name: str) -> bool:
    """Return whether a dotted name is a module, and not what its package took out of one that is called the same."""
    name = _real(name)
    package, _, last = name.rpartition(".")
    if _file(name) is None or not package:
        return _file(name) is not None
    return taken(_file(package).read_text(encoding="utf-8")).get(last, name) == name


def rooms(storey: str) -> frozenset[str]:
    """Return the names of the modules and packages directly in a storey."""
    paths = [path for path in _FOLDERS[storey].iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    return frozenset(path.stem for path in paths) - {"__init__"}


# ---- what a text takes --------------------------------------------------------------------------------------------
@functools.cache  # several gates ask it of each text
def taken(text: str) -> dict[str, str]:
    """Return each name that `text` imports, with the dotted name of what it stands for."""
    found = {}
    for node in _nodes(text):
        if isinstance(node, ast.ImportFrom):
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            for one in node.names:
                found[one.asname or one.name.split(".")[0]] = one.name if one.asname else one.name.split(".")[0]
    return found


@functools.lru_cache(8)
def _nodes(text: str) -> list[ast.AST]:
    """Return all nodes of a text's tree."""
    return list(ast.walk(ast.parse(text)))


def forbidden(text: str, home: str = "", storeys: Iterable[str] = STOREYS) -> list[str]:
    """Return what `text` takes from `storeys` past their doors, each as "line: what"; `home` is free to it."""
    reader = _Reader(text, home, tuple(storeys))
    return [f"{line}: {what}" for line, what in sorted(set(reader.found()))]


class _Reader:
    def __init__(self, text: str, home: str, storeys: tuple[str, ...]) -> None:
        self.nodes, self.home, self.storeys, self.names = _nodes(text), home, storeys, taken(text)
        self.engines = any(name.split(".")[0] in ENGINES for name in self.names.values())
        assigned = [node for node in self.nodes if isinstance(node, ast.Assign) and self._is_engines(node.value)]
        self.kept = {one.attr for node in assigned for one in node.targets if isinstance(one, ast.Attribute)}

    def found(self) -> Iterator[tuple[int, str]]:
        """Yield line and name of all that is taken past a door."""
        yield from self._imported()
        for node in self.nodes:
            if isinstance(node, ast.Attribute):
                yield from self._attribute(node, self.names)
            elif isinstance(node, ast.FunctionDef) and self.engines:
                yield from self._local(node)
            elif isinstance(node, ast.ClassDef) and any(map(self._is_engines, node.bases)):
                yield from self._inherited(node)
            elif isinstance(node, ast.Call) and self.home != "simgpu":
                yield from self._by_name(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and self.home not in ENGINES:
                yield from self._quoted(node)

    def _is_free(self, module: str) -> bool:
        at_home = self.home != "" and f"{module}.".startswith(f"{self.home}.")
        return at_home or module.split(".")[0] not in self.storeys

    # ---- imports
    def _imported(self) -> Iterator[tuple[int, str]]:
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and not self._is_free(node.module):
                for one in node.names:
                    if not _is_door(node.module) or not _gives(node.module, one.name):
                        yield node.lineno, f"{node.module}.{one.name}"
            elif isinstance(node, ast.Import):
                names = [one.name for one in node.names if not self._is_free(one.name)]
                yield from ((node.lineno, name) for name in names if not _is_door(name))

    # ---- attributes
    def _attribute(self, node: ast.Attribute, names: dict[str, str]) -> Iterator[tuple[int, str]]:
        """Yield an attribute that a module does not show, one with an underscore of what an engine gave, and _NEVER."""
        of = self._stands_for(node.value, names)
        private = node.attr.startswith("_") and not node.attr.startswith("__") and node.attr not in _TORCHS
        owner = node.value.attr if isinstance(node.value, ast.Attribute) else ""
        if node.attr in _NEVER and self.home != "simgpu":
            yield node.lineno, node.attr
        elif of and _is_module(of):
            if not self._is_free(of) and not _gives(of, node.attr):
                yield node.lineno, f"{of}.{node.attr}"
        elif private and (self._is_engines(node.value, names) or owner in self.kept):
            yield node.lineno, ast.unparse(node)

    def _stands_for(self, node: ast.expr, names: dict[str, str]) -> str:
        """Return the dotted name of a module or of what it holds, or "" where an expression is neither."""
        if isinstance(node, ast.Name):
            return names.get(node.id, "")
        of = self._stands_for(node.value, names) if isinstance(node, ast.Attribute) else ""
        return f"{of}.{node.attr}" if of else ""

    def _is_engines(self, node: ast.expr, names: dict[str, str] | None = None) -> bool:
        """Return whether an expression is an engine's, or comes from one by calls, attributes and items."""
        names = self.names if names is None else names
        while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
            node = node.func if isinstance(node, ast.Call) else node.value
        top = names.get(node.id, "").split(".")[0] if isinstance(node, ast.Name) else ""
        return top in ENGINES and not self._is_free(top)

    def _local(self, function: ast.FunctionDef) -> Iterator[tuple[int, str]]:
        """Yield what is taken of a local variable that an engine's function returned."""
        given = {}
        for node in ast.walk(function):
            pairs = [(one, node.value) for one in node.targets] if isinstance(node, ast.Assign) else []
            pairs += [(one.optional_vars, one.context_expr) for one in getattr(node, "items", ())]
            given |= {to.id: "simgpu.*" for to, value in pairs if isinstance(to, ast.Name) and self._is_engines(value)}
        for node in ast.walk(function) if given else ():
            if isinstance(node, ast.Attribute):
                yield from self._attribute(node, given)

    def _inherited(self, kind: ast.ClassDef) -> Iterator[tuple[int, str]]:
        """Yield what a class that inherits from an engine's takes of `self` and does not make itself."""
        uses = [n for n in ast.walk(kind) if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "self"]
        made = {n.attr for n in uses if isinstance(n.ctx, ast.Store)} | {getattr(n, "name", "") for n in kind.body}
        for node in uses:
            if node.attr.startswith("_") and not node.attr.startswith("__") and node.attr not in made:
                yield node.lineno, f"self.{node.attr}"

    def _by_name(self, node: ast.Call) -> Iterator[tuple[int, str]]:
        """Yield an attribute of _NEVER that is asked for by `getattr` and its like."""
        asks = isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr", "setattr")
        names = [one.value for one in node.args if asks and isinstance(one, ast.Constant)]
        yield from ((node.lineno, name) for name in names if name in _NEVER)

    def _quoted(self, node: ast.Constant) -> Iterator[tuple[int, str]]:
        """Yield what a text inside the text takes: a program for another process."""
        for engine in (one for one in ENGINES if one in node.value):
            for what in re.findall(rf"\b{engine}(?:\.\w+)*\.(?:_[a-z]\w*|world)\b", node.value):
                yield node.lineno, what
