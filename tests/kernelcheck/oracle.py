"""Second opinion on samples and stored answers: ttsem, which executes the IR of Triton's own compiler on a CPU.

`python -m tests.kernelcheck.oracle FOLDER` gives ttsem the samples of this folder, and each launch that a check of
lessons 08 and 08b makes of a stored answer. FOLDER is where pip installed ttsem and Triton. It prints what the two say
differently, and ends with status 1 where EXPLAINED has no reason for it. Launches with `Addresses` are left out.
"""

import copy
import inspect
import linecache
import math
import sys
from collections.abc import Iterator
from typing import Any

import torch

import kernelcheck
from gpu_course import catalogue
from gpu_course.checks import WrongAnswer, source_of
from tests.kernelcheck.triton_samples import SAMPLES, Sample

# Why the two may differ about a kernel: by its name, or about a wrong answer by what they say.
EXPLAINED = {
    "race here, right there": "programs store equal numbers to one element: for ttsem only different ones are a race",
    "undefined here, right there": "without `other` ttsem takes 0 where a mask is off, which Triton does not promise",
    "language here, right there": "a kernel that returns a number: a later stage of Triton's compiler refuses it",
    "sample: last program": (by_atomics := "atomic operations order the programs: ttsem does not follow them"),
    "sample: lock": by_atomics,
    "multiplies in TF32": "ttsem multiplies float32 as it is; here and on a GPU TF32 rounds it first",
    "takes the mean of the squares minus the square of the mean": "what is left is the rounding of two sums",
}


def answers() -> Iterator[tuple[str, bool, Any, Any]]:
    """Yield each stored answer in Triton's language: its name, whether it is right, its exercise and the function."""
    for exercise in catalogue.registry():
        if exercise.lesson in ("08", "08b") and "tl." in source_of(exercise.reference):
            yield "reference", True, exercise, exercise.reference
            yield from ((one.cost, True, exercise, one.answer) for one in exercise.alternatives)
            yield from ((one.name, False, exercise, one.answer) for one in exercise.mistakes)
            for kind in ("right", "wrong"):
                yield from ((row.name, kind == "right", exercise, answer) for row, answer in exercise.stored(kind))


def in_triton(function: Any) -> Any:
    """Return the kernel of the installed Triton with the same text."""
    import triton
    import triton.language as tl

    text, file = inspect.getsource(function), f"<{function.__name__} in Triton {id(function)}>"
    called = [name for name in function.__code__.co_names if hasattr(function.__globals__.get(name), "fn")]
    parts = [*(inspect.getsource(function.__globals__[name].fn) for name in called), text]
    text = "\n\n".join(f"@triton.jit\n{part[part.index('def ') :]}" for part in parts)
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    space = {"triton": triton, "tl": tl, "math": math, "torch": torch, "__name__": "answer"}
    exec(compile(text, file, "exec"), space)
    return space[function.__name__]


def by_other(
    kernel: Any, grid: tuple[int, ...], args: list[Any], options: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return what ttsem has against a launch, "" if nothing, and what it leaves in its tensors."""
    from triton.compiler.errors import CompilationError
    from ttsem import harness, sanitize

    # so it compiles to the first stage alone, not to machine code of a GPU
    harness._compile_asm, sanitize._check_shared = lambda *_: {"ttir": "module {}"}, lambda *_: None
    try:
        with sanitize.session(cuda_is_cpu=False):
            kernel[grid](*args, **options)
    except sanitize.KernelFault as fault:
        return fault.fault.kind, {}
    except CompilationError as error:
        return f"refused: {str(error).splitlines()[-1]}", {}
    return "", dict(zip(kernel.arg_names, args, strict=False))


def difference(report: Any, kernel: Any, grid: tuple[int, ...], args: list[Any], options: dict[str, Any]) -> list[str]:
    """Return in what a report and ttsem differ about a launch, with nothing if in nothing."""
    (other, left), mine = by_other(kernel, grid, args, options), report.fault.kind if report.fault is not None else ""
    if bool(mine) != bool(other):
        return [f"{mine or 'right'} here, {other or 'right'} there"]
    pairs = {} if mine else {name: (one.double(), left[name].double()) for name, one in report.results.items()}
    return [f"{n} has other values" for n, two in pairs.items() if not torch.allclose(*two, 1e-2, 1e-2, equal_nan=True)]


def differences(exercise: Any, answer: Any) -> set[str]:
    """Return in what the two differ about the launches that a check makes of an answer."""
    found, run = set[str](), kernelcheck.checked

    def checked(kernel: Any, grid: Any, *args: Any) -> Any:
        report = run(kernel, grid, *args)
        if kernel.fn is answer and not any(isinstance(one, kernelcheck.Addresses) for one in args):
            found.update(difference(report, in_triton(answer), grid, list(copy.deepcopy(args)), {}))
        return report

    kernelcheck.checked = checked
    try:
        exercise.examine(answer, "cpu")
    except WrongAnswer:
        pass
    finally:
        kernelcheck.checked = run
    return found


def of_sample(sample: Sample) -> list[str]:
    """Return in what the two differ about a sample of this folder."""
    import triton
    import triton.language as tl

    kernel, (grid, args, options, _) = sample.kernel(triton, tl), sample.call()
    report = kernelcheck.checked(kernel, grid, *args, **options)
    return difference(report, kernel, grid, list(args), options)


def main() -> int:
    """Print the differences and return whether one has no reason."""
    samples = [name for name in SAMPLES if name != "programs that wait"]  # for ttsem the first never ends
    said = [(f"sample: {name}", True, one) for name in samples for one in of_sample(SAMPLES[name])]
    for name, is_right, exercise, answer in answers():
        if inspect.isfunction(answer):
            print(exercise.name, name, sep=": ", flush=True)
            said += [(name, is_right, one) for one in sorted(differences(exercise, answer))]
    reasons = [EXPLAINED.get(name) or ("" if is_right else EXPLAINED.get(one, "")) for name, is_right, one in said]
    print(
        *(f"{name}; {one}; {why or 'NO REASON'}" for (name, _, one), why in zip(said, reasons, strict=True)), sep="\n"
    )
    return int(not all(reasons))


if __name__ == "__main__":
    sys.path += sys.argv[1:]
    sys.exit(main())
