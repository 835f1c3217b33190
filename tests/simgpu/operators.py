"""How does PyTorch's own operator database fare on the simulated GPU, beside the CPU?"""

from __future__ import annotations

import gc
import itertools
import re
import warnings
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import simgpu

DTYPES = (torch.float32, torch.int64, torch.bfloat16)


# Operators that may differ, with the reason; any other difference is a failure, and so is one here that has gone.
DECOMPOSED = "PyTorch takes its backward apart on other devices than the CPU, so sums round in another order"
ON_THE_CPU = "PyTorch has it for the CPU alone: refused, as on CUDA"
BY_CHANCE = "the CPU does not repeat its own last bits: its library's path depends on where the matrix lies in memory"
EXCEPTIONS = {
    "nn.functional.mish": DECOMPOSED,
    "prod": DECOMPOSED,
    "masked.prod": DECOMPOSED,
    "linear_cross_entropy.chunked": "differs in bfloat16 only; the cause is not known",
    "linear_cross_entropy.chunked_none": "differs in bfloat16 only; the cause is not known",
    "empty": "uninitialised memory: values are left over", "empty_like": "uninitialised memory: values are left over",
    "new_empty": "uninitialised memory: values are left over",
    "empty_permuted": "uninitialised memory: values are left over",
    "empty_strided": "uninitialised memory: values are left over",
    "new_empty_strided": "uninitialised memory: values are left over",
    "linalg.lstsq": BY_CHANCE, "linalg.lstsq.grad_oriented": BY_CHANCE,
    "chalf": "no comparison of complex half exists on the CPU",
    "tensor_split": "sections given as a tensor must be on the CPU, as on CUDA",
    "nn.functional.embedding_bag": "CUDA's backward of the greatest has no bfloat16: refused, as there",
    "histogram": ON_THE_CPU, "histogramdd": ON_THE_CPU,
}  # fmt: skip


def lacks(op, dtype, error: Exception) -> bool:
    """Return whether an operator is refused as on CUDA, whose kernel lacks a number format that the CPU's has."""
    words = "not implemented for", "not supported for"
    return not op.supports_dtype(dtype, "cuda") and any(one in str(error) for one in words)


def unlisted(outcomes) -> list[str]:
    """Return the operators that differ and are not in EXCEPTIONS."""
    return [o.name for o in outcomes if (o.forward or o.backward) and _exception(o.name) is None]


def no_longer(outcomes) -> list[str]:
    """Return the operators in EXCEPTIONS that were compared and agree."""
    agree = [o.name for o in outcomes if o.samples and not o.forward and not o.backward]
    listed = [name for name in agree if _exception(name) is not None]
    return [name for name in listed if _exception(name) != BY_CHANCE and not uninitialised(name)]


def _exception(name: str) -> str | None:
    keys = [key for key in EXCEPTIONS if name == key or name == f"nn.functional.{key}"]
    return EXCEPTIONS[keys[0]] if keys else None


@dataclass
class Outcome:
    """Result for one operator: `samples` compared, and the first difference forward and backward."""

    name: str
    samples: int = 0
    forward: str = ""
    backward: str = ""
    differentiated: bool = False
    refused: Counter = field(default_factory=Counter)


