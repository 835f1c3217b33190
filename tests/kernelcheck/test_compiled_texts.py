"""Does `kernelcheck` accept what compilers accept, and refuse what they refuse?

The stored verdicts are those of Triton 3.9, NVRTC 13.5 and nvcc 13.0. Half of the texts were written before the rules,
and half afterwards; none was used to write them. Those of the gym are its references, and them with one thing wrong;
nvcc has not seen these.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernelcheck
from tests.kernelcheck.texts import Text, compilers, ours, texts

TEXTS = texts()
needs_compiler = pytest.mark.skipif(bool(kernelcheck.why_not()), reason="no C++ compiler")


def test_there_are_enough_of_both_verdicts():
    accepted = sum(text.accepted for text in TEXTS)
    assert accepted >= 60 and len(TEXTS) - accepted >= 60


@pytest.mark.parametrize("text", [one for one in TEXTS if one.language == "triton"], ids=lambda one: one.name)
def test_a_text_in_triton_s_language_is_judged_as_by_triton(text: Text):
    said = ours(text)
    assert not said if text.accepted else said, said


@needs_compiler
@pytest.mark.parametrize(
    "text",  # each that is accepted compiles for a second
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.slow] * one.accepted)
        for one in TEXTS
        if one.language == "cuda"
    ],
)
def test_a_text_in_cuda_is_judged_as_by_nvrtc_and_nvcc(text: Text):
    said = ours(text)
    assert not said if text.accepted else said, said


@pytest.mark.slow
def test_the_compilers_say_what_is_stored():
    folder = os.environ.get("COURSE_TRITON", "")  # into which pip installed Triton and NVRTC beside the environment
    if not folder and not compilers():
        how = "pip install --target FOLDER triton nvidia-cuda-nvrtc, COURSE_TRITON=FOLDER"
        pytest.skip(f"needs Triton and NVRTC: {how}")
    run("tests.kernelcheck.texts", folder)


@pytest.mark.slow
def test_another_engine_judges_stored_answers_as_kernelcheck_does(tmp_path):
    folder = os.environ.get("COURSE_TTSEM", "") or str(tmp_path)  # into which pip installed ttsem and its Triton
    if folder == str(
        tmp_path
    ):  # no extra of the course: its metadata ask for Python 3.12, and with Triton torch changes
        wheels = "--no-deps", "--ignore-requires-python", "--target", folder, "ttsem==0.1.0", "triton==3.8.0"
        if subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *wheels], check=False).returncode:
            pytest.skip("needs ttsem and Triton 3.8, which are for Linux: pip cannot install them here")
    run("tests.kernelcheck.oracle", folder)


def run(module: str, folder: str):
    """Run a module in a process of its own, which finds what it needs in `folder` too, and expect the status 0."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command, root = [sys.executable, "-m", module, *([folder] if folder else [])], Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
