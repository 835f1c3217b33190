"""Data sheets of GPUs: the table from which the simulated GPU takes its rates."""

from simgpu.machine.gpus import ALL, FORMATS, GPU, find, get, table

__all__ = ["ALL", "FORMATS", "GPU", "find", "get", "table"]
