"""Is a simulated week what can be counted by hand, do its failures come at published rates, is the rest hidden?"""

import dataclasses
import statistics
from collections import Counter

import pytest

from gpu_course import lesson11
from gpu_course.lesson11 import week
from gpu_course.lesson11.week import HOUR_S, NODES, RESTART_S, WEEK_S, Decision, Event, Message


def hourly(seen, notes):
    """Save after each hour of training, exchange what has an Xid, name it."""
    bad = tuple(message.node for message in seen.messages if "Xid" in message.text)
    if not seen.running:
        return Decision(restart=True, exclude=bad, cause="GPU")
    return Decision(save=seen.unsaved_s >= HOUR_S)


def test_without_failures_goodput_is_the_schedule():
    alone = week.run(lambda seen, notes: Decision(), events=[])
    assert (alone.goodput, alone.spent_s) == (1.0, {"training": WEEK_S, "saving": 0.0})
    found = week.run(hourly, events=[])
    saves = WEEK_S // (HOUR_S + 60)
    assert len(found.saves_s) == saves == 165
    assert found.spent_s == {"training": WEEK_S - 60 * saves, "saving": 60 * saves}
    assert found.goodput == (WEEK_S - 60 * saves) / WEEK_S


def test_one_failure_costs_what_a_hand_counts():
    """A GPU fails at hour 30, 1,860 seconds after the 29th save: they are done again, after a restart."""
    found = week.run(hourly, events=[Event(30 * HOUR_S, "GPU", 17, 79)])
    since = 30 * HOUR_S - 29 * (HOUR_S + 60)
    saves = 29 + (WEEK_S - 30 * HOUR_S - RESTART_S) // (HOUR_S + 60)
    assert (since, len(found.saves_s)) == (1860, saves)
    assert found.spent_s == {
        "training": WEEK_S - 60 * saves - since - RESTART_S, "saving": 60 * saves, "GPU": since + RESTART_S,
    }  # fmt: skip
    assert found.goodput == found.spent_s["training"] / WEEK_S
    (incident,) = found.incidents
    assert (incident.kind, incident.node, incident.named, incident.lost_s) == ("GPU", 17, "GPU", since)
    assert found.excluded == [(30 * HOUR_S, 17, "GPU")]


def test_a_node_that_is_half_as_fast_halves_the_week_and_without_spares_a_failure_costs_a_repair():
    slow = week.run(lambda seen, notes: Decision(), events=[Event(0, "slow", 3, 2.0)])
    assert slow.goodput == 0.5 and slow.spent_s["slow"] == WEEK_S / 2
    drawn = [path.get_extents() for bars in week.picture(slow).axes[0].collections for path in bars.get_paths()]
    assert [bar.height for bar in drawn] == pytest.approx([0.72 / 2] * 14)  # green below, slow above, on seven days
    bare = week.run(hourly, events=[Event(30 * HOUR_S, "GPU", 17, 79)], spares=0)
    waited = [span for span in bare.spans if span.doing == "waiting for nodes"]
    assert [span.end_s - span.start_s for span in waited] == [24 * HOUR_S]


def test_seeds_repeat_and_every_second_of_each_week_is_spent():
    weeks = [week.run(lesson11.decide.reference, seed, times=4) for seed in (1, 1, 2)]
    assert weeks[0] == weeks[1] != weeks[2]
    for found in weeks:
        ends = [0, *(span.end_s for span in found.spans)]
        assert [span.start_s for span in found.spans] == ends[:-1] and ends[-1] == WEEK_S
        assert sum(found.spent_s.values()) == pytest.approx(WEEK_S)
        assert found.goodput == pytest.approx(found.spent_s["training"] / WEEK_S)
    assert week.picture(weeks[0]).said == f"A week on 512 GPUs, simulated: {weeks[0]}"


def test_failures_come_at_the_published_rates():
    assert week.per_node_day("Llama 3 405B") == 419 / (2048 * 54)
    assert week.per_node_day("OPT-175B") / week.per_node_day("Llama 3 405B") == pytest.approx(4.1, abs=0.05)
    counted = Counter(event.kind for seed in range(400) for event in week.failures(seed, times=4))
    for kind in ("GPU", "node", "hang"):
        expected = 400 * 4 * week.per_node_day("Llama 3 405B", kind) * NODES * 7
        assert counted[kind] == pytest.approx(expected, abs=3.5 * expected**0.5), kind
    assert counted["preemption"] == pytest.approx(400, abs=70)
    assert all(row["address"].startswith("https://") for row in week.published())
    with pytest.raises(ValueError, match="nothing was published for 'Llama 3 405B' and 'slow'"):
        week.per_node_day("Llama 3 405B", "slow")


def test_intervals_are_those_that_daly_printed_and_the_best_of_a_sweep():
    """Figures 3 to 5 of Daly's article: saves of 5 minutes, a failure each 24 hours, 6 hours, 15 minutes."""
    assert [round(week.daly_s(5, between), 1) for between in (1440, 360, 15)] == [116.7, 56.7, 9.1]
    best = week.young_s(60, 24 * HOUR_S / (4 * NODES * week.per_node_day("Llama 3 405B", "GPU")))
    assert best == pytest.approx(1.15 * HOUR_S, rel=0.01)

    def mean(interval_s):
        def decide(seen, notes):
            return dataclasses.replace(hourly(seen, notes), save=seen.unsaved_s >= interval_s)

        return statistics.mean(week.run(decide, seed, times=4, kinds=("GPU",)).goodput for seed in range(5))

    assert mean(best) > max(mean(best / 4), mean(4 * best))


def test_the_reference_names_every_cause_of_weeks_that_it_has_not_seen():
    for seed in range(20, 28):
        found = week.run(lesson11.decide.reference, events=week.drill(seed))
        assert found.named == 1 and found.goodput > 0.91 and not found.false_alarms, (seed, found)
        assert {one.kind for one in found.incidents} == set(week.CAUSES)


def test_a_policy_sees_plain_values_alone():
    seen = []
    week.run(lambda now, notes: seen.append(now) or Decision(restart=not now.running), events=week.drill(0))
    for now in seen:
        for value in (getattr(now, one.name) for one in dataclasses.fields(now)):
            parts = (
                value.items() if isinstance(value, dict) else enumerate(value) if type(value) is tuple else [(0, value)]
            )
            assert all(type(part) in (int, float, bool, Message) for pair in parts for part in pair)


@pytest.mark.parametrize(("decision", "words"), [
    (None, "decide returned None, it must return a Decision"),
    (Decision(cause="cable"), "cause is 'cable', it must be"),
])  # fmt: skip
def test_what_is_no_decision_is_named(decision, words):
    with pytest.raises((TypeError, ValueError), match=words):
        week.run(lambda seen, notes: decision)
