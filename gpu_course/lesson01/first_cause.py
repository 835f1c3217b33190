"""The exercise “Diagnose six reports”."""

from dataclasses import replace

from course_utils import devices
from course_utils.devices import MINIMUM_DRIVER
from gpu_course.checks import Case, exercise


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
        case.fail_if(
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
