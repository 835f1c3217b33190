"""Does each test leave the process as it found it? A setting left changed would fail another test, far away."""

import pytest

from course_utils._settings import SETTINGS


@pytest.fixture(autouse=True)
def settings_are_left_as_they_were():
    """Fail the test that leaves a setting of torch or of the process changed, and put the setting back."""
    before = {name: get() for name, (get, _) in SETTINGS.items()}
    yield
    changed = []
    for name, (get, put) in SETTINGS.items():
        if get() != before[name]:
            changed.append(name)
            put(before[name])
    assert not changed, f"the test leaves {', '.join(changed)} changed"
