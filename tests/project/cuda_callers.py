"""What calls the packages and the programs where the device is a GPU of CUDA, so that their branches for CUDA run.

`python -m tests.project.cuda_callers FOLDER RAN NAMES` calls the functions of these names on CUDA's face, on a copy of
the course in FOLDER whose branches write their names to the file RAN, and prints as JSON which branches each took.
"""

import contextlib
import io
import json
import linecache
import os
import runpy
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest import mock

from tests.project import cuda_branches


def description(folder: Path) -> None:
    """The second line of each lesson."""
    from course_utils import devices

    assert str(devices.describe(devices.pick())).startswith("cuda:0: Simulated T4 with 1.0 GiB")


def report(folder: Path) -> None:
    """The report of lesson 01."""
    from course_utils import devices

    found = devices.Report.collect()
    assert found.cuda_available and found.kernel_error is None
    assert len(found.gpu_names) == 2 and found.capability == "7.5"


def site(folder: Path) -> None:
    """The GPUs that the check of a site counts."""
    from course_utils import devices

    assert "ok         GPUs: 2" in map(str, devices.site())


def memory(folder: Path) -> None:
    """What lesson 07 measures and limits."""
    import torch

    from course_utils.memory import budget, census, measure

    model = torch.nn.Linear(100, 10).to("cuda")
    assert measure(lambda: torch.ones(100, device="cuda")).peak_bytes >= 400
    assert census().device.type == "cuda"
    try:
        with budget("1 KiB"):
            model(torch.ones(1000, 100, device="cuda"))
    except torch.OutOfMemoryError as error:
        assert str(error).startswith("CUDA out of memory")
    else:
        raise AssertionError("the budget limits nothing")


def sheets(folder: Path) -> None:
    """The data sheets in the pictures of lessons 00 to 03."""
    from course_utils import devices

    assert devices.sheets("cuda")[0].name == "T4"


def formats(folder: Path) -> None:
    """The formats of a roofline, in lesson 03."""
    import torch

    from course_utils.timing import rates

    assert rates.formats(torch.device("cuda")) == ("fp32", "fp16")  # a T4 is older than TF32 and bf16


def answer(folder: Path) -> None:
    """A check on the reader's own device."""
    import torch

    from gpu_course import lesson02

    lesson02.ramp.examine(lesson02.ramp.reference, torch.device("cuda"))


def resuming(folder: Path) -> None:
    """The check of lesson 05 that goes on after a checkpoint."""
    import torch

    from gpu_course import lesson05

    lesson05.Progress.examine(lesson05.Progress.reference, torch.device("cuda"))


def allocator(folder: Path) -> None:
    """The limit of lesson 07 on what PyTorch reserves."""
    import torch

    from gpu_course.lesson07.allocator import limit_memory

    with limit_memory("cuda", 4) as gpu:
        kept = torch.ones(2**18, device="cuda")
        assert gpu.memory_reserved() >= kept.nbytes


def ddp(folder: Path) -> None:
    """The program of lesson 09, one process."""
    _program(folder, "train_ddp.py", "--epochs", "1", "--batch", "256", "--every", "100")


def evening(folder: Path) -> None:
    """The program of lesson 00b, as the only process that torchrun started."""
    one = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    with mock.patch.dict(os.environ, one | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}):
        _program(folder, "train.py", "--epochs", "1", "--samples", "256")


def fsdp(folder: Path) -> None:
    """The program of lesson 10, one process."""
    _program(folder, "train_fsdp.py", "--steps", "1", "--batch", "2")


def layer_norm(folder: Path) -> None:
    """The program that lesson 08b gives away, with `kernelcheck` in Triton's place."""
    import kernelcheck

    (lesson,) = (folder / "notebooks").glob("08b_*.ipynb")
    cells = json.loads(lesson.read_text(encoding="utf-8"))["cells"]
    (source,) = ("".join(cell["source"]) for cell in cells if cell["id"] == "program")
    text, _ = cuda_branches.marked(source, "08b:program", {})
    linecache.cache["program"] = (len(text), None, text.splitlines(True), "program")
    triton, language = kernelcheck.triton(interpreter=True)
    stand_in = ModuleType("triton")
    stand_in.__dict__.update(vars(triton), language=language, __spec__=ModuleSpec("triton", None))
    with mock.patch.dict(sys.modules, {"triton": stand_in, "triton.language": language}):
        exec(compile(text, "program", "exec"), {"__name__": "__main__"})


def _program(folder: Path, name: str, *options: str) -> None:
    said, arguments = io.StringIO(), sys.argv
    sys.argv = [name, *options]
    with contextlib.redirect_stdout(said):
        runpy.run_path(str(folder / "notebooks" / "programs" / name), run_name="__main__")
    sys.argv = arguments
    assert "cuda" in said.getvalue(), said.getvalue()


def main(folder: Path, ran: Path, *names: str) -> None:
    """Call all of them and print what each took."""
    import simgpu

    simgpu.cuda(gpus=2, memory="1 GiB")
    taken, before = {}, 0
    for name in names:
        with contextlib.redirect_stdout(io.StringIO()):
            globals()[name](folder)
        lines = ran.read_text(encoding="utf-8").splitlines()
        taken[name], before = sorted(set(lines[before:])), len(lines)
    print(json.dumps(taken, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
