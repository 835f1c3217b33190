"""How large is each storey? Lines of Python, and what stood in `course_utils` when it held four storeys in one.

python -m benchmarks.storeys
"""

from tests.notebooks import walls

BEFORE = {"course_utils": 29_304}  # at commit 31225c9, the last one before the storeys


def main() -> None:
    """Print a table: lines before and now."""
    now = {name: walls.lines(name) for name in walls.STOREYS}
    print(f"{'storey':12}{'before':>10}{'now':>10}")
    for name, count in now.items():
        print(f"{name:12}{BEFORE.get(name, 0):>10,}{count:>10,}")
    print(f"{'together':12}{sum(BEFORE.values()):>10,}{sum(now.values()):>10,}")


if __name__ == "__main__":
    main()
