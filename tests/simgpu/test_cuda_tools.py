"""Do the tools that programs ask about a GPU answer on CUDA's face: NVML, nvidia-smi?"""

import copy
import json
import os
import pickle
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import simgpu

FACE = {"gpus": 2, "memory": "1 GiB"}

MIB = 2**20


# ---- NVML --------------------------------------------------------------------------------------------------------
def test_nvml_knows_what_sheets_and_accounts_know():
    import pynvml

    keep = torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda:1")
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2 and pynvml.nvmlSystemGetCudaDriverVersion() == 12080
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    assert memory.total == 2**30 and memory.used == torch.cuda.memory_reserved(1) >= keep.nbytes
    assert memory.free == memory.total - memory.used == torch.cuda.mem_get_info(1)[0]
    assert pynvml.nvmlDeviceGetName(handle) == "Simulated T4" and pynvml.nvmlDeviceGetIndex(handle) == 1
    assert pynvml.nvmlDeviceGetCudaComputeCapability(handle) == (7, 5)
    again = pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(handle))
    assert again.index == 1 and pynvml.nvmlDeviceGetPowerManagementLimit(handle) == 70_000
    (one,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    assert (one.pid, one.usedGpuMemory) == (os.getpid(), memory.used)
    for wrong in (lambda: pynvml.nvmlDeviceGetHandleByIndex(2), lambda: pynvml.nvmlDeviceGetHandleByUUID("GPU-0")):
        with pytest.raises(pynvml.NVMLError_InvalidArgument, match="there is no GPU"):
            wrong()
    pynvml.nvmlShutdown()


def test_a_sensor_that_is_not_there_is_refused_in_a_sentence():
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError, match="no sensor and no driver that nvmlDeviceGetFanSpeed could") as caught:
        pynvml.nvmlDeviceGetFanSpeed(handle)
    assert caught.value.value == pynvml.NVML_ERROR_NOT_SUPPORTED
    for ask in (torch.cuda.temperature, torch.cuda.power_draw, torch.cuda.clock_rate, torch.cuda.memory_usage):
        with pytest.raises(NotImplementedError, match="the simulated GPU has no sensor"):
            ask()


def test_utilization_is_the_busy_share_of_the_virtual_time_since_it_was_last_asked():
    x = torch.ones(512, 512, device="cuda")
    torch.cuda.utilization()
    for _ in range(50):
        x @ x
    torch.cuda.synchronize()
    assert torch.cuda.utilization() > 80 and torch.cuda.utilization(1) == 0
    simgpu.host_work("think", 50.0)
    assert torch.cuda.utilization() == 0
    simgpu.reset()
    assert torch.cuda.utilization() == 0
    assert torch.cuda.device_memory_used() == torch.cuda.memory_reserved()
    assert f"process {os.getpid():>10d} uses" in torch.cuda.list_gpu_processes()
    assert "no processes are running" in torch.cuda.list_gpu_processes(1)


def test_pynvml_is_its_own_again_afterwards():
    with simgpu.cuda():
        assert sys.modules["pynvml"].__name__ == "simgpu.face.nvml"
    simgpu.face.switch.last().off()
    assert getattr(sys.modules.get("pynvml"), "__name__", "pynvml") == "pynvml"


# ---- nvidia-smi --------------------------------------------------------------------------------------------------
def smi(*arguments):
    return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.name != "posix", reason="on Windows a program must be a binary")
def test_nvidia_smi_says_what_it_knows():
    keep = torch.zeros(300 * MIB, dtype=torch.uint8, device="cuda:1")
    rows = smi("--query-gpu=index,name,memory.total,memory.used,temperature.gpu", "--format=csv,noheader,nounits")
    assert rows.stdout.splitlines()[1] == "1, Simulated T4, 1024, 300, [N/A]" and keep.is_cuda
    rows = smi("--query-gpu", "memory.free,compute_cap,power.limit", "--format", "csv", "-i", "1").stdout.splitlines()
    assert rows == ["memory.free [MiB], compute_cap, power.limit [W]", "724 MiB, 7.5, 70 W"]
    rows = smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader").stdout
    assert rows == f"{os.getpid()}, 300 MiB\n"
    listed = smi("-L").stdout.splitlines()
    assert len(listed) == 2 and listed[1].startswith("GPU 1: Simulated T4 (UUID: GPU-")
    assert "300MiB / 1024MiB" in smi().stdout
    other = smi("dmon")
    assert other.returncode == 1 and "knows no option 'dmon': it has -L" in other.stderr
    told = [sys.executable, "-c", "import os; os.system('nvidia-smi -L')"]
    assert subprocess.run(told, capture_output=True, text=True, check=True).stdout.count("Simulated T4") == 2


