"""Is a check still possible where a version of PyTorch lacks a name through which settings are asked?"""

import sys

import pytest
import torch
from torch import overrides
from torch.utils import _python_dispatch

from gpu_course import settings as watched


@pytest.mark.parametrize(("owner", "name", "setting"), [
    (torch, "_GLOBAL_DEVICE_CONTEXT", "the default device"),
    (torch._C, "_get_privateuse1_backend_name", "autocast"),
    (torch._C, "_get_cudnn_benchmark", "which kernels torch may choose"),
    (torch._C, "_get_cudnn_allow_tf32", "the precision of float32 matrix products"),
    (torch._C._autograd, "_top_saved_tensors_default_hooks", "the hooks for saved tensors"),
    (overrides, "_get_current_function_mode_stack", "the modes that are entered"),
    (_python_dispatch, "_get_current_dispatch_mode_stack", "the modes that are entered"),
])  # fmt: skip
def test_what_a_version_lacks_is_not_watched(owner, name, setting, monkeypatch):
    everything = watched.read()
    monkeypatch.delattr(owner, name)
    settings = watched.read()
    assert settings[setting] is watched.UNKNOWN is not everything[setting]
    torch.set_default_dtype(torch.float64)
    assert watched.put_back(settings) == ["the default dtype"]
    assert torch.get_default_dtype() is torch.float32


def test_the_recursion_limit_that_the_compiler_sets_is_not_told_and_a_higher_one_is():
    before, settings = sys.getrecursionlimit(), watched.read()
    compilers = max(before, 2_000)
    try:
        sys.setrecursionlimit(compilers)
        assert watched.put_back(settings) == []
        sys.setrecursionlimit(compilers + 1_000)
        assert watched.put_back(settings) == ["the recursion limit"]
        assert sys.getrecursionlimit() == compilers
    finally:
        sys.setrecursionlimit(before)
