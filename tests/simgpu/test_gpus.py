"""The table of data sheets: every number has a source and is plausible, and names are found or refused clearly."""

import dataclasses
import gc
import subprocess
import sys
from urllib.parse import urlparse

import pytest
import torch

import simgpu
from simgpu import AT_PEAK, Machine, gpus
from tests import children
from tests.simgpu.simulated import read_programs

NEEDED = (
    "T4", "P100 PCIe", "L4", "A10", "V100 SXM2 16GB", "V100 SXM2 32GB", "A100 40GB", "A100 80GB", "H100 SXM",
    "H100 PCIe", "H200", "GH200", "B200", "B300", "MI300X", "L40S", "RTX 3060", "RTX 3080", "RTX 3090", "RTX 4090",
    "RTX 5090", "RTX PRO 6000",
)  # fmt: skip
each = pytest.mark.parametrize("gpu", gpus.ALL, ids=lambda gpu: gpu.name)
STATED = ("year", "compute_capability", "memory_gb", "bandwidth_gbps", "peak_tflops", "memory_mib", "power_w", "bus")
STATED += ("l2_mib", "l2_gbps", "total_gib", "nvlink_gbps", "best_bf16_tflops", "best_copy_gbps", "multiprocessors")


def unsourced(gpu):
    """Return the fields of `gpu` that state something but have no source, and sources of fields that state nothing."""
    return {name for name in STATED if getattr(gpu, name) not in (None, {})} ^ set(gpu.sources)


def test_the_table_has_the_gpus_that_the_lessons_name():
    names = [gpu.name for gpu in gpus.ALL]
    assert set(NEEDED) <= set(names)
    assert len(names) == len(set(names))
    assert sum(gpu.kind == "Apple" for gpu in gpus.ALL) == 2


@each
def test_every_stated_field_has_a_source_and_a_source_is_an_address(gpu):
    assert unsourced(gpu) == set()
    for address in gpu.sources.values():
        parts = urlparse(address)
        assert parts.scheme in ("http", "https") and "." in parts.netloc and len(parts.path) > 1, address


def test_a_number_without_a_source_would_be_noticed():
    row = gpus.get("RTX 3080")
    assert unsourced(dataclasses.replace(row, nvlink_gbps=100)) == {"nvlink_gbps"}
    assert unsourced(dataclasses.replace(row, power_w=None)) == {"power_w"}


@pytest.mark.parametrize("generation", gpus.GENERATIONS.values(), ids=lambda one: one.name)
def test_a_generation_has_a_source_for_what_its_makers_state_and_holds_what_is_plausible(generation):
    measured = {"name", "sources", "operations_a_picojoule"}  # the last is the project's own
    fields = {field.name for field in dataclasses.fields(generation)} - measured
    assert {name for name in fields if getattr(generation, name) is not None} == set(generation.sources)
    assert all(address.startswith("https://") for address in generation.sources.values())
    assert generation.threads in (None, 1024, 1536, 2048) and generation.blocks in (None, 16, 24, 32)
    assert generation.attention is None or 0.3 < generation.attention < 0.7
    assert generation.nvlink is None or 0.8 <= generation.nvlink < 0.83


def new_row(**changes):
    """Return the file with one GPU more, a RTX 6000 that nobody built; None leaves a number out."""
    file = gpus._file()
    row = {
        "name": "RTX 6000 X", "kind": "workstation", "year": 2026, "generation": "Ada 8.9", "multiprocessors": 96,
        "memory_gb": 48, "bandwidth_gbps": 960, "peak_tflops": {"fp32": 60.0, "fp16": 240.0, "bf16": 240.0},
        "power_w": 300, "bus": "PCIe 4.0 x16", "page": "ada", "sources": {"multiprocessors": "ada"},
    } | changes  # fmt: skip
    file["gpu"].append({name: value for name, value in row.items() if value is not None})
    return file


IN_A_NEW_PROCESS = read_programs("gpus")["in_a_new_process"]


def test_a_gpu_is_added_by_one_row_and_used_everywhere():
    pytest.importorskip("kernelcheck", reason="the explorer of a lesson is looked at, too")
    command = [sys.executable, "-c", IN_A_NEW_PROCESS]
    run = subprocess.run(command, cwd=children.ROOT, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n") == [
        "True 1536 1.0", "True True", "96 1536 (8, 9)", "Simulated RTX 6000 X True", "",
    ]  # fmt: skip


