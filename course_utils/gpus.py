"""What does the data sheet of a GPU promise? The table that the simulated GPU takes its rates from."""

from simgpu.machine.gpus import ALL, FORMATS, GPU, find, get, table

__all__ = ["ALL", "FORMATS", "GPU", "find", "get", "table"]