def database():
    """Return PyTorch's list of operators with their sample inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_cuda, common_utils

        common_cuda.SM53OrLater = True  # the database asks for it when it is imported, also where no GPU is simulated
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.opinfo import core
    # Samples look for a test of unittest in the whole stack, with the source of each frame: most of the time
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None
    return list(op_db)


def move(value, device, requires_grad=False):
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise NotImplementedError("sparse sample")
        moved = value.detach().clone() if device == "cpu" else value.detach().to(device)
        return moved.requires_grad_(value.requires_grad)
    if isinstance(value, torch.device):
        return torch.device(device)
    return device if isinstance(value, str) and value == "cpu" else value


def _call(op, sample, device):
    torch.manual_seed(0)
    args = tree_map(lambda v: move(v, device), (sample.input, *sample.args))
    kwargs = tree_map(lambda v: move(v, device), sample.kwargs)
    leaves = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor) and t.requires_grad]
    out = op(*args, **kwargs)
    return sample.output_process_fn_grad(out) if sample.output_process_fn_grad else out, leaves


def _tensors(value) -> list[torch.Tensor]:
    return [t for t in tree_flatten(value)[0] if isinstance(t, torch.Tensor)]


def _difference(expected, got) -> str:
    """Return how two results differ, or nothing if they are equal to the last bit, shapes of the wrapper included."""
    mine, theirs = _tensors(got), _tensors(expected)
    if len(mine) != len(theirs):
        return f"{len(mine)} tensors instead of {len(theirs)}"
    for a, b in zip(theirs, mine, strict=True):
        if a.layout is not torch.strided:
            continue
        copy = b.detach().cpu()
        if a.shape != b.shape or a.shape != copy.shape or a.dtype != b.dtype:
            return f"shape or dtype {tuple(b.shape)} {b.dtype} instead of {tuple(a.shape)} {a.dtype}"
        if a.device.type == "cpu" and b.device.type == "meta":
            return "result on meta"
        equal = torch.equal(a.detach(), copy) or torch.allclose(a.detach(), copy, rtol=0, atol=0, equal_nan=True)
        if not equal:
            return "values differ"
    return ""


def _examine(op, dtype, outcome: Outcome, limit: int, place: str) -> None:
    gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu") and dtype.is_floating_point
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=gradients))
    for sample in samples[:limit]:
        try:
            expected, leaves = _call(op, sample, "cpu")
        except Exception as error:
            outcome.refused[f"CPU: {type(error).__name__}"] += 1
            continue
        try:
            got, sim_leaves = _call(op, sample, place)
            problem = _difference(expected, got)
        except Exception as error:
            if lacks(op, dtype, error):
                outcome.refused["CUDA lacks the number format"] += 1
                continue
            problem = f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
        outcome.samples += 1
        if problem:
            outcome.forward = outcome.forward or f"{dtype}: {problem}"
            continue
        if gradients:
            problem = _compare_gradients(expected, leaves, got, sim_leaves, outcome)
            outcome.backward = outcome.backward or (f"{dtype}: {problem}" if problem else "")


def _compare_gradients(expected, leaves, got, sim_leaves, outcome: Outcome) -> str:
    pairs = [
        (a, b) for a, b in zip(_tensors(expected), _tensors(got), strict=True)
        if a.requires_grad and (a.is_floating_point() or a.is_complex())
    ]  # fmt: skip
    if not pairs or not leaves:
        return ""
    ours = [b for _, b in pairs]
    try:
        torch.manual_seed(0)
        wanted = torch.autograd.grad(
            [a for a, _ in pairs], leaves, [torch.ones_like(a) for a, _ in pairs], allow_unused=True
        )
    except Exception:
        return ""
    outcome.differentiated = True
    try:
        torch.manual_seed(0)
        found = torch.autograd.grad(ours, sim_leaves, [torch.ones_like(b) for b in ours], allow_unused=True)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return _difference([g for g in wanted if g is not None], [g for g in found if g is not None])


def run(
    every: int = 1, offset: int = 0, limit: int = 10**9, dtypes=DTYPES, names=None, place: str = "sim:0"
) -> list[Outcome]:
    """Compare every `every`-th operator, at most `limit` samples for each number format, on `place` with the CPU.

    "cuda:0" needs CUDA's face.
    """
    simgpu.enable(capacity="8 GiB")
    outcomes = []
    for op in database()[offset::every]:
        if names and op.name not in names:
            continue
        outcome = Outcome(f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for dtype in dtypes:
                if op.supports_dtype(dtype, "cpu"):
                    _examine(op, dtype, outcome, limit, place)
        outcomes.append(outcome)
    return outcomes


FORMATS = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
)  # fmt: skip
_OF_CUDA_ALONE = (
    "torch.ops.aten._flash_attention_forward", "torch.ops.aten._efficient_attention_forward", "jiterator",
)  # fmt: skip  # kernels called by their own names, and code of CUDA's


def _formats(op, backward: bool) -> tuple[set, set]:
    """Return the number formats that the CPU and CUDA take, as the database says, forward or backward as well."""
    forward = [{dtype for dtype in FORMATS if op.supports_dtype(dtype, place)} for place in ("cpu", "cuda")]
    if not backward:
        return forward[0], forward[1]
    both = forward[0] & forward[1] if op.supports_autograd else set()
    return both & op.supported_backward_dtypes("cpu"), both & op.supported_backward_dtypes("cuda")


_NO_KERNEL = "not implemented for", "not supported for", "Could not run"


def formats(kinds: str, backward: bool = False, every: int = 1, offset: int = 0, limit: int = 3):
    """Return how many pairs of an operator and a number format were tried, and which differ from what CUDA does.

    Of `kinds` "cpu" CUDA has no kernel, of "cuda" the CPU has none, and "both" have both. At most `limit` samples of a
    pair are tried, but where CUDA has no kernel as many as it takes to meet it.
    """
    pairs = []
    for op in database():
        on_cpu, on_cuda = _formats(op, backward)
        chosen = {"cpu": on_cpu - on_cuda, "cuda": on_cuda - on_cpu, "both": on_cpu & on_cuda}[kinds]
        if op.name != "tensor_split" and not op.name.startswith(_OF_CUDA_ALONE):  # see EXCEPTIONS
            pairs += [(op, dtype) for dtype in FORMATS if dtype in chosen]
    pairs = pairs[offset::every]
    wrong = []
    for op, dtype in pairs:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = op.sample_inputs("cpu", dtype, requires_grad=backward)
            if kinds == "cpu":
                refused = (_refused(op, sample, "cuda:0", backward) for sample in samples)
                if not any(any(one in word for one in _NO_KERNEL) for word in refused):
                    wrong.append(f"{op.name} {op.variant_test_name} {dtype}: runs, and CUDA has no kernel")
                continue
            for sample in itertools.islice(samples, limit):
                word = _refused(op, sample, "cuda:0", backward)
                if word and (kinds == "cuda" or not _refused(op, sample, "cpu", backward)):
                    wrong.append(f"{op.name} {op.variant_test_name} {dtype}: refused, and CUDA has a kernel: {word}")
                    break
    return len(pairs), wrong


def _refused(op, sample, place: str, backward: bool) -> str:
    """Return the error of a call on `place`, or "" where it runs; no sparse sample and no division by 0 is tried."""
    try:
        out, leaves = _call(op, sample, place)
        outputs = [tensor for tensor in _tensors(out) if tensor.grad_fn is not None]
        if backward and outputs and leaves:
            torch.autograd.grad(outputs, leaves, [torch.ones_like(one) for one in outputs], allow_unused=True)
    except Exception as error:
        untried = any(one in str(error) for one in ("sparse sample", "ZeroDivisionError"))
        return "" if untried else f"{type(error).__name__}: {error}"[:200]
    return ""


def errors(every: int = 1, offset: int = 0) -> tuple[int, list[str]]:
    """Return how many impossible calls of the database were made, and which do not raise what it expects of CUDA."""
    tried, wrong = 0, []
    for op in [op for op in database() if op.error_inputs_func is not None][offset::every]:
        if op.name in _NO_ERRORS:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for expected in op.error_inputs("cuda"):
                if not expected.error_regex:  # numbers in the place of tensors, of which only references are asked
                    continue
                tried += 1
                sample = expected.sample_input
                try:
                    op(sample.input, *sample.args, **sample.kwargs)
                    told = "nothing is raised"
                except Exception as error:
                    same = isinstance(error, expected.error_type) and re.search(expected.error_regex, str(error))
                    told = "" if same else f"{type(error).__name__}: {error}"
                wrong += [f"{op.name}: {told}, not {expected.error_regex}"[:300]] if told else []
    return tried, wrong


_NO_ERRORS = {
    "histogramdd": "PyTorch has it for the CPU alone: refused before its arguments are looked at",
    "narrow_copy": "says in other words that a dimension is not there",
}


def whole() -> set[str]:
    """Return the names of the operators that reach Python whole in inference mode: autograd takes them apart."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    return {name.partition("::")[2] for name in names if name.startswith("aten::")}


