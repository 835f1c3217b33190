"""Kernels in CUDA C++: what the compiler takes, how they run on a CPU thread by thread, what a run showed."""
