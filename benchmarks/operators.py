"""How much of PyTorch's own operator database gives the CPU's results on the simulated GPU?

    python -m benchmarks.operators            all operators, three number formats, forward and backward
    python -m benchmarks.operators --every 9  a ninth of them
    python -m benchmarks.operators --sweep    version counters, strides, conjugate views; inputs in many layouts

Prints each operator that differs, with its reason, and the shares that agree.
"""

from __future__ import annotations

import argparse

from tests.simgpu.operators import no_longer, report, run, sweep, unlisted


def main() -> int:
    """Print what differs and return 0 if that is nothing but what is listed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--limit", type=int, default=10**9)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.sweep:
        compared, wrong = sweep(options.every, options.offset, min(options.limit, 2))
        print(*wrong, f"{compared} calls compared, {len(wrong)} differ", sep="\n")
        return int(bool(wrong))
    outcomes = run(options.every, options.offset, options.limit, names=options.names)
    forward, backward = report(outcomes)
    print("listed, but agree:", ", ".join(no_longer(outcomes)) or "none")
    return int(forward < 0.97 or backward < 0.93 or bool(unlisted(outcomes)))


if __name__ == "__main__":
    raise SystemExit(main())
