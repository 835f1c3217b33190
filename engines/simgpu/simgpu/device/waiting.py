"""Which operators make the host wait on CUDA only when they are called in a certain way?

Sources: PyTorch's own list of cases, `test_sync_warning` of test/test_torch.py; docstrings that say "synchronizes"
(torch.normal, torch.linalg.cholesky_ex and its kin); the C++ code named at each rule. What always waits is in
`operators`. Not here is `multinomial`: it asserts on the device (`_assert_async` in Distributions.cpp).
"""

from collections.abc import Callable
from typing import TypeAlias

import torch

from simgpu.ground.calls import Call

MASKS = (torch.bool, torch.uint8)
_Rule: TypeAlias = Callable[[Call], bool]


def _masks(call: Call) -> list[torch.Tensor]:
    return [one for one in call["indices"] if one is not None and one.dtype in MASKS]


def _picks_by_mask(call: Call) -> bool:
    """Of whole numbers the shape of what is picked is known; a mask on the CPU is counted there (IndexingUtils.h)."""
    return any(mask.device.type != "cpu" for mask in _masks(call))


def _puts_by_mask(call: Call) -> bool:
    return _picks_by_mask(call) and not fills(call)


def fills(call: Call) -> bool:
    """Return whether `x[mask] = number` is a `masked_fill_` (canDispatchToMaskedFill in TensorAdvancedIndexing.cpp)."""
    value, given = call["values"], [one for one in call["indices"] if one is not None]
    one_mask = len(given) == len(_masks(call)) == 1 and given[0].device.type != "cpu"
    return one_mask and not call["accumulate"] and value.numel() == 1 and value.device.type == "cpu"


def _checks_errors(call: Call) -> bool:
    return call["check_errors"]


def _limits_unsaid(call: Call) -> bool:
    return call["min"] == call["max"]  # `_histc_cuda` in SummaryOps.cu reads the least and greatest value


def _ends_are_tensors(call: Call) -> bool:
    return any(isinstance(call[end], torch.Tensor) for end in ("start", "end"))  # RangeFactories.cpp: `.item()`


_PUTS = ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")
_EX = ("linalg_cholesky_ex", "linalg_inv_ex", "linalg_ldl_factor_ex", "linalg_lu_factor_ex", "_linalg_solve_ex")
_RULES: dict[str, _Rule] = {
    "histc": _limits_unsaid,
    "normal": lambda call: isinstance(call["std"], torch.Tensor),
    "repeat_interleave": lambda call: call["output_size"] is None,
    "segment_reduce": lambda call: not call["unsafe"],  # reads the least length (SegmentReduce.cpp)
    **dict.fromkeys(("index", "_unsafe_index"), _picks_by_mask),
    **dict.fromkeys(_PUTS, _puts_by_mask),
    **dict.fromkeys(_EX, _checks_errors),
    **dict.fromkeys(("linspace", "logspace"), _ends_are_tensors),
}


def has_rule(name: str) -> bool:
    """Return whether an operator waits by how it is called."""
    return name in _RULES


def waits(name: str, call: Call) -> bool:
    """Return whether this call of an operator that has a rule makes the host wait."""
    return _RULES[name](call)
