"""Do programs of views that are changed in place have the CPU's values, gradients and errors on the simulated GPU?

python -m benchmarks.views [how many] [--show]

Draws programs at random (`tests/simgpu/view_programs.py`), runs each on both, and prints how many end in which way;
with `--show` also the first programs of each way but the first. 10,000 take some minutes.
"""

import argparse

import simgpu
from tests.simgpu import view_programs


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", nargs="?", type=int, default=10_000)
    parser.add_argument("--show", action="store_true")
    asked = parser.parse_args()
    simgpu.enable()
    seeds: dict[str, list[int]] = {kind: [] for kind in view_programs.KINDS}
    for seed in range(asked.count):
        outcomes = [view_programs.outcome(seed, device) for device in ("cpu", "sim")]
        seeds[view_programs.compare(*outcomes)].append(seed)
    for kind, found in seeds.items():
        print(f"{kind:18} {len(found):>7,}  {len(found) / asked.count:.2%}")
    for kind, found in list(seeds.items())[1:] if asked.show else ():
        for seed in found[:3]:
            print(f"\n{kind}, seed {seed}\n{view_programs.text(seed)}")


if __name__ == "__main__":
    main()
