"""The device of the lessons, the reasons for having no GPU, and the falls back to the CPU."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

import simgpu
from course_utils import devices, gpus, plots
from course_utils.devices import choice, diagnosis
from course_utils.devices import report as reporting
from tests import children
from tests.simgpu.simulated import fork_children

# What each stored report is an example of. The exercise of lesson 01 stands on these.
EXPECTED = {
    "colab_t4": "works", "colab_without_gpu": "no gpu runtime", "container": "container without gpu",
    "driver_updated": "driver broken", "hidden_gpu": "hidden", "intel_python_on_mac": "intel mac",
    "kaggle_p100": "unsupported capability", "laptop_without_gpu": "cpu-only build", "wsl": "wsl without driver",
    "macbook_m2": "works", "old_driver": "driver too old", "old_macos": "macos too old",
    "windows_from_pip": "cpu-only build", "linux_without_driver": "no driver",
}  # fmt: skip
needs_simulator = pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))
STORED = devices.Report.stored()
# More machines: the report, its cause, and phrases of the diagnosis
MACHINES = json.loads((Path(__file__).parent / "reports.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def forget():
    """Forget what was picked before and after each test."""
    for cached in (choice._pick, choice._simulated):
        cached.cache_clear()
    yield
    for cached in (choice._pick, choice._simulated):
        cached.cache_clear()


def test_each_stored_report_has_its_cause_and_a_cure_that_fits_the_machine():
    assert set(STORED) == set(EXPECTED)
    for name, machine in STORED.items():
        found = devices.diagnose(machine)
        assert found.cause == EXPECTED[name], name
        assert found.cause in diagnosis.CAUSES and found.cure and machine.story
        assert found.what.endswith((".", "!")) or machine.kernel_error
        assert len(str(found).splitlines()) == 2
    cure = {name: devices.diagnose(machine).cure for name, machine in STORED.items()}
    assert "download.pytorch.org/whl/cu130" in cure["windows_from_pip"]
    assert "index-url" not in cure["laptop_without_gpu"]
    assert "Change runtime type" in cure["colab_without_gpu"]
    assert "T4 x2" in cure["kaggle_p100"]
    assert "whl/cu126" in devices.diagnose(dataclasses.replace(STORED["kaggle_p100"], service=None)).cure


@pytest.mark.parametrize("name", MACHINES)
def test_the_diagnosis_of_another_machine_names_its_cause_and_a_cure_that_fits(name):
    entry = MACHINES[name]
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in entry["report"].items()}
    found = devices.diagnose(devices.Report(**fields))
    assert found.cause == entry["cause"] and found.cause in diagnosis.CAUSES
    assert [phrase for phrase in entry["says"] if phrase not in str(found)] == []
    assert len(found.what) < 220 and 0 < len(found.cure) < 160 and found.what.endswith(".")
    assert "{" not in str(found) and entry["story"]


def test_the_machines_cover_every_cause():
    rare = {"kernel failed"}  # below
    assert {entry["cause"] for entry in MACHINES.values()} | set(EXPECTED.values()) | rare == set(diagnosis.CAUSES)
    assert len(MACHINES) + len(STORED) >= 24


@pytest.mark.parametrize(("name", "changes", "cause"), [
    ("hidden_gpu", {"visible_devices": None}, "unknown"),
    ("colab_t4", {"kernel_error": "CUDA error: unspecified launch failure"}, "kernel failed"),
    # the oldest driver depends on the major version of CUDA
    ("hidden_gpu", {"cuda_build": "13.0", "driver": "579.99"}, "driver too old"),
    ("hidden_gpu", {"cuda_build": "13.0", "driver": "580.65.06"}, "hidden"),
    ("hidden_gpu", {"cuda_build": "12.8", "driver": "524.0"}, "driver too old"),
    ("hidden_gpu", {"cuda_build": "12.8", "driver": "525.60.13"}, "hidden"),
    ("hidden_gpu", {"cuda_build": "11.8", "driver": "450.80.02"}, "hidden"),
])  # fmt: skip
def test_a_report_that_changed_has_another_cause(name, changes, cause):
    assert devices.diagnose(dataclasses.replace(STORED[name], **changes)).cause == cause


@pytest.mark.parametrize(
    ("code", "archs", "runs"),
    [
        ("6.0", ("sm_70", "sm_75"), False), ("8.6", ("sm_80",), True), ("8.0", ("sm_86",), False),
        ("10.3", ("sm_100",), True), ("12.0", ("sm_90",), False), ("12.0", ("sm_75", "compute_90"), True),
        ("9.0", ("sm_90a",), True), ("10.3", ("sm_100a",), False), ("10.3", ("sm_100f",), True),
        ("8.7", ("sm_80", "sm_86"), False), ("8.7", ("sm_87",), True), ("12.0", ("compute_90a",), False),
        ("gfx1100", ("gfx1030", "gfx1100"), True), ("gfx1102", ("gfx1030", "gfx1100"), False),
    ],
)  # fmt: skip
def test_a_build_runs_on_the_same_major_version_or_through_ptx(code, archs, runs):
    assert diagnosis._runs(code, archs) is runs


@pytest.mark.skipif(not hasattr(torch.cuda, "_code_compatible_with_device"), reason="torch before 2.13 has none")
@pytest.mark.parametrize("built", [50, 60, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121])
def test_a_build_runs_where_pytorchs_own_table_says_so(built):
    for number in (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121):
        capability = f"{number // 10}.{number % 10}"
        runs = torch.cuda._code_compatible_with_device(number, built)
        assert diagnosis._runs(capability, (f"sm_{built}",)) is runs, capability


@pytest.mark.parametrize(
    "setting", ["", "0", "1", "0,1", "1,0", "0, 1", "-1", "0,-1,1", "0,0", "5", "0,5,1", "5,5", "no", "1gpu2,0", "+1"]
)
def test_the_variable_is_read_as_pytorch_reads_it(monkeypatch, setting):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    shown = torch.cuda._parse_visible_devices()
    absent = next((at for at, number in enumerate(shown) if number >= 2), len(shown))
    assert diagnosis._shown(setting, 2) == shown[:absent]


@pytest.mark.parametrize("setting", ["GPU-1a", "GPU-1a,GPU-2b", "GPU-1a,GPU-1a", "MIG-3c,MIG-4d"])
def test_identifiers_are_read_as_pytorch_reads_them(monkeypatch, setting):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert diagnosis._shown(setting, 2) == torch.cuda._parse_visible_devices()


def test_the_report_of_this_machine_is_complete_and_names_no_person():
    here = devices.Report.collect()
    assert here.torch == torch.__version__ and here.python.count(".") == 2
    assert here.cuda_available == torch.cuda.is_available()
    assert os.path.expanduser("~") not in str(here)
    assert devices.diagnose().cause in diagnosis.CAUSES
    assert "<th>torch</th>" in here._repr_html_()


def test_nvidia_smi_is_read_and_its_errors_are_told_apart(monkeypatch):
    def answer(*results):
        left = iter(results)

        def run(*args, **kwargs):
            result = next(left)
            if isinstance(result, Exception):
                raise result
            return subprocess.CompletedProcess([], *result, "")

        monkeypatch.setattr(reporting.subprocess, "run", run)
        return reporting._ask_driver()

    two = "580.82.07, Tesla T4, Default, [N/A]\n580.82.07, Tesla T4, Default, [N/A]\n"
    t4 = {"driver": "580.82.07", "driver_gpus": ("Tesla T4", "Tesla T4"), "compute_mode": "Default", "mig": False}
    assert answer((0, two)) == t4
    assert answer((0, "580.82.07, NVIDIA A100-SXM4-40GB, Default, Enabled\n"))["mig"]
    unknown = (2, 'Field "mig.mode.current" is not a valid field to query.\n')
    assert answer(unknown, (0, "390.157, GeForce GTX 580\n"))["driver"] == "390.157"
    mismatch = "Failed to initialize NVML: Driver/library version mismatch"
    assert answer((18, mismatch + "\nNVML library version: 580.82\n")) == {"driver_error": mismatch}
    silent = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"
    said = silent + ". Make sure that the latest NVIDIA driver is installed and running.\n\n"
    assert answer((9, said)) == {"driver_error": silent}
    assert answer((6, "No devices were found\n")) == {"driver_error": "No devices were found"}
    assert answer((1, ""))["driver_error"] == "nvidia-smi ended with exit status 1"
    assert "gave no answer" in answer(subprocess.TimeoutExpired("nvidia-smi", 20))["driver_error"]
    assert answer(FileNotFoundError()) == {}


def test_a_build_for_amd_reads_its_own_variables_and_names_its_code(monkeypatch):
    for name, value in (("HIP_VISIBLE_DEVICES", "1"), ("CUDA_VISIBLE_DEVICES", "0")):
        monkeypatch.setenv(name, value)
    assert reporting._visible_devices() == "0"
    monkeypatch.setattr(torch.version, "hip", "6.4.43484")
    assert reporting._visible_devices() == "1"
    code = type("Properties", (), {"gcnArchName": "gfx90a:sramecc+:xnack-"})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *args: code)
    assert reporting._capability() == "gfx90a"
    monkeypatch.setattr(torch.cuda, "init", lambda: (_ for _ in ()).throw(RuntimeError("No HIP GPUs are available")))
    assert reporting._start_error() == "No HIP GPUs are available"


@pytest.mark.parametrize(
    ("changes", "target"),
    [
        ({"rocm_build": "6.4.43484"}, "AMD GPUs, ROCm 6.4.43484"), ({"xpu_build": "20250301"}, "Intel GPUs"),
        ({"mps_built": True}, "the GPU of a Mac"), ({}, "the CPU only"),
    ],
)  # fmt: skip
def test_the_table_names_for_what_a_build_without_cuda_is(changes, target):
    assert choice._build(dataclasses.replace(STORED["laptop_without_gpu"], **changes)) == target


def test_course_device_overrides_and_a_real_gpu_that_is_missing_is_an_error_with_the_cause(monkeypatch):
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    assert devices.pick() == torch.device("cpu")
    monkeypatch.setenv("COURSE_DEVICE", "gpu")
    with pytest.raises(ValueError, match="COURSE_DEVICE is 'gpu', it may be one of: cpu, sim, cuda, mps, xpu"):
        devices.pick()
    monkeypatch.setenv("COURSE_DEVICE", "cuda")
    monkeypatch.setattr(choice, "_available", lambda kind: False)
    with pytest.raises(RuntimeError, match="COURSE_DEVICE is cuda: PyTorch finds no cuda device"):
        devices.pick()


def test_ranks_and_kernels_compute_where_the_course_does(monkeypatch):
    for name in ("RANKLAUNCH_DEVICE", "KERNELCHECK_DEVICE"):
        monkeypatch.setenv(name, "cuda")  # so that what is set below goes with the test
        monkeypatch.delenv(name)
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    devices.pick()
    assert os.environ["RANKLAUNCH_DEVICE"] == os.environ["KERNELCHECK_DEVICE"] == "cpu"


@needs_simulator
def test_a_process_that_has_simulated_gpus_alone_picks_one(monkeypatch):
    monkeypatch.setenv("COURSE_DEVICE", "cuda")
    monkeypatch.setenv("SIMGPU_ONLY", "1")
    assert devices.pick() == torch.device("sim", 0)


@needs_simulator
def test_the_simulated_gpu_is_picked_where_there_is_no_real_one(monkeypatch, capsys):
    monkeypatch.setenv("COURSE_DEVICE", "sim")
    assert devices.pick() == torch.device("sim", 0)
    monkeypatch.delenv("COURSE_DEVICE")
    assert devices.pick() == torch.device("sim", 0)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    assert devices.check_devices() == [torch.device("cpu"), torch.device("sim", 0)]
    monkeypatch.setenv("COURSE_DEVICE", "sim")
    assert devices.check_devices() == [torch.device("sim", 0)]


def test_a_gpu_whose_first_kernel_fails_is_not_picked(monkeypatch, capsys):
    monkeypatch.delenv("COURSE_DEVICE", raising=False)
    monkeypatch.setattr(choice, "_available", lambda kind: kind == "cuda")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(choice, "kernel_error", lambda device: "CUDA error: no kernel image is available")
    monkeypatch.setattr(simgpu, "ready", lambda: (None, "this process has a real accelerator (cuda)"))
    assert devices.pick() == devices.pick() == torch.device("cpu")
    shown = capsys.readouterr().out
    assert shown.count("no kernel image") == 1  # shown once
    assert "No simulated GPU: this process has a real accelerator (cuda)" in shown
    assert devices.check_devices() == [torch.device("cpu")]
    monkeypatch.setenv("COURSE_DEVICE", "cuda")
    with pytest.raises(RuntimeError, match="COURSE_DEVICE is cuda: cuda:0 is there, but a first small kernel"):
        devices.pick()


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
def test_a_gpu_whose_first_kernel_runs_is_picked_with_its_index(monkeypatch, kind):
    monkeypatch.delenv("COURSE_DEVICE", raising=False)
    monkeypatch.setattr(choice, "_available", lambda name: name == kind)
    monkeypatch.setattr(choice, "kernel_error", lambda device: None)
    if kind != "mps":
        monkeypatch.setattr(getattr(torch, kind), "current_device", lambda: 0)
    assert devices.pick() == torch.device(kind, 0)
    assert devices.check_devices() == [torch.device(kind, 0)]


@needs_simulator
def test_a_simulator_that_fails_its_self_test_is_not_used(monkeypatch, capsys):
    simgpu.enable()
    monkeypatch.setenv("COURSE_DEVICE", "sim")
    monkeypatch.setattr(simgpu, "ready", lambda: (None, "its self-test failed: a gradient differs"))
    assert devices.pick() == torch.device("cpu")
    assert "No simulated GPU: its self-test failed" in capsys.readouterr().out


REAL = torch.accelerator.is_available() and torch.accelerator.current_accelerator().type != "sim"  # ours
PICK = "from course_utils import devices; d = devices.pick(); devices.pick(); print(d)"
TAKEN = "import torch; torch.utils.rename_privateuse1_backend('npu'); "
MISSING = "import torch, torch.library; del torch.library.get_kernel; "


@pytest.mark.skipif(REAL, reason="this machine has a real accelerator")
@pytest.mark.parametrize(("before", "phrase"), [("", ""), (TAKEN, "'npu'"), (MISSING, "lacks torch.library.get_")])
def test_a_fresh_process_picks_the_simulated_gpu_or_where_it_cannot_be_the_cpu_with_the_reason_once(before, phrase):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COURSE_")}
    done = children.run("-c", before + PICK, env=kept, timeout_s=120)
    out = done.stdout.strip()
    assert done.returncode == 0, done.stderr
    assert out == "sim:0" if not before else out.splitlines()[-1] == "cpu"
    assert out.count("No simulated GPU") == bool(before) and phrase in out


def busy_shares(words):
    """Run two products on simulated GPUs; return the time line, what each device was called and a line's words."""
    print(words)
    with simgpu.timeline() as timeline:
        ones = [torch.ones(64, 64, device=f"sim:{index}") for index in (0, 1)]
        found = [str((x @ x).device) for x in ones]
        torch.sim.synchronize()
    return timeline, found, torch.cuda.is_available()


