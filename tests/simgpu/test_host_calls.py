"""Is the assumed host near what was published of single calls, and do the rows say what they ask of it?"""

import pytest

import simgpu

FIGURES = simgpu.error_bar().of_calls


def error(ratios):
    return sorted(abs(ratio - 1) for ratio in ratios)[len(ratios) // 2]


def test_bare_operators_are_told_by_hosts_left_out_and_by_another_row_of_the_host():
    assert error(FIGURES.left_out("bare operators")) < 0.3 and error(FIGURES.known("bare operators")) < 0.1
    for regime in ("bare operators", "custom operators", "backward passes", "fused steps", "reads"):
        assert all(0.5 < ratio < 2 for ratio in FIGURES.ratios(regime)), regime


def test_networks_are_told_by_another_network_on_their_host():
    assert error(FIGURES.known("networks of few images")) < 0.1 and error(FIGURES.ratios("operators of a module")) < 0.3


def test_compiled_calls_are_told_by_hosts_left_out():
    assert error(FIGURES.left_out("compiled calls")) < 0.5
    assert all(0.5 < ratio < 2 for ratio in FIGURES.ratios("compiled calls"))


def test_each_row_names_its_address_and_classes_that_there_are():
    assert {row.regime for row in FIGURES.rows} == set(FIGURES.regimes)
    assert all(row.address.startswith("https://") and row.us > 0 and row.ratio() > 0 for row in FIGURES.rows)
    assert str(FIGURES).count("compiled calls") == 1 and "<table>" in FIGURES._repr_html_()


@pytest.mark.parametrize("us", [6.0, 20.0])
def test_a_host_twice_as_fast_takes_half_the_time_for_each_call(us):
    slow, fast = simgpu.Host(2 * us), simgpu.Host(us)
    for row in (row for row in FIGURES.rows if "bus" not in row.asks):
        assert row.ratio(slow) == pytest.approx(2 * row.ratio(fast), rel=1e-3)
