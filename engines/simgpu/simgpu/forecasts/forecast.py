"""Forecast of a program's memory and time on a GPU that is not present."""

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from unittest import mock

import torch
from torch import nn

from simgpu.clock.events import OPTIMIZER, Event
from simgpu.device.compiled import Compiled
from simgpu.forecasts.compiled_forecast import MODES, Compiler
from simgpu.forecasts.fake_device import fake_device, fake_program, usual_step
from simgpu.forecasts.memory_forecast import FakeLedger, MemoryForecast
from simgpu.forecasts.recorder import Recorder
from simgpu.forecasts.time_forecast import TimeForecast
from simgpu.forecasts.whatif import Basis, Optimizer, priced
from simgpu.machine import gpus, hosts
from simgpu.machine.cluster import Cluster
from simgpu.machine.hosts import Host
from simgpu.machine.machines import Machine
from simgpu.machine.rates import Costs

_AMPERE, _OLD = (8, 0), (7, 5)  # compute capability from which kernels for bfloat16 are the same, and one below


def forecast(
    make_model: Callable[[], nn.Module],
    make_batch: Callable[[], Any],
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
    *,
    step: Callable[[nn.Module, Any, torch.optim.Optimizer | None], object] | None = None,
    ranks: int | None = None,
    device: torch.device | str | None = None,
) -> "Forecast":
    """Run a program on tensors that have shapes and no memory; return what it would take on a GPU.

        ahead = simgpu.forecast(make_model, make_batch, torch.optim.AdamW)
        print(ahead.memory)                                 # the peak, and whose its bytes are
        print(ahead.on("H100 SXM"), ahead.on("RTX 4090"))   # the time of a step; the program is not run again
        print(ahead.on("T4").phases)                        # forward, backward, optimizer; also `lines`
        print(ahead.on("T4").what_if(amp=True, batch=2))    # the same step otherwise
        print(ahead.compiled().on("T4"))                    # with its model compiled

    Nothing is allocated, so that any size is possible.

    - `make_model()` builds the model, in training mode unless it says otherwise.
    - `make_batch()` returns the batch, as if it were on the GPU already: `(inputs, target)` or `inputs` alone.
    - `make_optimizer(parameters)` gets the list of parameters: `torch.optim.AdamW` is one. Without it nothing is
      trained.
    - `step(model, batch, optimizer)` is the whole step, `zero_grad` to `step`. By default it is the usual one: the
      model takes `inputs`, a tensor, a tuple of arguments or a dict of keywords; the loss is the cross-entropy over the
      last dimension for a target of whole numbers, the mean squared error for others, the mean of the output without a
      target; without an optimizer the forward pass is all.
    - `ranks`: as rank 0 of so many, without any other process; what is given is the program of that rank, and all take
      as long as it. `torch.distributed` is set up when `make_model` is called, which may return a
      DistributedDataParallel, call `fully_shard` or `parallelize_module` on meshes of any device type. Of pipelines,
      whose ranks differ, a forecast says nothing: PyTorch's schedules raise, and what another stage sends comes at
      once. Forecast the forward pass of a stage, and with its backward pass, as the program of one GPU.
    - `device`: whose memory `memory` tells. None is a GPU that need not be here, as the simulated one ("sim") counts;
      "cpu" and, where there is one, "cuda" run the operators that they would run. CUDA's sizes are rounded up to 512
      bytes, as its allocator does.

    Devices named in the functions may be any: they mean the forecast's. Of a program with an optimizer, or of several
    ranks, two steps are run, of which the second is timed: the optimizer's state exists from the first `step()` on, and
    FSDP knows its order then. Memory and time come from one run, but for a `device` other than None and "sim": there
    `on` runs the program again, once, since a CPU goes through parameters one by one and CUDA has operators of its own.

    `torch.no_grad` and `torch.inference_mode` may stand in `step` or around the call. `torch.autocast` must stand in
    `step`, or in the model: around the call PyTorch switches that of "cuda" off where CUDA is missing, and nobody can
    see that it was there. In `step`, autocast of any device casts what CUDA casts; its format is float16 unless it says
    another.

    Left out of memory: what kernels and libraries need inside (workspaces), fragmentation.
    Left out of time: the host's own work, copies from and to it,
    compiling (`compiled`). Float32 products are without TF32 and convolutions with it, as PyTorch's settings say at
    the call.
    Attention and recurrent layers in bfloat16 run other kernels on GPUs older than compute capability 8.0: `memory` is
    that of newer ones, and `on` of an older one runs the program again, once.
    Attention that the CPU cannot compute in one operator (dropout, a mask that needs gradients, heads of unequal sizes)
    is the plain formula. flex_attention is the kernel of a compiled program; blocks that its mask hides are left out
    where row and column tell which they are, and computed where only a tensor of the program could tell.

    Forecasts of several threads take turns, and one may stand in the step of another. Raises TypeError or ValueError
    for what is none of these, and RuntimeError in an autocast, for `ranks` in a process group, and where a step needs
    the values of tensors: GradScaler does, LBFGS, Adafactor, ASGD, packed sequences, and `nn.Transformer` that is given
    a mask and not told whether it is causal. Sparse gradients cannot be forecast either.
    """
    if not callable(make_optimizer) and make_optimizer is not None:
        raise TypeError(f"make_optimizer must be a function of the list of parameters, not {make_optimizer!r}")
    run = partial(_run, make_model, make_batch, make_optimizer, step or usual_step, ranks)
    return Forecast(run, ranks, _device(device))


