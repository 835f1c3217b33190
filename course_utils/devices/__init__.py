"""What can this machine compute on, and if not on a GPU, why not?

DEVICE = devices.pick()
print(devices.describe(DEVICE))
"""

from course_utils.devices.choice import (
    check_devices,
    chosen,
    describe,
    on_simulated,
    pick,
    resolve,
    sheets,
    simulated,
    synchronize,
    table,
)  # fmt: skip
from course_utils.devices.diagnosis import MINIMUM_DRIVER, diagnose
from course_utils.devices.report import Report, service
from course_utils.devices.site import Finding, site

__all__ = [
    "MINIMUM_DRIVER", "Finding", "Report", "check_devices", "chosen", "describe", "diagnose", "on_simulated", "pick",
    "resolve", "service", "sheets", "simulated", "site", "synchronize", "table",
]  # fmt: skip
