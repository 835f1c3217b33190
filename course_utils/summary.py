"""What is in this model, where is it, and what does one call of it cost?

print(summary(model, images))
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from course_utils import counting, plots
from course_utils.base import arguments

__all__ = ["Row", "Summary", "summary"]

_HEADS = ("module", "output shape", "parameters", "bytes", "dtype", "device", "FLOPs")


@dataclass(frozen=True)
class Row:
    """One module of a model, with everything inside it; the model itself is the first row."""

    name: str  # its path, such as "blocks.0.mlp"; "" for the model itself
    kind: str  # its class
    depth: int
    shape: str  # of its output in the last call, "" where it was not called
    parameters: int  # numbers in its parameters, each parameter once
    bytes: int  # of its parameters and buffers
    dtype: str
    device: str
    flops: int  # of the one call of the model, all calls of this module added up

    def cells(self) -> tuple[str, ...]:
        """Return the row as text, in the order of the table's columns."""
        name = self.name.rpartition(".")[2] if self.depth else ""
        label = "  " * self.depth + (f"{name}: {self.kind}" if name else self.kind)
        flops = f"{self.flops:,}" if self.flops else ""
        return label, self.shape, f"{self.parameters:,}", plots.bytes_text(self.bytes), self.dtype, self.device, flops


@dataclass(frozen=True, repr=False)
class Summary:
    """The modules of a model as a table; `parameters`, `bytes` and `flops` are those of the whole model.

    A parameter or buffer that several modules share counts in the row of each, and once in those that hold them.
    """

    rows: tuple[Row, ...]
    tied: tuple[tuple[str, ...], ...]  # names of one and the same parameter

    parameters = property(lambda self: self.rows[0].parameters, doc="Numbers in all parameters.")
    bytes = property(lambda self: self.rows[0].bytes, doc="Bytes of all parameters and buffers.")
    flops = property(lambda self: self.rows[0].flops, doc="Floating-point operations of one call.")
    device = property(lambda self: self.rows[0].device, doc='Where the model is: one device, or several, "cpu, sim:0".')

    def _notes(self) -> list[str]:
        return [f"one parameter under several names: {', '.join(names)}" for names in self.tied]

    def __str__(self) -> str:
        table = [_HEADS, *(row.cells() for row in self.rows)]
        widths = [max(len(line[at]) for line in table) for at in range(len(_HEADS))]
        right = {2, 3, 6}
        lines = [
            "  ".join(
                cell.rjust(width) if at in right else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in table
        ]
        return "\n".join([*lines, *self._notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        left = "text-align: left; white-space: pre"
        heads = "".join(f'<th style="text-align: left">{head}</th>' for head in _HEADS)
        body = "".join(
            "<tr>" + "".join(f'<td style="{left}">{html.escape(cell)}</td>' for cell in row.cells()) + "</tr>"
            for row in self.rows
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes())
        return f"<table><tr>{heads}</tr>{body}</table>{notes}"


def summary(model: nn.Module, *inputs: Any, depth: int | None = None) -> Summary:
    """Return the modules of `model` down to `depth` (default: all), with what one call with `inputs` did in each.

    The call is made without gradients, in evaluation mode, on the devices where model and inputs are; on the `meta`
    device nothing is computed. FLOPs are counted as `course_utils.counting` counts them, after
    `torch.utils.flop_counter`. Raises TypeError if `model` is no module, and what the model raises for its inputs.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {type(model).__name__}, it must be a torch.nn.Module")
    if depth is not None:
        arguments.whole("depth", depth)
    shapes, flops = _watch(model, inputs)
    rows = []
    for name, module in model.named_modules():
        level = name.count(".") + 1 if name else 0
        if depth is None or level <= depth:
            rows.append(_row(name, module, level, shapes.get(module, ""), _flops(module, flops)))
    return Summary(tuple(rows), _tied(model))


def _watch(model: nn.Module, inputs: tuple) -> tuple[dict[nn.Module, str], dict[nn.Module, int]]:
    """Call the model; return by module the shape of its output, and the FLOPs counted while it ran."""
    shapes: dict[nn.Module, str] = {}
    flops: dict[nn.Module, int] = {}
    begun: list[int] = []
    training = [module for module in model.modules() if module.training]

    def before(module: nn.Module, args: Any) -> None:
        begun.append(counts.flops)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        flops[module] = flops.get(module, 0) + counts.flops - begun.pop()
        shapes[module] = _shape(output)

    handles = []
    with torch.no_grad(), counting.count() as counts:
        try:
            for module in model.modules():
                handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
            model.eval()  # so that no running mean moves and no random number is drawn
            model(*inputs)
        finally:
            for handle in handles:
                handle.remove()
            for module in training:
                module.training = True
    return shapes, flops


def _flops(module: nn.Module, flops: dict[nn.Module, int]) -> int:
    """Return what was counted in `module`; in a list of modules, which is never called, what was counted in them."""
    if module in flops:
        return flops[module]
    return sum(_flops(child, flops) for child in module.children())


def _shape(output: Any) -> str:
    """Return the shape of the first tensor in what a module returned."""
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    return str(tuple(tensors[0].shape)) if tensors else type(output).__name__


def _row(name: str, module: nn.Module, depth: int, shape: str, flops: int) -> Row:
    parameters, tensors = list(module.parameters()), [*module.parameters(), *module.buffers()]
    return Row(
        name,
        type(module).__name__,
        depth,
        shape,
        sum(p.numel() for p in parameters),
        sum(t.nbytes for t in tensors),
        _listed(str(p.dtype).removeprefix("torch.") for p in parameters or tensors),
        _listed(str(t.device) for t in tensors),
        flops,
    )


def _listed(words: Iterator[str]) -> str:
    return ", ".join(sorted(set(words)))


def _tied(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Return the names of parameters that have more than one."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return tuple(tuple(found) for found in names.values() if len(found) > 1)
