"""Further wrong answers to lesson 00, each with what the message must say."""

from course_utils import devices


def _global_device(x, device):
    known = devices.check_devices()
    return 2 * x.to(device if device in known else known[-1])


WRONG = {
    "double": [
        ("the caller chooses the device", _global_device),
    ]
}