@needs_simulator
def test_on_simulated_gives_the_same_in_this_process_and_beside_a_real_gpu(monkeypatch, capsys):
    here, places, _ = devices.on_simulated(busy_shares, "hello")
    monkeypatch.setattr(choice, "simulated", lambda: None)
    there, *rest = devices.on_simulated(busy_shares, "hello")
    assert capsys.readouterr().out == "hello\nhello\n"
    assert rest == [places, False] and places == ["sim:0", "sim:1"]
    assert str(there) == str(here) and len(there.select("kernel")) > 1 and repr(plots.timeline(there)) == str(here)


def test_an_error_on_the_simulated_gpu_of_a_child_shows_the_readers_line(monkeypatch):
    monkeypatch.setattr(choice, "simulated", lambda: None)
    fork_children(monkeypatch)
    with pytest.raises(RuntimeError, match=r"(?s)child process Traceback.*return 1 / number.*ZeroDivisionError"):
        devices.on_simulated(lambda number: divide(number), 0)


def divide(number):
    return 1 / number


def test_where_no_process_has_a_simulated_gpu_the_reason_is_printed(monkeypatch, capsys, tmp_path):
    text = "import sys\nsys.modules['simgpu'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(choice, "simulated", lambda: None)
    assert devices.on_simulated(divide, 2) is None
    out = capsys.readouterr().out
    assert out.startswith("No simulated GPU: ") and "(ModuleNotFoundError: No module named 'simgpu" in out


