"""Refusals of NCCL, in its words, between ranks whose messages gloo carries.

Sources: `check_gpu_single_tensor` and `getNcclDataType` in torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp,
`getBackend` in ProcessGroup.hpp there, and `initTransportsRank` in src/init.cc of NCCL.
"""

import os
import socket
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from simgpu.device import collectives, communication
from simgpu.device.tensor import SimTensor
from simgpu.ground.torch_internals import Args, Kwargs, Operator

VERSION = (2, 27, 3)
_LACKS = {torch.int16: "Short", torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64"}
_BETWEEN_TWO = ("send", "recv_", "recv_any_source_", "alltoall_")  # NCCL lets strides be any here; gloo does not
_OF_GPUS = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
_kept: list[torch.library.Library] = []  # keeps the registrations alive


class Rules:
    """Refusals of a group that was asked for as NCCL's; `takes_cpu` where gloo stands beside it."""

    def __init__(self, takes_cpu: bool) -> None:
        self.takes_cpu = takes_cpu
        self._met = False  # whether the ranks have told each other on which GPU they are

    def check(self, func: Operator, args: Args, group: dist.ProcessGroup, index: int) -> None:
        """Raise NCCL's errors for a call with tensors of GPU `index`; the first collective compares the GPUs."""
        name, within = func._overloadpacket.__name__, func.namespace == "c10d"
        for tensor in _own_tensors(args):
            if tensor.dtype in _LACKS:
                word = _LACKS[tensor.dtype]
                raise TypeError(f"Input tensor data type is not supported for NCCL process group: {word}")
            if within and name not in _BETWEEN_TWO and not _is_contiguous(tensor):
                raise ValueError("Tensors must be contiguous")
        if not self._met and collectives.message(func, args) is None:
            self._met = True
            _compare_gpus(group, index)


def _own_tensors(args: Args) -> list[SimTensor]:
    """Return the tensors that one rank gives or gets as a whole; parts for each rank are lists of lists."""
    flat = [one for arg in args for one in (arg if isinstance(arg, list | tuple) else (arg,))]
    return [one for one in flat if isinstance(one, SimTensor)]


def _is_contiguous(tensor: torch.Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    other = formats.get(tensor.dim())
    return tensor.is_contiguous() or (other is not None and tensor.is_contiguous(memory_format=other))


def _compare_gpus(group: dist.ProcessGroup, index: int) -> None:
    """Exchange the GPUs of a group's ranks. Raises where two share one."""
    mine = torch.tensor([_machine(), _physical(index)])
    gpus = [torch.zeros_like(mine) for _ in range(group.size())]
    with communication.carrying():
        group.allgather([gpus], [mine]).wait()
    me = group.rank()
    for rank, theirs in enumerate(gpus):
        if rank != me and torch.equal(theirs, mine):
            raise dist.DistBackendError(
                "NCCL error in: torch/csrc/distributed/c10d/NCCLUtils.cpp, invalid usage (run with NCCL_DEBUG=WARN for "
                f"details), NCCL version {'.'.join(map(str, VERSION))}\nncclInvalidUsage: This usually reflects "
                "invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank "
                f"{me} and rank {rank} both on CUDA device {int(mine[1]) + 1 << 12:x}"
            )


def _machine() -> int:
    """Return a number that the ranks of one machine share; several may be played on this one."""
    return zlib.crc32(socket.gethostname().encode()) + int(os.environ.get("GROUP_RANK", 0))


def _physical(index: int) -> int:
    """Return which GPU of the machine it is that this process calls `index`."""
    visible = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    if index >= len(visible):
        return index
    return int(visible[index]) if visible[index].isdigit() else zlib.crc32(visible[index].encode())


def refuse_the_cpu() -> None:
    """Patch collectives to refuse CPU tensors in a group of NCCL alone, once a process.

    C++ asks for the kernels of c10d by the tensor's device: those for the CPU look at the group first.
    """
    if _kept:
        return
    library = torch.library.Library("c10d", "IMPL")
    for name in torch._C._dispatch_get_all_op_names():
        space, _, short = name.partition("::")
        if space == "c10d" and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
            func = getattr(torch.ops.c10d, short).default
            kernel = partial(_unless_refused, func, torch.library.get_kernel(name, "CPU"))
            library.impl(short, kernel, "CPU", with_keyset=True, allow_override=True)
    _kept.append(library)


def _unless_refused(func: Operator, kernel: Any, keys: Any, *args: Any, **kwargs: Kwargs) -> Any:
    group = collectives.group_of(args)
    rules = None if communication.is_carrying() else communication.rules_of(group)
    if isinstance(rules, Rules) and not rules.takes_cpu:
        raise RuntimeError("No backend type associated with device type cpu")
    # `call_boxed` keeps the interpreter's lock while gloo's thread, for which it waits, may need that lock to let the
    # message before this one go. `redispatch` gives the lock away; the kernel of the other device asks the same gloo.
    if _has_gpus(group) and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "PrivateUse1"):
        return func.redispatch(_OF_GPUS, *args, **kwargs)
    return kernel.call_boxed(keys, *args, **kwargs)


def _has_gpus(group: dist.ProcessGroup | None) -> bool:
    return group is not None and any(device.type == "sim" for device in group._device_types)


def device_of_objects(plain: Callable[..., str], group: Any = None) -> str:
    """Return the device of pickled objects: the GPU in a group of NCCL alone."""
    rules = communication.rules_of(group or dist.group.WORLD)
    return "cuda" if isinstance(rules, Rules) and not rules.takes_cpu else plain(group)
