"""The pictures of what engines and rooms return: what they show, in the course's colours; engines draw nothing."""

import tomllib
from pathlib import Path

import matplotlib.colors
import pytest
import torch
from torch import nn

import kernelcheck
import simgpu
from course_utils import plots
from simgpu import Record
from tests import children

ROOT = Path(__file__).parents[2]
triton, tl = kernelcheck.triton()


def colours(axes):
    """Return the colours of bars and points, by their label."""
    return {one.get_label(): matplotlib.colors.to_hex(one.get_facecolor()[0]) for one in axes.collections}


def points(axes):
    """Return where the points are, and in which colour."""
    return sorted(
        (*map(float, place), matplotlib.colors.to_hex(drawn.get_facecolor()[0]))
        for drawn in axes.collections
        for place in drawn.get_offsets()
    )


def rows(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


# ---- timelines -------------------------------------------------------------------------------------------------------


def training(steps):
    """Train a few steps, with work of the host's and a value read in each; return the timeline."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to("sim:0")
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(32, 64)
    simgpu.reset()
    with simgpu.timeline() as timeline:
        for _ in range(steps):
            simgpu.host_work("read files", 25)
            loss = model(batch.to("sim:0")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
    simgpu.reset()
    return timeline


@pytest.mark.parametrize("steps", [1, 40])  # 800 kernels and more: no edges, which would hide them
def test_a_timeline_shows_parts_gaps_and_the_lines_that_cost_most(sim, steps):
    timeline = training(steps)
    figure = plots.timeline(timeline)
    (axes,) = figure.axes
    bars = {one.get_label(): one for one in axes.collections}
    assert set(bars) == {
        "wait", "host work (an input)", "launch", "kernel", "copy", "GPU idle", "forward", "backward", "optimizer step",
    }  # fmt: skip
    many = len(timeline.select("kernel")) > 200
    assert (bars["kernel"].get_linewidth()[0] == 0) == many
    first = axes.get_xlabel().split("\n")[1]
    assert first.startswith("1  sim:0 idle for") and " ms in all: read files, test_pictures.py:" in first
    assert rows(axes) == ["sim:0 copies", "sim:0 computes", "host"]
    assert repr(figure) == str(timeline) and axes.get_title(loc="left") == "Simulated T4"
    bare = plots.timeline(timeline, "Case 3", causes=False)
    below, *label = bare.axes[0].get_xlabel().split("\n")
    assert below == "simulated time (ms)" and " ".join(label) == str(timeline.evidence)
    assert bare.axes[0].get_title(loc="left") == "Case 3"


def test_kinds_and_phases_have_colours_of_the_course_each_its_own(sim):
    shown = colours(plots.timeline(training(1)).axes[0])
    assert shown["kernel"] == plots.GREEN and shown["copy"] == plots.OCHRE and shown["launch"] == plots.SKY
    kinds = {name: colour for name, colour in shown.items() if name not in plots.PHASES}
    assert len(set(kinds.values())) == len(kinds) == 6
    assert {"forward", "backward", "optimizer step"} == shown.keys() & plots.PHASES.keys()
    assert len({*plots.PHASES.values()} & {*plots.PALETTE, plots.MUTED}) == len(plots.PHASES) == 4


def test_without_a_simulated_gpu_there_is_no_picture_of_one():
    assert plots.timeline(None) is None


def rank(begin_ns, *records):
    """Return the timeline of a rank; times of `records` count from its begin."""
    found = [Record(kind, kind, "host" if kind == "launch" else "sim:0", *span) for kind, *span in records]
    return simgpu.Timeline(
        simgpu.Machine.of("H100 SXM"), ("sim:0",), found, max(record.end_ns for record in found), begin_ns
    )


def test_a_cluster_has_two_rows_a_rank_on_one_clock():
    first = rank(1000, ("kernel", 0, 2_000_000), ("message", 2_000_000, 3_000_000))
    second = rank(1_001_000, ("kernel", 0, 500_000), ("waits", 500_000, 1_000_000), ("message", 1_000_000, 2_000_000))
    seen = simgpu.ClusterTimeline([first, second])
    figure = plots.ranks(seen)
    (axes,) = figure.axes
    assert rows(axes) == ["rank 1 messages", "rank 1 computes", "rank 0 messages", "rank 0 computes"]
    kernels = [bars.get_paths()[0].get_extents() for bars in axes.collections if bars.get_label() == "kernel"]
    assert sorted((box.x0, box.x1) for box in kernels) == [(0, 2), (1, 1.5)]  # ms; the second began 1 ms later
    assert set(colours(axes)) == {"kernel", "message", "waits"} and axes.get_xlim() == (0, 3)
    assert repr(figure) == str(seen) and axes.get_title(loc="left") == "2 ranks, simulated H100 SXM"


# ---- what a step takes -----------------------------------------------------------------------------------------------


def ahead():
    model = lambda: nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512))  # noqa: E731
    return simgpu.forecast(model, lambda: torch.zeros(8192, 512), torch.optim.AdamW)


def test_bytes_over_time_are_coloured_by_phase_and_the_peak_is_marked():
    found = ahead().memory
    figure = plots.moments(found)
    axes, (peak,) = figure.axes[0], figure.axes[0].texts
    phases = {patch.get_label(): matplotlib.colors.to_hex(patch.get_facecolor()) for patch in axes.patches}
    known = {name: plots.PHASES[name] for name in ("forward", "backward", "optimizer step")}
    assert {name: colour for name, colour in phases.items() if name in plots.PHASES} == known
    assert peak.get_text() == plots.bytes_text(found.peak_bytes) and axes.get_ylabel() == "MiB alive, predicted"
    assert plots.png(figure) and figure.said == found.caption()


def test_time_by_kind_is_divided_by_what_bounds_it():
    found = ahead().on("T4")
    figure = plots.kernels(found)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [share.name for share in found.by_kind]
    lengths = {bars.get_label(): sum(bar.get_width() for bar in bars) for bars in axes.containers}
    assert lengths == pytest.approx({bound: seconds * 1e3 for bound, seconds in found.by_bound.items()})
    assert "one T4, simulated" in axes.get_title(loc="left") and plots.png(figure)


# ---- kernels ---------------------------------------------------------------------------------------------------------


@triton.jit
def halves(x, out, n):
    at = tl.program_id(0) * 4 + tl.arange(0, 4)
    tl.store(out + at, tl.load(x + at, mask=at < n))


def test_of_a_triton_kernel_each_program_is_a_row_and_what_is_out_of_bounds_is_red():
    report = kernelcheck.checked(halves, (2,), torch.zeros(8), torch.zeros(6), 7)
    (axes,) = plots.touched(report, "out").axes
    inside = [(float(at), at // 4, plots.BLOCKS[at // 4]) for at in range(6)]
    assert points(axes) == [*inside, (6, 1, plots.RED), (7, 1, plots.RED)]
    assert axes.get_ylabel() == "program" and axes.get_title(loc="left") == "out has 6 elements"
    with pytest.raises(ValueError, match="no accesses to 'y'; it has x, out"):
        plots.touched(report, "y")


def test_programs_of_a_grid_with_two_axes_stand_one_after_the_other():
    report = kernelcheck.checked(halves, (1, 2), torch.zeros(8), torch.zeros(8), 4)
    assert report.fault.kind == "race" and sorted(report.touched["out"]) == [(0, 0, 0), (0, 1, 0)]
    (axes,) = plots.touched(report, "out").axes
    assert axes.get_ylabel() == "programs, one after the other" and {y for _, y, _ in points(axes)} == {0, 1}


@pytest.mark.parametrize(("elements", "title"), [(12, "add: 1 access out of bounds"), (14, "add")])
def test_of_a_cuda_kernel_each_thread_is_a_row_and_what_nobody_touched_is_grey(elements, title):
    touched = [(at, *divmod(at, 8), "write") for at in range(13)]
    report = kernelcheck.Report("add", (2, 1, 1), (8, 1, 1), touched={"out": touched}, sizes={"out": elements})
    (axes,) = plots.touched(report, "out").axes
    wanted = [(at, at, plots.BLOCKS[at // 8] if at < elements else plots.RED) for at in range(13)]
    assert points(axes) == wanted and axes.get_title(loc="left") == title
    assert len(axes.patches) == (1 if elements > 13 else 0) and axes.get_ylabel() == "thread, 8 a block"


def test_reads_are_crosses_and_writes_are_dots():
    touched = [(0, 0, 0, "read"), (0, 0, 0, "write"), (1, 0, 1, "atomic")]
    report = kernelcheck.Report("add", (1, 1, 1), (2, 1, 1), touched={"x": touched}, sizes={"x": 2})
    (axes,) = plots.touched(report, "x").axes
    marks = [len(drawn.get_paths()[0].vertices) for drawn in axes.collections if len(drawn.get_offsets())]
    assert len(set(marks)) == 2 and len(points(axes)) == 3


# ---- engines ---------------------------------------------------------------------------------------------------------

USED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["used"]


def test_engines_draw_nothing(tmp_path):
    (tmp_path / "used.py").write_text(USED, encoding="utf-8")
    done = children.run(tmp_path / "used.py")
    assert "in ranks [False] here False" in done.stdout, done.stderr
    files = [path for path in (ROOT / "engines").rglob("*") if path.suffix in (".py", ".toml")]
    assert len(files) > 50 and not [path for path in files if "matplotlib" in path.read_text(encoding="utf-8")]
