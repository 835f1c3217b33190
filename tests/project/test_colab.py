"""Does installing the course on Colab leave Colab's own packages as they are? An offline environment plays Colab."""

import os
import shlex
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import address, notebooks

# The versions that Colab's runtime held in November 2026.
COLAB = {"torch": "2.11.0+cu128", "numpy": "2.1.3", "matplotlib": "3.10.0", "ipywidgets": "7.7.1"}
PROJECT = tomllib.loads((notebooks.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def distribution(folder: Path, name: str, version: str) -> None:
    """Put an empty package with metadata into the site-packages `folder`."""
    metadata = f"{name}-{version}.dist-info"
    for path, text in {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{metadata}/INSTALLER": "pip\n",
        f"{metadata}/RECORD": f"{name}/__init__.py,,\n{metadata}/METADATA,,\n",
    }.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def colab(tmp_path_factory):
    """An environment without pip of its own, with Colab's versions; returns its interpreter and site-packages."""
    folder = tmp_path_factory.mktemp("colab")
    venv.EnvBuilder(with_pip=False, symlinks=os.name != "nt").create(folder)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    for name, version in COLAB.items():
        distribution(site, name, version)
    return python, site


def snapshot(site: Path) -> dict[str, bytes]:
    """Return the contents of everything that belongs to Colab's own packages."""
    own = [path for name in COLAB for path in site.glob(f"{name}*/**/*") if path.is_file()]
    assert len(own) == 4 * len(COLAB)
    return {str(path.relative_to(site)): path.read_bytes() for path in own}


def install_line() -> list[str]:
    """Return what the set-up cell asks of pip."""
    (line,) = (line for line in notebooks.SETUP.splitlines() if "%pip" in line)
    return shlex.split(line.partition("%pip ")[2])


def pip(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    """Run this environment's pip on behalf of the interpreter `python` in the folder `cwd`, without the network."""
    command = [sys.executable, "-m", "pip", "--python", str(python), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, "PIP_NO_INDEX": "1"})


def test_the_declared_ranges_admit_colabs_versions():
    declared = {requirement.name: requirement for requirement in map(Requirement, PROJECT["dependencies"])}
    assert declared
    for name, version in COLAB.items():
        assert declared[name].specifier.contains(version), f"{declared[name]} refuses Colab's {version}"


def test_the_setup_cell_leaves_dependencies_alone():
    asked = install_line()
    assert asked[0] == "install" and "--no-deps" in asked and not {"-U", "--upgrade", *COLAB} & set(asked)
    assert asked[-1] == (f"git+{address.REPOSITORY}" if address.REPOSITORY else PROJECT["name"])


@pytest.mark.needs("hatchling")
def test_installing_the_course_changes_nothing_that_colab_has(colab, tmp_path):
    python, site = colab
    before = snapshot(site)
    built = subprocess.run(
        [sys.executable, "-c", "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1]))", str(tmp_path)],
        cwd=notebooks.ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    wheel = tmp_path / built.stdout.strip().splitlines()[-1]
    if not address.REPOSITORY:
        missing = pip(python, *install_line(), cwd=site)
        assert missing.returncode and "No matching distribution" in missing.stderr, "nothing was uploaded"
    asked = ["install", "--no-deps", str(wheel)] if address.REPOSITORY else install_line()
    done = pip(python, *asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert snapshot(site) == before
    package = site / "course_utils"
    assert (package / "__init__.py").exists() and (package / "notebooks" / "recorded").is_dir()
    assert list((package / "notebooks" / "programs").glob("*.py"))
    assert all((site / "kernelcheck" / name).exists() for name in ("cuda/cuda.h", "cuda/nvrtc.h", "cuda/runtime.cpp"))
    imported = subprocess.run([python, "-c", "import course_utils"], cwd=tmp_path, capture_output=True, text=True)
    assert imported.returncode == 0, imported.stderr
