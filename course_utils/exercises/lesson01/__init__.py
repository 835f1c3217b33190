"""Which device, why none, which formats, and does it fit? The exercises of lesson 01."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import replace

import torch

from course_utils import devices
from course_utils.checks import Case, lesson
from course_utils.devices import MINIMUM_DRIVER
from course_utils.exercises.common.mistakes import mistake_of, name_first

__all__ = ["fast_formats", "first_cause", "fits", "pick_device", "visible_gpus"]

exercise = lesson("01")


@exercise(
    title="Pick a device",
    minutes=4,
    difficulty=1,
    hints=(
        "Go through `preference` in its order, and stop at the first kind for which usable(kind) is True.",
        "A return inside the loop ends it; what stands after the loop is reached only when no kind was usable.",
        "for kind in preference: if usable(kind): return torch.device(kind) — and after the loop the CPU.",
    ),
)
def pick_device(preference: list[str], usable: Callable[[str], bool]) -> torch.device:
    """Return the device of the first kind in `preference` that is usable, else the CPU."""
    for kind in preference:
        if usable(kind):
            return torch.device(kind)
    return torch.device("cpu")  # reached when no kind was usable: the program still runs


# fmt: off
@pick_device.checks
def _(case: Case) -> None:
    for preference, there, expected in (
        (["cuda"], ["cuda"], "cuda"), (["cuda"], [], "cpu"), (["cuda", "mps"], ["mps"], "mps"),
        (["cuda", "mps"], ["cuda"], "cuda"), (["xpu", "cuda", "mps"], ["cuda", "mps", "xpu"], "xpu"),
        (["xpu", "cuda"], ["mps"], "cpu"), (["cpu", "cuda"], ["cuda"], "cpu"), ([], ["cuda"], "cpu"),
    ):
        usable = _machine(there)
        got = case.call(preference, usable)
        asked = bool(usable.asked)
        kind = got.type if isinstance(got, torch.device) else None
        last = preference[-1] if preference and usable(preference[-1]) else "cpu"
        wrong = kind is not None and kind != expected
        if isinstance(got, str):
            case.fail("returns a string", f"it has no .type and no .index: return torch.device({got!r})")
        name_first(case, torch.device(expected), got, (
            (got is None, f"returns nothing where {'one' if expected in there else 'no'} kind is usable",
             "with device=None a tensor lands on the default device, without a word"),
            (wrong and not asked, "never asks `usable`",
             "a GPU can be available and fail at every kernel; `usable` has tried it"),
            (wrong and kind == last, "lets a later kind overwrite an earlier one", "return as soon as one is usable"),
            (wrong and kind not in [*there, "cpu"], "returns a device that is not usable here",
             "the first tensor on it would raise an error"),
            (wrong, "ignores `preference` or its order", "the caller knows what the program is for"),
        ))
        case.equal(type(got).__name__, "device")


# fmt: on
def _machine(kinds: list[str]) -> Callable[[str], bool]:
    """Return the function `usable` of a machine on which `kinds` and the CPU work; it keeps what it was asked."""

    def usable(kind: str) -> bool:
        usable.asked.append(kind)
        return kind in kinds or kind == "cpu"

    usable.asked = []
    usable.__name__ = "usable_is_true_for_" + "_and_".join([*kinds, "cpu"])
    return usable


@exercise(
    title="Who is cuda:0?",
    minutes=5,
    difficulty=2,
    hints=(
        "None and the empty text differ: not set means all GPUs, empty means none.",
        "setting.split(',') gives the numbers as text. Go through them in order and collect them as int.",
        'End the loop at the first entry that is no number from 0 to count - 1. "".isdigit() and "-1".isdigit() '
        "are False.",
    ),
)
def visible_gpus(setting: str | None, count: int) -> list[int]:
    """Return the numbers of the GPUs that a program sees, in its own order."""
    if setting is None:
        return list(range(count))
    seen = []
    for entry in setting.split(","):
        if not entry.isdigit() or int(entry) >= count:  # "", "-1" and numbers that do not exist end the list
            break
        seen.append(int(entry))
    return seen


# fmt: off
@visible_gpus.checks
def _(case: Case) -> None:
    for setting, count, expected in (
        (None, 2, [0, 1]), ("1", 2, [1]), ("", 2, []), ("2,0", 4, [2, 0]), ("-1", 2, []), ("0,2,-1,1", 4, [0, 2]),
        ("3,9,1", 4, [3]), ("1,2,0", 2, [1]), ("10,2", 16, [10, 2]),
    ):
        got = case.call(setting, count)
        numbers = isinstance(got, list) and all(type(n) is int for n in got)
        name_first(case, expected, got, (
            (got is None and setting is None, "returns nothing where the variable is not set",
             "then nothing is hidden: the program sees every GPU"),
            (setting == "" and got == list(range(count)), "treats an empty setting as not set",
             "an empty list hides every GPU; `if not setting` is True for None and for the empty text"),
            (isinstance(got, list) and not numbers, "returns texts, not numbers", "'10' and 10 differ: use int(…)"),
            (numbers and got != expected and got == sorted(expected), "loses the order of the setting",
             "the first number of the list becomes cuda:0"),
            (numbers and count in got, "takes `count` for a GPU", "they are numbered from 0 to count - 1"),
            (setting == "10,2" and numbers and got != expected and max(got, default=0) < 10, "reads single digits",
             "'10' is one number: split the text at its commas"),
            (setting and numbers and set(got) > set(expected), "goes on after a number that does not exist",
             "at the first such number the list ends, whatever follows"),
            (expected and got != expected and got == list(range(len(expected))), "returns the program's own numbers",
             "those are always 0, 1, …; the question is which GPU of the machine is behind each"),
        ))
        case.equal(got, expected)


# fmt: on
@exercise(
    title="Diagnose six reports",
    minutes=7,
    difficulty=2,
    hints=(
        "One `if` with a return for each cause, in the order of the list. The last one, 'hidden', needs no `if`.",
        "kernel_error is None where a first kernel ran. cuda_build and driver are None where there is none.",
        "Compare whole numbers: int(report.driver.split('.')[0]) with the minimum for the major version of cuda_build.",
    ),
)
def first_cause(report: devices.Report) -> str:
    """Return the first of the six causes that holds for `report`."""
    if report.cuda_available:  # only a kernel that ran proves that the GPU works
        return "works" if report.kernel_error is None else "unsupported capability"
    if report.cuda_build is None:
        return "cpu-only build"
    if report.driver is None:
        return "no driver"
    build, driver = int(report.cuda_build.split(".")[0]), int(report.driver.split(".")[0])
    return "driver too old" if driver < MINIMUM_DRIVER[build] else "hidden"


# fmt: off
@first_cause.checks
def _(case: Case) -> None:
    for report, expected, name, why in _patients():
        got = case.call(report)
        words = {cause for _, cause, *_ in _patients()}
        if got != expected and isinstance(got, str):
            strange = "" if got in words else f"the causes are {', '.join(sorted(words))}"
            name = "returns a word that is not in the list" if strange else name
            case.fail(name, strange or why, expected=expected, got=got)
        case.equal(got, expected, why=why)


def _patients() -> list[tuple[devices.Report, str, str, str]]:
    """Return reports with the right cause, the name of the mistake behind a wrong one, and why it matters."""
    stored = devices.Report.stored()
    well, hidden, old, cpu_only = (stored[n] for n in ("colab_t4", "hidden_gpu", "old_driver", "windows_from_pip"))
    healthy, order = "finds a fault where a kernel ran", "asks for the driver before the build"
    useless = "a build without CUDA never asks the driver, so a new one would change nothing"
    return [
        (well, "works", healthy, "a kernel ran: all is well"),
        (stored["kaggle_p100"], "unsupported capability", "overlooks the kernel_error",
         "is_available() asks the driver only; the error says that nothing runs"),
        (cpu_only, "cpu-only build", "overlooks the build", "cuda_build is None: no driver can help"),
        (replace(cpu_only, driver="450.51"), "cpu-only build", order, useless),
        (stored["laptop_without_gpu"], "cpu-only build", order, useless),
        (stored["linux_without_driver"], "no driver", "overlooks the missing driver", "nothing speaks to the GPU"),
        (old, "driver too old", "overlooks the age of the driver", "the minimum for CUDA 13 is 580"),
        (replace(old, visible_devices="0"), "driver too old", "asks for hidden GPUs before the driver",
         "with a driver that is too old no setting makes the GPU visible"),
        (hidden, "hidden", "overlooks CUDA_VISIBLE_DEVICES", "build and driver fit, and still nothing is seen"),
        (replace(hidden, visible_devices=""), "hidden", "overlooks an empty CUDA_VISIBLE_DEVICES",
         "set to nothing it hides every GPU; only None means that it is not set"),
        (replace(hidden, cuda_build="12.8", driver="535.183.01"), "hidden", "takes the minimum of another CUDA",
         "each major version has its own: 525 for CUDA 12, 580 for CUDA 13"),
        (replace(hidden, driver="1005.20.01"), "hidden", "compares versions as text",
         "as text '1005' comes before '580'; compare whole numbers"),
        (replace(well, visible_devices="0"), "works", healthy, "the variable may be set on a machine that works"),
        (replace(stored["kaggle_p100"], kernel_error=None), "works", healthy, "an older build runs on this GPU"),
    ]


# fmt: on
@exercise(
    title="Which formats are fast?",
    minutes=4,
    difficulty=1,
    hints=(
        "Write down for each format the first capability that has it, as a dictionary of tuples.",
        "Python compares tuples as you need it: (8, 6) >= (8, 0) is True, and so is (10, 0) >= (8, 9).",
        "return {name for name, first in since.items() if capability >= first}",
    ),
)
def fast_formats(capability: tuple[int, int]) -> set[str]:
    """Return the number formats that the tensor cores of this compute capability multiply."""
    since = {"fp16": (7, 0), "int8": (7, 5), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9), "fp4": (10, 0)}
    return {name for name, first in since.items() if capability >= first}


# fmt: off
@fast_formats.checks
def _(case: Case) -> None:
    for capability in ((8, 0), (7, 0), (7, 5), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0), (6, 0)):
        expected = fast_formats.reference(capability)
        got = case.call(capability)
        more, less = (got - expected, expected - got) if isinstance(got, set) else (set(), set())
        name_first(case, expected, got, (
            (isinstance(got, list | tuple | dict), f"returns a {type(got).__name__}, not a set",
             "{} is an empty dictionary; the empty set is set()"),
            ("bf16" in more, "takes bf16 for fast below 8.0", "it is emulated there: the tensor cores know no bf16"),
            (more - fast_formats.reference((10, 0)), "returns a format that was not asked for", "the task lists six"),
            ((more == {"fp4"} and capability < (9, 0)) or (capability >= (10, 0) and "fp16" in less),
             "takes 10.0 for older than 7.0",
             "as text '10.0' comes before '7.0'; compare tuples of numbers"),
            (more and more <= {"fp8", "int8"}, "looks at the first number only", "fp8 came with 8.9, int8 with 7.5"),
            (more, "takes a format for fast too early", "it would run emulated, or not at all"),
            (len(less) > 1, "knows single capabilities only", "8.6 has what 8.0 had, 9.0 what 8.9 had"),
            (less, "leaves a format out", "a later capability keeps what earlier ones had"),
        ))
        case.equal(got, expected)


# fmt: on
@exercise(
    title="Does it fit?",
    minutes=4,
    difficulty=2,
    hints=(
        "Bring everything to bytes: elements × bytes each, MiB × 2**20, GiB × 2**30.",
        "math.prod(shape) multiplies the sizes; dtype.itemsize is the size of one element in bytes.",
        "return math.prod(shape) * dtype.itemsize + workspace_mib * 2**20 <= free_gib * 2**30",
    ),
)
def fits(shape: tuple[int, ...], dtype: torch.dtype, free_gib: float, workspace_mib: float) -> bool:
    """Return whether a tensor of `shape` and `dtype` fits beside the workspace."""
    tensor_bytes = math.prod(shape) * dtype.itemsize
    return tensor_bytes + workspace_mib * 2**20 <= free_gib * 2**30


# fmt: off
_FITS = (
    ((1024, 1024, 128), torch.float32, 1.0, 0.0),
    ((1024, 1024, 256), torch.float32, 1.0, 0.0),
    ((1024, 1024, 257), torch.float32, 1.0, 4.0),
    ((1024, 1024, 256), torch.float32, 1.0, 1.0),
    ((1024, 1024, 255), torch.float32, 1.0, 4.0),
    ((1024, 1024, 255), torch.float32, 1.0, 4.1),
    ((1_050_000_000,), torch.uint8, 1.0, 0.0),
    ((1024, 1024, 256), torch.float16, 0.5, 0.0),
    ((1024, 1024, 256), torch.float64, 1.0, 0.0),
    ((), torch.float32, 0.0, 0.0),
    ((2**20, 2**20), torch.float32, 16.0, 0.0),
)
_GIB, _MIB = 2**30, 2**20
_MISFITS: tuple[tuple[str, str, Callable], ...] = (  # a mistake, why it matters, what people compute
    ("counts bits for bytes", "a byte has 8 bits: float32 has 32 bits, which are 4 bytes",
     lambda s, d, f, w: math.prod(s) * d.itemsize * 8 + w * _MIB <= f * _GIB),
    ("takes GB for GiB", "1 GiB is 2**30 bytes, 7 % more than the 10**9 of 1 GB",
     lambda s, d, f, w: math.prod(s) * d.itemsize + w * _MIB <= f * 1e9),
    ("takes MB for MiB", "1 MiB is 2**20 bytes, 5 % more than 1 MB",
     lambda s, d, f, w: math.prod(s) * d.itemsize + w * 1e6 <= f * _GIB),
    ("forgets the workspace", "the tensor would fit, and the first operation on it would run out of memory",
     lambda s, d, f, w: math.prod(s) * d.itemsize <= f * _GIB),
    ("takes the workspace off the tensor", "both are needed at the same time: add them",
     lambda s, d, f, w: math.prod(s) * d.itemsize - w * _MIB <= f * _GIB),
    ("takes KiB for MiB", "1 MiB is 2**20 bytes", lambda s, d, f, w: math.prod(s) * d.itemsize + w * 2**10 <= f * _GIB),
    ("adds the workspace to what is free", "the operation takes it away from what is free",
     lambda s, d, f, w: math.prod(s) * d.itemsize <= f * _GIB + w * _MIB),
    ("says no where it is exactly full", "the last byte can be used too: <=, not <",
     lambda s, d, f, w: math.prod(s) * d.itemsize + w * _MIB < f * _GIB),
    ("takes 4 bytes for every type", "float16 has 2 bytes, float64 has 8: ask dtype.itemsize",
     lambda s, d, f, w: math.prod(s) * 4 + w * _MIB <= f * _GIB),
)


@fits.checks
def _(case: Case) -> None:
    answers = [case.call(*given) for given in _FITS]
    for given, got in zip(_FITS, answers, strict=True):
        expected = fits.reference(*given)
        case.call(*given)  # so that a message shows this call
        if type(got) is bool and got != expected:
            tensor_gib, workspace_gib = math.prod(given[0]) * given[1].itemsize / _GIB, given[3] / 1024
            name, why = mistake_of(answers, _FITS, _MISFITS, operator.eq)
            sizes = f"the tensor takes {tensor_gib:.4g} GiB and the workspace {workspace_gib:.4g} GiB"
            case.fail(name or sizes, why, expected=expected, got=got)
        case.equal(got, expected)
