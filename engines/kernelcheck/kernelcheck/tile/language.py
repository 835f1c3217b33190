"""Launches of a cuTile kernel: one block after the other runs the operations of its IR on NumPy."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

from kernelcheck.faults import KernelFault
from kernelcheck.tile.front_end import constants, final_ir, python_function
from kernelcheck.tile.operations import Run
from kernelcheck.triton.language import compared
from kernelcheck.triton.memory import Memory, Report

Grid = tuple[int, int, int]


def checked(kernel: Any, grid: Sequence[int], *args: Any) -> Report:
    """Run a kernel twice on copies of the tensors, blocks in order and shuffled, and return what it did.

    The report is that of `kernelcheck.checked`; its programs are blocks. A fault is a tile that lies outside its array,
    an element that two blocks use and one of them writes, two accesses of a block that no memory token orders, or a
    result that depends on padding without a value. Raises `CompileError` where cuTile's compiler refuses the kernel.
    """
    try:
        dims, named = _prepared(kernel, grid, args)
        return compared(functools.partial(_trial, final_ir(kernel, named), dims, _passed(kernel, named)))
    except KernelFault as fault:
        return Report(fault)


def launch(kernel: Any, grid: Sequence[int], *args: Any) -> None:
    """Run a kernel, as `ct.launch` does: the blocks change the tensors."""
    dims, named = _prepared(kernel, grid, args)
    memory = Memory(copy=False)
    Run(dims, _passed(kernel, named), memory, watched=False).all_blocks(final_ir(kernel, named))
    memory.write_back()


def _prepared(kernel: Any, grid: Sequence[int], args: Sequence[Any]) -> tuple[Grid, dict[str, Any]]:
    """Return the grid and the arguments by name, checked."""
    names = list(inspect.signature(python_function(kernel)).parameters)
    if len(names) != len(args):
        raise KernelFault("arguments", f"the kernel takes {len(names)} arguments ({', '.join(names)}), not {len(args)}")
    if not 1 <= len(grid) <= 3 or any(not isinstance(n, int) or n < 1 for n in grid):
        raise KernelFault("arguments", f"the grid {tuple(grid)} must hold one to three whole numbers above 0")
    x, y, z = (*grid, 1, 1)[:3]
    return (x, y, z), dict(zip(names, args, strict=True))


def _passed(kernel: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for which the IR has parameters."""
    return {name: one for (name, one), known in zip(named.items(), constants(kernel), strict=True) if not known}


def _trial(ir: Any, grid: Grid, named: dict[str, Any], seed: int | None = None, changed: str | None = None) -> Run:
    """Run all blocks on copies of the tensors and note what they do."""
    run = Run(grid, named, Memory(copy=True), watched=True, changed=changed)
    try:
        run.all_blocks(ir, seed)
    except KernelFault as fault:
        run.report.fault = fault
    run.close()
    run.sum_up()
    return run
