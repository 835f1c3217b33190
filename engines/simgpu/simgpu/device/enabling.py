"""The switch of the simulated GPU: on, off, its settings, and a self-test."""

import operator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from simgpu.accounting import allocator as caching
from simgpu.device import hiding, state
from simgpu.device.state import World
from simgpu.ground import arguments, device_kind, places
from simgpu.ground.torch_internals import TORCH
from simgpu.machine import gpus as table
from simgpu.machine import hosts
from simgpu.machine.hosts import Host
from simgpu.machine.machines import Machine
from simgpu.machine.rates import Costs

WHOLE = "whole"  # as a capacity: all that a GPU has
_NEEDED = "library.get_kernel", "_C._acc.register_python_privateuseone_device_guard", "Tensor._make_wrapper_subclass"


def enabled() -> bool:
    """Return whether the device type `sim` exists in this process."""
    return state.is_on()


def unavailable() -> str | None:
    """Return why the simulated GPU cannot be enabled in this process, or None if it can."""
    if enabled():
        return None
    if kinds := hiding.present():
        way = "start it anew" if hiding.in_use() else "call simgpu.hide_accelerators() first"
        return (
            f"this process has a real accelerator ({', '.join(kinds)}); the simulated GPU is never enabled beside one: "
            f"{way}, or run the program by `python -m simgpu`"
        )
    taken = torch._C._get_privateuse1_backend_name()
    ours = state.world is not None  # enabled before, and switched off
    if not ours and (taken != "privateuseone" or hasattr(torch, "sim")):
        return f"another package has taken PyTorch's extension point for devices, under the name {taken!r}"
    for name in _NEEDED:
        try:
            operator.attrgetter(name)(torch)
        except AttributeError:
            return f"torch {torch.__version__} lacks torch.{name}"
    return None


def enable(
    gpus: int = 2, spec: str = "T4", capacity: str | int = "1 GiB", *, host: str | Host = hosts.DEFAULT
) -> AbstractContextManager[object]:
    """Switch on the device type `sim` with `gpus` simulated GPUs until `disable()` or, as a context, until its end.

    `spec` names a row of `simgpu.gpus` and sets rates; `capacity` is the memory of each GPU ("64 MiB" or bytes),
    small enough to reach, or "whole", all that such a GPU has, of which CUDA's context takes a part; `host` names a row
    of `simgpu.hosts`, or is a `simgpu.Host`. Where it is on already, other `spec`, `capacity` and `host` take effect,
    and the end of a context puts back what was before; other `gpus` raise ValueError. Raises RuntimeError with the
    reason where the simulated GPU cannot be (`unavailable`).
    """
    if arguments.whole("gpus", gpus) > 16:
        raise ValueError(f"gpus must be at most 16, not {gpus}")
    row = table.get(spec, "spec")
    size = _capacity(capacity, row)[0]
    machine = Machine(row, hosts.get(host))
    back = ExitStack()
    _refuse_to_change(gpus)
    if enabled():
        back.callback(enable, gpus, **chosen())
    else:
        _switch_on(gpus, machine, size)
        back.callback(disable)
    state.world.chosen = {"spec": spec, "capacity": capacity, "host": host}
    configure(**state.world.chosen)
    return back


def _refuse_to_change(gpus: int) -> None:
    """Raise ValueError where simulated GPUs are in use, and there are not `gpus` of them."""
    if state.world is None:
        return
    state.world.memory.bury()
    there = len(state.world.memory.gpus)
    if there != gpus and (enabled() or state.world.memory.live):
        raise ValueError(f"gpus is {there} already and cannot change to {gpus} while they are enabled or hold tensors")


def _switch_on(gpus: int, machine: Machine, capacity_bytes: int) -> None:
    """Put functions of the simulated GPU in the place of PyTorch's; tensors that are still alive are on it again."""
    reason = unavailable()
    if reason is not None:
        raise RuntimeError(f"the simulated GPU cannot be enabled: {reason}")
    from simgpu.device import dispatcher, torch_sim

    if state.world is None or not state.world.memory.live:
        state.world = World(gpus, machine, capacity_bytes)
    dispatcher.switch_on(state.replaced, torch_sim.make_module())
    state.world.show(device_kind.KINDS["sim"])