class _Watched(TorchDispatchMode):
    """Notes which of `names` arrive."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names, self.met = names, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition("::")[2]
        if name in self.names:
            self.met.add(name)
        return func(*args, **(kwargs or {}))


def in_modes(every: int = 1, offset: int = 0, limit: int = 10**9, dtype=torch.float32) -> tuple[set[str], list[str]]:
    """Run samples in inference mode and without gradients; return which operators came whole, and what differs.

    Compared are the values, all records of the timeline and the peak of memory.
    """
    simgpu.enable(capacity="8 GiB")
    names, met, differing = whole(), set(), []
    for op in database()[offset::every]:
        if not op.supports_dtype(dtype, "cpu"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number, sample in enumerate(list(op.sample_inputs("cpu", dtype))[:limit]):
                inside = number % 2 > 0
                try:
                    expected = _seen(torch.no_grad, op, sample, inside)
                except Exception:
                    continue  # `run` reports it
                watched = _Watched(names)
                with torch.inference_mode(), watched:
                    _call(op, sample, "sim:0")
                met |= watched.met
                try:
                    got = _seen(torch.inference_mode, op, sample, inside)
                    problem = _difference(expected[0], got[0]) if _exception(op.name) is None else ""
                    problem = problem or (f"{got[1]} and not {expected[1]}" if expected[1:] != got[1:] else "")
                except Exception as error:
                    problem = f"{type(error).__name__}: {error}"
                if problem:
                    differing.append(f"{op.name}: {problem}"[:400])
                    break
    return met, differing


SWEPT = (torch.float64, torch.complex64, torch.bool, torch.int32, torch.float16)
# The CPU alone has a kernel for it, chosen by the device; others, and the CPU with gradients, go by way of indices.
STRIDES_DIFFER = {"nn.functional.max_pool1d"}


def sweep(every: int = 1, offset: int = 0, limit: int = 2, dtypes=SWEPT) -> tuple[int, list[str]]:
    """Compare what values alone do not show, for inputs in many layouts; return how many calls, and what differs.

    For each operator as a function, in place and with out=, with gradients possible and in inference mode: values,
    strides, conjugate and negative bits of the results, and which of the tensors given count a change.
    """
    simgpu.enable()
    compared, wrong = 0, []
    for op in [*database()[offset::every], *_foreach()[offset::every]]:
        if op.name in EXCEPTIONS:
            continue
        kind = {"noncontiguous": False} if op.name.startswith("_foreach") else {}
        for dtype in (one for one in dtypes if op.supports_dtype(one, "cpu")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for number, sample in enumerate(list(op.sample_inputs("cpu", dtype, **kind))[:limit]):
                    for name, call, form, mode in _ways(op, sample):
                        try:
                            expected = _state(op, call, form, mode, sample, number, "cpu")
                        except Exception:
                            continue
                        compared += 1
                        try:
                            problem = _differs(expected, _state(op, call, form, mode, sample, number, "sim:0"), op.name)
                        except Exception as error:
                            problem = "" if lacks(op, dtype, error) else f"{type(error).__name__}: {error}"
                        wrong += [f"{op.name} {name} {dtype}: {problem}"[:300]] if problem else []
    return compared, wrong


def _foreach() -> list:
    from torch.testing._internal import common_methods_invocations as listed

    found = [db for name, db in vars(listed).items() if name.startswith("foreach_") and name.endswith("_op_db")]
    return [op for db in found for op in db]


def _ways(op, sample):
    """Yield the ways to call an operator with a sample: name, what is called, the layout of the input, the mode."""
    takes_out = op.supports_out and op.name != "narrow_copy"  # whose out= is refused, as on CUDA
    calls = {"": op, "in place": op.inplace_variant, "out=": op if takes_out else None}
    whole = [t for t in tree_flatten((sample.input, sample.args))[0] if isinstance(t, torch.Tensor)]
    if not isinstance(sample.input, torch.Tensor | list) or any(t.layout is not torch.strided for t in whole):
        return
    for how, call in calls.items():
        # PyTorch compares device= with the device of out= below the level where Python is asked, and sees `meta`
        if call is None or (how == "out=" and ("device" in sample.kwargs or isinstance(sample.input, list))):
            continue
        for form, lay in _forms(op, sample.input).items():
            for mode in (nullcontext, torch.inference_mode):
                yield f"{how} {form} {mode.__name__}".strip(), (how, call), lay, mode


def _forms(op, tensor) -> dict:
    """Return ways to lay a tensor out; shapes that differ only where the CPU does not crash with them."""
    found = {"as it is": lambda t: t}
    if not isinstance(tensor, torch.Tensor):
        return found
    if tensor.dim() > 1:
        found |= {"transposed": lambda t: t.mT.contiguous().mT}
    if tensor.dim() > 0:
        found |= {"strided": lambda t: torch.stack([t, t], -1)[..., 0]}
        found |= {"expanded": lambda t: t[:1].expand(t.shape)} if tensor.numel() else {}
    if type(op).__name__ != "OpInfo":  # element by element, or a reduction
        found |= {"empty": lambda t: t[:0] if t.dim() else t.expand(0, 3)}
        found |= {"of no dimension": lambda t: t.flatten()[0].clone()} if tensor.numel() else {}
    if tensor.is_complex():
        found |= {"conjugate": lambda t: t.conj_physical().conj()}
        found |= {"both": lambda t: t.mT.conj_physical().mH if t.dim() > 1 else t.conj_physical().conj()}
    if tensor.dtype is torch.float64:
        found |= {"negative": lambda t: torch.complex(t, -t).conj().imag}
    return found


def _state(op, call, form, mode, sample, number: int, device: str):
    """Return what a call gives, and which tensors given to it have counted a change.

    Tensors are made before the mode is entered, as a model's weights are, or inside it.
    """
    how, function = call
    with mode() if number % 2 else nullcontext():
        args, kwargs = tree_map(lambda v: move(v, device), (sample.args, sample.kwargs))
        x = tree_map(lambda v: move(v, device), sample.input)
        x = form(x) if isinstance(x, torch.Tensor) else x
        if how == "out=":
            torch.manual_seed(0)
            kwargs["out"] = tree_map(
                lambda v: torch.zeros_like(v) if isinstance(v, torch.Tensor) else v, op(x, *args, **kwargs)
            )
    given = [t for t in _tensors((x, args, kwargs)) if not t.is_inference()]
    before = [t._version for t in given]
    torch.manual_seed(0)
    with mode():
        made = _tensors(function(x, *args, **kwargs))
    return made, [t._version > version for t, version in zip(given, before, strict=True)], _tensors(x)


def _differs(expected, got, name: str) -> str:
    """Return how two states differ, or nothing."""
    if expected[1] != got[1]:
        return f"counts changes {got[1]} and not {expected[1]}"
    for a, b in zip(expected[0] + expected[2], got[0] + got[2], strict=True):
        if a.layout is not torch.strided:
            continue
        bits = [(t.stride() if name not in STRIDES_DIFFER else (), t.is_conj(), t.is_neg(), t.dtype) for t in (a, b)]
        if bits[0] != bits[1]:
            return f"strides, bits, format {bits[1]} and not {bits[0]} of {tuple(a.shape)}"
        tolerance = {"rtol": 1e-2 if a.dtype is torch.float16 else 1e-4, "atol": 1e-4, "equal_nan": True}
        if a.shape != b.shape or not torch.allclose(a.detach(), b.detach().cpu(), **tolerance):
            return "values differ"
    return ""


def uninitialised(name: str) -> bool:
    return (_exception(name) or "").startswith("uninit")


def _seen(mode, op, sample, inside: bool):
    """Return what a sample gives in a mode, the records of the timeline, and how far memory grew, in bytes.

    Its tensors are made before the mode is entered, as a model's weights are, or inside it.
    """
    with mode() if inside else nullcontext():
        args = [tree_map(lambda v: move(v, "sim:0"), value) for value in (sample.input, sample.args, sample.kwargs)]
    gc.collect(0)
    simgpu.reset()
    before = torch.sim.memory_allocated()
    torch.manual_seed(0)
    with mode(), simgpu.timeline() as timeline:
        out = op(args[0], *args[1], **args[2])
    records = [(r.kind, r.name, r.duration_ns, r.flops, r.nbytes, r.bound) for r in timeline.records]
    peak = torch.sim.max_memory_allocated() - before
    return tree_map(lambda v: v.cpu() if isinstance(v, torch.Tensor) else v, out), records, peak


def report(outcomes: list[Outcome]) -> tuple[float, float]:
    """Print the operators that differ and return the shares that agree, forward and backward."""
    tried = [o for o in outcomes if o.samples]
    differentiated = [o for o in tried if o.differentiated]
    for outcome in tried:
        for kind in ("forward", "backward"):
            if getattr(outcome, kind):
                print(f"{kind:8} {outcome.name}: {getattr(outcome, kind)} ({_exception(outcome.name) or 'NOT LISTED'})")
    forward = sum(not o.forward for o in tried) / len(tried)
    backward = sum(not o.backward for o in differentiated) / len(differentiated)
    print(f"samples compared: {sum(o.samples for o in tried)}")
    print(f"forward:  {sum(not o.forward for o in tried)} of {len(tried)} operators ({forward:.1%})")
    print(f"backward: {sum(not o.backward for o in differentiated)} of {len(differentiated)} ({backward:.1%})")
    return forward, backward
