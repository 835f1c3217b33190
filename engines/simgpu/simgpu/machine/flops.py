"""Floating-point operations of an operator's call: PyTorch's formulas, and those that it lacks."""

from typing import Any

from torch.utils.flop_counter import flop_registry

from simgpu.ground.torch_internals import Args, Kwargs, Operator
from simgpu.machine.formulas import Formula
from simgpu.machine.operator_table import row_of

__all__ = ["formula_of", "of_call"]


def formula_of(func: Operator) -> Formula | None:
    """Return the formula of an operator, None where there is none.

    It takes the operator's arguments, and its result as `out_val`. Whoever writes an operator may register one with
    `torch.utils.flop_counter.register_flop_formula`, also after its first call.
    """
    return row_of(func).flops or flop_registry.get(func._overloadpacket)


def of_call(func: Operator, args: Args, kwargs: Kwargs, result: Any) -> int:
    """Return the operations of a call of an operator that gave `result`; 0 where there is no formula."""
    formula = formula_of(func)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=result))