# ---- kinds that are no module's -----------------------------------------------------------------------------------
def test_a_number_is_a_gpu_of_cuda():
    assert str(torch.device(0)) == "cuda:0" and torch.device(1).type == "cuda"
    assert torch.device(1) == torch.device("cuda:1") == pickle.loads(pickle.dumps(torch.device(1)))
    assert isinstance(torch.device(0), torch.device) and type(torch.device(0)) is torch.device
    assert copy.deepcopy(torch.device) is pickle.loads(pickle.dumps(torch.device)) is torch.device
    with pytest.raises(RuntimeError, match="Invalid device string"):
        torch.device("cuda:x")
    with torch.device(1):
        assert torch.ones(2).device == torch.device(1)
    simgpu.face.switch.last().off()
    assert type(torch.device) is type and torch.device(0).type != "cuda"


class Noting(torch.nn.Linear):
    """A layer that notes where it is moved, as those of Lightning do."""

    noted = None

    def to(self, *args, **kwargs):
        self.noted = torch._C._nn._parse_to(*args, **kwargs)[0]
        return super().to(*args, **kwargs)


def test_a_layer_that_reads_the_arguments_of_to_reads_gpus_of_cuda():
    with simgpu.cuda(gpus=2):
        for given in (1, "cuda:1", torch.device(1), torch.ones(1, device="cuda:1")):
            layer = Noting(2, 2).to(given)
            assert str(layer.noted) == "cuda:1" and layer.weight.device == layer.noted
        assert Noting(2, 2).to(torch.float64).noted is None


def test_streams_and_events_of_torch_itself():
    stream, event = torch.Stream("cuda:1"), torch.Event("cuda", enable_timing=True)
    assert stream.device == torch.device("cuda:1") and isinstance(stream, torch.Stream | torch.cuda.Stream)
    assert isinstance(torch.Stream(), torch.cuda.Stream) and isinstance(event, torch.Event)
    begin = torch.Event(enable_timing=True)
    begin.record()
    with torch.Stream(device="cuda"):
        torch.ones(256, 256, device="cuda").sum()
        event.record()
    event.synchronize()
    assert begin.elapsed_time(event) > 0 and not isinstance(3, torch.Event)


def test_the_class_of_a_parameter_makes_parameters():
    old = nn.Linear(2, 3).cuda().weight
    for data in (old.data, old.data.cpu(), torch.empty(3, 2, device="meta")):
        new = type(old)(data, requires_grad=False)
        assert isinstance(new, nn.Parameter) and new.device == data.device and not new.requires_grad


def test_data_parallel_spreads_a_batch_and_adds_gradients():
    torch.manual_seed(0)
    plain = nn.Linear(4, 2)
    spread = nn.DataParallel(copy.deepcopy(plain).cuda())
    x = torch.randn(8, 4)
    out = spread(x.cuda())
    assert out.device == torch.device("cuda:0") and torch.allclose(out.cpu(), plain(x), atol=1e-6)
    out.square().sum().backward()
    plain(x).square().sum().backward()
    assert torch.allclose(spread.module.weight.grad.cpu(), plain.weight.grad, atol=1e-5)
    assert torch.cuda.max_memory_allocated(1) > 0


def test_accounts_of_blocks_begin_when_they_are_asked_for(tmp_path):
    keep = torch.zeros(MIB, device="cuda")
    torch.cuda.memory._record_memory_history()
    more = torch.zeros(MIB, device="cuda")
    torch.cuda.memory._dump_snapshot(str(tmp_path / "memory.pickle"))
    with open(tmp_path / "memory.pickle", "rb") as file:
        found = pickle.load(file)
    assert sum(segment["allocated_size"] for segment in found["segments"]) == keep.nbytes + more.nbytes
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == keep.nbytes + more.nbytes
    torch.cuda.set_per_process_memory_fraction(0.1)
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(200 * MIB, dtype=torch.uint8, device="cuda")
    assert json.dumps(torch.cuda.memory_stats()) and torch.cuda.get_per_process_memory_fraction() == 0.1


def test_a_recurrent_layer_says_nothing_of_cudnn():
    assert torch.backends.cudnn.is_available() and torch.backends.cudnn.version() > 90000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert nn.LSTM(3, 4).cuda()(torch.ones(2, 1, 3, device="cuda"))[0].is_cuda
