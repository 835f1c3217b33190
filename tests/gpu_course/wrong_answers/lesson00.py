"""Further wrong answers to lesson 00, each with what the message must say."""

from course_utils import devices
from gpu_course.checks import edit

_MOVE, _TWICE = "on_device = x.to(device)", "return 2 * on_device"


def _global_device(x, device):
    known = devices.check_devices()
    return 2 * x.to(device if device in known else known[-1])


WRONG = {
    "double": [
        ("modifies its input", edit(_MOVE, "x *= 2", _TWICE, "return x.to(device)")),
        ("is a return missing?", edit(_TWICE, "2 * on_device")),
        ("expected a tensor", edit(_TWICE, "return 2 * on_device.sum().item()")),
        ("the caller chooses the device", _global_device),
    ]
}
