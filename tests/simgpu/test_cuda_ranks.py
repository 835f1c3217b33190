"""Do child processes and ranks of a program that says `cuda` have simulated GPUs too?"""

import os
import subprocess
import sys

import pytest
import torch

import simgpu

pytestmark = pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))
RANKS = """import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
total = torch.full((2,), float(rank + 1), device=device)
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
dist.all_reduce(total)
end.record()
torch.cuda.synchronize()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 2).cuda(), device_ids=[rank])
torch.manual_seed(rank)
model(torch.randn(8, 4).cuda()).square().mean().backward()
gathered = [torch.zeros_like(total) for _ in range(2)]
dist.all_gather(gathered, model.module.bias.grad)
dist.barrier()
if rank == 0:
    print(dist.get_backend(), dist.get_world_size(), total.tolist(), total.device)
    print(torch.equal(*gathered), start.elapsed_time(end) > 0, model.module.bias.grad.norm().item())
dist.destroy_process_group()
"""


def run(folder, *command):
    plain = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    command = [sys.executable, *command]
    return subprocess.run(
        command, cwd=folder, env=plain, capture_output=True, text=True, encoding="utf-8", check=False, timeout=300
    )


def test_torchrun_and_nccl(tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    started = "-m", "simgpu", "--gpus", "2", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
    done = run(tmp_path, *started, "ranks.py")
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = done.stdout.splitlines()
    assert first == "nccl 2 [3.0, 3.0] cuda:0" and second.startswith("True True ")
    torch.manual_seed(0)
    model, losses = torch.nn.Linear(4, 2), []
    for rank in range(2):
        torch.manual_seed(rank)
        losses.append(model(torch.randn(8, 4)).square().mean())
    (sum(losses) / 2).backward()
    assert float(second.split()[2]) == pytest.approx(model.bias.grad.norm().item(), rel=1e-5)


def test_a_child_process_has_the_face_and_one_afterwards_has_not():
    ask = [sys.executable, "-c", "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"]
    before = dict(os.environ)
    simgpu.enable()
    with simgpu.cuda(gpu="A10", memory="1 GiB"):
        inside = subprocess.run(ask, capture_output=True, text=True, check=True)
    assert inside.stdout.split() == ["True", str(torch.sim.device_count())] and dict(os.environ) == before
    outside = subprocess.run(ask, capture_output=True, text=True, check=True)
    assert outside.stdout.split() == ["False", "0"]


SHARDED = """import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

device = torch.device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device)
with torch.device("meta"):
    model = fully_shard(nn.Linear(4, 6))  # its mesh chooses the GPU of this rank
assert torch.cuda.current_device() == device.index
model.to_empty(device="cuda")
torch.manual_seed(3)
model.reset_parameters()
after = torch.rand(1, device="cuda")
whole = model.weight.full_tensor()
seen = [torch.zeros(25, device="cuda") for _ in range(2)]
dist.all_gather(seen, torch.cat([whole.detach().flatten(), after]))
model(torch.ones(2, 4, device="cuda")).sum().backward()
if device.index == 0:
    print(torch.equal(*seen), torch.equal(*whole.chunk(2)), model.weight.grad.full_tensor().sum().item())
else:
    model.weight.grad.full_tensor()
dist.destroy_process_group()
"""


def test_sharded_weights_are_drawn_where_they_are_and_differ_by_rank(tmp_path):
    (tmp_path / "sharded.py").write_text(SHARDED)
    started = "-m", "simgpu", "--gpus", "2", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
    done = run(tmp_path, *started, "sharded.py")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[0] == "True False 48.0"
