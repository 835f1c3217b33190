"""Do hosts.toml and the stored figures say what published runs and traces of real GPUs say?"""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

import simgpu
from benchmarks import hosts as measured
from simgpu import hosts

TRACES = os.environ.get("SIMGPU_TRACES", "")
needs_traces = pytest.mark.skipif(not TRACES, reason="SIMGPU_TRACES names no folder with traces of real GPUs")


@needs_traces
def test_the_ratios_of_hosts_toml_are_those_of_the_traces():
    whole = measured.whole(measured.read(Path(TRACES)))
    found = measured.ratios([profile for profile in whole if not profile.odd])
    for name in ("library backward", "light", "light backward", "view", "node", "accumulate"):
        assert found[name] == pytest.approx(hosts.get("server").ratios[name], rel=0.6), name


def test_the_file_of_published_runs_says_how_far_hosts_are_known():
    stored = json.loads(simgpu.evidence.FILE.read_text(encoding="utf-8"))
    runs = measured.runs_of(stored)
    assert len(runs) > 150 and all(len(run.predicted_ms) == len(measured.SPEEDS_US) for run in runs)
    found = {name: measured.figure(ratios) for name, ratios in measured.situations(runs).items()}
    assert found == stored["hosts"]["figures"] and list(found) == list(simgpu.evidence.HOSTS)
    one, other = found["one step of this program"], found["one step of another program"]
    assert one["median"] < found["its other models"]["median"] < other["median"] < found["unknown"]["median"] < 0.3
    table = simgpu.error_bar().of_hosts
    assert str(table).count("%") == 3 * len(found) and table.of("unknown").median == found["unknown"]["median"]


@needs_traces
def test_traces_of_real_gpus_are_read_and_an_odd_build_is_named():
    found = {profile.name: profile for profile in measured.read(Path(TRACES))}
    assert len(found) == 11 and {name for name, profile in found.items() if profile.odd} >= {"a100_nccl"}
    for name in ("v100_rank0", "diff_test_v100"):
        assert found[name].busy and 30 < found[name].speed_us(hosts.get("server").ratios) < 120
    with pytest.warns(UserWarning, match="odd build"):
        simgpu.Host.from_trace(next(Path(TRACES).glob("a100_nccl*")))


@needs_traces
def test_a_trace_left_out_is_told_by_its_own_first_step():
    whole = measured.whole(measured.read(Path(TRACES)))
    fit = [profile for profile in whole if not profile.odd]
    for profile in whole:
        launches_alone, others, own = measured.left_out(profile, [one for one in fit if one is not profile])
        assert launches_alone < -0.85 and abs(own) < 0.05, profile.name
        assert abs(others) < 0.5 or profile.odd, profile.name


def test_the_command_reads_a_folder_of_traces_and_says_where_it_is_given_none(tmp_path, monkeypatch, capsys):
    simgpu.enable()
    for number in range(2):
        with simgpu.timeline() as seen:
            for step in range(3):
                with torch.profiler.record_function(f"ProfilerStep#{step}"):
                    x = torch.ones(4, 4, device="sim")
                    (x @ x + 1).sum()
        file = tmp_path / f"run_{number}.json"
        seen.export_chrome_trace(file)
        written = file.read_text(encoding="utf-8")
        file.write_text(written.replace("(simulated", "(as if real"), encoding="utf-8")  # else its host is refused
    monkeypatch.setattr(sys, "argv", ["hosts", str(tmp_path)])
    measured.main()
    said = capsys.readouterr().out
    assert all(words in said for words in ("run_0", "µs of the host by class", "others' mean", "under the profiler"))
    monkeypatch.setattr(sys, "argv", ["hosts", str(tmp_path / "nothing")])
    with pytest.raises(SystemExit, match="which traces"):
        measured.main()
