"""What does importing the storeys load and change? One fresh process imports one by one."""

import json
import subprocess
import sys

import pytest

from tests import children
from tests.notebooks import walls
from tools import notebooks

HEAVY = {"matplotlib", "ipywidgets", "sklearn", "scipy", "IPython", "pynvml", "torch._dynamo"}
# What each line must not load, besides what those above it have loaded.
STEPS = {
    "the course and the helper": ("import course_utils, gpu_course", HEAVY | {"torch", "numpy", *walls.ENGINES}),
    "predict": ("from gpu_course import predict", HEAVY | {"torch", *walls.ENGINES}),
    "torch": ("import torch", {"matplotlib", "IPython"}),
    "kernelcheck": ("import kernelcheck", HEAVY | {"simgpu", "ranklaunch"}),
    "ranklaunch": ("import ranklaunch", HEAVY | {"simgpu"}),
    "simgpu": (
        "import simgpu\nfailed = False\n"
        "try:\n    simgpu.reset()\nexcept RuntimeError as error:\n"
        "    failed = 'call simgpu.enable' in str(error)\nassert failed and not hasattr(torch, 'sim')\n"
        "assert torch._C._get_privateuse1_backend_name() == 'privateuseone' and torch.Generator is torch._C.Generator",
        HEAVY | {"simgpu.reports.session", "simgpu.reports.gather", "simgpu.reports.forms"},
    ),
    "gpus": ("from course_utils import gpus", HEAVY),
    "devices": ("from course_utils import devices", HEAVY),
    "plots": ("from course_utils import plots", {"matplotlib"}),
    "counting": ("from course_utils import counting\nwith counting.count(): torch.ones(2) + 1", {"torch._dynamo"}),
}
CHILD = """import json, sys
seen = []
for line in json.loads(sys.argv[1]):
    before = set(sys.modules)
    exec(line)
    seen.append(sorted(set(sys.modules) - before))
print(json.dumps([seen, torch.cuda.is_initialized()]))"""


@pytest.fixture(scope="module")
def seen():
    """The new modules of each step by its name, and whether CUDA was initialised at the end."""
    command = [sys.executable, "-c", CHILD, json.dumps([line for line, _ in STEPS.values()])]
    steps, initialised = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return dict(zip(STEPS, steps, strict=True)), initialised


@pytest.mark.parametrize("step", STEPS)
def test_an_import_loads_nothing_heavy(seen, step):
    loaded = set(seen[0][step])
    assert loaded and not STEPS[step][1] & loaded


def test_importing_the_packages_loads_little_and_no_room_but_the_one_named(seen):
    steps, initialised = seen
    own = [name for name in steps["the course and the helper"] if name.split(".")[0] in walls.STOREYS]
    assert own == ["course_utils", "gpu_course"] and "course_utils.devices" in steps["devices"]
    assert len(steps["the course and the helper"]) <= 10 and not initialised
    assert max(len(steps[engine]) for engine in walls.ENGINES) <= 200  # besides torch


def snapshot(*arguments: str) -> str:
    done = children.run("-m", "tests.project.snapshot", *arguments, cwd=notebooks.ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_every_module_changes_no_function_of_others(tmp_path):
    others = tmp_path / "loaded"
    others.write_text(snapshot("--loaded"), encoding="utf-8")
    found = json.loads(snapshot(str(others)))
    assert found["functions"] > 10_000 and found["changed"] == []
    assert found["seen"] == ["torch.amp.autocast_mode.autocast.__init__", "torch.new", "torch.randn", "os.environ"]