def test_the_description_has_short_lines_and_the_table_has_what_lesson_00_shows(monkeypatch):
    line = str(devices.describe("cpu"))
    assert line.startswith("cpu: the CPU of this machine\nLive: results")
    assert all(len(part) <= 100 for part in line.splitlines())
    assert "predicted" in line and "published" in line
    assert "recorded" not in line  # there is not one recording
    assert "<b>cpu</b>" in devices.describe(torch.device("cpu"))._repr_html_()
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    shown = devices.table()
    names = [name for name, _ in shown.rows]
    assert names == ["device", "torch", "CUDA build", "driver", "Python", "system", "cores", "host memory"]
    assert torch.__version__ in str(shown) and shown._repr_html_().count("<tr>") == len(names)


@needs_simulator
def test_the_simulated_gpus_are_listed_and_described_as_simulated(monkeypatch):
    monkeypatch.setenv("COURSE_DEVICE", "sim")
    line = str(devices.describe(devices.pick()))
    assert line.startswith("sim:0: Simulated T4") and "Simulated or predicted" in line.partition("Live")[2]
    assert all(len(part) <= 100 for part in line.splitlines())
    assert devices.check_devices()[-1] == torch.device("sim", 0)
    with pytest.raises(ValueError, match=r"device is 'sim:9', which .*; it may be: cpu, sim:0, sim:1"):
        devices.describe("sim:9")
    assert str(devices.describe("sim")).startswith("sim: Simulated")


