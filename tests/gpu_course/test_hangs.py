"""Do dumps of the flight recorder say who is to blame for a hang, whoever recorded them?"""

import contextlib
import gc
import pickle

import pytest
import torch
import torch.distributed as dist

from gpu_course import lesson11
from ranklaunch import launch
from tests import children


def leave_before_the_second_call(rank_that_leaves):
    x = torch.ones(2)
    dist.all_reduce(x)
    if dist.get_rank() != rank_that_leaves:
        dist.all_reduce(x, async_op=True)
    return torch._C._distributed_c10d._dump_fr_trace()


@pytest.mark.parametrize("name", lesson11.hangs())
def test_stored_dumps_are_in_pytorchs_format_and_blame_whom_the_program_shows(name):
    hang = lesson11.hangs()[name]
    rank, call, line = hang.to_blame
    assert call in hang.program.splitlines()[line - 1]
    assert lesson11.blame.reference(list(hang.dumps)) == hang.to_blame
    assert len(hang.dumps) == hang.ranks and (hang.dumps[rank] is None) == ("os._exit" in hang.program)


def test_dumps_recorded_now_are_solved_as_the_stored_ones_are():
    dumps = [pickle.loads(dump) for dump in launch(leave_before_the_second_call, 1, nprocs=3, devices=["cpu"] * 3)]
    stored = lesson11.hangs()["fewer batches"].dumps[0]
    assert stored.keys() <= dumps[0].keys()
    assert stored["entries"][0].keys() <= dumps[0]["entries"][0].keys()
    line = leave_before_the_second_call.__code__.co_firstlineno + 4
    assert lesson11.blame.reference(dumps) == (1, "all_reduce", line)


def entry(number, line, name="nccl:all_reduce", p2p=False):
    """Return an entry with the parts that count, as NCCL's recorder writes them."""
    frames = [
        {"filename": "/opt/conda/lib/python3.10/site-packages/torch/distributed/distributed_c10d.py", "line": 2696},
        {"filename": "/home/cpio/test/crash.py", "line": line},
    ]
    return {
        "collective_seq_id": number, "profiling_name": name, "input_sizes": [[3, 4]], "input_dtypes": ["Float"],
        "is_p2p": p2p, "frames": frames,
    }  # fmt: skip


def test_dumps_of_nccl_are_solved_too_sends_are_left_out_and_a_rank_without_calls_is_missing():
    calls = [entry(1, 40), entry(2, 40), entry(2, 41, "nccl:send 0->1", p2p=True)]
    dumps = [{"entries": [*calls, entry(3, 44)]}, {"entries": calls}, {"entries": calls}]
    assert lesson11.blame.reference(dumps) == (0, "all_reduce", 44)
    assert lesson11.blame.reference([*dumps[1:], {"entries": []}]) == (2, "all_reduce", 40)


def test_pytorchs_script_stops_at_dumps_of_gloo_and_leaves_garbage_collection_on():
    with contextlib.suppress(KeyError):
        assert "missing ranks: {2}" in lesson11.torchfrtrace(lesson11.hangs()["fewer batches"].dumps)
    assert gc.isenabled()


def test_pytorchs_script_is_quiet_where_tabulate_is_not_installed():
    """In a notebook, what its import warns of on standard error would be a red block."""
    dumps = "[{**dump, 'pg_config': {}} for dump in lesson11.hangs()['fewer batches'].dumps]"
    code = (
        "import contextlib, sys\nsys.modules['tabulate'] = None\nfrom gpu_course import lesson11\n"
        f"with contextlib.suppress(KeyError): lesson11.torchfrtrace({dumps})\n"
        "assert 'torch.distributed.flight_recorder.fr_trace' in sys.modules"
    )
    done = children.run("-c", code)
    assert (done.returncode, done.stderr) == (0, "")
