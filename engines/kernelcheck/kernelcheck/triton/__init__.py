"""Kernels in Triton's language: how they are read and checked, and how they run on NumPy, program by program.

The package `kernelcheck` shows its function `triton` under this name. What is inside this folder is imported by
`from kernelcheck.triton.memory import Memory`, which Python finds all the same.
"""
