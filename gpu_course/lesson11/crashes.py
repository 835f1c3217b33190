"""What a broken program raises on the simulated GPU, and what works afterwards."""

import traceback

import torch

import simgpu
from gpu_course.lesson11.tagging import tagger, texts
from gpu_course.lesson11.train_tagger import train_tagger


def crash(errors: str) -> list[str]:
    """Return what the broken `train_tagger` raises on the simulated GPU, in which line, and what works afterwards.

    `errors` says when errors of kernels are reported: "asynchronous" as on CUDA, or "blocking": each launch waits.
    """
    simgpu.configure(errors=errors)
    said = []
    try:
        train_tagger.given(tagger(), texts(), torch.device("sim"))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next(frame.line for frame in frames if "train_tagger" in frame.filename)
        said += [f"{type(error).__name__}: {str(error).splitlines()[0]}", f"  in the line: {line}"]
    try:
        torch.ones(1, device="sim")
    except RuntimeError as again:
        said.append(f"  the next call, torch.ones(1) there: {str(again).splitlines()[0]}")
    simgpu.reset()  # out of the error: a real GPU needs a new process
    return said