@pytest.mark.parametrize(("changes", "phrase"), [
    ({"power_w": None}, "RTX 6000 X lacks power_w: a number, or 'not stated'"),
    ({"multiprocessors": None, "generation": None}, "lacks generation, multiprocessors"),
    ({"generation": "Ada"}, "RTX 6000 X is of 'Ada', it may be: Pascal 6.0, Volta 7.0"),
])  # fmt: skip
def test_a_row_that_leaves_out_what_the_simulation_needs_is_refused_by_name(changes, phrase):
    with pytest.raises(ValueError, match=phrase):
        gpus.read(new_row(**changes))


def test_what_is_not_stated_is_said_with_each_forecast():
    assert gpus.read(new_row(power_w="not stated"))[-1].power_w is None
    caveats = {name: Machine.of(name).caveat for name in ("T4", "B200", "B300", "GH200")}
    assert caveats["T4"] == "" and "operations a watt of Blackwell 10.0 are not stated" in caveats["B200"]
    assert "watts of the B300 are not stated" in caveats["B300"] and "watts of the GH200" in caveats["GH200"]
    assert Machine.of("B200", costs=AT_PEAK).caveat == ""  # which has no limits


@each
def test_every_number_is_plausible(gpu):
    assert gpu.kind in ("data centre", "workstation", "consumer", "Colab and Kaggle", "Apple")
    assert 2016 <= gpu.year <= 2026
    assert 8 <= gpu.memory_gb <= 300
    assert 50 <= gpu.bandwidth_gbps <= 10_000
    assert gpu.power_w is None or 50 <= gpu.power_w <= 1500
    assert 8 <= gpu.multiprocessors <= 304 and (gpu.kind == "Apple" or gpu.multiprocessors >= 28)
    assert set(gpu.peak_tflops) <= set(gpus.FORMATS)
    assert all(0.1 <= rate <= 20_000 for rate in gpu.peak_tflops.values())
    assert gpu.best_bf16_tflops is None or 0.5 < gpu.best_bf16_tflops / gpu.peak_tflops["bf16"] < 0.9
    assert gpu.best_copy_gbps is None or 0.7 < gpu.best_copy_gbps / gpu.bandwidth_gbps < 0.95
    assert (gpu.l2_mib or gpu.l2_gbps is None) and not 0 < (gpu.l2_gbps or 0) < 2 * gpu.bandwidth_gbps
    if gpu.memory_mib is not None:
        assert 0.9 * gpu.memory_gb * 10**9 < gpu.memory_mib * 2**20 < 1.08 * gpu.memory_gb * 10**9
    if gpu.kind != "Apple":
        assert gpu.bus_gbps in (15.75, 31.51, 63.02, 121.0, 450.0)
        assert gpu.nvlink_gbps is None or 100 <= gpu.nvlink_gbps <= 1800
    assert gpu.compute_capability is None or (6, 0) <= gpu.compute_capability <= (12, 1)


