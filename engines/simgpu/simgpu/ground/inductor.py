"""Kernels of PyTorch's compiler for a GPU, from its own passes and scheduler; no code is written.

All that is PyTorch's inside, and may be called otherwise in another version, stands in this module. Inductor lowers a
graph of fake CUDA tensors as ever; where it would begin to write code it is stopped, and its list of kernels is read.
Neither a GPU nor Triton nor a C++ compiler is needed. The kernels are those for an A100's 108 multiprocessors.
"""

import functools
import math
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.node import map_aggregate, map_arg

from simgpu.ground import attention, device_kind, fakes
from simgpu.ground.autocast import register_rules
from simgpu.ground.replacements import Replacements
from simgpu.ground.torch_internals import TORCH, Args, Kwargs, Operator

_GPU = torch.device("cuda", 0)
_A100 = SimpleNamespace(
    name="NVIDIA A100-SXM4-80GB", major=8, minor=0, multi_processor_count=108, total_memory=80 << 30, warp_size=32,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, regs_per_multiprocessor=65536,
    shared_memory_per_block=48 << 10, shared_memory_per_block_optin=163 << 10,
    shared_memory_per_multiprocessor=164 << 10, L2_cache_size=40 << 20, gcnArchName="", is_integrated=0,
)  # fmt: skip
_PLACES = "cpu", "cuda", "meta", "sim"  # all of them mean the GPU
_BY_CPP = "tensor", "as_tensor", "asarray", "range"  # as methods do, they ask C++ for a device: see `fakes`
_kept: list[torch.library.Library] = []  # keeps the registrations alive
_lowering: list[None] = []  # one for each graph that is being lowered


def is_lowering() -> bool:
    """Return whether PyTorch's compiler runs now, for which autocast is that of CUDA itself."""
    return bool(_lowering)


@contextmanager
def uncompiled() -> Generator[None]:
    """Suspend PyTorch's compiler in the block, also below a compiled function."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    before = TORCH._C._dynamo.eval_frame.set_eval_frame(None)
    try:
        yield
    finally:
        TORCH._C._dynamo.eval_frame.set_eval_frame(before)


@contextmanager
def afresh() -> Generator[None]:
    """Inside, PyTorch's compiler compiles each call for its own sizes, however many others it has compiled before."""
    from torch._dynamo import config

    limits = dict.fromkeys(("recompile_limit", "accumulated_recompile_limit"), sys.maxsize)
    with config.patch(automatic_dynamic_shapes=False, **limits):
        yield


@dataclass(frozen=True)
class Call:
    """A call of a library, such as cuDNN: an operator and fake tensors as Inductor lays them out."""

    operator: Operator
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


@dataclass(frozen=True)
class Lowered:
    """A kernel that Inductor would write, or call where `call` says so.

    `operators` are those of the program, before they were taken apart; `nbytes` what it reads and writes, `elements`
    how many results it computes inside, or of overlapping windows reads, at `rate` (`Cost`); `lines` are the program's.
    """

    name: str
    operators: tuple[str, ...]
    nbytes: int
    elements: int
    library: bool
    backward: bool
    lines: tuple[str, ...]
    call: Call | None = None
    rate: str = "fp32"


def lower(graph: torch.fx.GraphModule, inputs: Sequence[Any], autocast: torch.dtype | None = None) -> list[Lowered]:
    """Return the kernels of a graph that Dynamo found, called with tensors and numbers like `inputs`.

    Tensors of any device count as CUDA's. With gradients enabled and needed the kernels of the backward pass follow.
    `autocast` is the number format of an autocast around the call. Raises what PyTorch's compiler raises.
    """
    from torch._inductor import compile_fx

    lowered: list[Lowered] = []
    with _as_cuda(lowered), torch.random.fork_rng(devices=()), warnings.catch_warnings(), ExitStack() as modes:
        warnings.simplefilter("ignore")  # what is said of the GPU that is not here
        gradients = torch.is_grad_enabled()
        modes.enter_context(torch.inference_mode(False))  # in which fake tensors cannot be made
        modes.enter_context(torch.set_grad_enabled(gradients))
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        values = [_fake(mode, one) for one in inputs]
        twin = _on_cuda(graph, mode)
        with torch.autocast("cuda", autocast or torch.float16, enabled=autocast is not None):
            compile_fx.compile_fx(twin, values, inner_compile=_inner)  # pyright: ignore[reportArgumentType]
    return lowered


