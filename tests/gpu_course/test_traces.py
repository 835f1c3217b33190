"""Does lesson 06 read files of real GPUs, with all that simulated ones do not have?"""

import gzip
import json
import os
from pathlib import Path

import pytest

from gpu_course import lesson06

DAY_US = 1_682_725_898_236_567.5  # files of the profiler count from 1970


def entry(cat, name, ts, dur, thread=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": DAY_US + ts, "dur": dur, "pid": 7, "tid": thread, "args": args}


ENTRIES = [
    entry("user_annotation", "ProfilerStep#3", 0.0, 100.0),
    entry("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0.0, 20.0),
    entry("cpu_op", "aten::empty", 5.0, 5.0),
    entry("cpu_op", "aten::linear", 22.0, 8.0),
    entry("cuda_runtime", "cudaLaunchKernel", 24.0, 5.0, correlation=11),
    entry("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 25.0, 10.0, thread=2),
    entry("cuda_driver", "cuLaunchKernel", 40.0, 2.0, correlation=12),
    entry("gpu_memset", "Memset (Device)", 20.0, 10.0, thread=7, stream=7),
    entry("kernel", "sgemm", 30.0, 30.0, thread=7, stream=7, correlation=11),
    entry("kernel", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 50.0, 20.0, thread=20, stream=20),
    entry("kernel", "relu", 90.0, 10.0, thread=7, stream=7, correlation=12),
    entry("gpu_user_annotation", "forward", 30.0, 30.0, thread=7),
    entry("python_function", "train.py(3): step", 0.0, 100.0),
    {"ph": "f", "cat": "ac2g", "name": "ac2g", "ts": DAY_US + 30.0, "pid": 7, "tid": 7, "id": 11},
    {"ph": "M", "name": "process_name", "ts": DAY_US, "pid": 7, "tid": 0, "args": {"name": "python"}},
]


def written(path, entries, **more):
    text = json.dumps({"schemaVersion": 1, "traceEvents": entries, **more}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_file_of_the_profiler_is_read_with_its_shares(name, tmp_path):
    about = {"distributedInfo": {"rank": 3, "world_size": 8}, "deviceProperties": [{"name": "A100"}] * 2}
    trace = lesson06.read_trace(written(tmp_path / name, ENTRIES, **about))
    assert (trace.rank, trace.ranks, trace.gpu, trace.end_us) == (3, 8, "A100", 100.0)
    assert [(e["line"][:22], e["ts"], e["dur"]) for e in trace.events if e["cat"] == "host"] == [
        ("enumerate(DataLoader)#", 0.0, 20.0), ("aten::linear", 22.0, 8.0), ("autograd::engine::eval", 25.0, 10.0),
        ("cuLaunchKernel", 40.0, 2.0)]  # fmt: skip
    assert [(e["cat"], e["stream"]) for e in trace.events if e["cat"] != "host"] == [
        ("copy", 7), ("kernel", 7), ("kernel", 20), ("kernel", 7)]  # fmt: skip
    shares = trace.shares  # of 80 µs: 20 idle, 40 computing, 20 of messages, of which 10 beside a kernel
    assert (shares.idle, shares.computing, shares.messages, shares.hidden) == (0.25, 0.5, 0.25, 0.5)


def test_a_file_without_events_or_without_a_gpu_says_so(tmp_path):
    with pytest.raises(ValueError, match="has no events"):
        lesson06.read_trace(written(tmp_path / "empty.json", []))
    host_alone = lesson06.read_trace(written(tmp_path / "host.json", ENTRIES[:4]))
    with pytest.raises(ValueError, match="no event of a GPU"):
        _ = host_alone.shares


@pytest.mark.skipif("SIMGPU_TRACES" not in os.environ, reason="SIMGPU_TRACES names no folder with traces of real GPUs")
def test_traces_of_real_gpus_are_read():
    paths = sorted(Path(os.environ["SIMGPU_TRACES"]).glob("*.json.gz"))
    assert len(paths) == 11
    for path in paths:
        trace = lesson06.read_trace(path)
        assert 0 <= trace.shares.idle < 1 and trace.shares.computing > 0, path.name
