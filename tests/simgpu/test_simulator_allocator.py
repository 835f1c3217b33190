"""Does the caching allocator reserve what PyTorch's for CUDA would? Its documented examples and its own tests, rebuilt.

The numbers are those of PyTorch: of `c10/cuda/CUDACachingAllocator.cpp`, of `test/test_cuda.py` (the test of the same
name, where one is named) and of `c10/test/core/AllocatorConfig_test.cpp`, and of its notes on memory management.
"""

import collections
import gc
import itertools
import pickle
from random import Random

import pytest
import torch
from torch.cuda import _memory_viz

import simgpu
from simgpu.device import torch_functions
from simgpu.ground.replacements import Replacements
from tests.simgpu.simulated import forget

MIB = 2**20


def settings(text):
    torch._C._accelerator_setAllocatorSettings(text)


@pytest.fixture(autouse=True)
def _fresh():
    simgpu.enable()
    forget()
    simgpu.configure(allocator="caching")
    yield
    settings("expandable_segments:False")
    settings("")
    simgpu.reset()


def alloc(mib):
    """Return a tensor of `mib` MiB."""
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="sim")


def reserved():
    return torch.sim.memory_reserved() / MIB


def check_consistency(segments=True):
    """`_check_memory_stat_consistency` of test_cuda.py: the statistics are those of the segments."""
    expected = collections.Counter()
    for segment in torch.sim.memory_snapshot():
        for pool in ("all", segment["segment_type"] + "_pool"):
            expected[f"segment.{pool}.current"] += 1
            expected[f"allocated_bytes.{pool}.current"] += segment["allocated_size"]
            expected[f"reserved_bytes.{pool}.current"] += segment["total_size"]
            expected[f"active_bytes.{pool}.current"] += segment["active_size"]
            expected[f"requested_bytes.{pool}.current"] += segment["requested_size"]
            assert segment["total_size"] == sum(block["size"] for block in segment["blocks"])
            for block in segment["blocks"]:
                expected[f"allocation.{pool}.current"] += block["state"] == "active_allocated"
                expected[f"active.{pool}.current"] += block["state"].startswith("active_")
                if block["state"] == "inactive" and len(segment["blocks"]) > 1:
                    expected[f"inactive_split.{pool}.current"] += 1
                    expected[f"inactive_split_bytes.{pool}.current"] += block["size"]
    stats = torch.sim.memory_stats()
    expandable = {"segment", "inactive_split", "inactive_split_bytes"}  # which do not count in them
    names = {key for key in stats if key.endswith(".current") and "oversize" not in key}
    names = {key for key in names if segments or key.partition(".")[0] not in expandable}
    assert {name: stats[name] for name in names} == {name: expected[name] for name in names}


@pytest.mark.parametrize(("requests", "expected_mib"), [
    ([1 / MIB], 2),  # packed in 2 MiB
    ([1], 2),  # the largest small request
    ([1, 1, 1 / MIB], 4),
    ([1 + 1 / MIB], 20),  # from 1 to 10 MiB: out of 20
    ([9, 9], 20),
    ([9, 9, 3], 40),
    ([10], 10),  # from 10 MiB: rounded to 2
    ([11], 12),
    ([21, 1.5], 42),  # a rest of at most 1 MiB is not split off
    ([20.5, 1.2], 22),  # a rest of 1.5 MiB is
])  # fmt: skip
def test_segments(requests, expected_mib):
    kept = [alloc(mib) for mib in requests]
    assert reserved() == expected_mib == torch.sim.max_memory_reserved() / MIB
    check_consistency()
    del kept
    assert torch.sim.memory_allocated() == 0 and reserved() == expected_mib
    torch.sim.empty_cache()
    assert reserved() == 0


