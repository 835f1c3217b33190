"""Counters of operators, copies, host reads and FLOPs in a running program."""

import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from course_utils.counting import messages
from simgpu import collectives, composite, flops


@dataclass(frozen=True)
class Copy:
    """One copy from a device to another: its direction ("h2d", "d2h" or "d2d"), its size and how it was asked for."""

    direction: str
    bytes: int
    pinned: bool  # the side on the host is pinned memory
    non_blocking: bool


@dataclass(eq=False)
class Counts(messages.Communication):
    """What a program did. Filled while the context is open, and readable at any time.

    - `operators`: calls of operators, copies included, views excluded; `by_operator` says how many of each;
    - `views`: calls that only look at memory in another way (`view`, `t`, `[0]`, `detach`);
    - `copies_h2d`, `copies_d2h`, `copies_d2d`, `bytes_h2d`, …: copies host to device, back, and between devices, taken
      from `copies`, the list of them in order;
    - `host_reads`: values of device tensors that the host needed at once, and so waited for: `.item()`, `.tolist()`,
      `bool()`, `print`, and operators whose result has a size that depends on the values (`nonzero`, `x[mask]`);
    - `cpu_reads`: the same of tensors on the CPU, where it costs no waiting;
    - `flops`: floating-point operations of matrix products, convolutions, attention and recurrent layers: PyTorch's
      formulas, and those of `simgpu.flops` where it has none or leaves groups of channels out of account. A causal mask
      does not make attention cheaper here;
    - `messages`, `messages_to`, `receives`, `collectives`, `collective_bytes`: see `messages.Communication`.
    """

    operators: int = 0
    views: int = 0
    host_reads: int = 0
    cpu_reads: int = 0
    flops: int = 0
    by_operator: Counter[str] = field(default_factory=Counter)
    copies: list[Copy] = field(default_factory=list)

    copies_h2d = property(lambda self: self._number("h2d"), doc="Copies from the host to a device.")
    copies_d2h = property(lambda self: self._number("d2h"), doc="Copies from a device to the host.")
    copies_d2d = property(lambda self: self._number("d2d"), doc="Copies from a device to another device.")
    bytes_h2d = property(lambda self: self._bytes("h2d"), doc="Bytes copied from the host to a device.")
    bytes_d2h = property(lambda self: self._bytes("d2h"), doc="Bytes copied from a device to the host.")
    bytes_d2d = property(lambda self: self._bytes("d2d"), doc="Bytes copied from a device to another device.")

    def _number(self, direction: str) -> int:
        return sum(copy.direction == direction for copy in self.copies)

    def _bytes(self, direction: str) -> int:
        return sum(copy.bytes for copy in self.copies if copy.direction == direction)

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("operators", f"{self.operators:,}"), ("views", f"{self.views:,}")]
        for direction in ("h2d", "d2h", "d2d"):
            number, size = self._number(direction), self._bytes(direction)
            rows.append((f"copies {direction.upper()}", f"{number:,} ({size:,} bytes)" if number else "0"))
        return [*rows, ("host reads", f"{self.host_reads:,}"), ("FLOPs", f"{self.flops:,}"), *self.communication_rows()]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in self._rows())
        return f"<table>{rows}</table>"


@contextmanager
def count() -> Iterator[Counts]:
    """Count what the program does inside the `with` block, on any device, and yield the `Counts`.

    Contexts may be nested: each counts all that happens inside it. An exception inside leaves what was counted so far.
    """
    counts = Counts()
    ledger = _Ledger(counts)
    with _Functions(ledger), _Operators(ledger):
        yield counts


