"""Has each incident a source and one cause, and does each wrong choice say what would be seen otherwise?"""

import re

import pytest

from gpu_course.lesson11.incidents import CAUSES, INCIDENTS, LOOKS, judge


def test_each_incident_has_one_cause_of_its_own_a_look_and_a_source_at_one_version():
    assert len(INCIDENTS) >= 12
    assert sorted(incident.cause for incident in INCIDENTS.values()) == sorted(CAUSES)
    assert {incident.look for incident in INCIDENTS.values()} == {*LOOKS}
    for name, incident in INCIDENTS.items():
        assert re.match(r"https://github\.com/.+/((issues|pull)/\d+$|blob/[0-9a-f]{10}/)", incident.source)
        assert max(map(len, str(incident).splitlines())) <= 120, name
        assert incident.cause not in str(incident) and 2015 < incident.year < 2027


@pytest.mark.parametrize("name", INCIDENTS)
def test_wrong_choices_say_what_would_be_seen_and_the_right_one_what_came_of_it(name):
    incident = INCIDENTS[name]
    for cause, seen in CAUSES.items():
        said = judge(name, cause, incident.look)
        assert (seen in said) == (cause != incident.cause) and incident.source in said
    for look, shows in LOOKS.items():
        assert (shows in judge(name, incident.cause, look)) == (look != incident.look)
    assert incident.ended in judge(name, incident.cause, incident.look)


def test_a_name_that_is_none_is_answered_by_the_list():
    with pytest.raises(ValueError, match="one GPU is slow"):
        judge("five per cent", "the moon", "df -h /dev/shm")
