"""Which operators make the host wait on CUDA only when they are called in a certain way?

Sources: PyTorch's own list of cases, `test_sync_warning` of test/test_torch.py; docstrings that say "synchronizes"
(torch.normal, torch.linalg.cholesky_ex and its kin); the C++ code named at each rule. What always waits is in
`operators`. Not here is `multinomial`: it asserts on the device (`_assert_async` in Distributions.cpp).
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from simgpu.ground.torch_internals import Args, Kwargs, Operator

MASKS = (torch.bool, torch.uint8)
_Rule: TypeAlias = Callable[[Callable[[str], Any]], bool]


def _masks(argument: Callable[[str], Any]) -> list[torch.Tensor]:
    return [one for one in argument("indices") if one is not None and one.dtype in MASKS]


def _picks_by_mask(argument: Callable[[str], Any]) -> bool:
    """Of whole numbers the shape of what is picked is known; a mask on the CPU is counted there (IndexingUtils.h)."""
    return any(mask.device.type != "cpu" for mask in _masks(argument))


def _puts_by_mask(argument: Callable[[str], Any]) -> bool:
    return _picks_by_mask(argument) and not _fills(argument)


def _fills(argument: Callable[[str], Any]) -> bool:
    """Return whether `x[mask] = number` is a `masked_fill_` (canDispatchToMaskedFill in TensorAdvancedIndexing.cpp)."""
    value, given = argument("values"), [one for one in argument("indices") if one is not None]
    one_mask = len(given) == len(_masks(argument)) == 1 and given[0].device.type != "cpu"
    return one_mask and not argument("accumulate") and value.numel() == 1 and value.device.type == "cpu"


def _checks_errors(argument: Callable[[str], Any]) -> bool:
    return argument("check_errors")


def _limits_unsaid(argument: Callable[[str], Any]) -> bool:
    return argument("min") == argument("max")  # `_histc_cuda` in SummaryOps.cu reads the least and greatest value


def _ends_are_tensors(argument: Callable[[str], Any]) -> bool:
    return any(isinstance(argument(end), torch.Tensor) for end in ("start", "end"))  # RangeFactories.cpp: `.item()`


_PUTS = ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")
_EX = ("linalg_cholesky_ex", "linalg_inv_ex", "linalg_ldl_factor_ex", "linalg_lu_factor_ex", "_linalg_solve_ex")
_RULES: dict[str, _Rule] = {
    "histc": _limits_unsaid,
    "normal": lambda argument: isinstance(argument("std"), torch.Tensor),
    "repeat_interleave": lambda argument: argument("output_size") is None,
    "segment_reduce": lambda argument: not argument("unsafe"),  # reads the least length (SegmentReduce.cpp)
    **dict.fromkeys(("index", "_unsafe_index"), _picks_by_mask),
    **dict.fromkeys(_PUTS, _puts_by_mask),
    **dict.fromkeys(_EX, _checks_errors),
    **dict.fromkeys(("linspace", "logspace"), _ends_are_tensors),
}


def has_rule(name: str) -> bool:
    """Return whether an operator waits by how it is called."""
    return name in _RULES


def waits(func: Operator, name: str, args: Args, kwargs: Kwargs) -> bool:
    """Return whether this call of an operator that has a rule makes the host wait."""
    return _RULES[name](lambda argument: argument_of(func, argument, args, kwargs))


def fills(func: Operator, args: Args, kwargs: Kwargs) -> bool:
    """Return whether a call of `index_put_` writes one number where a mask is true, which takes no copy."""
    return _fills(lambda argument: argument_of(func, argument, args, kwargs))


def argument_of(func: Operator, name: str, args: Args, kwargs: Kwargs) -> Any:
    """Return what an operator was given as its argument `name`; its default, or None where it has no such argument."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[place] if place < len(args) else kwargs.get(name, argument.default_value)
    return None
