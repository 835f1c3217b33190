"""Answers to lesson 00 that people give, each with what the message must say."""

from course_utils import devices


def _stays(x, device):
    x.to(device)
    return 2 * x


def _not_doubled(x, device):
    return x.to(device)


def _in_place(x, device):
    x *= 2
    return x.to(device)


def _no_return(x, device):
    2 * x.to(device)


def _number(x, device):
    return 2 * x.to(device).sum().item()


def _global_device(x, device):
    known = devices.check_devices()
    return 2 * x.to(device if device in known else known[-1])


def _floats(x, device):
    return 2.0 * x.to(device)


WRONG = {
    "double": [
        ("does not move a tensor in place", _stays),
        ("not doubled", _not_doubled),
        ("modifies its input", _in_place),
        ("is a return missing?", _no_return),
        ("expected a tensor", _number),
        ("stays one", _floats),
        ("ignores its argument `device`", _global_device),
    ]
}
