"""Which device, why none, which formats, and does it fit? The exercises of lesson 01."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile

import torch

from course_utils import devices
from course_utils.devices import MINIMUM_DRIVER
from gpu_course.checks import Case, edges, lesson
from gpu_course.lesson01.latency import seconds_until_done

__all__ = ["fast_formats", "first_cause", "fits", "pick_device", "seconds_until_done", "visible_gpus"]

exercise = lesson("01")


@exercise(
    title="Pick a device",
    minutes=5,
    difficulty=1,
    hints=(
        "Go through `preference` from its beginning, and stop at the first kind for which usable(kind) is True.",
        "A return inside the loop ends the function. So a line below the loop runs only when no kind was usable.",
        "Two returns: one inside the `if`, a torch.device made from the kind, and one below the loop, for the CPU.",
    ),
)
def pick_device(preference: list[str], usable: Callable[[str], bool]) -> torch.device:
    """Return the device of the first usable kind in `preference`, else the CPU."""
    for kind in preference:
        if usable(kind):
            return torch.device(kind)
    return torch.device("cpu")  # reached when no kind was usable: the program still runs


pick_device.leaves_out("it is handed a function, and each machine has another", "second_call")


@pick_device.checks
def _(case: Case) -> None:
    for preference, there, expected in (
        (["cuda"], ["cuda"], "cuda"),
        (["cuda"], [], "cpu"),
        (["cuda", "mps"], ["mps"], "mps"),
        (["cuda", "mps"], ["cuda"], "cuda"),
        (["xpu", "cuda", "mps"], ["cuda", "mps", "xpu"], "xpu"),
        (["xpu", "cuda"], ["mps"], "cpu"),
        (["cpu", "cuda"], ["cuda"], "cpu"),
        ([], ["cuda"], "cpu"),
        (["mps", "xpu", "cuda"], ["xpu", "cuda"], "xpu"),
        (["xpu", "hpu", "cuda", "mps"], ["mps"], "mps"),  # "the first kind that is usable", however late
        (["hpu", "cuda"], ["hpu", "cuda"], "hpu"),  # "some kinds of devices", not only those of this lesson
    ):
        usable = _machine(there)
        got = case.call(preference, usable)
        case.instead(
            isinstance(got, str),
            "returns a string",
            f"a string has no .type and no .index: return torch.device({got!r})",
        )
        where = "one" if expected in there else "no"
        case.instead(
            got is None,
            f"returns nothing where {where} kind is usable",
            "with device=None a tensor lands on the default device, without a word",
        )
        wrong = isinstance(got, torch.device) and got != torch.device(expected)
        case.instead(
            wrong and not usable.asked,
            "never asks `usable`",
            "a GPU can be available and fail at every kernel; `usable` has tried it",
            expected=torch.device(expected),
            got=got,
        )
        case.equal(got, torch.device(expected), why="the first kind in `preference` that is usable, else the CPU")


@pick_device.alternative("one expression, which also asks no more kinds than it must; the loop is easier to extend")
def _(preference, usable):
    return next((torch.device(kind) for kind in preference if usable(kind)), torch.device("cpu"))


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
    minutes=10,
    difficulty=2,
    hints=(
        "None and the empty text differ. If the variable is not set, the program sees all GPUs; if it is empty, none.",
        "setting.split(',') gives the numbers as text. Go through them in order and collect them as int.",
        "`break` ends the loop: at an entry that is no number (`isdigit`), and at a number that no GPU has. The empty "
        "text needs no `if` of its own.",
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


visible_gpus.leaves_out("a machine has no fewer GPUs than none, and no billions", "number_negative number_large")


@visible_gpus.checks
def _(case: Case) -> None:
    edges.note("one_entry", "order", "limit")  # of the text: "1"; "2,0" and "1,2,0"; 4 of four GPUs
    for setting, count, expected in (
        (None, 2, [0, 1]),
        ("1", 2, [1]),
        ("", 2, []),
        ("2,0", 4, [2, 0]),
        ("-1", 2, []),
        ("0,2,-1,1", 4, [0, 2]),
        ("3,9,1", 4, [3]),
        ("1,2,0", 2, [1]),
        ("10,2", 16, [10, 2]),
        ("3,1,4,0", 4, [3, 1]),
        (None, 0, []),
        ("0", 0, []),
        ("3,1,2,0", 4, [3, 1, 2, 0]),  # "the numbers of the GPUs that a program sees", all of them
    ):
        got = case.call(setting, count)
        case.instead(
            got is None and setting is None,
            "returns nothing where the variable is not set",
            "then nothing is hidden: the program sees every GPU",
        )
        texts = isinstance(got, list) and any(isinstance(entry, str) for entry in got)
        case.instead(texts, "returns texts, not numbers", "'10' and 10 differ: use int(…)", expected=expected, got=got)
        case.equal(got, expected)


@visible_gpus.mistake("loses the order of the setting", "the first number of the list becomes cuda:0")
def _(setting, count):
    return [number for number in range(count) if setting is None or str(number) in setting.split(",")]


@visible_gpus.mistake(
    "returns the program's own numbers",
    "those are always 0, 1, …; the question is which GPU of the machine is behind each",
)
def _(setting, count):
    return list(range(count if setting is None else len([entry for entry in setting.split(",") if entry])))


@visible_gpus.alternative("no branch for None and none inside the loop; the reader must know takewhile")
def _(setting, count):
    known = [str(number) for number in range(count)]
    entries = known if setting is None else setting.split(",")
    return [int(entry) for entry in takewhile(known.__contains__, entries)]


@exercise(
    title="Diagnose six reports",
    minutes=12,
    difficulty=2,
    hints=(
        "Write one `if` with a return for each cause, in the order of the list. The last, 'hidden', needs no `if`.",
        "kernel_error is None if the first kernel ran. cuda_build and driver are None if the machine has none.",
        "Is the driver too old? Compare whole numbers: the one before the first dot of `driver`, and MINIMUM_DRIVER of "
        "the one before the first dot of `cuda_build`. `split` and `int` make a number from a text.",
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


@first_cause.checks
def _(case: Case) -> None:
    words = {cause for _, cause, _ in _patients()}
    for report, expected, why in _patients():
        got = case.call(report)
        strange = isinstance(got, str) and got not in words
        case.instead(
            strange, "returns a word that is not in the list", f"the causes are {', '.join(sorted(words))}", got=got
        )
        case.equal(got, expected, why=why)


def _patients() -> list[tuple[devices.Report, str, str]]:
    """Return reports with the right cause and why it is that one."""
    stored = devices.Report.stored()
    well, hidden, old, cpu_only = (stored[n] for n in ("colab_t4", "hidden_gpu", "old_driver", "windows_from_pip"))
    useless = "a build without CUDA never asks the driver, so a new one would change nothing"
    return [
        (well, "works", "a kernel ran: all is well"),
        (
            stored["kaggle_p100"],
            "unsupported capability",
            "is_available() asks the driver only; the kernel_error says that nothing runs",
        ),
        (
            replace(stored["kaggle_p100"], capability="12.0", arch_list=("sm_70", "sm_75", "sm_80", "sm_86", "sm_90")),
            "unsupported capability",
            "a GPU newer than its build fails too: only the kernel_error tells",
        ),
        (cpu_only, "cpu-only build", "cuda_build is None: no driver can help"),
        (replace(cpu_only, driver="450.51"), "cpu-only build", useless),
        (stored["laptop_without_gpu"], "cpu-only build", useless),
        (stored["linux_without_driver"], "no driver", "nothing speaks to the GPU"),
        (old, "driver too old", "the minimum for CUDA 13 is 580"),
        (replace(old, visible_devices="0"), "driver too old", "with a driver that is too old no setting shows the GPU"),
        (hidden, "hidden", "build and driver fit, and still nothing is seen"),
        (replace(hidden, visible_devices=""), "hidden", "set to nothing it hides every GPU; only None means not set"),
        (
            replace(hidden, cuda_build="12.8", driver="535.183.01"),
            "hidden",
            "each major version has its own: 525 for CUDA 12, 580 for CUDA 13",
        ),
        (replace(hidden, driver="1005.20.01"), "hidden", "as text '1005' comes before '580'; compare whole numbers"),
        (replace(well, visible_devices="0"), "works", "the variable may be set on a machine that works"),
        (replace(stored["kaggle_p100"], kernel_error=None), "works", "an older build runs on this GPU"),
        (replace(well, kernel_error="CUDA out of memory"), "unsupported capability", "any error of the kernel counts"),
        (replace(old, cuda_build="12.8", driver="520.61.05"), "driver too old", "the minimum for CUDA 12 is 525"),
        (replace(old, cuda_build="11.8", driver="440.33.01"), "driver too old", "the minimum for CUDA 11 is 450"),
        (replace(old, cuda_build="11.8", driver="450.51.06"), "hidden", "the minimum itself is enough"),
        (replace(old, kernel_error="CUDA error"), "driver too old", "the second cause holds where CUDA is available"),
        (replace(cpu_only, rocm_build="6.4"), "cpu-only build", "a build for AMD GPUs has no CUDA"),
        (replace(cpu_only, mps_available=True), "cpu-only build", "the list asks for CUDA, and this build has none"),
        (replace(cpu_only, driver="450.51", visible_devices=""), "cpu-only build", "of two causes the first counts"),
        (replace(stored["linux_without_driver"], visible_devices=""), "no driver", "of two causes the first counts"),
    ]


@first_cause.alternative("a table of rules: a new cause is one line more, and later rules must not run before earlier")
def _(report):
    def major(version):
        return int(version.split(".")[0])

    rules = (
        ("unsupported capability", lambda: report.cuda_available and report.kernel_error),
        ("works", lambda: report.cuda_available),
        ("cpu-only build", lambda: report.cuda_build is None),
        ("no driver", lambda: report.driver is None),
        ("driver too old", lambda: major(report.driver) < MINIMUM_DRIVER[major(report.cuda_build)]),
    )
    return next((cause for cause, holds in rules if holds()), "hidden")


@exercise(
    title="Which formats are fast?",
    minutes=6,
    difficulty=1,
    hints=(
        "Write down for each format the first capability that has it, as a dictionary of tuples.",
        "Python compares tuples as you need it: (8, 6) >= (8, 0) is True, and so is (10, 0) >= (8, 9).",
        "Go through the items of the dictionary; keep each name whose first capability is not above this one.",
    ),
)
def fast_formats(capability: tuple[int, int]) -> set[str]:
    """Return the formats that the tensor cores of this compute capability multiply."""
    since = {"fp16": (7, 0), "int8": (7, 5), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9), "fp4": (10, 0)}
    return {name for name, first in since.items() if capability >= first}


fast_formats.leaves_out("no capability is so", "number_negative number_large")


@fast_formats.checks
def _(case: Case) -> None:
    edges.note("limit")  # each first capability itself
    for capability in (
        (8, 0), (7, 0), (7, 5), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (11, 0), (12, 0), (12, 1), (6, 0), (6, 1),
        (10, 3),  # whose exception the text leaves aside
        (13, 0),  # "a later capability keeps the formats of earlier ones", one that is still to come too
    ):  # fmt: skip
        got = case.call(capability)
        expected = {
            name
            for name, first in (("fp16", 70), ("int8", 75), ("bf16", 80), ("tf32", 80), ("fp8", 89), ("fp4", 100))
            if capability[0] * 10 + capability[1] >= first
        }
        case.instead(
            isinstance(got, list | tuple | dict),
            f"returns a {type(got).__name__}, not a set",
            "{} is an empty dictionary; the empty set is set()",
            expected=expected,
            got=got,
        )
        strange = isinstance(got, set) and got - {"fp16", "int8", "bf16", "tf32", "fp8", "fp4"}
        case.instead(strange, "returns a format that was not asked for", "the task lists six", got=got)
        case.equal(got, expected)


@fast_formats.alternative("the generations in their order: reads like the text, and is longer")
def _(capability):
    formats = set()
    for first, added in ((7, 0), {"fp16"}), ((7, 5), {"int8"}), ((8, 0), {"bf16", "tf32"}), ((8, 9), {"fp8"}):
        formats |= added if capability >= first else set()
    return formats | {"fp4"} if capability >= (10, 0) else formats


@exercise(
    title="Does it fit?",
    minutes=8,
    difficulty=2,
    hints=(
        "Turn everything into bytes: elements × bytes of each, MiB × 2**20, GiB × 2**30.",
        "math.prod(shape) multiplies the sizes; dtype.itemsize is the size of one element in bytes.",
        "Tensor and workspace are in memory at the same time. Add their bytes; the sum must be <= the free bytes.",
    ),
)
def fits(shape: tuple[int, ...], dtype: torch.dtype, free_gib: float, workspace_mib: float) -> bool:
    """Return whether a tensor of `shape` and `dtype` fits beside the workspace."""
    tensor_bytes = math.prod(shape) * dtype.itemsize
    return tensor_bytes + workspace_mib * 2**20 <= free_gib * 2**30


fits.leaves_out("no size is below 0", "number_negative")


@fits.checks
def _(case: Case) -> None:
    edges.note("limit")  # "if they fill the memory exactly, they fit"
    for shape, dtype, free_gib, workspace_mib in (
        ((1024, 1024, 128), torch.float32, 1.0, 0.0),
        ((1024, 1024, 256), torch.float32, 1.0, 0.0),
        ((1024, 1024, 257), torch.float32, 1.0, 4.0),
        ((1024, 1024, 256), torch.float32, 1.0, 1.0),
        ((1024, 1024, 255), torch.float32, 1.0, 4.0),
        ((1024, 1024, 255), torch.float32, 1.0, 4.1),
        ((1024, 1024, 200), torch.float32, 1.0, 300.0),
        ((1024, 1024, 230), torch.float32, 1.0, 60.0),
        ((4, 256, 1024, 236), torch.float32, 1.0, 0.0),  # four dimensions, more than nine tenths
        ((2, 2, 1024, 2**17), torch.float32, 1.0, 0.0),
        ((1024, 1024, 230), torch.float32, 1.0, 36.0),
        ((1_050_000_000,), torch.uint8, 1.0, 0.0),
        ((1024, 1024, 256), torch.float16, 0.5, 0.0),
        ((1024, 1024, 256), torch.float64, 1.0, 0.0),
        ((), torch.float32, 0.0, 0.0),
        ((), torch.float32, 1.0, 0.0),
        ((2**30 - 2,), torch.uint8, 1.0, 4.0),
        ((2**30 - 2000,), torch.uint8, 1.0, 4.0),
        ((2**20, 2**20), torch.float32, 16.0, 0.0),
        ((1000, 1000), torch.float64, 1.0, 1017.0),
        ((0, 5), torch.float32, 0.0, 0.0),
        ((3,), torch.uint8, 3 / 2**30, 0.0),
        ((10,), torch.float32, 1.0, 1025.0),  # the workspace alone is too large
        ((2**30 + 1,), torch.uint8, 1.0, 0.0),  # a byte too many
        ((2**31,), torch.bool, 2.0, 0.0),
        ((2**27,), torch.complex64, 0.9, 0.0),
        ((2**29,), torch.bfloat16, 1.0, 0.0),
        ((2**28,), torch.int32, 1.0, 0.0),
        ((2**28,), torch.float8_e4m3fn, 0.25, 0.0),
    ):
        got = case.call(shape, dtype, free_gib, workspace_mib)
        gib = torch.empty(shape, dtype=dtype, device="meta").nbytes / 2**30
        sizes = f"the tensor takes {gib:.4g} GiB and the workspace {workspace_mib / 1024:.4g} GiB"
        case.equal(got, gib + workspace_mib / 2**10 <= free_gib, why=sizes)


@fits.alternative("PyTorch multiplies: a tensor on `meta` has a size and takes no memory; it costs microseconds")
def _(shape, dtype, free_gib, workspace_mib):
    return torch.empty(shape, dtype=dtype, device="meta").nbytes + workspace_mib * 2**20 <= free_gib * 2**30
