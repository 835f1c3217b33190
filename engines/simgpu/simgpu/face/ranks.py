"""`init_process_group("nccl")` and its kin between ranks with simulated GPUs; gloo carries the messages."""

import functools
import hashlib
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from simgpu.device import communication, state
from simgpu.device.generators import SimGenerator
from simgpu.face import nccl
from simgpu.ground.replacements import Replacements
from simgpu.machine.cluster import Cluster

_named: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()  # groups, by what a program called them


def replace(put: Replacements) -> None:
    """Patch `torch.distributed` to make groups over simulated GPUs; `get_backend` returns the requested one."""
    if not dist.is_available():
        return
    c10d = dist.distributed_c10d
    ours = {
        "init_process_group": functools.wraps(dist.init_process_group)(
            functools.partial(_init, put, dist.init_process_group)
        ),
        "new_group": functools.wraps(dist.new_group)(functools.partial(_new_group, dist.new_group)),
        "get_backend_config": functools.wraps(dist.get_backend_config)(
            functools.partial(_get_config, dist.get_backend_config)
        ),
        "_get_object_coll_device": functools.wraps(c10d._get_object_coll_device)(
            functools.partial(nccl.device_of_objects, c10d._get_object_coll_device)
        ),
        "get_backend": functools.wraps(dist.get_backend)(functools.partial(_get_backend, dist.get_backend)),
        "barrier": dist.barrier,  # which a group of simulated GPUs replaces
    }
    for owner in (dist, c10d, dist.device_mesh):
        put.put(owner, **{name: value for name, value in ours.items() if name in vars(owner)})
    put.put(dist, is_nccl_available=lambda: True)
    ask = dist.device_mesh._get_device_handle
    put.put(dist.device_mesh, _get_device_handle=lambda kind="cuda": _Handle() if kind == "cuda" else ask(kind))


class _Handle:
    """`torch.cuda` as a mesh asks it, which chooses the GPU of LOCAL_RANK where a program has used none so far."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    def is_initialized(self) -> bool:
        return state.world.current != 0 or state.world.clock.host_ns > 0


def _init(put: Replacements, plain: Callable[..., None], backend: str | None = None, *args: Any, **kwargs: Any) -> None:
    """Make the group of all ranks. Messages are priced as in one machine, or as many as LOCAL_WORLD_SIZE says."""
    _check_device(kwargs.pop("device_id", None))
    kwargs.pop("pg_options", None)
    plain(_carrier(backend), *args, **kwargs)
    if backend == "fake":  # PyTorch's group of ranks that do not exist
        return
    _name_group(dist.group.WORLD, backend)
    here = int(os.environ.get("LOCAL_WORLD_SIZE") or dist.get_world_size())
    spec = state.world.clock.machine.gpu
    communication.join(Cluster(spec.name, per_machine=max(here, 1)))
    from torch.distributed.tensor import _op_schema, _random  # takes long to import

    if hasattr(_random, "_PhiloxState"):
        put.put(_random, _PhiloxState=_State)
    if hasattr(_op_schema, "_rebuild_tensor_from_dtensor_meta"):
        put.put(_op_schema, _rebuild_tensor_from_dtensor_meta=_shape_of)


def _shape_of(spec: Any) -> torch.Tensor:
    """Return a tensor that has the shape of a `DTensor` and no device: a fake one of CUDA would need a device guard."""
    known = spec.tensor_meta
    return torch.empty_strided(known.shape, known.stride, dtype=known.dtype, device="meta")


class _State:
    """The state of a generator, and how far from there a rank begins that has a part of a tensor.

    CUDA's generators jump: their state is a seed and an offset. That of the CPU, which draws the numbers here, is
    seeded anew from its state and the offset, equally on all ranks.
    """

    def __init__(self, state: torch.Tensor) -> None:
        self._origin, self.offset = state.cpu(), torch.zeros(1, dtype=torch.int64, device="cpu")

    @property
    def state(self) -> torch.Tensor:
        offset = int(self.offset)
        if offset == 0:
            return self._origin
        digest = hashlib.sha256(self._origin.numpy().tobytes() + offset.to_bytes(16, "little", signed=True)).digest()
        seed = int.from_bytes(digest[:7], "little")
        return SimGenerator(state.world.devices[0]).manual_seed(seed).get_state()


def _new_group(plain: Callable[..., Any], *args: Any, backend: str | None = None, **kwargs: Any) -> Any:
    _check_device(kwargs.pop("device_id", None))
    kwargs.pop("pg_options", None)
    group = plain(*args, backend=None if backend is None else _carrier(backend), **kwargs)
    if isinstance(group, dist.ProcessGroup):
        _name_group(group, backend or _named.get(dist.group.WORLD))
    return group


def _check_device(device_id: torch.device | int | None) -> None:
    """Raise as CUDA does for a GPU that is not there."""
    if device_id is not None:
        state.device_of(device_id)


def _name_group(group: Any, backend: str | None) -> None:
    """Record the backend that a program asked for, with NCCL's refusals where it is NCCL."""
    named = "" if backend is None else str(backend).lower()
    _named[group] = named
    if named and "nccl" not in named:
        communication.rules.pop(group.group_name, None)
        return
    nccl.refuse_the_cpu()
    communication.rules[group.group_name] = nccl.Rules(takes_cpu=named not in ("nccl", "cuda:nccl"))


def _get_backend(plain: Callable[..., str], group: Any = None) -> str:
    carrier = plain(group)
    named = _named.get(group or dist.group.WORLD)
    return carrier if named is None else "nccl" if not named or "nccl" in named else named


def _get_config(plain: Callable[..., str], group: Any = None) -> str:
    """Return the backend of each kind of device, as a program asked for it or as PyTorch chooses with CUDA."""
    carriers, named = plain(group), _named.get(group or dist.group.WORLD)
    if named is None or ":" in named:
        return named or carriers
    return {"": "cpu:gloo,cuda:nccl", "nccl": "cuda:nccl", "gloo": "cpu:gloo,cuda:gloo"}.get(named, carriers)


def _carrier(backend: str | None) -> str:
    """Return the backend that carries the messages. Raises RuntimeError for one that has no part of gloo or NCCL."""
    named = "nccl" if backend is None else str(backend).lower()
    if named == "fake":
        return named
    if not any(one in named for one in ("nccl", "gloo")):
        raise RuntimeError(f"the simulated GPUs have no backend {backend!r}: use nccl or gloo")
    return "gloo"