def test_a_format_that_tensor_cores_do_not_know_is_told_from_one_that_nobody_stated():
    said = {name: [fmt for fmt in gpus.FORMATS if gpus.get(name).lacks(fmt)] for name in ("T4", "A100 80GB", "H200")}
    assert said == {"T4": ["tf32", "bf16", "fp8", "fp4"], "A100 80GB": ["fp8", "fp4"], "H200": ["fp4"]}
    assert not any(gpus.get(name).lacks(fmt) for name in ("Apple M1", "MI300X", "RTX 5090") for fmt in gpus.FORMATS)
    known = [gpu for gpu in gpus.ALL if gpu.compute_capability]
    first = {"int8": (7, 5), "tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "fp4": (10, 0)}
    for gpu, (fmt, since) in ((gpu, item) for gpu in known for item in first.items()):
        assert gpu.lacks(fmt) == (gpu.compute_capability < since) and not (gpu.lacks(fmt) and fmt in gpu.peak_tflops)


@each
def test_a_narrower_format_is_never_slower_and_no_peak_is_the_sparse_one(gpu):
    peak = gpu.peak_tflops
    order = [name for name in ("fp32", "tf32", "fp16", "fp8", "fp4") if name in peak]
    assert [peak[name] for name in order] == sorted(peak[name] for name in order)
    if {"fp16", "bf16"} <= set(peak):
        assert peak["fp16"] == peak["bf16"]
    if {"fp16", "fp8"} <= set(peak):
        # A sparse rate in one of the two would give 4 or 1 here.
        assert peak["fp8"] == pytest.approx(2 * peak["fp16"], rel=0.02)


@pytest.mark.parametrize(
    ("spoken", "row"),
    [
        ("T4", "T4"), ("t4", "T4"), ("Tesla T4", "T4"), ("NVIDIA t4", "T4"), ("rtx-4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"), ("NVIDIA A100-SXM4-80GB", "A100 80GB"), ("apple m1", "Apple M1"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"), ("AMD Instinct MI300X", "MI300X"),
        ("Tesla P100-PCIE-16GB", "P100 PCIe"), ("P100", "P100 PCIe"),
    ],
)  # fmt: skip
def test_a_row_is_found_by_name(spoken, row):
    assert gpus.get(spoken).name == row == gpus.find(spoken).name


@pytest.mark.parametrize(  # "Apple M1" is the name; nothing is guessed
    ("wrong", "phrase"),
    [
        ("GTX 970", "is not in the table"), ("A100", "fits 2 GPUs"), ("", "is not in the table"),
        ("H100", "H100 PCIe"), ("m1", "is not in the table"),
    ],
)  # fmt: skip
def test_a_name_that_fits_no_row_or_several_is_refused_with_the_names(wrong, phrase):
    with pytest.raises(ValueError, match=phrase) as caught:
        gpus.get(wrong)
    assert repr(wrong) in str(caught.value)
    assert gpus.find(wrong) is None


@pytest.mark.parametrize("wrong", [None, 4, ["T4"]])
def test_a_name_that_is_no_string_is_refused(wrong):
    with pytest.raises(TypeError, match="name is a"):
        gpus.get(wrong)


def test_memory_in_bytes_is_what_cuda_gives_and_a_row_prints_as_one_line_and_as_a_table():
    t4 = gpus.get("T4")
    assert t4.memory_bytes == round(14.74 * 2**30) and t4.room_bytes == t4.memory_bytes - 40 * 3_700_000
    shares = {one.total_gib * 1024 / one.memory_mib for one in gpus.ALL if one.total_gib and one.memory_mib}
    least = dataclasses.replace(t4, total_gib=None).memory_bytes / (15360 * 2**20)  # the least share of others
    assert least == pytest.approx(min(shares), abs=1e-3) and max(shares) < 1
    assert gpus.get("H100 PCIe").memory_bytes == 80 * 10**9  # not known: the least that 80 GB can be
    assert gpus.get("H100 SXM").peer_gbps == pytest.approx(371, abs=5) and t4.peer_gbps is None  # NVIDIA/nccl#1264
    assert gpus.get("Apple M4 Max").room_bytes == 128 * 10**9
    gc.collect()  # tensors of an earlier test
    with simgpu.cuda("T4", allocator="caching"):
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        assert (free, total) == (t4.room_bytes, t4.memory_bytes)
        assert torch.cuda.get_device_properties().total_memory == total
        with pytest.raises(torch.OutOfMemoryError, match=r"total capacity of 14.74 GiB .* process has 141.14 MiB"):
            torch.empty(free + 1, dtype=torch.uint8, device="cuda")
    line = str(gpus.get("T4"))
    assert line == "T4: 16 GB at 320 GB/s, PCIe 3.0 x16, 70 W; peak TFLOP/s: fp32 8.1, fp16 65, int8 130 TOP/s"
    assert str(gpus.get("Apple M4 Max")) == "Apple M4 Max: 128 GB at 546 GB/s"
    assert gpus.table().count("<tr>") == len(gpus.ALL) + 1
    assert "15360 MiB" in gpus.get("T4")._repr_html_() and "with sparsity" in gpus.table()
    unknown = "no page that we read"  # explained where there is one
    assert unknown in gpus.table() and unknown not in gpus.table([gpus.get("T4")], without=["kind", "fp64", "NVLink"])
    assert "<td>no</td>" in gpus.table([gpus.get("T4")]) and "<td>no</td>" not in gpus.table([gpus.get("Apple M1")])


@pytest.mark.parametrize(("rows", "without", "error", "phrase"), [
    ("T4", (), TypeError, "gpus is 'T4', it must be None or a list of rows"),
    (None, "year", ValueError, "without is 'year', it may hold: GPU, kind"),
    (None, ["colour"], ValueError, r"without is \['colour'\], it may hold: GPU, kind"),
])  # fmt: skip
def test_wrong_arguments_of_the_table_are_named(rows, without, error, phrase):
    with pytest.raises(error, match=phrase):
        gpus.table(rows, without=without)
