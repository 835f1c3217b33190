"""Does a report name the line that is at fault, and are its values those of the run, in every form?"""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import simgpu
from simgpu.reports.replay import Replay

pytestmark = pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))

HEAD = """import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(6, 256, 512)
"""
FAULTS = {
    "a value is read in the loop": (
        """batches = data.to("cuda")
for batch in batches:
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
""",
        'print("loss", loss.item())',
    ),
    "samples are copied one by one": (
        """for batch in data:
    batch = torch.stack([row.to("cuda") for row in batch])
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        'batch = torch.stack([row.to("cuda") for row in batch])',
    ),
    "graphs are kept": (
        """batches = data.to("cuda")
kept = []
for batch in batches:
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    kept.append(loss)
print(sum(loss.item() for loss in kept))
""",
        "loss = model(batch).square().mean()",
    ),
}


def run(folder, *command):
    return subprocess.run(
        [sys.executable, "-m", "simgpu", *command],
        cwd=folder, capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip


def train(steps=4, width=64, batch=32):
    """Train for some steps, from data that is on the host."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss = model(torch.randn(batch, width).cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


@pytest.fixture
def report():
    with simgpu.cuda(gpus=2, record=True) as session:
        train()
        return session.report()


@pytest.mark.parametrize("fault", FAULTS)
def test_the_line_at_fault_is_named_first(tmp_path, fault):
    loop, line = FAULTS[fault]
    (tmp_path / "train.py").write_text(HEAD + loop)
    ended = run(tmp_path, "--json", "out.json", "train.py")
    assert ended.returncode == 0, ended.stderr
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert found["suspects"][0]["source"] == line
    assert ended.stderr.partition("Look at first\n1. ")[2].partition("\n")[0].endswith(line)
    if fault == "graphs are kept":
        assert found["growth"][0]["held_by"].startswith("kept, a list of")
    else:
        assert found["waits"][0]["source"] == line


def test_a_replay_on_the_same_gpu_takes_exactly_as_long_as_the_run():
    with simgpu.cuda(gpus=2, record=True) as face:
        train()
        session = face.session
        again = Replay(session.log.events, session.spec, session.costs, len(simgpu.model.world.memory.gpus))
        assert again.total_ns == round(session.simulated_s * 1e9)


def test_what_if_on_another_gpu_is_what_a_run_there_takes():
    with simgpu.cuda("T4", gpus=2, record=True) as here:
        train(width=1024, batch=512)
        expected = here.report().what_if(gpu="H100 SXM")
    with simgpu.cuda("H100 SXM", gpus=2, record=True) as there:
        train(width=1024, batch=512)
        measured = there.report()
    assert expected.step_time == pytest.approx(measured.step_time, rel=1e-9)
    assert (expected.peak, expected.capacity) == (measured.peak, measured.capacity)


def test_the_owners_are_the_whole_peak(report):
    parameters = 4 * (64 * 64 + 64 + 64 + 1)
    assert report.owners["weights"] == report.owners["gradients"] == parameters
    assert report.owners["optimizer"] >= 2 * parameters
    assert sum(report.owners.values()) == report.peak == sum(row.bytes for row in report.memory_lines)


def test_phases_add_up_to_the_step(report):
    assert set(report.phases) >= {"copy", "forward", "backward", "optimizer"}
    assert sum(report.phases.values()) == pytest.approx(report.step_time)
    assert report.steps == 4 and report.recorded == 3 and report.step_kind == "AdamW.step()"
