"""Is the table of device faults whole, and does the simulated GPU tell its faults and leave their repairs alone?"""

import collections
import re
import sys

import pytest

import simgpu
from benchmarks import device_faults
from tests import children

KINDS = {
    "wrong device", "wrong index", "dtype", "generator", "memory", "waits", "race", "determinism", "distributed", "fork"
}  # fmt: skip
SAMPLE = ("e32542331", "733801423", "56d3495fa", "6e8eea2e7", "bbc9f5dc8", "ada21cfbb", "69cdc2574", "6c123675e")
FAULTS = device_faults.read()
PARTS = collections.defaultdict(list)
for row in FAULTS:
    PARTS[row.part].append(row)
_MISSING = simgpu.unavailable() or (None if sys.platform == "linux" else "programs are forked")
simulated = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))


def test_there_are_many_faults_of_many_projects_of_each_kind():
    assert len(FAULTS) >= 120 and len({fault.commit for fault in FAULTS}) == len(FAULTS)
    assert len({fault.repository for fault in FAULTS}) >= 15
    assert {fault.kind for fault in FAULTS} == KINDS


def test_what_is_held_out_is_about_a_third_and_follows_the_rule_of_the_tables_head():
    head = device_faults.TABLE.read_text(encoding="utf-8").partition("\n\n")[0]
    assert "begins with 0, 1, 2, 3 or 4" in head and device_faults.HELD_OUT == "01234"
    assert 0.25 < len(PARTS["held-out"]) / (len(PARTS["held-out"]) + len(PARTS["chosen"])) < 0.4


@pytest.mark.parametrize(("part", "most"), [("first-contact", 10), ("second-contact", 5)])
def test_rows_that_were_written_before_any_was_run_are_the_newest_of_projects_that_have_no_others(part, most):
    projects = collections.Counter(fault.repository for fault in PARTS[part])
    assert max(projects.values()) == most
    assert not projects.keys() & {fault.repository for fault in FAULTS if fault.part not in (part, "mps")}


def test_every_row_is_whole():
    for fault in FAULTS:
        named = r"(pull|issues)/\d+" if fault.part == "mps" else r"[0-9a-f]{40}"
        assert re.fullmatch(named, fault.commit), fault
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", fault.repository) and fault.wrong.endswith("."), fault
        before, after = fault.program(repaired=False), fault.program(repaired=True)
        assert re.compile(fault.says) and before != after, fault
        for program in (before, after):
            compile(program, fault.commit, "exec")
            assert 2 <= len(program.splitlines()) <= 10, fault


def test_a_cpu_runs_what_says_cuda_where_it_needs_no_more():
    assert device_faults.for_cpu('x.cuda() + torch.ones(1, device="cuda:1")') == 'x.cpu() + torch.ones(1, device="cpu")'
    assert device_faults.for_cpu("if torch.cuda.is_available():\n    pass") != ""
    assert device_faults.for_cpu("torch.cuda.synchronize()") == ""


def printed(*arguments):
    """Return the figures of the last line of the table that the command prints, and what it says of rows."""
    done = children.run("-m", "benchmarks.device_faults", *arguments, timeout_s=1800)
    figures = re.search(r"^all +(\d+) +(\d+) +(\d+) of (\d+) +(\d+) of (\d+)$", done.stdout, re.MULTILINE)
    assert figures, done.stdout + done.stderr
    return [int(figure) for figure in figures.groups()], done.stdout, done.returncode


@simulated
def test_faults_of_a_macs_gpu_are_told_before_and_quiet_after():
    figures, said, status = printed("--mps")
    assert (figures[2:], status) == ([figures[0]] * 4, 0) and figures[0] >= 10, said


@simulated
def test_a_sample_is_told_before_and_quiet_after():
    figures, said, status = printed("--only", "|".join(SAMPLE))
    assert (figures, status) == ([8, 0, 8, 8, 8, 8], 0), said


@simulated
@pytest.mark.parametrize(
    ("part", "commits", "by_cpu"),
    [
        ("--first-contact", "c114eed1a|0a96d22f2|24f90a829|f362eae60", 1),
        ("--second-contact", "25fd9f2e9|b5fc6cc47|def793c65|600e4c753", 0),
    ],
)
def test_a_sample_of_those_that_were_written_later_is_told_before_and_quiet_after(part, commits, by_cpu):
    figures, said, status = printed(part, "--only", commits)
    assert (figures, status) == ([4, by_cpu, 4, 4, 4, 4], 0), said


@simulated
@pytest.mark.slow
def test_all_chosen_rows_are_told_before_and_quiet_after():
    chosen = PARTS["chosen"]
    (rows, _, told, decided, quiet, _), said, status = printed()
    assert rows == quiet == len(chosen) and status == 0, said
    assert told == decided == sum(not fault.undecided for fault in chosen) > 100, said
