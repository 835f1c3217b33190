"""Are the kernels of the gym those that compilers have accepted?"""

import inspect
import re

from gpu_course import lesson08b
from gpu_course.catalogue import registry
from gpu_course.checks import source_of
from tests.kernelcheck.texts import texts


def test_each_reference_is_stored_as_a_text_that_a_compiler_accepts():
    """`tests.kernelcheck.texts` compiles the stored ones, where Triton and NVRTC are."""
    stored = {text.name: text for text in texts()}
    transpose = lesson08b.transpose.reference().strip().replace("transpose(", "kernel(")
    assert stored["transpose"].accepted and stored["transpose"].text.strip() == transpose  # by NVRTC
    kernels = [one for one in registry() if one.lesson == "08b" and not one.name.endswith(("transpose", "_tiles"))]
    assert len(kernels) == 9
    for one in kernels:
        source = re.sub(rf"^def {one.name}\(", "@triton.jit\ndef kernel(", source_of(one.reference)).strip()
        if one.name == "linear_scan":
            source = f"{inspect.getsource(lesson08b.after.fn)}\n\n{source}"
        assert stored[one.name].accepted and stored[one.name].text.strip() == source