class _Enough(BaseException):
    """The kernels are known, and no code is written; Inductor wraps any `Exception`."""


def _inner(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compile as Inductor does, up to its list of kernels; what is returned is never called."""
    from torch._guards import detect_fake_mode
    from torch._inductor import compile_fx

    mode = detect_fake_mode(inputs)
    for node in graph.graph.nodes:  # C++ code has put `meta` into it: see `fakes`
        node.args, node.kwargs = (map_aggregate(one, _led) for one in (node.args, node.kwargs))
        if node.op == "get_attr" and mode is not None and not _has_gpu():
            _fake_attribute(graph, node.target, mode, real=("meta",))  # pyright: ignore[reportArgumentType]
    with suppress(_Enough):
        compile_fx.compile_fx_inner(graph, inputs, **options)
    return lambda *args: None


@contextmanager
def _as_cuda(lowered: list[Lowered]) -> Generator[None]:
    """Inside, Inductor takes this process for one with a GPU and Triton, and writes its kernels into `lowered`."""
    import torch._functorch.config  # pyright: ignore[reportUnusedImport]
    import torch._inductor.config  # pyright: ignore[reportUnusedImport]
    import torch._inductor.graph  # pyright: ignore[reportUnusedImport]
    import torch._inductor.scheduler  # pyright: ignore[reportUnusedImport]
    from torch._dynamo.device_interface import CudaInterface

    def codegen(self: Any, *args: Any, **kwargs: Any) -> None:
        self._update_scheduler()
        lowered.extend(_read(self))
        raise _Enough

    put, depth = Replacements(), sys.getrecursionlimit()
    gpu: dict[str, Callable[..., Any]] = {
        "get_device_properties": lambda device=None: _A100, "get_compute_capability": lambda device=None: 80,
        "current_device": lambda: 0, "device_count": lambda: 1,
        "is_bf16_supported": lambda including_emulation=False: True,
    }  # fmt: skip
    static = {name: staticmethod(function) for name, function in gpu.items()}
    settings = (
        TORCH._functorch.config.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True),
        TORCH._inductor.config.patch(  # folding constants and trying padded products would compute them, on a GPU
            fx_graph_cache=False, fx_graph_remote_cache=False, joint_graph_constant_folding=False, shape_padding=False
        ),
    )
    _lowering.append(None)
    try:
        if not _has_gpu():
            fakes.replace(put, lambda: "cuda", lambda device: device.type != "cpu")
            put.put(TORCH.fx.experimental.proxy_tensor, CONSTANT_NUMEL_LIMIT=-1)  # constants would go to a GPU
            for one in _composites():
                rest = {key: made for key, made in one.py_kernels.items() if key != TORCH._C.DispatchKey.Meta}
                put.put(one, py_kernels=rest, _dispatch_cache={})
            _register_autocast()
        lowering = TORCH._inductor.graph.GraphLowering
        inlines = lowering.can_inline_constant
        put.put(
            lowering, codegen=codegen, get_attr=_getting(lowering.get_attr),
            can_inline_constant=staticmethod(lambda value: value.device.type == "cpu" and inlines(value)),
        )  # fmt: skip
        put.put(TORCH._inductor.scheduler, has_triton=lambda *args: True)
        put.put(CudaInterface, **static)
        put.put(CudaInterface.Worker, get_device_properties=static["get_device_properties"])
        put.put(
            torch.cuda, get_device_properties=gpu["get_device_properties"], current_device=gpu["current_device"],
            get_device_capability=lambda device=None: (8, 0), is_bf16_supported=gpu["is_bf16_supported"],
        )  # fmt: skip
        put.put(TORCH.cuda.amp.common, amp_definitely_not_available=lambda: False)
        with settings[0], settings[1]:
            yield
    finally:
        _lowering.pop()
        put.undo()
        sys.setrecursionlimit(depth)  # which Inductor raises


@functools.cache
def _composites() -> list[Any]:
    """Return operators without a derivative of their own, whose kernel for `meta` hides what they are made of."""
    meta, has = TORCH._C.DispatchKey.Meta, torch._C._dispatch_has_kernel_for_dispatch_key
    known = {one for table in TORCH._decomp.global_decomposition_table.values() for one in table}
    made = (one for one in known if meta in getattr(one, "py_kernels", ()) and not has(one.name(), "Autograd"))
    return [one for one in made if has(one.name(), "CompositeImplicitAutograd")]


def _getting(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Treat a number with a known format alone as a constant of its kernels.

    Since PyTorch 2.15 C++ makes `torch.tensor(2.0, device=...)` on its device, here `meta`, and the number is lost.
    """

    def get_attr(self: Any, target: str, args: Args, kwargs: Kwargs) -> Any:
        from torch._inductor import ir

        value = functools.reduce(getattr, target.split("."), self.module)
        if isinstance(value, FakeTensor) and value.shape == ():
            return ir.Constant(value=2, dtype=value.dtype, device=value.device)  # some number
        return plain(self, target, args, kwargs)

    return get_attr


def _has_gpu() -> bool:
    """Return whether PyTorch reaches a GPU of NVIDIA's here, and so knows what follows without help."""
    return torch.cuda.is_available() and device_kind.kind != "cuda"


def _register_autocast() -> None:
    """Apply autocast to fake CUDA tensors, which PyTorch's C++ rules do not recognise."""
    if not _kept:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():  # PyTorch's rules are overridden
            warnings.simplefilter("ignore")
            register_rules(library, "cuda")
        _kept.append(library)


# ---- what goes in ------------------------------------------------------------------------------------------------
def _fake(mode: FakeTensorMode, value: Any) -> Any:
    """Return a fake CUDA tensor of the shape, strides, format and need of gradients of a tensor."""
    if not isinstance(value, torch.Tensor):
        return int(value) if isinstance(value, torch.SymInt) else value
    sizes, strides = [int(n) for n in value.shape], [int(n) for n in value.stride()]
    with torch.no_grad():
        made = FakeTensor(mode, torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta"), _GPU)
    return made.requires_grad_(value.requires_grad)


def _on_cuda(graph: torch.fx.GraphModule, mode: FakeTensorMode) -> torch.fx.GraphModule:
    """Return a copy of a graph in which all devices are CUDA's, and constants are fake.

    A PyTorch without CUDA would take attention apart, since it does not have CUDA's kernels.
    """
    twin = torch.fx.GraphModule(graph, _copied(graph.graph))
    for node in twin.graph.nodes:
        if node.op == "call_method" and node.target == "item":  # a float of Python's that changes from call to call
            node.op, node.target, node.args = "call_function", float, (2.5,)  # some number
        if node.target is torch.nn.functional.scaled_dot_product_attention and not _has_gpu():
            node.target = _attention
        by_cpp = node.op == "call_method" or getattr(node.target, "__name__", "") in _BY_CPP
        lead = _led_in_cpp if by_cpp and not _has_gpu() else _led
        node.args, node.kwargs = (map_aggregate(one, lead) for one in (node.args, node.kwargs))
        if node.op == "get_attr":
            _fake_attribute(twin, node.target, mode)  # pyright: ignore[reportArgumentType]
    twin.recompile()
    return twin


def _copied(graph: torch.fx.Graph) -> torch.fx.Graph:
    new = torch.fx.Graph()
    new.output(new.graph_copy(graph, {}))
    for old, new_node in zip(graph.nodes, new.nodes, strict=True):
        new_node.meta = {key: value for key, value in old.meta.items() if key not in ("example_value", "val")}
    return new


def _led(value: Any) -> Any:
    if isinstance(value, torch.device):
        return _GPU if value.type in _PLACES else value
    is_name = isinstance(value, str) and value.partition(":")[0] in _PLACES
    return value.replace(value.partition(":")[0], "cuda") if is_name else value


def _led_in_cpp(value: Any) -> Any:
    led = _led(value)
    named = isinstance(led, str) and led.partition(":")[0] == "cuda"
    return torch.device("meta", 0) if led is _GPU or named else led


def _fake_attribute(
    twin: torch.fx.GraphModule, target: str, mode: FakeTensorMode, real: Sequence[str] = _PLACES
) -> None:
    """Put a fake tensor in the place of a constant of a graph, where that is on one of the devices `real`."""
    *path, name = target.split(".")
    owner = functools.reduce(getattr, path, twin)
    value = getattr(owner, name)
    if isinstance(value, torch.Tensor) and value.device.type in real:
        changes = (name in owner._buffers or name in owner._parameters) and len(real) > 1
        delattr(owner, name)
        put = owner.register_buffer if changes else functools.partial(setattr, owner)  # as an optimizer's state does
        put(name, _fake(mode, value))


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Attention as the kernel that CUDA chooses; flash has heads filled up to a multiple of eight."""
    aten, rest = torch.ops.aten, {"scale": scale}
    if torch.is_autocast_enabled("cuda"):
        query, key, value = (one.to(torch.get_autocast_dtype("cuda")) for one in (query, key, value))
    if enable_gqa:
        key, value = (one.repeat_interleave(query.size(-3) // one.size(-3), -3) for one in (key, value))
    both = is_causal and attn_mask is not None  # PyTorch refuses it
    kernel = attention.FORMULA if both else attention.choice(query, key, value, attn_mask, is_causal, gqa=False)
    if kernel == attention.FORMULA:
        plain = aten._scaled_dot_product_attention_math.default
        return plain(query, key, value, attn_mask, dropout_p, is_causal, **rest)[0]
    if kernel == attention.FLASH:
        width = query.size(-1)
        query, key, value = (F.pad(one, (0, -width % 8)) if width % 8 else one for one in (query, key, value))
        rest = {"scale": width**-0.5 if scale is None else scale}
        flash = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, **rest)[0]
        return flash[..., :width]
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
        attn_mask = attn_mask.expand(*query.shape[:-1], key.size(-2))
    needs = any(one.requires_grad for one in (query, key, value))
    efficient = aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, attn_mask, needs, dropout_p, is_causal, **rest)[0]


# ---- what comes out ----------------------------------------------------------------------------------------------
def _read(lowering: Any) -> Generator[Lowered]:
    """Yield the kernels of Inductor's scheduler."""
    from torch._inductor import ir, scheduler, utils

    passive = (ir.MultiOutput, ir.DeviceCopy)
    for node in lowering.scheduler.nodes:
        if isinstance(node, scheduler.NopKernelSchedulerNode) or isinstance(node.node, passive):
            continue
        origins = [origin for one in node.get_nodes() if one.node is not None for origin in one.node.get_origins()]
        operators = tuple(sorted({_operator(origin) for origin in origins if origin.op == "call_function"}))
        lines = tuple(dict.fromkeys(line for line in map(_line, origins) if line))
        library = isinstance(node, scheduler.ExternKernelSchedulerNode)
        call = _library_call(node.node, origins) if library else None
        if library:
            name = next(iter(operators), "unknown") if call is None else call.operator.overloadpacket.__name__
            operators = operators if call is None else (name,)
            elements, rate = 0, "fp32"
        else:
            reduces = any(one.is_reduction() for one in node.get_nodes() if hasattr(one, "is_reduction"))
            kind = "red" if reduces else "poi"
            name = f"triton_{kind}_{utils.get_fused_kernel_name(node.get_nodes(), 'original_aten')}"
            windows = max(_windows(one, lowering) for one in node.get_nodes())
            elements = windows or sum(_numel(one) for one in node.get_nodes())
            rate = ("pooling" if reduces else "window") if windows else "fp32"
        nbytes = int(node.get_read_write_buffers_sizes()) if library else _traffic(node, lowering.scheduler)
        yield Lowered(name, operators, nbytes, elements, library, bool(lowering.is_backward), lines, call, rate)


def _traffic(node: Any, schedule: Any) -> int:
    """Return how many bytes a written kernel moves.

    Rows that do not fit into registers are reduced in loops, each of which reads its inputs again: from memory, unless
    the L2 cache holds the rows that two blocks on each multiprocessor work on.
    """
    from torch._inductor import scheduler
    from torch._inductor.codegen import simd_kernel_features as simd
    from torch._inductor.virtualized import V

    if isinstance(node, scheduler.ForeachKernelSchedulerNode):  # one launch for tensors of any sizes, side by side
        return sum(_traffic(one, schedule) for one in node.snodes)
    parts, loop, found = node.get_nodes(), 0, defaultdict[tuple[str, int], list[Any]](list)
    rows, columns = max((one.group[1] for one in parts), key=lambda group: int(group[1]))
    order = schedule.get_backend(_GPU).choose_node_backend(parts[0]).generate_node_schedule(parts, rows, columns)
    own = {name for one in parts for name in one.get_buffer_names()}
    features = simd.SIMDKernelFeatures(order, rows, columns)
    loops = columns != 1 and not V.choices.should_use_persistent_reduction(features, False)
    for one in order:
        if isinstance(one, type):
            loop += loops and one is simd.EnableReduction
            continue
        for dependency in one.read_writes.reads:
            if dependency.name not in own:
                found[dependency.name, loop].append((dependency, one))
        for dependency in one.read_writes.writes:
            if any(user.node not in parts for user in schedule.name_to_buf[dependency.name].users):
                found[dependency.name, 0].append((dependency, one))
    moved = {key: _nbytes(some, V.graph) for key, some in found.items()}
    once = {name: nbytes for (name, _), nbytes in sorted(moved.items(), key=lambda one: one[1])}
    in_work = sum(once.values()) / int(rows) * 2 * _A100.multi_processor_count
    return sum((moved if in_work > _A100.L2_cache_size else once).values())


def _nbytes(dependencies: list[tuple[Any, Any]], graph: Any) -> int:
    """Return how many bytes of a buffer parts of a loop touch; one that picks by an index takes one each time."""
    name, numbers = dependencies[0][0].name, 0
    for one, part in dependencies:
        picks = hasattr(one, "size") and one.is_indirect()
        numbers += _numel(part) if picks else int(one.get_numel())
    return min(numbers, int(graph.get_numel(name))) * graph.get_dtype(name).itemsize


def _windows(node: Any, graph: Any) -> int:
    """Return how many numbers a part of a kernel reads of overlapping windows, as pooling has them; 0 without any."""
    read: Counter[str] = Counter()
    for one in node.read_writes.reads:
        read[one.name] += int(one.get_numel()) if hasattr(one, "size") and not one.is_indirect() else 0
    return sum(numbers for name, numbers in read.items() if numbers > 2 * int(graph.get_numel(name)))


def _numel(node: Any) -> int:
    """Return how many elements a part of a kernel computes."""
    return math.prod(int(n) for group in node.get_ranges() for n in group)


def _operator(origin: torch.fx.Node) -> str:
    """Return the program's operator from which a node of a lowered graph comes."""
    operator = origin.meta.get("original_aten") or origin.target
    return str(getattr(getattr(operator, "overloadpacket", operator), "__name__", operator))


def _line(origin: torch.fx.Node) -> str:
    """Return the program's line, as "file:line", from which a node of a lowered graph comes, "" where it has none."""
    trace = origin.meta.get("stack_trace") or ""
    frames = [text.strip() for text in trace.splitlines() if text.strip().startswith("File ")]
    if not frames:
        return ""
    file, line = frames[-1].split(", ")[:2]
    return f"{file[6:-1]}:{line.removeprefix('line ')}"


def _library_call(node: Any, origins: Sequence[torch.fx.Node]) -> Call | None:
    """Return the call of an extern kernel: the graph's operator, its tensors laid out by Inductor."""
    wanted = getattr(node, "op_overload", None)
    calls = [one for one in origins if isinstance(one.target, torch._ops.OpOverload)]
    mine = node.get_origin_node() if hasattr(node, "get_origin_node") else None
    chosen = [one for one in calls if one.target is wanted] or ([mine] if mine in calls else calls[-1:])
    if not chosen:
        return None
    origin = chosen[0]
    layouts = [_tensor_like(one) for one in getattr(node, "inputs", ())]
    left = [one for one in layouts if one is not None]

    def laid_out(value: Any) -> Any:
        if not isinstance(value, torch.fx.Node):
            return value
        fake = value.meta.get("val")
        for index, output in enumerate(left):
            if isinstance(fake, torch.Tensor) and output.shape == fake.shape and output.dtype == fake.dtype:
                return left.pop(index)
        return fake

    args = tuple(map_arg(origin.args, laid_out))
    if origin.target is torch.ops.aten.convolution.default and len(layouts) == 2:
        args = (*args[:2], None, *args[3:])  # its bias is added by a kernel that Inductor writes
    kwargs = map_arg(dict(origin.kwargs), laid_out)
    return Call(origin.target, args, dict(kwargs), origin.meta.get("val"))  # pyright: ignore[reportArgumentType]


def _tensor_like(buffer: Any) -> torch.Tensor | None:
    """Return a tensor on `meta` of the sizes and strides of a buffer of Inductor's."""
    try:
        sizes, strides = ([int(n) for n in some] for some in (buffer.get_size(), buffer.get_stride()))
        return torch.empty_strided(sizes, strides, dtype=buffer.get_dtype(), device="meta")
    except (TypeError, AttributeError, NotImplementedError):
        return None
