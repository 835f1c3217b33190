"""Launch of a reader's kernel on the CPU, with every access examined."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

import kernelcheck
from gpu_course.checks import Case


class _Checked:
    """Runs a kernel on a grid as a checked launch; stands for the kernel, so that messages show the reader's line."""

    def __init__(self, kernel: Callable, grid: tuple[int, ...], run: Callable[..., kernelcheck.TritonReport]) -> None:
        self.__wrapped__ = kernel
        self.__name__, self.grid, self.run = self.__wrapped__.__name__, grid, run

    def __call__(self, *args: Any) -> kernelcheck.TritonReport:
        return self.run(self.__wrapped__, self.grid, *args)


def launch(
    case: Case, grid: tuple[int, ...], *args: Any, out: int | tuple[int, ...]
) -> tuple[Any, kernelcheck.TritonReport]:
    """Run the answer, a kernel, on `grid`, and return what it left in its argument number `out`, and the report.

    With several numbers in `out`, what it left is a tuple of tensors.

    Raises `WrongAnswer` where an access is out of bounds, two programs race and the like, with the reader's line.
    """
    case.fail_if(hasattr(case.answer, "fn"), "stands under @triton.jit", "leave that line out: the check adds it")
    interpreted, _ = kernelcheck.triton(interpreter=True)
    run = lambda kernel, *launched: kernelcheck.checked(interpreted.jit(kernel), *launched)  # noqa: E731
    return _left(case, grid, args, out, run, "tl.store")


def launch_tiles(case: Case, grid: tuple[int, ...], *args: Any, out: int) -> tuple[Any, kernelcheck.TritonReport]:
    """Do the same with a kernel in cuTile, whose front end is there."""
    import cuda.tile as ct

    why = "leave that line out: the check adds it"
    case.fail_if(isinstance(case.answer, ct.kernel), "stands under @ct.kernel", why)

    def run(kernel: Callable, *launched: Any) -> kernelcheck.TritonReport:
        try:
            return kernelcheck.tile.checked(ct.kernel(kernel), *launched)
        except kernelcheck.CompileError as error:  # as a fault, in which Triton's language says it
            line = str(error).partition("\n")[0] if error.line else ""
            return kernelcheck.TritonReport(kernelcheck.KernelFault("language", error.reason, line))

    return _left(case, grid, args, out, run, "ct.store")


def _left(
    case: Case,
    grid: tuple[int, ...],
    args: tuple[Any, ...],
    out: int | tuple[int, ...],
    run: Callable[..., kernelcheck.TritonReport],
    storing: str,
) -> tuple[Any, kernelcheck.TritonReport]:
    """Return what the answer leaves in its arguments `out`, and the report of `run`."""
    answer, case.answer, case.device = case.answer, _Checked(case.answer, grid, run), torch.device("cpu")
    try:
        report = case.call(*args, modifies=True)
    finally:
        case.answer = answer
    refuse(case, report.fault)
    why = "a grid may have two billion programs, and 16 bits hold 32,767: leave the number as it is"
    case.fail_if(report.narrowed, f"keeps a program's number in 8 or 16 bits\n  {report.narrowed}", why)
    names = list(inspect.signature(answer).parameters)
    asked = [names[each] for each in ((out,) if isinstance(out, int) else out)]
    written = [name for name, traffic in report.by_array.items() if traffic.stored_bytes]
    others = [name for name in written if name not in asked]
    shown = " and ".join(f"`{name}`" for name in asked)
    why = f"{shown} alone {'is' if len(asked) == 1 else 'are'} asked for"
    case.fail_if(others, f"writes to {' and '.join(others)}", why)
    missing = [name for name in asked if name not in written]
    why = f"a kernel returns nothing: {storing} writes its result"
    case.fail_if(missing, f"stores nothing to {' and '.join(missing)}", why)
    left = tuple(report.results[name] for name in asked)
    of_text = dict(zip(names, inspect.signature(case.reference or answer).parameters, strict=False))
    for table in (report.by_array, report.touched):  # a reader may call them otherwise
        known = {of_text[name]: seen for name, seen in table.items() if name in of_text}
        table.clear()
        table.update(known)
    return left[0] if isinstance(out, int) else left, report


def in_blocks(case: Case, report: kernelcheck.TritonReport, elements: int) -> None:
    """Raise `WrongAnswer` where a kernel moves these `elements` one by one: it may ask once for every two of them."""
    why = "up to 32 neighbours of a block move in one request; number by number, each takes one, and 31 threads wait"
    case.budget("requests of warps", report.requests, elements // 2, why)


def refuse(case: Case, fault: kernelcheck.KernelFault | None) -> None:
    """Raise `WrongAnswer` with what is wrong in a kernel, if anything is, and the reader's line."""
    if fault is not None:
        what, *rest = (line.strip() for line in str(fault).splitlines())
        line = [rest.pop(0)] if rest and fault.line else []
        why = " ".join(rest)
        if fault.kind == "out of bounds" and "mask" in why:  # a mask that is too wide is another mistake than none
            what += ", through its mask" if "lets it through" in why else ", without a mask"
        case.fail("\n  ".join([what, *line]), why)
