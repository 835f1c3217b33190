"""On which machine did a test fail, and which command repeats it on another one?

`python -m tests.machine [--once] [ARGUMENTS OF PYTEST]` runs every notebook as each processor of `EMULATED` computes,
and as this one does, on 1, 2 and 4 threads. With `--once` each processor of `EMULATED` is met once, on a number of
threads of its own: beside `make test`, which runs on one thread of this processor, no kind and no number is left out.
Each kernel and each program that a cell starts is a fresh Python here, as readers have it, and not a fork (`pythons`).
"""

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["EMULATED", "command", "description", "line", "main", "runs"]

# Environment under which a newer x86 processor computes as an older one does, by torch's name for what it can do.
# Each library that computes has a variable of its own: PyTorch's kernels, oneDNN, and MKL twice.
EMULATED = {
    "DEFAULT": {
        "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "MKL_CBWR": "COMPATIBLE",
    },
    "AVX2": {
        "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "MKL_CBWR": "AVX2",
    },
}  # fmt: skip
_ASKED = ("COURSE_DEVICE", "OMP_NUM_THREADS")
_SETS = ("sse4_1", "sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")


def processor() -> tuple[str, list[str]]:
    """Return the name of the processor and those of its instruction sets that decide how sums are rounded."""
    name, flags = platform.processor() or platform.machine(), set()
    told = Path("/proc/cpuinfo")  # on Linux
    for row in told.read_text(encoding="utf-8", errors="replace").splitlines() if told.exists() else ():
        key, _, value = (part.strip() for part in row.partition(":"))
        if key == "model name":
            name = value
        elif key in ("flags", "Features"):
            flags |= set(value.split())
    return name, [one for one in _SETS if one in flags]


def description() -> str:
    """Return one line: processor, instruction sets, what torch uses of them, threads, system and versions."""
    import torch

    name, sets = processor()
    return (
        f"{name}, {os.cpu_count()} cores, {' '.join(sets) or platform.machine()}; torch {torch.__version__} computes "
        f"for {torch.backends.cpu.get_cpu_capability()} on {torch.get_num_threads()} threads; {platform.system()}, "
        f"Python {platform.python_version()}"
    )


def command(failed: list[str], config: pytest.Config) -> str:
    """Return the line that runs the failed tests again, on this or on a newer x86 processor, with this environment.

    `failed`: ids of tests, of which the line has five. Of a notebook all cells run, since each needs those before it.
    Where the order was shuffled the line is the one that was typed: a test may have failed because of another.
    """
    import torch

    settings = {name: os.environ[name] for name in _ASKED if name in os.environ}
    if platform.machine() in ("x86_64", "AMD64"):
        settings = EMULATED.get(torch.backends.cpu.get_cpu_capability(), {}) | settings
    option, typed = config.option, config.invocation_params
    if option.order_seed is not None:
        return line(settings, [_python(typed.dir), "-m", "pytest", *map(str, typed.args)], ".")
    tests = dict.fromkeys(test.split("::")[0] if ".ipynb" in test else test for test in failed)
    words = ["--nbval-lax" if getattr(option, "nbval_lax", False) else "--nbval"]
    words += [] if option.markexpr == "not slow" else ["-m", option.markexpr]
    root = os.path.relpath(config.rootpath, typed.dir)
    return line(settings, [_python(config.rootpath), "-m", "pytest", *words, *list(tests)[:5]], root)


def _python(folder: Path) -> str:
    """Return how this Python is called from a folder: as the environment's own where it lies in it or is activated."""
    here = Path(sys.executable)
    if here.is_relative_to(folder):
        return str(here.relative_to(folder))
    return "python" if shutil.which("python") == sys.executable else sys.executable


def line(settings: dict[str, str], words: list[str], folder: str, windows: bool = os.name == "nt") -> str:
    """Return what is typed to run `words` in `folder` with these settings, in a shell like bash or in Windows."""
    begin = [] if folder == "." else ["cd", folder]
    if windows:
        parts = [subprocess.list2cmdline(begin)] if begin else []
        parts += [f"set {name}={value}" for name, value in settings.items()]
        return f'cmd /c "{"&& ".join([*parts, subprocess.list2cmdline(words)])}"'
    assigned = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    return " ".join([shlex.join(begin) + " &&" if begin else "", *assigned, shlex.join(words)]).strip()


def runs(once: bool) -> list[tuple[str, int]]:
    """Return the kinds of processors, each with a number of threads, on which notebooks run; `once`: the short list."""
    if once:
        return [("DEFAULT", 4), ("AVX2", 2)]
    return [(kind, threads) for kind in (*EMULATED, "this processor") for threads in (1, 2, 4)]


def main(arguments: list[str]) -> int:
    """Run the notebooks on each kind of processor and number of threads; return how many of these runs failed."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--once", action="store_true", help="each of the other processors once")
    options, rest = parser.parse_known_args(arguments)
    tests = [sys.executable, "-m", "pytest", "--nbval", "-q", "-n", "auto", "--maxprocesses", "8", "notebooks", *rest]
    failed = 0
    for kind, threads in runs(options.once):
        print(f"{kind}, OMP_NUM_THREADS={threads}", flush=True)
        environment = {**os.environ, **EMULATED.get(kind, {}), "OMP_NUM_THREADS": str(threads), "COURSE_FORKED": "no"}
        done = subprocess.run(tests, cwd=Path(__file__).resolve().parents[1], env=environment, check=False)
        failed += done.returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
