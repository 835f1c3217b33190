"""Errors of tensors on two devices, in the words of the code that torchgen generates for CUDA."""

import functools
import itertools
import re
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import simgpu
from simgpu.device import mixed_devices
from tests.simgpu import operators

torchgen = pytest.importorskip("torchgen.gen", reason="torchgen reads native_functions.yaml by PyYAML")


@pytest.fixture
def _face(_fresh):
    with simgpu.cuda("T4"):
        yield


@functools.cache
def generated():
    """Return by operator what its wrapper for CUDA checks: (argument, method) in turn; nothing where it does not."""
    from torchgen.dest.register_dispatch_key import RegisterDispatchKey, StructuredRegisterDispatchKey
    from torchgen.model import DispatchKey, NativeFunctionsGroup
    from torchgen.selective_build.selector import SelectiveBuilder
    from torchgen.utils import Target

    native = Path(torchgen.__file__).parent / "packaged/ATen/native"
    read = torchgen.parse_native_yaml(str(native / "native_functions.yaml"), str(native / "tags.yaml"))
    cuda, every = read.backend_indices[DispatchKey.CUDA], SelectiveBuilder.get_nop_selector()
    settings = cuda, Target.ANONYMOUS_DEFINITION, every, False, True, None, False
    plain, checks = RegisterDispatchKey(*settings), {}
    for group in torchgen.get_grouped_native_functions(read.native_functions):
        grouped = isinstance(group, NativeFunctionsGroup)
        of_structure = grouped and group.structured and cuda.has_kernel(group)
        for function in group.functions() if grouped else [group]:
            if of_structure:
                code = StructuredRegisterDispatchKey(*settings, group).gen_one(function)
            elif cuda.has_kernel(function) and not function.manual_kernel_registration:
                code = plain.gen_unstructured(function)
            else:
                continue
            found = re.findall(r'common_device, \w+, "(\w+)", "(\w+)"', code)
            checks[str(function.func.name)] = [(argument, method) for method, argument in found]
    return checks


def said_by_generated_code(call):
    """Return what PyTorch on CUDA says of a call, or None where another operator is what raises."""
    checks = generated().get(call.func.name().removeprefix("aten::"))
    if checks is None:
        return None
    common = None
    for argument, method in checks:
        for tensor in tree_leaves(call[argument]):
            if isinstance(tensor, torch.Tensor):
                common = common or tensor.device
                if tensor.device != common:
                    where = f"got {argument} is on {tensor.device}, different from other tensors on {common} "
                    return f"{where}(when checking argument in method {method})"
    return None if checks else "found at least two devices, cuda:0 and cpu!"


def pairs(op):
    """Yield the calls of an operator in which one tensor of its first sample is on the CPU."""
    sample = next(iter(op.sample_inputs("cpu", torch.float32)), None)
    given = (sample.input, sample.args, sample.kwargs) if sample else ()
    count = sum(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(given))
    for place in range(count) if count > 1 else ():
        number = itertools.count()

        def put(leaf, place=place, number=number):
            return operators.move(leaf, "cpu" if isinstance(leaf, torch.Tensor) and next(number) == place else "cuda")

        yield tree_map(put, given)


def walk(ops, monkeypatch):
    """Return how many errors have PyTorch's words, and those that have others."""
    refused, refuse = [], mixed_devices.refuse
    monkeypatch.setattr(mixed_devices, "refuse", lambda call, *more: (refused.append(call), refuse(call, *more)))
    counts, wrong = Counter(), []
    for op in ops:
        try:
            calls = list(pairs(op))
        except (RuntimeError, NotImplementedError, TypeError):  # its samples need what is not here
            continue
        for first, args, kwargs in calls:
            refused.clear()
            try:
                op(first, *args, **kwargs)
                continue
            except Exception as error:
                words = str(error)
            expected = said_by_generated_code(refused[-1]) if refused else None
            if re.search(r"\bmeta\b|Meta\w+Type|SimTensor", words) or (expected and not words.endswith(expected)):
                wrong.append((op.name, words, expected))
            counts["equal" if expected and words.endswith(expected) else "own words"] += 1
    return counts, wrong


def test_errors_of_two_devices_speak_as_the_generated_code(_face, monkeypatch):
    counts, wrong = walk(operators.database(), monkeypatch)
    assert not wrong and counts["equal"] > 300, (counts, wrong)


def test_the_families_are_those_of_native_functions():
    read = tomllib.loads(Path(mixed_devices.__file__).with_name("device_checks.toml").read_text())
    for name, checks in generated().items():
        func = functools.reduce(getattr, (*name.split("."), "default")[:2], torch.ops.aten)
        family = mixed_devices.family_of(func)
        if "Tensor" not in str(func._schema).partition("->")[0]:
            continue
        assert (family == "unchecked") == (not checks), name
        assert {method for _, method in checks} <= {f"wrapper_CUDA_{mixed_devices.method_of(func, family)}"}, name
    known = {*generated(), *(name.partition(".")[0] for name in generated())}
    names = {name.removesuffix(".") for names in read.values() for name in names.split()}
    assert {name for name in names if hasattr(torch.ops.aten, name.partition(".")[0])} <= known


