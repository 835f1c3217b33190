"""Does a kernel get to a GPU where pip's torch is all there is: no toolkit, no CUDA_HOME?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelcheck.cuda import gpu

PROGRAM = """
import sys
sys.path += sys.argv[1:]
import types
import torch
from torch.cuda import _utils
from torch.utils import cpp_extension
from kernelcheck.cuda import gpu
from tests.kernelcheck.cuda_samples import BASES

loaded = []
cpp_extension.CUDA_HOME = None
torch.version.cuda = "13.0"
torch.cuda.current_device = lambda: 0
torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=8, minor=0)
_utils._cuda_load_module = lambda binary, names: {name: loaded.append(binary) for name in names}
for name, base in BASES.items():
    gpu.compiled(base.source, name)
assert len(loaded) == len(BASES) and all(binary[:4] == bytes([127]) + b"ELF" for binary in loaded)
assert cpp_extension.CUDA_HOME is None
"""


def test_what_nvrtc_lacks_stands_before_the_text_and_on_no_line():
    source = "#include <cstdint>\n#include <cuda_fp16.h>\n__global__ void k(float* x) {}\n"
    text = gpu.for_nvrtc(source)
    before, _, behind = text.partition("#line 1\n")
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
