"""How fast do ranks start, and does anything ever go wrong or stay behind?

    python -m benchmarks.launch            # everything: about a minute
    python -m benchmarks.launch --speed    # the times alone
    python -m benchmarks.launch --cluster  # launches whose ranks have simulated GPUs, alone

Two ranks that do one all_reduce: `launch`, Accelerate's `debug_launcher` (which forks this process) and
`torch.multiprocessing.spawn` take turns in one run. Then many launches in a row, with failing and with hanging ranks.
Ends with an error when a figure is missed.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing

import simgpu
from ranklaunch import RankError, launch, rank_device
from tests.ranklaunch import system

FIRST_LIMIT_S, LATER_LIMIT_S = 4.0, 0.3
FAILING_LIMIT_S = 5.0  # whatever the timeout: nobody waits for it when a rank has failed
HANG_TIMEOUT_S, HANG_LIMIT_S = 3.0, 8.0
ROUNDS, IN_A_ROW, FAILING, HANGING = 5, 100, 20, 10


def total() -> float:
    """Return the number of ranks, as the ranks find it."""
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def with_launch() -> None:
    assert launch(total) == [2.0, 2.0]


def with_accelerate() -> None:
    from accelerate import debug_launcher

    with contextlib.redirect_stdout(io.StringIO()):
        debug_launcher(_accelerated, num_processes=2)


def with_spawn() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    torch.multiprocessing.spawn(_spawned, (port,), nprocs=2)


def _accelerated() -> None:
    assert total() == 2.0


def _spawned(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    assert total() == 2.0
    dist.destroy_process_group()


def first_launch() -> float:
    """Return the seconds of the first launch of a fresh process, the import of torch in the server included."""
    code = "from benchmarks.launch import timed, with_launch; print(timed(with_launch))"
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    return float(done.stdout)


def timed(fn: Callable[[], None]) -> float:
    """Return the seconds that `fn` takes."""
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def speed(rounds: int = ROUNDS) -> bool:
    """Print the times and return whether they are within their limits."""
    first = statistics.median(first_launch() for _ in range(min(rounds, 3)))
    with_launch()
    ways = {"launch": with_launch, "accelerate's debug_launcher": with_accelerate, "spawn": with_spawn}
    times = {name: [] for name in ways}
    for round_ in range(rounds):
        for name, way in ways.items():
            if name != "spawn" or round_ < 2:
                times[name].append(timed(way))
    print(f"2 ranks, one all_reduce, on {_cores()} cores, torch {torch.__version__}; seconds, live")
    print(f"  first launch of a process: {first:.2f} (at most {FIRST_LIMIT_S:g})")
    for name, found in times.items():
        label = "launch, later" if name == "launch" else name
        limit = f" (at most {LATER_LIMIT_S:g})" if name == "launch" else ""
        spread = f"{min(found):.3f} to {max(found):.3f} in {len(found)} runs"
        print(f"  {label}: {statistics.median(found):.3f}{limit}, {spread}")
    return first <= FIRST_LIMIT_S and statistics.median(times["launch"]) <= LATER_LIMIT_S


def reliable(in_a_row: int = IN_A_ROW, failing: int = FAILING, hanging: int = HANGING) -> bool:
    """Run many launches and return whether each did what it should, in time, and left nothing."""
    with_launch()  # the server stays
    with system.pids_of_ranks() as pids:
        before = _state(pids)
        good = _reliable(in_a_row, failing, hanging)
    left = [f"{a} became {b}" for a, b in zip(before, _state(pids), strict=True) if a != b]
    print(f"left behind: {'; '.join(left) or 'nothing'}")
    return good and not left


def _reliable(in_a_row: int, failing: int, hanging: int) -> bool:
    for _ in range(in_a_row):
        with_launch()
    print(f"{in_a_row} launches in a row: none failed")
    failed_s = max((_ended_s(_fail, number % 2, 60.0) for number in range(failing)), default=0.0)
    right = "the right rank named each time"
    print(f"{failing} with a failing rank: {right}, {failed_s:.2f} s at most (limit {FAILING_LIMIT_S:g})")
    hung_s = max((_ended_s(_hang, number % 2, HANG_TIMEOUT_S) for number in range(hanging)), default=0.0)
    print(f"{hanging} with a hang: {right}, {hung_s:.2f} s at most (limit {HANG_LIMIT_S:g})")
    return failed_s <= FAILING_LIMIT_S and hung_s <= HANG_LIMIT_S


def on_cluster(in_a_row: int = IN_A_ROW) -> bool:
    """Train on two simulated GPUs many times; return whether clocks and losses were the same, and nothing stayed."""
    cluster = simgpu.Cluster()
    simgpu.launch(_train, cluster=cluster)
    with system.pids_of_ranks() as pids:
        before, found = _state(pids), set()
        seconds = timed(lambda: [found.add(_summary(simgpu.launch(_train, cluster=cluster))) for _ in range(in_a_row)])
    left = [f"{a} became {b}" for a, b in zip(before, _state(pids), strict=True) if a != b]
    print(
        f"{in_a_row} launches with simulated GPUs: none failed, {seconds / in_a_row:.2f} s each, {len(found)} outcomes"
    )
    print(f"left behind: {'; '.join(left) or 'nothing'}")
    return len(found) == 1 and not left


def _train() -> float:
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(rank_device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8, device=rank_device())).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def _summary(results: list[float]) -> tuple:
    ranks = results.timeline.ranks
    return (*results, results.timeline.total_ns, hash(tuple(record for one in ranks for record in one.records)))


def _ended_s(fn: Callable[[int], None], rank: int, timeout_s: float) -> float:
    """Return the seconds of a launch that must end with an error that names `rank`."""
    return timed(lambda: _expect(fn, rank, timeout_s))


def _expect(fn: Callable[[int], None], rank: int, timeout_s: float) -> None:
    try:
        launch(fn, rank, timeout_s=timeout_s)
    except RankError as error:
        assert error.rank == rank, str(error)
        assert fn.__name__ in str(error), str(error)
    else:
        raise AssertionError(f"{fn.__name__} was to fail")


def _fail(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError("on purpose")
    total()


def _hang(rank: int) -> None:
    if dist.get_rank() == rank:
        time.sleep(1000)
    total()


def _state(pids: set[int]) -> tuple[object, ...]:
    """Return what launches of these ranks may not change: processes, ports, shared memory, threads, descriptors."""
    own = psutil.Process()
    listening = [one.laddr.port for one in own.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    descriptors = own.num_fds() if hasattr(own, "num_fds") else own.num_handles()
    segments, children = system.abandoned_segments(pids), len(own.children(recursive=True))
    return children, listening, segments, own.num_threads(), descriptors, dict(os.environ)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> int:
    """Print all figures and return 0 if none is missed."""
    if "--cluster" in sys.argv[1:]:
        return int(not on_cluster())
    good = speed()
    if "--speed" not in sys.argv[1:]:
        good = reliable() and good
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main())
