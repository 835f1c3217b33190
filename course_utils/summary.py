"""Summary of a model: its parts, their devices, and the cost of one call.

print(summary(model, images))
"""

import html
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from course_utils import arguments, counting, plots, tables

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
        table = tables.text([row.cells() for row in self.rows], _HEADS, right={2, 3, 6})
        return "\n".join([table, *self._notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heads = "".join(f'<th style="text-align: left">{head}</th>' for head in _HEADS)
        cell = '<td style="text-align: left; white-space: pre">{}</td>'
        rows = ("".join(cell.format(html.escape(text)) for text in row.cells()) for row in self.rows)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes())
        return f"<table><tr>{heads}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>{notes}"


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
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return Summary(tuple(rows), tuple(tuple(found) for found in names.values() if len(found) > 1))


def _watch(model: nn.Module, inputs: tuple) -> tuple[dict[nn.Module, str], dict[nn.Module, int]]:
    """Call the model; return by module the shape of its output, and the FLOPs counted while it ran."""
    shapes: dict[nn.Module, str] = {}
    flops: dict[nn.Module, int] = {}
    begun: list[int] = []

    def before(module: nn.Module, args: Any) -> None:
        begun.append(counts.flops)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        flops[module] = flops.get(module, 0) + counts.flops - begun.pop()
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        shapes[module] = str(tuple(tensors[0].shape)) if tensors else type(output).__name__

    with torch.no_grad(), counting.count() as counts, ExitStack() as stack:
        for module in model.modules():
            stack.enter_context(module.register_forward_pre_hook(before))
            stack.enter_context(module.register_forward_hook(after))
            stack.callback(setattr, module, "training", module.training)
        model.eval()  # so that no running mean moves and no random number is drawn
        model(*inputs)
    return shapes, flops


def _flops(module: nn.Module, flops: dict[nn.Module, int]) -> int:
    """Return what was counted in `module`; in a list of modules, which is never called, what was counted in them."""
    return flops[module] if module in flops else sum(_flops(child, flops) for child in module.children())


def _row(name: str, module: nn.Module, depth: int, shape: str, flops: int) -> Row:
    parameters, tensors = list(module.parameters()), [*module.parameters(), *module.buffers()]
    numbers, nbytes = sum(p.numel() for p in parameters), sum(t.nbytes for t in tensors)
    dtypes = ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters or tensors}))
    places = ", ".join(sorted({str(t.device) for t in tensors}))
    return Row(name, type(module).__name__, depth, shape, numbers, nbytes, dtypes, places, flops)
