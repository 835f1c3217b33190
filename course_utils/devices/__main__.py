"""Command line: `python -m course_utils.devices` describes this machine's devices, `--site` checks it for a course."""

import argparse

from course_utils import devices


def main() -> None:
    """Print the table of devices, or what `site` finds."""
    parser = argparse.ArgumentParser(prog="python -m course_utils.devices", description=main.__doc__)
    parser.add_argument("--site", action="store_true", help="what will fail here when a course is held on this machine")
    if parser.parse_args().site:
        print(*devices.site(), sep="\n")
    else:
        print(devices.describe(devices.pick()))


if __name__ == "__main__":
    main()
