"""Do child processes and ranks of a program that says `cuda` have simulated GPUs too?"""

import json
import os
import subprocess
import sys

import pytest
import torch

import simgpu
from tests import children
from tests.simgpu.simulated import read_programs

RANKS = read_programs("cuda_ranks")["ranks"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two ranks of torchrun print that train, then try what NCCL refuses, and what stands in the report.

    One start for all: it takes 8 seconds.
    """
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "train.py").write_text(RANKS)
    (folder / "rules.py").write_text(NCCL)
    plain = {name: one for name, one in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    asked = ("--gpus", "2", "--json", "out.json", "--price", "1", "--run-steps", "1000")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    done = children.run("-m", "simgpu", *asked, *torchrun, cwd=folder, env=plain)
    assert done.returncode == 0, done.stderr[-3000:]
    return done, json.loads((folder / "out.json").read_text(encoding="utf-8"))


def test_torchrun_and_nccl(ranks):
    first, second = [line for line in ranks[0].stdout.splitlines() if " | " not in line][1:3]
    assert first == "nccl 2 [3.0, 3.0] cuda:0" and second.startswith("True True ")
    torch.manual_seed(0)
    model, losses = torch.nn.Linear(4, 2), []
    for rank in range(2):
        torch.manual_seed(rank)
        losses.append(model(torch.randn(8, 4)).square().mean())
    (sum(losses) / 2).backward()
    assert float(second.split()[2]) == pytest.approx(model.bias.grad.norm().item(), rel=1e-5)


def test_sharded_weights_are_drawn_where_they_are_and_differ_by_rank(ranks):
    assert "True False 48.0" in ranks[0].stdout.splitlines()


def test_ranks_of_a_run_are_counted_once(ranks):
    done, found = ranks
    assert done.stderr.count("Report for 2 × simulated T4") == 1
    own = found["options"][0]
    assert found["gpus"] == own["gpus"] == 2 and own["cost"] == pytest.approx(2 * own["hours"])
    assert found["evidence"]["regime"] == "several GPUs" and all(option["gpus"] == 2 for option in found["options"])


NCCL = read_programs("cuda_ranks")["nccl"]
REFUSED = read_programs("cuda_ranks")["refused"]


@pytest.fixture(scope="module")
def said(ranks):
    """What rank 1 of two says of each call that NCCL may refuse."""
    return dict(line.split(" | ") for line in ranks[0].stdout.splitlines() if " | " in line)


@pytest.mark.parametrize("name", REFUSED)
def test_ranks_refuse_what_nccl_refuses(said, name):
    assert said[name].startswith(REFUSED[name])


def test_two_ranks_on_one_gpu_are_named(said):
    assert said["two on one GPU"].endswith("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000")


def test_a_child_process_has_the_face_and_one_afterwards_has_not():
    begin = "import importlib.util as found; found.find_spec('torch'); import simgpu, torch; "
    ask = [sys.executable, "-c", begin + "print(torch.cuda.is_available(), torch.cuda.device_count())"]
    before = dict(os.environ)
    simgpu.enable()
    with simgpu.cuda(gpu="A10", memory="1 GiB"):
        inside, told = subprocess.run(ask, capture_output=True, text=True, check=True), os.environ["SIMGPU_CUDA"]
        with simgpu.without_face():
            assert os.environ["SIMGPU_CUDA"] == ""
        assert os.environ["SIMGPU_CUDA"] == told
    assert inside.stdout.split() == ["True", str(torch.sim.device_count())] and dict(os.environ) == before
    where = [sys.executable, "-c", "import sys; print('simgpu' in str(sys.modules.get('sitecustomize')))"]
    assert subprocess.run(where, capture_output=True, text=True, check=True).stdout.split() == ["False"]


FAILS = read_programs("cuda_ranks")["fails"]
ENDS = read_programs("cuda_ranks")["ends"]


@pytest.mark.parametrize("end", ENDS)
def test_the_rank_that_failed_first_is_said_first_and_what_all_had_done(tmp_path, end):
    """Rank 0 fails since rank 1 has ended, or is stopped by torchrun, whose own error names no line."""
    (tmp_path / "train.py").write_text(FAILS.replace("END", end), encoding="utf-8")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    plain = {name: value for name, value in os.environ.items() if name not in names}
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    done = children.run("-m", "simgpu", "--gpus", "2", *torchrun, cwd=tmp_path, env=plain)
    said = done.stderr.partition("\nReport for ")[2].splitlines()
    assert said[1].startswith(ENDS[end]) and "Each of the 2 ranks had done 2 steps." in said[1], done.stderr[-3000:]
    assert said[0] == "2 × simulated T4"
    assert ("on rank 1" if "out of" in said[1] else "rank 0 had done 2 steps") in said[2]
