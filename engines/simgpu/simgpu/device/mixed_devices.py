"""Errors of operators whose tensors are on two devices, in the words of PyTorch's generated code.

Most operators compare the devices of their arguments before their kernel runs, and name argument and method; those
without that check leave it to TensorIterator, or to words of their own. Sources: `gen_device_check` in
torchgen/dest/register_dispatch_key.py, adaption.cpp, `compute_types` in TensorIterator.cpp.
"""

import functools
import tomllib
from pathlib import Path
from typing import NoReturn

import torch
from torch.utils._pytree import tree_leaves

from simgpu.device import mps
from simgpu.device.tensor import SimTensor
from simgpu.ground import device_kind
from simgpu.ground.calls import Call
from simgpu.ground.torch_internals import Operator
from simgpu.machine.operator_table import name_of

_COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


class Composed(Exception):
    """Carries the result of an operator whose parts take tensors of two devices, as `select_scatter` copies."""


def refuse(call: Call, takes_indices: bool = False) -> NoReturn:
    """Raise RuntimeError as CUDA does for the call of an operator whose tensors are on two devices.

    Where it is made of others, and they take them, Composed is raised.
    """
    func = call.func
    family, name = family_of(func), name_of(func)
    placed = _placed(call)
    tensors = [tensor for _, tensor in placed]
    if takes_indices:
        indexed, *indices = tensors[:-1] if "index_put" in name else tensors
        if any(type(index) is SimTensor and index.device != indexed.device for index in indices):
            kinds = f"either on cpu or on the same device as the indexed tensor ({indexed.device})"
            raise RuntimeError(f"indices should be {kinds}")
    if name in _OWN_WORDS and (words := _OWN_WORDS[name](tensors)):
        raise RuntimeError(words)
    if family == "composite" or name.startswith("_foreach_"):  # where CUDA's are fast on one device alone
        key = getattr(torch._C.DispatchKey, _composite_key(func) or _COMPOSITE[0])
        raise Composed(func._op_dk(key, *call.args, **call.kwargs))  # or an operator in it raises
    # Equal.cpp of MPS compares by `eq`
    pointwise = family == "unchecked" or (device_kind.kind == "mps" and name == "equal")
    if device_kind.kind == "mps" and not pointwise:
        raise RuntimeError(mps.PLACEHOLDER)
    if pointwise:
        here = next(tensor.device for tensor in tensors if type(tensor) is SimTensor)
        results = sum(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
        others = [t for i, t in enumerate(tensors) if t.device != here and (t.dim() > 0 or i < results)]
        others = others or [tensor for tensor in tensors if tensor.device != here]
        devices = f"found at least two devices, {here} and {others[0].device}!"
    else:
        here = tensors[0].device
        argument, other = next((argument, tensor) for argument, tensor in placed if tensor.device != here)
        if words := _KEYWORDS.get(f"{name}.{argument}"):
            raise RuntimeError(words.format(argument=argument, other=other.device, here=here))
        method = f"wrapper_{device_kind.title()}_{method_of(func, family)}"
        devices = (
            f"got {argument} is on {other.device}, different from other tensors on "
            f"{here} (when checking argument in method {method})"
        )
    raise RuntimeError(f"Expected all tensors to be on the same device, but {devices}")


def _placed(call: Call) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of a call with the names of their arguments, in the order of the check: results first."""
    arguments = sorted(call.func._schema.arguments, key=lambda argument: not argument.is_out)
    leaves = [(argument.name, tree_leaves(call[argument.name])) for argument in arguments]
    return [(name, leaf) for name, values in leaves for leaf in values if isinstance(leaf, torch.Tensor)]


@functools.cache
def _families() -> dict[str, str]:
    """Return the family of an operator with a CUDA kernel, by its name in native_functions.yaml."""
    file = Path(__file__).with_name("device_checks.toml")
    return {name: family for family, names in tomllib.loads(file.read_text()).items() for name in names.split()}


def family_of(func: Operator) -> str:
    """Return "structured" or "plain" for an operator whose arguments are compared, "unchecked", or "composite"."""
    name, _, overload = func.name().removeprefix("aten::").partition(".")
    family = _families().get(f"{name}.{overload}", _families().get(name))
    if family is None:
        return "composite" if _composite_key(func) else "plain"
    return family


@functools.cache
def compares_numbers(func: Operator) -> bool:
    """Return whether an operator takes no tensor of the CPU beside those of a GPU, not even one without dimensions."""
    compared = family_of(func) in ("structured", "plain") or name_of(func) in ("embedding", "stack")
    return compared and func.namespace == "aten"


def _composite_key(func: Operator) -> str | None:
    """Return the key of the kernel that makes an operator of others on every device; None where there is none."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return next((key for key in _COMPOSITE if has(func.name(), key)), None)


def method_of(func: Operator, family: str) -> str:
    """Return how torchgen names the wrapper of an operator: a structured kernel as `mm`, a plain one as `_dot`."""
    name, _, overload = func.name().removeprefix("aten::").partition(".")
    name += "_out" if any(argument.is_out for argument in func._schema.arguments) else ""
    return f"{overload}_{name}" if family == "plain" else "_".join(filter(None, (name, overload)))


def _of_convolution(tensors: list[torch.Tensor]) -> str:
    """Return what `check_input_same_type_as_parameters` in Convolution.cpp says."""
    x, weight, *bias = tensors
    name, other = ("weight", weight) if weight.device != x.device else ("bias", bias[0])
    onednn = x.device.type == "cpu" and x.dtype is torch.float32 and name == "weight"
    or_else = " or input should be a MKLDNN tensor and weight is a dense tensor" if onednn else ""
    return f"{mps.types_in_words(x, other, name)} should be the same{or_else}"


def _of_mask(tensors: list[torch.Tensor]) -> str:
    """Return what `masked_fill__cuda` in IndexKernel.cu says; nothing where the value is the one on the CPU."""
    filled, mask = tensors[0].device, tensors[1].device
    if len(tensors) == 3 and filled.type == "cpu":
        return "masked_fill_: Expected inputs to be on same device"
    words = f"expected self and mask to be on the same device, but got mask on {mask} and self on {filled}"
    return words if filled != mask else ""


_EQUAL = (
    "Expected data.get_device() == {argument}_value.get_device() to be true, but got false.  (Could this error message "
    "be improved?  If so, please report an enhancement request to PyTorch.)"
)
_KEYWORDS = {  # which generated code leaves to kernels: BucketizationUtils.h, SegmentReduce.cpp
    "searchsorted.sorter": "torch.searchsorted(): sorter and boundary tensors should have same device type, but got "
    "sorter tensor device type {other} and input value tensor device type {here}",
    "segment_reduce.lengths": _EQUAL, "segment_reduce.offsets": _EQUAL,
}  # fmt: skip
_OWN_WORDS = {"convolution": _of_convolution, "masked_fill": _of_mask, "masked_fill_": _of_mask}
