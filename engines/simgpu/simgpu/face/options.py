"""Command-line options of a face."""

import argparse

from simgpu.machine import hosts

_WHAT = "Run a program, a package or a notebook that says `cuda`, or `mps` or `xpu`, unchanged, on simulated GPUs."
KINDS = ("cuda", "mps", "xpu")


def parser(usage: str | None = None) -> argparse.ArgumentParser:
    """Return a parser for the options of `simgpu.cuda`."""
    options = argparse.ArgumentParser("python -m simgpu", usage=usage, description=_WHAT, allow_abbrev=False)
    add = options.add_argument
    add("--kind", default="cuda", choices=KINDS, help="what the program calls a GPU (default: %(default)s)")
    add("--gpu", help='a row of simgpu.gpus, such as "H100 SXM" (default: T4; for mps Apple M1)')
    add("--gpus", type=int, help="how many of them (default: 1)")
    add("--memory", help='of each, such as "8 GiB" (default: that of the data sheet)')
    add("--no-fp64", dest="fp64", action="store_false", help="of xpu: no kernel computes with float64, as on Arc A")
    add("--allocator", default="exact", choices=("exact", "caching"), help="count bytes, or blocks as PyTorch does")
    add("--errors", choices=("immediate", "asynchronous", "blocking"), help="when errors of kernels are reported")
    names = ", ".join(host.name for host in hosts.ALL)
    add("--host", default=hosts.DEFAULT.name, help=f"{names}; µs of an operator; a trace (default: %(default)s)")
    add("--races", choices=("warn", "error"), help="report unsynchronised accesses to the same memory (slower)")
    return options