def disable() -> None:
    """Switch the device type `sim` off: PyTorch's functions and classes are its own again.

    What PyTorch cannot unregister stays: the name `sim`, which `torch.accelerator.current_accelerator()` says from now
    on, `torch.sim`, which counts no GPUs then, and kernels, which refuse to make tensors. Tensors that are alive can be
    read (`tensor.cpu()`), and used again after the next `enable`. Raises RuntimeError while the face of CUDA, MPS or
    XPU is on. Not for several threads at a time.
    """
    if not enabled():
        return
    if device_kind.kind != "sim":
        raise RuntimeError(f"simgpu.{device_kind.kind}() is on: switch it off first")
    reset()
    if torch.get_default_device().type == "sim":
        torch.set_default_device(None)
    while _hooks:
        _hooks.pop().remove()
    state.replaced.undo()
    state.world.chosen = None


def _begin_step(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    state.world.clock.stepping, state.world.clock.closure = True, places.has_closure(args, kwargs)


def _end_step(*_: object) -> None:
    state.world.clock.stepping = False


_hooks: list[RemovableHandle] = []


def _follow_optimizers() -> None:
    """Tell the clock when an optimizer's step runs, whose operators cost the host less.

    Hooks of all optimizers are PyTorch's own tables, which others put back as they were: what was lost is put in again.
    """
    if _hooks and all(handle.id in (handle.hooks_dict_ref() or ()) for handle in _hooks):
        return
    for handle in _hooks:
        handle.remove()
    _hooks[:] = register_optimizer_step_pre_hook(_begin_step), register_optimizer_step_post_hook(_end_step)


def chosen() -> dict[str, Any]:
    """Return `spec`, `capacity` and `host` as `enable` was given them last."""
    world()
    return dict(state.world.chosen or {})


def world() -> World:
    """Return the simulated GPUs of this process. Raises RuntimeError where they are not enabled."""
    if not enabled():
        raise RuntimeError("the simulated GPU is not enabled: call simgpu.enable() first")
    return state.world


_HABITS = {"allocator": ("exact", "caching"), "errors": ("immediate", "asynchronous", "blocking")}


def configure(
    *,
    spec: str | None = None,
    capacity: str | int | None = None,
    host: str | Host | None = None,
    costs: Costs | None = None,
    allocator: str | None = None,
    errors: str | None = None,
) -> None:
    """Change the rates, the memory of each GPU, the host, the costs, or habits, from now on. Tensors stay as they are.

    `allocator="exact"` counts the bytes of tensors; "caching" reserves and reuses memory by the rules of PyTorch's own
    for CUDA, with blocks of 512 bytes, segments, fragmentation, and what `torch.sim.memory_reserved`, `memory_stats`
    and `memory_snapshot` say of them. Its settings are PyTorch's: `PYTORCH_ALLOC_CONF`.

    `errors` says when an impossible value in a kernel, such as an index out of range, is reported: "immediate" by the
    CPU's error, at its line; "asynchronous" as on CUDA, by `torch.AcceleratorError` at the next call that waits for the
    GPU, and by every call after it (a real GPU may say so earlier, at any call); "blocking" as under
    CUDA_LAUNCH_BLOCKING=1, at its line. The way back is `reset()`, where CUDA needs a new process: what was written
    since the error is lost.

    Raises ValueError or TypeError that names the argument; then nothing is changed. So does `torch.OutOfMemoryError`
    where the tensors that are alive do not fit in blocks.
    """
    here = world()
    _follow_optimizers()
    row = None if spec is None else table.get(spec, "spec")
    sizes = None if capacity is None else _capacity(capacity, row or here.clock.machine.gpu)
    other = None if host is None else hosts.get(host)
    if costs is not None:
        _check_costs(costs)
    for name, value in (("allocator", allocator), ("errors", errors)):
        if value not in (None, *_HABITS[name]):
            raise ValueError(f"{name} must be one of {_HABITS[name]}, not {value!r}")
    with here.lock:
        now = here.clock.machine
        here.clock.machine = replace(now, gpu=row or now.gpu, host=other or now.host, costs=costs or now.costs)
        here.errors = errors or here.errors
        for gpu in here.memory.gpus:
            if sizes is not None:
                gpu.context_bytes = sizes[1]
                gpu.capacity_bytes = sizes[0]  # which looks for the tightest limit anew
        if allocator is not None:
            caching.switch(here.memory, here.clock, allocator == "caching")


def _capacity(given: str | int, row: table.GPU) -> tuple[int, int]:
    """Return the memory of a GPU that `given` means, and how much of it the context takes."""
    if given == WHOLE:
        return row.memory_bytes, row.context_bytes
    return arguments.size_bytes("capacity", given), 0


def _check_costs(costs: Costs) -> None:
    if not isinstance(costs, Costs):
        raise TypeError(f"costs must be simgpu.Costs, not {costs!r}")
    for name in ("kernel_ns", "copy_ns"):
        arguments.whole(f"costs.{name}", getattr(costs, name), least=0)
    for name in ("bus_share", "pageable_share", "matrix_share", "bandwidth_share", "strided_share", "depthwise_share"):
        share = getattr(costs, name)
        if arguments.positive(f"costs.{name}", share) > 1:
            raise ValueError(f"costs.{name} must be at most 1, not {share!r}")


def reset() -> None:
    """Go back to the settings of `enable()`, the clock to zero, empty queues, peaks equal to the bytes alive now.

    Also out of an asynchronous error; a real GPU has no such way back.
    """
    here = world()
    configure(**chosen(), costs=Costs(), allocator="exact", errors="immediate")
    TORCH.sim.set_device(0)
    here.restart()


def clock_ms() -> float:
    """Return the host's virtual clock in milliseconds since the last `reset()`."""
    return world().clock.host_ns / 1e6


def host_work(name: str, ms: float) -> None:
    """Keep the host busy for `ms` milliseconds of the virtual clock, while the GPUs work on their queues.

    The clock knows launches, copies and waiting alone. What else the host does between them, such as reading files or
    making a batch, is not measured: `ms` is what you say it takes, an **input** of the simulation, and timelines and
    traces call it so. Raises ValueError or TypeError that names the argument.
    """
    here = world()
    if not isinstance(name, str):
        raise TypeError(f"name must be text, not {name!r}")
    here.clock.work(name, round(arguments.positive("ms", ms) * 1e6))


def ready(gpus: int = 2) -> tuple[torch.device | None, str]:
    """Enable the simulated GPU and return it, or None and the reason why it cannot be or does not work.

    There will be `gpus` of them, unless they are enabled already.
    """
    try:
        reason = unavailable()
        if reason is None:
            if not enabled():
                enable(gpus)
            reason = _self_test(torch.device("sim", 0))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    return (torch.device("sim", 0), "") if reason is None else (None, reason)


def _self_test(device: torch.device) -> str | None:
    """Train one small layer on `device` and on the CPU; return what is wrong, or None."""
    weight = torch.linspace(-1, 1, 12).view(4, 3)
    gradients = []
    for where in (device, torch.device("cpu")):
        leaf = weight.to(where).requires_grad_()
        loss = (torch.ones(2, 4, device=where) @ leaf).relu().square().mean()
        loss.backward()
        if leaf.grad is None or leaf.grad.device != where:
            return f"its self-test failed: a gradient is on {getattr(leaf.grad, 'device', None)} instead of {where}"
        gradients.append(leaf.grad.cpu())
    return None if torch.equal(*gradients) else "its self-test failed: a gradient differs from that of the CPU"