def test_allocator_settings():
    """Rounding to divisions of a power of two, as in test_cuda.py: 84 MiB in 4 and in 8, 400 MiB in 2."""
    active = lambda: torch.sim.memory_stats()["active_bytes.all.allocated"] / MIB  # noqa: E731
    requested = lambda: torch.sim.memory_stats()["requested_bytes.all.allocated"] / MIB  # noqa: E731
    kept = []
    for text, mib, expected in (
        ("", 84, 84),
        ("roundup_power2_divisions:4", 84, 96),
        ("garbage_collection_threshold:0.5,max_split_size_mb:40", 84, 84),
        ("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 84, 88),
        ("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 400, 512),
    ):
        settings(text)
        torch.sim.empty_cache()
        before, asked = active(), requested()
        kept.append(alloc(mib))
        assert (active() - before, requested() - asked) == (expected, mib)
        kept.clear()
    settings("roundup_power2_divisions:4")  # the example of the notes, 1,200 between 1,024 and 2,048, in KiB
    kept = alloc(1200 / 1024)
    assert torch.sim.memory_allocated() == 1280 * 1024 == kept.nbytes + 80 * 1024


def test_settings_are_remembered_where_pytorch_does_not_give_them_back():
    replaced = Replacements()
    torch_functions.remember_allocator_settings(replaced)
    try:
        settings("roundup_power2_divisions:4")
        kept = alloc(84)
        assert torch._C._accelerator_getAllocatorSettings() == "roundup_power2_divisions:4"
        assert torch.sim.memory_allocated() == kept.nbytes + 12 * MIB
    finally:
        replaced.undo()


def test_settings_are_read_as_pytorch_reads_them():
    """The texts and numbers of AllocatorConfig_test.cpp."""
    from simgpu.accounting.allocator import read_settings

    def divisions(found):
        return {2**i: found.divisions[i] for i in range(16)}

    text = "max_split_size_mb:40,max_non_split_rounding_mb:30,garbage_collection_threshold:0.5,"
    text += "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1],expandable_segments:True"
    found = read_settings(text)
    assert (found.max_split, found.rounding, found.threshold, found.expandable) == (40 * MIB, 30 * MIB, 0.5, True)
    expected = {32: 8, 64: 8, 128: 2, 256: 4, 512: 2, 1024: 4, 2048: 1, 4096: 1, 8192: 1}
    assert divisions(found).items() >= expected.items()
    found = read_settings("roundup_power2_divisions:[128:8,256:16,512:1,2048:8,>:2]", found)
    expected = {64: 8, 128: 8, 256: 16, 512: 1, 1024: 0, 2048: 8, 4096: 2}
    assert divisions(found).items() >= expected.items()
    assert found.rounding == 30 * MIB and found.expandable and found.threshold == 0
    assert set(divisions(read_settings("roundup_power2_divisions:4")).values()) == {4}
    assert not read_settings("expandable_segments:False,", found).expandable


def test_garbage_is_collected_only_above_the_threshold():
    simgpu.configure(capacity="200 MiB")
    torch.sim.set_per_process_memory_fraction(1.0)
    settings("garbage_collection_threshold:0.5")
    for mib in (30, 40, 50):
        alloc(mib)
    assert reserved() == 120
    kept = alloc(60)  # 20 MiB above the threshold: all that were not used for longer than on average go
    assert reserved() == 30 * 0 + 50 + 60 and kept.nbytes == 60 * MIB


def test_the_fraction_of_memory_that_a_process_may_use():
    for wrong, error in ((1, TypeError), (-0.1, ValueError), (2.0, ValueError)):
        with pytest.raises(error, match="Invalid"):
            torch.sim.set_per_process_memory_fraction(wrong)
    total = torch.sim.get_device_properties(0).total_memory
    kept = torch.zeros(1024, device="sim")
    torch.sim.empty_cache()
    torch.sim.set_per_process_memory_fraction(0.5, 0)
    alloc((int(total * 0.499) - torch.sim.max_memory_reserved()) // MIB)
    torch.sim.empty_cache()
    with pytest.raises(torch.OutOfMemoryError, match=r"512.00 MiB allowed; Of the allocated memory 4.00 KiB"):
        alloc(total * 0.5 / MIB)
    assert kept.fill_(1).sum().item() == 1024


def test_out_of_memory_and_retry():
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 8000000000.00 GiB. GPU 0 has a total"):
        torch.empty(2**30 * 8_000_000_000, dtype=torch.int8, device="sim")
    a = alloc(520)
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 520.00 MiB"):
        alloc(520)
    del a
    kept = alloc(540)  # the cached segment is given back first
    stats = torch.sim.memory_stats()
    assert (stats["num_ooms"], stats["num_alloc_retries"], reserved(), kept.nbytes) == (2, 3, 540, 540 * MIB)


def test_fragmentation_and_its_cure():
    """Half of the memory is free, in two pieces: a request for it fails; in an expandable segment it fits."""
    simgpu.configure(capacity="80 MiB")

    def program():
        alloc(80)
        parts = [alloc(20) for _ in range(4)]  # out of the segment of 80, which is cached
        assert reserved() == 80
        del parts[::2]
        return parts, alloc(40)

    with pytest.raises(torch.OutOfMemoryError) as caught:
        program()
    assert str(caught.value).startswith(
        "sim out of memory. Tried to allocate 40.00 MiB. GPU 0 has a total capacity of 80.00 MiB of which 0 bytes is "
        "free. Including non-PyTorch memory, this process has 80.00 MiB memory in use. Of the allocated memory "
        "40.00 MiB is allocated by PyTorch, and 40.00 MiB is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    )
    del caught
    gc.collect()
    torch.sim.empty_cache()
    assert reserved() == 0
    settings("expandable_segments:True")
    parts, whole = program()
    assert reserved() == 80 == torch.sim.memory_allocated() / MIB and whole.nbytes == sum(x.nbytes for x in parts)
    sizes = [segment["total_size"] // MIB for segment in torch.sim.memory_snapshot()]
    assert sizes == [20, 20, 40]  # a second segment: addresses end at 9/8 of the capacity


def test_an_expandable_segment_grows_by_its_pages():
    settings("expandable_segments:True")
    steps, kept = [], []
    for mib in (1 / MIB, 1.5, 18, 1, 30, 1.5):
        kept.append(alloc(mib))
        steps.append(reserved())
    assert steps == [2, 22, 22, 22, 62, 62]  # 2 MiB pages for small, 20 MiB pages for large requests
    [large] = [one for one in torch.sim.memory_snapshot() if one["segment_type"] == "large"]
    assert large["is_expandable"] and large["total_size"] == 60 * MIB
    assert torch.sim.memory_stats()["segment.all.current"] == 0  # as PyTorch counts: mapped, not allocated
    del kept[2], kept[3]
    torch.sim.empty_cache()
    assert reserved() == 42  # one page of 20 between the blocks holds no tensor any more
    del kept[:]
    torch.sim.empty_cache()
    assert reserved() == 0 and torch.sim.memory_snapshot() == []


def test_max_split_size():
    simgpu.configure(capacity="200 MiB")
    settings("max_split_size_mb:40")
    alloc(50)
    kept = [alloc(30)]  # not a piece of the block of 50
    assert reserved() == 80
    kept.append(alloc(45))  # within 20 MiB of it: all of it, unsplit
    stats = torch.sim.memory_stats()
    assert reserved() == 80 and torch.sim.memory_allocated() == 80 * MIB and stats["max_split_size"] == 40 * MIB
    assert (stats["oversize_allocations.current"], stats["oversize_segments.current"]) == (1, 1)
    del kept[1]
    alloc(24)
    assert reserved() == 80 + 24
    kept.append(alloc(140))  # 50 is given back for it, then the rest
    assert reserved() == 170
    kept.clear()


def test_record_stream():
    """Memory of one stream that another uses is reused when that is done; by the other never."""
    side, main = torch.sim.Stream(), torch.sim.current_stream()
    with torch.sim.stream(side):
        x = torch.ones(4, device="sim")
    first = x.data_ptr()
    main.wait_stream(side)
    big = torch.ones(2**22, device="sim")
    for _ in range(50):
        big.mul_(2)
    result = x + 1
    x.record_stream(main)
    del x
    assert torch.empty(4, device="sim").data_ptr() != first  # another stream, another pool
    with torch.sim.stream(side):
        too_soon = torch.empty(4, device="sim")
        assert too_soon.data_ptr() != first
        states = [b["state"] for s in torch.sim.memory_snapshot() for b in s["blocks"] if b["address"] == first]
        assert states == ["active_pending_free"]
        main.synchronize()
        assert torch.empty(4, device="sim").data_ptr() == first
    assert result.tolist() == [2] * 4
    check_consistency()


def test_memory_snapshot(tmp_path):
    torch.sim.memory._record_memory_history(stacks="python")
    torch.empty(2 * 311, 411, device="sim")
    unused = torch.empty(310, 410, device="sim")
    x = torch.empty(311, 411, device="sim")
    tensors = [torch.empty(128, device="sim") for _ in range(1000)]
    random = Random(0)
    while tensors:
        del tensors[random.randint(0, len(tensors) - 1)]
    torch.empty(128 * 5, device="sim")
    file = tmp_path / "snapshot.pickle"
    torch.sim.memory._dump_snapshot(file)
    snapshot = pickle.loads(file.read_bytes())
    found = [b for s in snapshot["segments"] for b in s["blocks"] if b["requested_size"] == 311 * 411 * 4]
    assert [block["address"] for block in found] == [x.data_ptr()]
    assert found[0]["frames"][0]["filename"] == __file__ and found[0]["frames"][0]["name"] == "test_memory_snapshot"
    actions = collections.Counter(event["action"] for event in snapshot["device_traces"][0])
    assert actions["alloc"] == 1004 and actions["free_completed"] == 1002 and not snapshot["device_traces"][1]

    summary = _memory_viz.segsum(snapshot)
    assert f"segments: {len(snapshot['segments'])}" in summary and "total_reserved: 2.0MiB" in summary
    flames = _memory_viz.memory(snapshot, format_flamegraph=lambda text: text)
    assert "test_simulator_allocator.py" in flames and f"{311 * 411 * 4}" in flames
    assert "= cudaMalloc(" in _memory_viz.trace(snapshot) and "1.0KiB" not in _memory_viz.trace(snapshot)
    for picture in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "<!DOCTYPE html>" in picture(snapshot)
    del unused, x
    torch.sim.empty_cache()
    assert torch.sim.memory._snapshot()["device_traces"][0][-1]["action"] == "segment_free"
    torch.sim.memory._record_memory_history(None)
    assert not torch.sim.memory._snapshot()["device_traces"][0]


def test_what_is_alive_moves_over_and_back():
    simgpu.configure(allocator="exact", capacity="4 MiB")
    x, y = torch.ones(100, device="sim"), torch.ones(2**18, device="sim")
    simgpu.configure(allocator="caching")
    assert torch.sim.memory_allocated() == 512 + MIB and reserved() == 2 and x.sum().item() == 100
    simgpu.configure(allocator="exact")
    assert torch.sim.memory_allocated() == 400 + MIB
    z = torch.ones(3 * 2**18 - 200, device="sim")  # fits exactly, and not in segments
    with pytest.raises(torch.OutOfMemoryError):
        simgpu.configure(allocator="caching")
    assert torch.sim.memory_allocated() == 4 * MIB - 400 and simgpu.settings().allocator == "exact"
    del x, y, z
    assert torch.sim.memory_allocated() == 0
    with pytest.raises(RuntimeError, match=r"configure\(allocator='caching'\)"):
        torch.sim.memory_snapshot()
    with pytest.raises(ValueError, match="allocator must be one of"):
        simgpu.configure(allocator="native")


def test_storages_that_grow_and_budgets():
    from course_utils import memory

    x = torch.ones(2**18, device="sim")
    x.resize_(2**19)
    assert torch.sim.memory_allocated() == 2 * MIB and torch.sim.max_memory_allocated() == 3 * MIB and reserved() == 22
    with memory.budget("1 MiB", torch.device("sim", 0)), pytest.raises(torch.OutOfMemoryError, match="capacity of 1"):
        torch.ones(2**19, device="sim")
    check_consistency()


@pytest.mark.parametrize("seed", range(4))
def test_any_program_leaves_nothing_behind(seed):
    """Segments are tiled by blocks, no two free ones side by side, whatever is asked for in whatever order."""
    random, held, streams = Random(seed), [], [torch.sim.default_stream(), torch.sim.Stream()]
    simgpu.configure(capacity=f"{64 + 60 * seed} MiB")
    choices = [
        lambda: held.append(torch.empty(int(2 ** random.uniform(0, 25)), dtype=torch.uint8, device="sim")),
        lambda: held and held.pop(random.randrange(len(held))),
        lambda: held and held[0].resize_(int(2 ** random.uniform(0, 23))),
        lambda: held and held[-1].record_stream(random.choice(streams)),
        torch.sim.empty_cache,
        torch.sim.synchronize,
        lambda: settings(f"expandable_segments:{random.random() < 0.5}"),
        lambda: settings(random.choice(["max_split_size_mb:25", "roundup_power2_divisions:8"])),
    ]
    for turn in range(150):
        with torch.sim.stream(random.choice(streams)):
            try:
                random.choices(choices, [16, 8, 1, 4, 1, 1, 1, 1])[0]()
            except torch.OutOfMemoryError:
                held.clear()
        for segment in torch.sim.memory_snapshot():
            assert ("inactive", "inactive") not in itertools.pairwise([block["state"] for block in segment["blocks"]])
            assert segment["total_size"] == sum(block["size"] for block in segment["blocks"])
        if turn % 10 == 0:
            check_consistency(segments=False)
    held.clear()
    torch.sim.synchronize()
    check_consistency(segments=False)
    torch.sim.empty_cache()
    assert torch.sim.memory_reserved() == torch.sim.memory_allocated() == 0 == len(torch.sim.memory_snapshot())
    torch.sim.reset_peak_memory_stats()
    assert torch.sim.max_memory_reserved() == torch.sim.max_memory_allocated() == 0
    kept = alloc(3)
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.sim.memory_stats()["allocated_bytes.all.allocated"] == 0 < kept.nbytes
    words = torch.sim.memory_summary().split()
    assert words[words.index("allocated") + 1] == f"{torch.sim.memory_allocated():,}"
