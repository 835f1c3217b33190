"""What can this machine compute on, and if not on a GPU, why not?

DEVICE = devices.pick()
print(devices.describe(DEVICE))
"""

from course_utils.devices.choice import (
    CHOICES,
    Machine,
    Table,
    check_devices,
    chosen,
    describe,
    on_simulated,
    pick,
    simulated,
    synchronize,
    table,
)
from course_utils.devices.diagnosis import CAUSES, MINIMUM_DRIVER, MINIMUM_MACOS, Diagnosis, diagnose
from course_utils.devices.report import Report, kernel_error

__all__ = [
    "CAUSES", "CHOICES", "MINIMUM_DRIVER", "MINIMUM_MACOS", "Diagnosis", "Machine", "Report", "Table", "check_devices",
    "chosen", "describe", "diagnose", "kernel_error", "on_simulated", "pick", "simulated", "synchronize", "table",
]  # fmt: skip