class Forecast:
    """Forecast of a program: `memory`, and the time `on` a GPU."""

    def __init__(self, run: Callable[..., "_FakeRun"], ranks: int | None, device: torch.device | None) -> None:
        self._program, self._ranks, self._device = run, ranks, device
        self._run = run(device)

    @property
    def memory(self) -> MemoryForecast:
        """The bytes that would be alive."""
        return self._run.memory

    @cached_property
    def _timed(self) -> "_FakeRun":
        """The run of the program of a GPU, which that of a CPU or of CUDA is not."""
        return self._run if self._device is None or self._device.type == "sim" else self._program(None)

    @cached_property
    def _of_old_gpus(self) -> "_FakeRun":
        """The run of the program on a GPU older than compute capability 8.0, where some kernels are others."""
        return self._program(None, capability=_OLD) if self._timed.by_capability else self._timed

    @cached_property
    def _narrow(self) -> tuple[int, int] | None:
        """Peak in autocast to float16, and its bytes that grow with the batch; None where the program refuses it."""
        with suppress(RuntimeError):
            memory = self._program(None, amp=True).memory
            return None if memory.peak_bytes == self.memory.peak_bytes else (memory.peak_bytes, _scaling(memory))

    @property
    def events(self) -> tuple[Event, ...]:
        """What the timed step asks of a GPU, in order, each kernel with its phase and line; `on` plays them."""
        return self._timed.events

    def on(
        self,
        spec: str | gpus.GPU | None = None,
        *,
        cluster: Cluster | None = None,
        host: str | Host | None = None,
        costs: Costs | None = None,
    ) -> TimeForecast:
        """Return the time of one step on the GPU `spec`, a row of `gpus`; of several ranks, on a `cluster`.

        On a cluster, messages take the time of the links, beside computation where the program's streams let them.
        `host` is a row of `hosts`, its name, or a `simgpu.Host`; None is the cluster's, or the default. `costs` are the
        simulated GPU's own (`simgpu.Costs()`); `simgpu.AT_PEAK` has the data sheet's rates. Raises ValueError for a GPU
        that is not in the table or whose maker states no rates.
        """
        if (spec is None) == (cluster is None) or (cluster is None) != (self._ranks is None):
            raise ValueError("give spec, or cluster and ranks: a GPU, or of a forecast for several ranks their cluster")
        given: Any = spec if cluster is None else cluster.gpu
        there = hosts.DEFAULT if cluster is None else cluster.host
        row = priced(given, "spec")
        old = row.compute_capability is not None and row.compute_capability < _AMPERE
        run = self._of_old_gpus if old else self._timed
        memory = run.memory if run is not self._timed else self.memory
        parts = memory.parts.by_owner()
        basis = Basis(
            machine=Machine(row, hosts.get(host or there), cluster, costs or Costs()), gpus=1,
            used=self._ranks or 1, events=run.events, first=0, last=1,
            capacity=row.room_bytes, owners={"weights": parts.pop("parameters"), **parts},
            scaling=_scaling(memory), optimizer=run.optimizer, narrow=lambda: self._narrow,
        )  # fmt: skip
        return TimeForecast.of(basis)

    def compiled(self, mode: str | None = None) -> "CompiledForecast":
        """Run the program again with its model compiled, as by `model.compile(mode=mode)`; return what it would take.

            compiled = ahead.compiled()
            print(compiled.found)                                                   # kernels, graphs, graph breaks
            print(ahead.on("T4").total_s / compiled.on("T4").total_s)               # the gain

        PyTorch's compiler finds the graphs and says which kernels it would write, forward and backward
        (`simgpu.compiled`); the loss and the optimizer stay uncompiled. With `mode="reduce-overhead"` the kernels of
        each pass of a graph are one launch. What stays uncompiled is priced as ever, and `found.remark` names it. Where
        the kernels of a graph are not known the call is timed as it is without compiling, and `found.error` says why.
        Memory is that of the uncompiled program. Raises ValueError for another mode, and for several ranks.
        """
        if mode not in MODES:
            raise ValueError(f"mode must be one of {MODES}, not {mode!r}")
        if self._ranks is not None:
            raise ValueError("compiled() forecasts the program of one GPU, and this forecast has ranks")
        return CompiledForecast(self, partial(self._program, compiled=(mode,)))

    def __repr__(self) -> str:
        return f"{self.memory.caption()}; .memory says whose, .on(…) how long a step takes"


