"""`pytest -p simgpu.pytest`: tests that want CUDA, MPS or XPU run on simulated GPUs, where there is no real one.

The face is on before any conftest is read, so that tests which skip themselves without a GPU do not. A real GPU is
hidden from the run, and the summary says so; it also says why, with `-q` too, where there can be no simulated one.
"""

from collections.abc import Generator

import pytest
import torch

from simgpu.device import enabling, hiding, readings
from simgpu.face import switch
from simgpu.face.options import KINDS
from simgpu.machine import hosts

_given: dict[str, str] = {}  # "refused": why there are no simulated GPUs in this run; "hidden": which real ones


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `simgpu.cuda`."""
    group = parser.getgroup("simgpu", "simulated GPUs under the name cuda, mps or xpu")
    which = 'a row of simgpu.gpus, such as "H100 SXM" (default: T4; for mps Apple M1)'
    group.addoption("--simgpu-kind", default="cuda", choices=KINDS, help="what the tests call a GPU")
    group.addoption("--simgpu-gpu", "--simgpu", dest="simgpu", metavar="GPU", help=which)
    group.addoption("--simgpu-count", type=int, metavar="N", help="how many GPUs there are (default: 1)")
    group.addoption(
        "--simgpu-races", choices=("warn", "error"), help="report unsynchronised accesses to the same memory"
    )
    group.addoption("--simgpu-memory", metavar="SIZE", help='of each, as "8 GiB" (default: that of the data sheet)')
    group.addoption("--simgpu-host", default=hosts.DEFAULT.name, metavar="HOST", help="a row of simgpu.hosts, or µs")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Switch the face on."""
    options = early_config.known_args_namespace
    if hidden := hiding.hide_accelerators(children=False):
        _given["hidden"] = hidden
    if (reason := enabling.unavailable()) is not None:
        _given["refused"] = reason
        return
    try:
        how = {"memory": options.simgpu_memory, "host": options.simgpu_host, "races": options.simgpu_races}
        switch.of_kind(options.simgpu_kind, gpu=options.simgpu, gpus=options.simgpu_count, **how)
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"simgpu: {error}") from None


def pytest_report_header(config: pytest.Config) -> str:
    """Report the device of the tests."""
    if "refused" in _given:
        return "simgpu: off"
    settings = readings.settings()  # not torch.cuda, which would begin
    count, size = len(settings.capacity_bytes), f"{settings.capacity_bytes[0] / 2**30:.1f} GiB"
    return f"simgpu: {count} x Simulated {settings.spec.name}, {size}: memory and times are simulated"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report hidden real GPUs, or the reason for missing simulated ones; also under `-q`."""
    if "refused" in _given:
        terminalreporter.write_line(f"simgpu: off, so that nothing ran on simulated GPUs: {_given['refused']}")
    elif "hidden" in _given:
        terminalreporter.write_line(f"simgpu: {_given['hidden']}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Fail the test whose kernel raised an error that none of its calls waited for."""
    try:
        return (yield)
    finally:
        if switch.is_in_use():
            try:
                torch.accelerator.synchronize()
            finally:
                readings.forgive()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Switch it off again."""
    while switch.is_on():
        switch.last().off()
