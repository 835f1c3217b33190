"""What does importing the course load, and how long does it take? One fresh process imports its rooms one by one."""

import json
import subprocess
import sys

import pytest

HEAVY = {"matplotlib", "ipywidgets", "sklearn", "scipy", "IPython", "pynvml"}
# What each line must not load, besides what those above it have loaded.
STEPS = {
    "the package": ("import course_utils", HEAVY | {"torch", "numpy"}),
    "gpus": ("from course_utils import gpus", HEAVY | {"torch", "numpy"}),
    "predict": ("from course_utils import predict", HEAVY | {"torch"}),
    "torch": ("import torch", {"matplotlib", "IPython"}),
    "devices": ("from course_utils import devices", HEAVY),
    "simulator": (
        "from course_utils import simulator\nfailed = False\n"
        "try:\n    simgpu.reset()\nexcept RuntimeError as error:\n"
        "    failed = 'call simgpu.enable' in str(error)\nassert failed and not hasattr(torch, 'sim')\n"
        "assert torch._C._get_privateuse1_backend_name() == 'privateuseone' and torch.Generator is torch._C.Generator",
        {"matplotlib"},
    ),
    "plots": ("from course_utils import plots", {"matplotlib"}),
    "counting": ("from course_utils import counting\nwith counting.count(): torch.ones(2) + 1", {"torch._dynamo"}),
}
CHILD = """import json, sys, time
seen = []
for line in json.loads(sys.argv[1]):
    before, start = set(sys.modules), time.perf_counter()
    exec(line)
    seen.append([time.perf_counter() - start, sorted(set(sys.modules) - before)])
print(json.dumps([seen, torch.cuda.is_initialized()]))"""


@pytest.fixture(scope="module")
def seen():
    """The seconds and the new modules of each step by its name, and whether CUDA was initialised at the end."""
    command = [sys.executable, "-c", CHILD, json.dumps([line for line, _ in STEPS.values()])]
    steps, initialised = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return dict(zip(STEPS, steps, strict=True)), initialised


@pytest.mark.parametrize("step", STEPS)
def test_a_room_loads_nothing_heavy(seen, step):
    loaded = set(seen[0][step][1])
    assert loaded and not STEPS[step][1] & loaded


def test_importing_the_package_is_quick_and_loads_no_room_but_the_one_named(seen):
    steps, initialised = seen
    own = [name for step in ("the package", "gpus") for name in steps[step][1] if name.startswith("course_utils")]
    assert own == ["course_utils", "course_utils.gpus"] and "course_utils.devices" in steps["devices"][1]
    assert steps["the package"][0] <= 0.15 and not initialised
