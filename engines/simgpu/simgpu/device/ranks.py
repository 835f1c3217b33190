"""Runs a function on several processes, each with a simulated GPU of one cluster."""

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from simgpu.device import communication
from simgpu.device.child_process import without_face
from simgpu.device.enabling import enable
from simgpu.device.hiding import hide_accelerators
from simgpu.device.timelines import ClusterTimeline, Timeline, timeline
from simgpu.ground import arguments
from simgpu.machine.cluster import Cluster


class Results(list[Any]):
    """Results of the ranks, in order, and the `timeline` of all of them."""

    timeline: ClusterTimeline


def launch(
    fn: Callable[..., Any], /, *args: Any, cluster: Cluster, nprocs: int = 2, timeout_s: float = 60.0, **kwargs: Any
) -> Results:
    """Run `fn(*args, **kwargs)` on `nprocs` processes with a simulated GPU each; return what each rank returned.

    As `ranklaunch.launch`, which starts the processes. `rank_device()` is `sim:0` in each of them, as to a process that
    sees one GPU alone, and PyTorch's own DistributedDataParallel, `fully_shard`, `parallelize_module` and pipelines run
    on it. gloo carries the messages, their time is that of the cluster's links, and all clocks start at 0. The list has
    the attribute `timeline`, a `ClusterTimeline` of all that the function did on all ranks: the same on every run and
    machine. `os.environ` says to which machine a rank belongs (LOCAL_RANK, LOCAL_WORLD_SIZE).

    Raises RankError, TypeError and ValueError as `ranklaunch.launch` does.
    """
    import ranklaunch  # the simulated GPU of one process does without it

    if not isinstance(cluster, Cluster):
        raise TypeError(f"cluster must be a simgpu.Cluster, not {cluster!r}")
    for given in ("devices", "start"):
        if given in kwargs:
            raise TypeError(f"leave {given} out: the ranks of a cluster compute on simulated GPUs")
    # the first is imported by the first operator
    ranklaunch.preload("torch.distributed.tensor", "simgpu.device.before_fork")
    with without_face():
        pairs = ranklaunch.launch(
            fn, *args, nprocs=nprocs, timeout_s=timeout_s, devices=["cpu"] * arguments.whole("nprocs", nprocs),
            start=functools.partial(_become_rank, cluster), **kwargs,
        )  # fmt: skip
    results = Results(value for value, _ in pairs)
    results.timeline = ClusterTimeline([one for _, one in pairs])
    return results


def _become_rank(cluster: Cluster) -> Callable[..., tuple[Any, Timeline]]:
    """Give this rank a simulated GPU and its place in a machine; return what calls the function there."""
    import ranklaunch

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = rank % cluster.per_machine
    here = min(cluster.per_machine, ranks - (rank - local))
    os.environ.update(LOCAL_RANK=str(local), LOCAL_WORLD_SIZE=str(here))
    hide_accelerators()
    enable(1, cluster.gpu, cluster.capacity, host=cluster.host)
    ranklaunch.use_device(torch.device("sim", 0))
    return functools.partial(_recorded, cluster)


def _recorded(cluster: Cluster, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Timeline]:
    """Return the result of `fn` and its timeline."""
    communication.join(cluster)
    with timeline() as whole:
        value = fn(*args, **kwargs)
        communication.expect_answers()
    return value, whole