not_on_a_mac = pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine is a Mac with a GPU")


@pytest.mark.parametrize("function", [devices.describe, devices.table, devices.synchronize, reporting.kernel_error])
@pytest.mark.parametrize(("wrong", "error", "phrase"), [
    (5, TypeError, "device is 5, it must be a torch.device or text"),
    ("gpu", ValueError, "device is 'gpu', which names no device that PyTorch knows"),
    ("meta", ValueError, "device is 'meta', which this machine does not have; it may be: cpu"),
    ("cuda:99", ValueError, "device is 'cuda:99', which this machine does not have; it may be: cpu"),
    pytest.param("mps", ValueError, "device is 'mps', which this machine does not have; it", marks=not_on_a_mac),
    (None, TypeError, r"device is None, it must be a torch\.device or text"),
])  # fmt: skip
def test_what_is_no_device_of_this_machine_is_refused_by_name(function, wrong, error, phrase):
    if function is devices.table and wrong is None:
        assert function(None).rows  # of the picked one
    elif function is reporting.kernel_error and "which this machine" in phrase:
        assert isinstance(function(wrong), str)  # its result is the error of such a device
    else:
        with pytest.raises(error, match=phrase):
            function(wrong)


@pytest.mark.parametrize("picked", [True, pytest.param(False, marks=pytest.mark.slow)])  # that there was a line
def test_a_toolkit_beside_a_build_without_a_gpu_draws_no_red_line(tmp_path, picked):
    pick = "from course_utils import devices; devices.pick()" if picked else ""
    code = f"{pick}\nfrom torch.utils import cpp_extension\ncpp_extension._find_cuda_home()"
    environment = {**os.environ, "CUDA_HOME": str(tmp_path), "COURSE_DEVICE": "cpu"}
    done = children.run("-c", code, env=environment)
    assert done.returncode == 0, done.stderr
    assert ("No CUDA runtime is found" in done.stderr) == (not picked and not torch.cuda.is_available())


