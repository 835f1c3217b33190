"""Does each test leave the process as it found it? A setting left changed would fail another test, far away."""

import pytest

from course_utils import _settings


@pytest.fixture(autouse=True)
def settings_are_left_as_they_were():
    """Fail the test that leaves a setting of torch or of the process changed, and put the setting back."""
    before = _settings.read()
    yield
    changed = _settings.put_back(before)
    assert not changed, f"the test leaves {', '.join(changed)} changed"
