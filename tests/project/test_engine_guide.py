"""Does what docs/contributing/engines.md says work, done to the letter in a copy of the engine?"""

import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tools import notebooks, torch_contract

GUIDE = notebooks.ROOT / "docs" / "contributing" / "engines.md"
_TABLE = tomllib.loads(Path(__file__).with_name("engine_guide.toml").read_text(encoding="utf-8"))
TRY, EXPECTED = _TABLE["program"], _TABLE["printed"]


def blocks() -> list[tuple[str, list[str], list[str]]]:
    """Return the blocks of the guide: a file, the lines behind which something comes, and what comes."""
    found = []
    for text in re.findall(r"```diff\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
        file, *lines = text.splitlines()
        assert all(line[:1] in " +" for line in lines), text
        before, added = ([line[1:] for line in lines if line[0] == sign] for sign in " +")
        found.append((file, before, added))
    return found


def apply(copy: Path) -> None:
    """Do what the blocks say in a copy of the files."""
    for name, before, added in blocks():
        file = copy / name
        text = file.read_text(encoding="utf-8")
        place = "".join(f"{line}\n" for line in before)
        assert not before or text.count(place) == 1, f"{name}: {before}"
        new = "".join(f"{line}\n" for line in added)
        file.write_text(text.replace(place, place + new) if before else text + new, encoding="utf-8")


def python(folder: Path, *words: str) -> str:
    """Return what Python prints with the engine of a copy."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "engines" / "simgpu")}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_gpu_a_host_an_operator_and_a_function_are_added_to_the_letter(tmp_path, monkeypatch):
    for name in ("engines", "tools", "course_utils", "gpu_course"):
        shutil.copytree(notebooks.ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    apply(tmp_path)
    assert python(tmp_path, "-c", TRY) == EXPECTED
    python(tmp_path, "-m", "ruff", "check", "engines", "--config", str(notebooks.ROOT / "pyproject.toml"))
    for name, value in (("ROOT", tmp_path), ("TABLE", tmp_path / "tools" / "torch_contract.toml")):
        monkeypatch.setattr(torch_contract, name, value)
    for name in ("_files", "_defined"):
        monkeypatch.setattr(torch_contract, name, functools.cache(getattr(torch_contract, name).__wrapped__))
    row = torch_contract.rows()["simgpu"]["torch._C._cuda_hostMemoryStats"]
    assert torch_contract.users(row, torch_contract.uses("simgpu")) == ["engines/simgpu/simgpu/face/driver.py"]
