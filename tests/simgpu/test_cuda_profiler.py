"""Does PyTorch's profiler show the kernels of a simulated GPU under CUDA's columns?"""

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import simgpu

FACE = {"memory": "1 GiB"}

BOTH = [ProfilerActivity.CPU, ProfilerActivity.CUDA]


def work():
    a = torch.randn(64, 64).to("cuda")
    with record_function("product"):
        for _ in range(3):
            a = (a @ a).relu()
    return a.sum().item()


def test_kernels_have_rows_and_operators_have_their_time(tmp_path):
    with simgpu.timeline() as seen:
        work()
    simgpu.reset()
    with profile(activities=BOTH) as profiled:
        work()
    rows = {row.key: row for row in profiled.key_averages()}
    assert rows["mm"].count == rows["relu"].count == 3 and rows["Memcpy HtoD (Host -> Device)"].count == 1
    mm_us = sum(record.duration_ns for record in seen.select("kernel", "sim:0") if record.name == "mm") / 1000
    assert rows["mm"].self_device_time_total == pytest.approx(mm_us)
    assert rows["aten::mm"].device_time_total == pytest.approx(mm_us) and rows["product"].device_time_total >= mm_us
    table = profiled.key_averages().table(sort_by="cuda_time_total")
    assert "Self CUDA" in table and "CUDA total" in table and "Self CUDA time total" in table

    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    written = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    kernels, calls = ([e for e in written if e.get("cat") == kind] for kind in ("kernel", "cuda_runtime"))
    assert sum(e["dur"] for e in kernels if e["name"] == "mm") == pytest.approx(mm_us)
    assert len(kernels) == len(seen.select("kernel")) and any(e.get("name") == "aten::mm" for e in written)
    assert {e["args"]["correlation"] for e in kernels} <= {e["args"].get("correlation") for e in calls}


def test_a_schedule_of_steps(tmp_path):
    tables = []
    with profile(
        activities=BOTH,
        schedule=schedule(wait=1, warmup=1, active=2),
        on_trace_ready=lambda done: tables.append(done.key_averages()),
    ) as profiled:
        for _ in range(4):
            work()
            profiled.step()
    assert {row.key: row.count for row in tables[0]}["mm"] == 6
