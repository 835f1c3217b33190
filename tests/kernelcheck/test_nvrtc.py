"""Does a kernel get to a GPU where pip's torch is all there is: no toolkit, no CUDA_HOME?"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kernelcheck.cuda import gpu

PROGRAM = tomllib.loads(Path(__file__).with_name("nvrtc.toml").read_text(encoding="utf-8"))["program"]


def test_what_nvrtc_lacks_stands_before_the_text_and_on_no_line():
    source = "#include <cstdint>\n#include <cuda_fp16.h>\n__global__ void k(float* x) {}\n"
    before, _, behind = gpu.for_nvrtc(source).partition("#line 1\n")
    assert "INFINITY" in before and "int32_t" in before
    assert behind == source.replace("#include <cstdint>", " ")


@pytest.mark.slow
def test_kernels_are_compiled_up_to_the_load_without_a_toolkit():
    where = [path for path in (os.environ.get("COURSE_TRITON", ""), *sys.path) if path]
    if not any(list(Path(path).glob("nvidia/*/lib/libnvrtc.so.*")) for path in where):
        pytest.skip("needs NVRTC: pip install --target FOLDER nvidia-cuda-nvrtc, and COURSE_TRITON=FOLDER")
    environment = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
    environment |= {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, *where[:1]]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