class _Ledger:
    """Where the two observers below write; quiet while one function call already stands for all it does inside."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self.quiet = 0

    def read(self, device: torch.device) -> None:
        if device.type == "cpu":
            self.counts.cpu_reads += 1
        else:
            self.counts.host_reads += 1

    def copy(self, start, end, tensor, *, host=None, non_blocking=False) -> None:
        """Note a copy from device `start` to device `end`, if they differ; it is as large as `tensor`.

        `host` is the tensor on the host that takes part, if there is one: it may be pinned.
        """
        if start == end or "meta" in (start.type, end.type):
            return
        direction = "2".join("h" if device.type == "cpu" else "d" for device in (start, end))
        pinned = host is not None and host.device.type == "cpu" and host.is_pinned()
        self.counts.copies.append(Copy(direction, tensor.numel() * tensor.element_size(), pinned, bool(non_blocking)))

    def made(self, tensor: torch.Tensor) -> None:
        """Note that PyTorch made `tensor` from Python data: work on the host that no operator shows, and one copy."""
        if tensor.device.type not in ("cpu", "meta"):
            self.copy(torch.device("cpu"), tensor.device, tensor)
            self.operator("_to_copy")

    def operator(self, name: str) -> None:
        self.counts.operators += 1
        self.counts.by_operator[name] += 1


class _Functions(TorchFunctionMode):
    """Watches calls of Python's functions that PyTorch's operators do not show one to one: print, tolist, tensor."""

    READS = ("__repr__", "__format__", "tolist")  # by name: classes of tensors may have their own
    # unwrapped: a mode sees PyTorch's own functions, also where others stand before them
    CONSTRUCTORS = tuple(map(inspect.unwrap, (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)))

    def __init__(self, ledger: _Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        read = getattr(func, "__name__", "") in self.READS
        data = _data(func, args, kwargs) if func in self.CONSTRUCTORS else None
        if not read and (data is None or isinstance(data, torch.Tensor)):
            return func(*args, **kwargs)
        loud = not self.ledger.quiet
        self.ledger.quiet += 1
        try:
            result = func(*args, **kwargs)
        finally:
            self.ledger.quiet -= 1
        if loud and read:
            self.ledger.read(args[0].device)
        elif loud:
            self.ledger.made(result)
            for leaf in tree_leaves(data) if isinstance(data, list | tuple) else ():
                if isinstance(leaf, torch.Tensor):
                    self.ledger.read(leaf.device)
        return result


class _Operators(composite.Mode):
    """Watches the calls of ATen's operators, those of the backward pass included."""

    def __init__(self, ledger: _Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        kind = _KINDS.get(func) or _KINDS.setdefault(func, _find_kind(func))
        if self.ledger.quiet or kind == "question":
            return func(*args, **kwargs)
        if kind == "composite":  # met in inference mode only; elsewhere autograd takes them apart before we see them
            with self:
                return composite.take_apart(func, args, kwargs)
        if kind == "communication":
            self.ledger.counts.communicated(func, args)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if kind == "made":  # `x[[0, 2]]`: the list has become a tensor where x is
            self.ledger.made(result)
            return result
        if kind == "view":
            self.ledger.counts.views += 1
            return result
        self.ledger.operator(_name(func))
        if kind == "copy":
            self.note_copy(func, args, kwargs, result)
        elif kind == "read":
            self.ledger.read(args[0].device)
        elif kind == "index":
            self.note_indices(args[0], args[1], args[2] if len(args) > 2 else None)
        self.ledger.counts.flops += flops.of_call(func, args, kwargs, result)
        return result

    def note_indices(self, tensor, indices, values) -> None:
        """Note what indices cost: `x[mask]` must know how many are chosen; `x[mask] = 1` is a masked fill on CUDA."""
        fills = isinstance(values, torch.Tensor) and values.numel() == 1
        for index in indices:
            if index is not None:
                if index.dtype in (torch.bool, torch.uint8) and not fills:
                    self.ledger.read(index.device)
                self.ledger.copy(index.device, tensor.device, index)

    def note_copy(self, func, args, kwargs, result) -> None:
        packet = func._overloadpacket
        if packet is torch.ops.aten._to_copy:
            source, target = args[0], result
        else:
            target, source = args[:2] if packet is torch.ops.aten.copy_ else (args[1], args[0])
        later = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        if isinstance(source, torch.Tensor):  # torch.vmap writes numbers too
            host = source if source.device.type == "cpu" else target
            self.ledger.copy(source.device, target.device, target, host=host, non_blocking=later)


_COPIES = {"_to_copy", "copy_", "_copy_from", "_copy_from_and_resize"}
_VIEWS = {"_unsafe_view", "resolve_conj", "resolve_neg"}

_KINDS: dict[object, str] = {}


def _find_kind(func) -> str:
    """Return what `func` is: communication, question, composite, made, view, copy, read, index or other."""
    if func.namespace in collectives.NAMESPACES:
        return "communication"
    name = func._overloadpacket.__name__
    whole = composite.is_composite(func)
    if func.namespace == "prim" or not any("Tensor" in str(value.type) for value in func._schema.returns):
        if name.startswith(("_foreach_", "_fused_", "_amp_")):  # they change lists and return nothing
            return "other"
        if torch.Tag.data_dependent_output not in func.tags:
            return "composite" if whole and name in ("item", "is_nonzero", "allclose") else "question"
    if name in _COPIES:
        return "copy"
    if name == "lift_fresh":
        return "made"
    if whole and func.namespace == "aten":
        return "composite"
    if func.is_view or name in _VIEWS or torch.Tag.inplace_view in func.tags:
        return "view"
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        return "index"
    values_decide = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)
    return "read" if values_decide else "other"


def _name(func) -> str:
    name = func._overloadpacket.__name__
    return name if func.namespace == "aten" else f"{func.namespace}::{name}"


def _data(func, args, kwargs) -> object:
    """Return what a constructor makes a tensor from."""
    index = 1 if func.__name__ == "new_tensor" else 0
    return args[index] if len(args) > index else kwargs.get("data", kwargs.get("obj"))