def test_a_site_that_has_enough_gets_no_cure_and_a_login_node_gets_one_for_each_lack(monkeypatch):
    assert all(finding.cure for finding in devices.site() if str(finding).startswith("TOO LITTLE"))
    resource = pytest.importorskip("resource")

    def lookup(name, port):
        raise OSError(name)

    monkeypatch.setattr(resource, "getrlimit", lambda limit: (100, 100))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0}, raising=False)
    monkeypatch.setattr("socket.getaddrinfo", lookup)
    monkeypatch.setattr("subprocess.run", lookup_program)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/sbatch" if name == "sbatch" else None)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    lacking = {finding.needed: finding.cure for finding in devices.site() if finding.cure}
    for needed, cure in {
        "processors": "srun",
        "seconds of processor time": "srun",
        "processes and threads": "srun",
        "programs run in the temporary folder": "TMPDIR",
        "the machine's own name": "GLOO_SOCKET_IFNAME",
        "a C++ compiler": "ziglang",
        "GPUs": "srun --gpus",
    }.items():
        assert any(name.startswith(needed) and cure in said for name, said in lacking.items()), (needed, lacking)


def lookup_program(*arguments, **options):
    raise PermissionError("noexec")


@pytest.mark.parametrize(("name", "drawn"), [("RTX 4090", ["RTX 4090"] * 2), ("Apple M1", ["T4", "H200"])])
def test_the_sheet_of_the_own_gpu_is_drawn_where_its_maker_states_rates(monkeypatch, name, drawn):
    driver_name = gpus.get(name).driver_name or "a GPU of nobody"
    monkeypatch.setattr(choice, "_present", torch.device)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: driver_name)
    assert [row.name for row in devices.sheets("cuda:0")] == drawn
    assert [row.name for row in devices.sheets("cpu")] == ["T4", "H200"]
