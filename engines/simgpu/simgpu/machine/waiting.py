"""Operators of which some calls make the host wait on CUDA, and the rules that tell which.

Sources: PyTorch's own list of cases, `test_sync_warning` of test/test_torch.py; docstrings that say "synchronizes"
(torch.normal, torch.linalg.cholesky_ex and its kin); the C++ code named at each rule. Which operator has which rule,
and which always waits, says `operator_table`. `multinomial` has none: it asserts on the device (`_assert_async` in
Distributions.cpp).
"""

from collections.abc import Callable
from typing import TypeAlias

import torch

from simgpu.ground.calls import Call

MASKS = (torch.bool, torch.uint8)
Rule: TypeAlias = Callable[[Call], bool]


def _masks(call: Call) -> list[torch.Tensor]:
    return [one for one in call["indices"] if one is not None and one.dtype in MASKS]


def picks_by_mask(call: Call) -> bool:
    """Of whole numbers the shape of what is picked is known; a mask on the CPU is counted there (IndexingUtils.h)."""
    return any(mask.device.type != "cpu" for mask in _masks(call))


def puts_by_mask(call: Call) -> bool:
    return picks_by_mask(call) and not fills(call)


def fills(call: Call) -> bool:
    """Return whether `x[mask] = number` is a `masked_fill_` (canDispatchToMaskedFill in TensorAdvancedIndexing.cpp)."""
    value, given = call["values"], [one for one in call["indices"] if one is not None]
    one_mask = len(given) == len(_masks(call)) == 1 and given[0].device.type != "cpu"
    return one_mask and not call["accumulate"] and value.numel() == 1 and value.device.type == "cpu"


def checks_errors(call: Call) -> bool:
    return call["check_errors"]


def limits_unsaid(call: Call) -> bool:
    return call["min"] == call["max"]  # `_histc_cuda` in SummaryOps.cu reads the least and greatest value


def ends_are_tensors(call: Call) -> bool:
    return any(isinstance(call[end], torch.Tensor) for end in ("start", "end"))  # RangeFactories.cpp: `.item()`