@pytest.mark.parametrize(("program", "words"), [
    (lambda x: F.batch_norm(x, torch.zeros(3), torch.ones(3).cuda()), "got running_mean is on cpu"),
    (lambda x: F.layer_norm(x, (3,), None, torch.zeros(3)), "got bias is on cpu, .* wrapper_CUDA__native_layer_norm"),
    (lambda x: F.mse_loss(x, x.cpu()), "devices, cuda:0 and cpu!"),
    (lambda x: x.cpu() - x, "devices, cuda:0 and cpu!"),
    (lambda x: torch.stack([x, x.cpu()]), "got tensors is on cpu, .* wrapper_CUDA_cat"),
    (lambda x: F.embedding(torch.tensor([0]), x), "got index is on cpu, .* wrapper_CUDA__index_select"),
    (lambda x: nn.Conv1d(4, 1, 1)(x), r"Input type \(torch.cuda.FloatTensor\) and weight type \(torch.FloatTensor\)"),
    (lambda x: F.conv1d(x, torch.ones(1, 4, 1).cuda().half()), "FloatTensor. and weight type .torch.cuda.HalfTensor"),
    (lambda x: F.conv1d(x, torch.ones(1, 4, 1).bfloat16()), "FloatTensor. and weight type .CPUBFloat16Type. should"),
    (lambda x: F.conv1d(x.bool(), torch.ones(1, 4, 1).cuda()), "CUDABoolType. and weight type .torch.cuda.FloatTens"),
    (lambda x: F.conv1d(x.cfloat(), torch.ones(1, 4, 1).cuda()), "CUDAComplexFloatType. and weight type .torch.cuda"),
    (lambda x: F.conv_transpose1d(x, x[..., None], x[0].half()), "FloatTensor. and bias type .torch.cuda.HalfTensor"),
    (lambda x: torch.stft(x.long(), 4, return_complex=True), r"stft\(torch.cuda.LongTensor\[4, "),
    (lambda x: torch.meshgrid(x, indexing="ij"), r"\[ torch.cuda.FloatTensor\{4,3\} \]"),
    (lambda x: torch.linalg.norm(x, out=torch.ones(())), "got result on cuda:0 and input on cpu"),
    (lambda x: torch.linalg.matrix_rank(x, out=torch.tensor(1)), "got result on cpu and input on cuda:0"),
    (lambda x: torch.logsumexp(x, 0, out=torch.ones(3)), "devices, cuda:0 and cpu!"),
    (lambda x: x.long().lcm_(torch.tensor(2)), "got other is on cpu, .* wrapper_CUDA_lcm_"),
    (lambda x: torch.stack([x[0, 0], torch.tensor(1.0)]), "got tensors is on cpu, .* wrapper_CUDA_cat"),
    (lambda x: torch.searchsorted(x[0], x[0], sorter=torch.arange(3)), "sorter tensor device type cpu"),
    (lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([4])), r"data.get_device\(\) == lengths_value"),
    (lambda x: torch.chain_matmul(x, torch.ones(3, 3)), "tensor 0 is on cuda:0 and tensor 1 on cpu"),
    (lambda x: setattr(nn.Parameter(torch.ones(4, 3)), "grad", x), "type .cuda. to a tensor with device type .cpu"),
    (lambda x: setattr(x, "grad", x.cpu()), "device type 'cpu' to a tensor with device type 'cuda'"),
    (lambda x: torch.zeros(3, out=x, device="cpu"), r"device type cpu does .* of out parameter \(cuda\)"),
    (lambda x: x @ x.half().T, "expected mat1 and mat2 to have the same dtype"),
    (lambda x: F.scaled_dot_product_attention(x, x.cpu(), x), "query.device: cuda:0 key.device: cpu and value"),
])  # fmt: skip
def test_an_error_names_the_argument_the_operator_and_the_device(_face, program, words):
    with pytest.raises(RuntimeError, match=words):
        program(torch.rand(4, 3, device="cuda"))


def test_what_an_operator_copies_or_measures_may_be_elsewhere(_face):
    x = torch.rand(4, 3, device="cuda")
    assert [one.device.type for one in torch._foreach_mul([x, x.cpu()], 2)] == ["cuda", "cpu"]
    with torch.device("cuda"):
        assert torch.full((3,), 2.0, out=x[0]).equal(torch.full((3,), 2.0, out=x[1], device="cuda:0"))
    assert x.select_scatter(torch.ones(3), 0, 1)[1].tolist() == [1, 1, 1] and x.cpu().slice_scatter(x[:1], end=1).is_cpu
    assert x.clone().resize_as_(torch.ones(2, 2)).is_cuda


def test_recording_changes_no_operator_and_the_type_is_called_tensor():
    class Names(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            called.append(func.__name__)
            return func(*args, **kwargs or {})

    words = []
    for record in (False, True):
        with simgpu.cuda("T4", record=record):
            x, called = torch.ones(2, device="cuda"), []
            for minuend in (torch.ones(2), np.ones(2)):
                with pytest.raises((RuntimeError, TypeError)) as caught, Names():
                    minuend - x
                words.append((str(caught.value), called.copy()))
    assert words[:2] == words[2:] and "and 'Tensor'" in words[1][0]
