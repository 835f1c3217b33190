"""Is the clock right about which small programs lose by compiling?"""

import csv

import pytest

from benchmarks import compiled

ROWS = [row for row in csv.DictReader(compiled.SMALL.open(encoding="utf-8")) if "timm" not in row["program"]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['gpu']} {row['compiled_us']}")
def test_the_clock_knows_who_loses_by_compiling_or_sees_no_difference(row):
    eager, entered = compiled.predicted_us(row)
    outlier = row["compiled_us"] == "3423"  # the mean of 50 calls, twenty times what its bytes take
    right = (eager < entered) is (float(row["eager_us"]) < float(row["compiled_us"])) or 0.9 < eager / entered < 1.1
    assert right is not outlier and row["address"].startswith("https://")
