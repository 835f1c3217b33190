"""Does each test leave the process as it found it? A setting left changed would fail another test, far away."""

import importlib.util
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch

try:
    from gpu_course import settings
except ImportError:  # an engine's tests run alone, where nothing is installed that the course needs
    settings = None

# What a library sets in the environment when it is first imported, and pytest itself for each test.
_ANYTIME = ("PYTEST_CURRENT_TEST", "KMP_INIT_AT_FORK", "KMP_DUPLICATE_LIB_OK", "TORCHINDUCTOR_CACHE_DIR")
_PROGRAMS = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _look() -> dict[str, object] | None:
    """Return how matplotlib draws, or None before it is imported; its backend is settled by the first picture."""
    library = sys.modules.get("matplotlib")
    rc = getattr(library, "rcParams", None)
    return None if rc is None else {name: value for name, value in dict.items(rc) if name != "backend"}


def _shared() -> dict[str, object]:
    """Return what tests share besides the settings that an answer is watched for, by its name in messages."""
    paths = [path for path in sys.path if not path.endswith("_vendor")]  # setuptools adds one where it is imported
    variables = {name: value for name, value in os.environ.items() if name not in _ANYTIME}
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    found = {"the environment": variables, "where modules are found": paths}
    return found | {"how matplotlib draws": _look(), "the handlers of signals": handlers}


def _simulated_gpus() -> int:
    """Return how many simulated GPUs this process has, 0 before it has any: the first test that asks decides."""
    simgpu = sys.modules.get("simgpu")
    return torch.get_device_module("sim").device_count() if simgpu and simgpu.enabled() else 0


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}


def pytest_configure(config: pytest.Config) -> None:
    """Let nothing but the tests of one engine, run from its own folder, do without the settings."""
    if settings is None and config.rootpath.parent.name != "engines":
        raise pytest.UsageError("gpu_course.settings cannot be imported, and tests of the course need it")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a tool that only those have who change the course: `pip install -e ".[dev]"`. CI has them all."""
    asked = [name for mark in item.iter_markers("needs") for name in mark.args]
    missing = [name for name in asked if not (importlib.util.find_spec(name) or shutil.which(name, path=_PROGRAMS))]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"{', '.join(missing)}: not installed here")


@pytest.fixture(autouse=True)
def settings_are_left_as_they_were():
    """Fail the test that leaves a setting of torch or of the process changed, and put the setting back."""
    before, shared, threads = settings and settings.read(), _shared(), _threads()
    yield
    changed = settings.put_back(before) if settings else []
    after = _shared()
    changed += [name for name, value in shared.items() if value is not None and after[name] != value]
    if changed:
        for name in after["the environment"].keys() - shared["the environment"].keys():
            del os.environ[name]
        os.environ.update(shared["the environment"])
        sys.path[:] = shared["where modules are found"]
        if shared["how matplotlib draws"] is not None:
            sys.modules["matplotlib"].rcParams.update(shared["how matplotlib draws"])
        for one, handler in zip((signal.SIGINT, signal.SIGTERM), shared["the handlers of signals"], strict=True):
            signal.signal(one, handler)
    assert not changed, f"the test leaves {', '.join(changed)} changed"
    assert _simulated_gpus() in (0, 2), "the first test that uses simulated GPUs asks for two: others need them"
    for thread in (left := _threads() - threads):
        thread.join(60)
    assert not [thread for thread in left if thread.is_alive()], "the test leaves threads that run on"


@pytest.fixture
def sim():
    """The simulated GPU, enabled in this process."""
    import simgpu

    if (reason := simgpu.unavailable()) is not None:
        pytest.skip(reason)
    simgpu.enable()
    return torch.device("sim", 0)
