"""Is what a CUDA kernel does named as what it is?"""

import pytest
import torch

from course_utils import kernels
from tests.kernels.right_variants import RIGHT
from tests.kernels.variants import BASES, BROKEN, Broken

needs_compiler = pytest.mark.skipif(bool(kernels.why_not()), reason="no C++ compiler")


def broken(one: Broken) -> tuple[kernels.Report, str]:
    """Run one broken kernel; return its report and its text."""
    base = BASES[one.base]
    source = base.source
    for old, new in one.edits:
        assert source.count(old) >= 1, old
        source = source.replace(old, new)
    launch = {"grid": base.grid, "block": base.block, "args": base.made(), "shared_mem": base.shared_mem, **one.launch}
    return kernels.compile_cuda(source).check(**launch, limit=1.0), source


@needs_compiler
@pytest.mark.parametrize("one", BROKEN, ids=lambda one: f"{one.base}-{one.edits[-1][1].strip()[:40] if one.edits else one.kind}")
def test_each_broken_kernel_is_named(one):
    report, source = broken(one)
    fault = report.fault
    if not one.kind:
        assert fault is None, fault
        return
    assert fault is not None and fault.kind == one.kind, fault
    assert one.word in str(fault), fault
    if one.at:
        assert one.at in source.splitlines()[fault.line - 1], fault


@needs_compiler
@pytest.mark.parametrize("number", range(len(RIGHT)), ids=lambda number: f"{RIGHT[number][0]}-{number}")
def test_each_right_kernel_is_accepted(number):
    name, source, launch = RIGHT[number]
    base, arguments = BASES[name], BASES[name].made()
    launch = {"grid": base.grid, "block": base.block, **launch}
    report = kernels.compile_cuda(source, launch.pop("name", None)).check(args=arguments, **launch)
    assert report.fault is None, report.fault
    assert base.right(arguments), arguments
