"""Does each plan for a class run, with the cells that it names and no others, and do its minutes suffice?

    python -m tests.notebooks.plans                   # all plans
    python -m tests.notebooks.plans plan_90_minutes   # one of them

The cells of each lesson run in a fresh kernel. Its minutes are printed beside those that a newcomer needs for them.
"""

import sys
from types import SimpleNamespace

import nbformat
from nbclient.exceptions import CellExecutionError

from tools import notebooks, plans
from tools.exercises import minutes

__all__ = ["needed", "run"]


def needed(row: plans.Row) -> float:
    """Return the minutes that a newcomer needs for the cells of a row, exercises included."""
    return sum(minutes(SimpleNamespace(cells=plans.cells(row))))


def run(row: plans.Row) -> None:
    """Run the cells of a row, or of several of one lesson, in a fresh kernel; raises CellExecutionError."""
    notebooks.run(nbformat.v4.new_notebook(cells=plans.cells(row)))


def main(names: list[str]) -> int:
    """Run the plans with these names, or all; return 1 where a cell fails or minutes do not suffice."""
    failed = 0
    for plan in plans.plans():
        if names and plan.name not in names:
            continue
        print(f"{plan.title}: {plan.minutes} minutes", flush=True)
        for row in plans.in_kernels(plan):
            try:
                run(row)
                said = "runs"
            except CellExecutionError as error:
                said = str(error).strip().splitlines()[-1]
            short = needed(row) > row.minutes
            failed += short or said != "runs"
            print(f"  lesson {row.lesson}  {row.minutes:3} minutes, needed {needed(row):4.0f}  {said}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
