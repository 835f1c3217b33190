"""Is the simulated half of the comparison there and the same each time, and is the table what its halves say?"""

import statistics

import pytest
import torch

import simgpu
from benchmarks import against_cuda as comparison
from benchmarks.against_cuda import PROGRAMS, Figures
from course_utils import devices, recorded

PREDICTED = {"a": Figures(1.0, 8.0), "b": Figures(3.0, 4.0), "c": Figures(0.5, 1.0)}
MEASURED = {"a": Figures(2.0, 8.0), "b": Figures(4.0, 2.0), "c": Figures(0.5, 4.0)}


@pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))
@pytest.mark.slow
def test_twenty_programs_take_time_and_memory():
    found = comparison.simulate_in_child("T4")
    assert list(found) == list(PROGRAMS) and len(found) == 20
    assert all(figures.ms > 0 and figures.mib > 0 for figures in found.values())
    # a tensor of ones goes in, another comes out; the bus carries 32 MiB to the device and nothing else is there
    assert found["elementwise, 8 million"].mib == 64 and found["H2D pinned, 32 MiB"].mib == 32
    assert found["MLP step, AdamW"].mib > found["MLP step, SGD"].mib  # two numbers more for each parameter
    assert found["H2D pageable, 32 MiB"].ms > found["H2D pinned, 32 MiB"].ms


def test_the_table_shows_both_halves_their_ratios_and_the_medians():
    head, *rows, last = comparison.table(PREDICTED, MEASURED).splitlines()
    assert " ".join(head.split()) == "program predicted ms measured ms ratio predicted MiB measured MiB ratio"
    assert rows[1].split() == ["b", "3.000", "4.000", "0.750", "4.000", "2.000", "2.000"]
    assert last.split() == ["median", "ratio", "0.750", "1.000"]
    assert len({len(line) for line in (head, *rows, last)}) == 1
    assert comparison.ratios(PREDICTED, MEASURED, "ms") == [0.5, 0.75, 1.0]


def pretend_cuda(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    monkeypatch.setattr(comparison, "simulate_in_child", lambda spec: PREDICTED)
    monkeypatch.setattr(comparison, "measure_cuda", lambda: MEASURED)


def test_the_driver_prints_the_table_and_records_measured_numbers_and_ratios(monkeypatch, tmp_path, capsys):
    pretend_cuda(monkeypatch, "Tesla T4")
    monkeypatch.setattr(devices, "pick", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(recorded, "_REPOSITORY", tmp_path / "recorded")
    versions = {"torch": "2.13.0", "cuda": "13.0", "driver": "1", "python": "3.12"}
    identity = {"schema": recorded.SCHEMA, "device": "Tesla T4", "date": "2026-01-02", "versions": versions}
    monkeypatch.setattr(recorded, "_identity", lambda device: dict(identity))
    monkeypatch.delenv("COURSE_RECORD", raising=False)
    assert comparison.main([]) == 0
    first, printed = capsys.readouterr().out.rstrip("\n").split("\n", 1)
    assert first.startswith("Tesla T4, torch ") and "simulated T4" in first
    assert printed == comparison.table(PREDICTED, MEASURED) and not (tmp_path / "recorded").exists()
    monkeypatch.setenv("COURSE_RECORD", "1")
    assert comparison.main([]) == 0
    (run,) = recorded.load(tmp_path / "recorded")
    names = ["peak_memory_measured", "peak_memory_ratio", "time_measured", "time_ratio"]
    assert list(run.entries) == [f"00.simulator_against_cuda.{name}" for name in names]
    times = run.entries["00.simulator_against_cuda.time_measured"]
    assert times["x"] == [1, 2, 3] and times["curves"] == {"": [2, 4, 0.5]} and times["ylabel"] == "ms"
    assert times["xlabel"] == "program: 1 a; 2 b; 3 c"
    (share,) = run.entries["00.simulator_against_cuda.time_ratio"]["curves"].values()
    assert statistics.median(share) == 0.75


def test_a_gpu_without_data_sheet_is_named_and_without_cuda_one_line_says_so(monkeypatch, capsys):
    pretend_cuda(monkeypatch, "NVIDIA Unheard-of 1")
    assert comparison.main([]) == 2
    assert "'NVIDIA Unheard-of 1'" in capsys.readouterr().err
    assert comparison.main(["--simulate", "Unheard-of 2"]) == 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert comparison.main([]) == 0
    assert capsys.readouterr().out == "There is no CUDA device here, so nothing was compared.\n"