class CompiledForecast(Forecast):
    """Forecast of a program with its model compiled; `eager` is the one without, `found` the kernels."""

    def __init__(self, eager: Forecast, run: Callable[..., "_FakeRun"]) -> None:
        super().__init__(run, None, None)
        self.eager = eager

    @property
    def found(self) -> Compiled:
        """The kernels of the step's graphs, and the graph breaks."""
        calls = self._run.compiled
        names = "graphs", "breaks", "forward", "backward"
        return Compiled(*(tuple(one for call in calls for one in getattr(call, name)) for name in names))

    def compiled(self, mode: str | None = None) -> "CompiledForecast":
        """Return the forecast in another mode."""
        return self.eager.compiled(mode)


@dataclass(frozen=True)
class _FakeRun:
    """Record of one run of a program: its memory, and the GPU work of the last step.

    `compiled`: what PyTorch's compiler made of the calls of its model in that step, where it was compiled.
    """

    memory: MemoryForecast
    events: tuple[Event, ...]
    optimizer: Optimizer
    compiled: tuple[Compiled, ...] = ()
    by_capability: bool = False  # whether GPUs older than compute capability 8.0 run other kernels


def _run(
    make_model: Callable[[], nn.Module], make_batch: Callable[[], Any],
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None,
    step: Callable[[nn.Module, Any, torch.optim.Optimizer | None], object], ranks: int | None,
    device: torch.device | None, compiled: tuple[str | None] | None = None,
    capability: tuple[int, int] | None = None, amp: bool = False,
) -> _FakeRun:  # fmt: skip
    """Run the program for one step or two, each operator accounted and recorded; `compiled` holds the mode."""
    recorder = Recorder(capability)
    compiler = None if compiled is None else Compiler(recorder, compiled[0])
    with fake_program(device, make_model, make_batch, make_optimizer, recorder, ranks) as program:
        if compiler is not None:
            compiler.compile(program[0])
        with recorder, recorder.optimizers(), FakeLedger(fake_device(device), *program) as ledger:
            for _ in range(1 if make_optimizer is None and ranks is None else 2):
                ledger.begin_step()
                recorder.log.clear()
                if compiler is not None:
                    compiler.found.clear()
                with _autocast() if amp else nullcontext():
                    step(*program)
                recorder.log.step()
        graphs = () if compiler is None else tuple(compiler.found)
        return _FakeRun(
            ledger.forecast(device), tuple(recorder.log.events), recorder.optimizer, graphs, recorder.by_capability
        )


@contextmanager
def _autocast() -> Generator[None]:
    """Run forward passes, and nothing else, in autocast to float16."""

    def backward(*args: Any, plain: Any = torch.autograd.backward, **kwargs: Any) -> None:
        torch.clear_autocast_cache()
        with torch.autocast("cuda", enabled=False):
            plain(*args, **kwargs)

    with mock.patch.object(torch.autograd, "backward", backward), torch.autocast("cuda", torch.float16):
        yield


def _scaling(memory: MemoryForecast) -> int:
    """Return the bytes of a peak that grow with the batch."""
    grown = ("activations", "temporaries") if memory.peak_moment.phase != OPTIMIZER else ("activations",)
    return sum(memory.parts.by_owner()[owner] for owner in grown)


def _device(given: torch.device | str | None) -> torch.device | None:
    """Return the device that `given` names. Raises ValueError where this process has none of that name."""
    if given is None:
        return None
    try:
        device = torch.device(given)
        if device.type != "cuda":
            return device
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        torch.cuda.get_device_properties(device)
    except (RuntimeError, AssertionError):
        raise ValueError(f"device is {given!r}, which this process does not have") from None
    return device
