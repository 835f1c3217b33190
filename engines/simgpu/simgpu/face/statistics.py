"""`torch.cuda.memory_stats` of a simulated GPU, with all of CUDA's keys."""

from typing import Any

from simgpu.accounting.allocator import EVENTS, METRICS
from simgpu.device import state

_KINDS = ("current", "peak", "allocated", "freed")
_POOLS = ("all", "large_pool", "small_pool")


def nested(index: int) -> dict[str, Any]:
    """Return the statistics of GPU `index` as `torch.cuda.memory_stats_as_nested_dict` does, in bytes and counts.

    With exact accounts nothing is rounded, cached or split: what is allocated is active and reserved, all in one pool.
    """
    gpu = state.world.memory.gpus[index]
    state.world.memory.settle()
    flat = _exact(gpu) if gpu.cache is None else gpu.cache.memory_stats()
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        branch = tree
        for step in path:
            branch = branch.setdefault(step, {})
        branch[last] = value
    return tree


def reset_sums(index: int) -> None:
    """Reset the accumulated sums, as `torch.cuda.reset_accumulated_memory_stats` does."""
    gpu = state.world.memory.gpus[index]
    state.world.memory.settle()
    if gpu.cache is not None:
        gpu.cache.reset(peaks=False)
    gpu.allocations, gpu.sum_bytes = 0, 0


def _exact(gpu: Any) -> dict[str, int]:
    flat = {f"{metric}.{pool}.{kind}": 0 for metric in METRICS for pool in _POOLS for kind in _KINDS}
    flat |= {f"oversize_{what}.{kind}": 0 for what in ("allocations", "segments") for kind in _KINDS}
    flat |= dict.fromkeys(EVENTS, 0) | {"max_split_size": -1}
    for metric in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
        flat |= _four(metric, gpu.allocated_bytes, gpu.peak_bytes, gpu.sum_bytes)
    for metric in ("allocation", "active", "segment"):
        flat |= _four(metric, gpu.storages, gpu.most_storages, gpu.allocations)
    return flat


def _four(metric: str, current: int, peak: int, allocated: int) -> dict[str, int]:
    values = current, max(current, peak), allocated, max(allocated - current, 0)
    return {f"{metric}.all.{kind}": value for kind, value in zip(_KINDS, values, strict=True)}
