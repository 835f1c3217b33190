"""Check of the wheels of the course and its engines before a release: python tools/wheels.py [--tag v0.2.0]

Builds them into dist/, looks into each, and with `--install` installs each engine and the course into an environment of
its own and imports it. `--tag` also compares the tag with the versions, writes dist/changes.md from the changelog, and
packs the notebooks, and the site where it was built, as zip files.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

__all__ = ["changes", "check", "main", "projects"]

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"


def projects() -> dict[str, Path]:
    """Return the folders of what is released, by the name of the distribution; the engines come first."""
    folders = [*sorted((ROOT / "engines").iterdir()), ROOT]
    return {of["project"]["name"]: folder for folder in folders if (of := _read(folder)) is not None}


def _read(folder: Path) -> dict | None:
    path = folder / "pyproject.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def versions() -> dict[str, str]:
    """Return the version of each project, and of the citation."""
    found = {name: _version(folder) for name, folder in projects().items()}
    cited = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    return {**found, "CITATION.cff": cited[0]}


def _version(folder: Path) -> str:
    """Return the version of the project in `folder`; that of the course stands in its smallest package."""
    project = (_read(folder) or {})["project"]
    text = (ROOT / "course_utils" / "__init__.py").read_text(encoding="utf-8")
    return project.get("version") or re.findall(r'^__version__ = "(.*)"$', text, re.MULTILINE)[0]


def changes(version: str) -> str:
    """Return the section of the changelog for `version`. Raises ValueError where there is none with a date."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(version)}, \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f'CHANGELOG.md has no section "## {version}, YYYY-MM-DD"')
    return found[1].strip() + "\n"


def check(wheel: Path) -> list[str]:
    """Return what is wrong with a wheel: no types for checkers, no licence, files that are no part of a package."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packages = {name.split("/")[0] for name in names if name.endswith("/__init__.py") and name.count("/") == 1}
    wrong = [f"{package} has no py.typed" for package in sorted(packages) if f"{package}/py.typed" not in names]
    wrong += [] if packages else ["there is no package in it"]
    wrong += [] if any(name.endswith("/licenses/LICENSE") for name in names) else ["it has no licence"]
    strays = [name for name in names if re.search(r"(^|/)(tests|build|\.venv)/|\.pyc$", name)]
    wrong += [f"{name} has no place in a wheel" for name in strays]
    return [f"{wheel.name}: {one}" for one in wrong]


def pack(version: str) -> None:
    """Pack the notebooks with their programs, and the site where there is one, into zip files in dist/."""
    shutil.make_archive(str(DIST / f"notebooks-{version}"), "zip", ROOT, "notebooks")
    if (site := ROOT / "build" / "site").is_dir():
        shutil.make_archive(str(DIST / f"site-{version}"), "zip", site)


def _run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True)


def _installs(wheel: Path) -> None:
    """Install a wheel with what it needs into an empty environment, and import its packages there."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        packages = sorted({name.split("/")[0] for name in archive.namelist() if name.endswith("/py.typed")})
        venv.EnvBuilder(with_pip=True).create(folder)
        python = Path(folder) / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        _run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
        _run(python, "-I", "-c", f"import {', '.join(packages)}; print('{wheel.name}: {', '.join(packages)}')")


def main(arguments: list[str] | None = None) -> int:
    """Build and check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", help="the tag of the release, such as v0.2.0")
    parser.add_argument("--install", action="store_true", help="install each wheel alone and import it")
    options = parser.parse_args(arguments)
    found = versions()
    if len(set(found.values())) > 1:
        print(f"The versions differ: {found}", file=sys.stderr)
        return 1
    version = found["CITATION.cff"]
    if options.tag and options.tag != f"v{version}":
        print(f"The tag is {options.tag}, the version {version}: they must agree", file=sys.stderr)
        return 1
    notes = changes(version) if options.tag else ""
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", DIST, *projects().values())
    wheels = sorted(DIST.glob(f"*-{version}-*.whl"))
    wrong = [one for wheel in wheels for one in check(wheel)]
    if len(wheels) != len(projects()):
        wrong.append(f"expected {len(projects())} wheels, found {[wheel.name for wheel in wheels]}")
    print("\n".join(wrong or (f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB" for wheel in wheels)))
    if wrong:
        return 1
    for wheel in wheels if options.install else ():
        _installs(wheel)
    if notes:
        (DIST / "changes.md").write_text(notes, encoding="utf-8")
        pack(version)
    else:
        (course,) = (wheel for wheel in wheels if wheel.name.startswith(list(projects())[-1].replace("-", "_")))
        print(f"To upload to Colab or Kaggle, where a lesson's first cell installs it: {course.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
