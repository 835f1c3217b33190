"""Further wrong answers to lesson 01, each with what the message must say."""

import torch

from course_utils.devices import diagnose


def _by_name(report):
    return {"Tesla P100-PCIE-16GB": "unsupported capability", "Tesla T4": "works"}.get((report.gpu_names or [""])[0])


WRONG = {
    "pick_device": [
        (
            "raises KeyError",
            lambda preference, usable: torch.device({k: 0 for k in preference if usable(k)}.popitem()[0]),
        ),
        (
            "never asks `usable`",
            lambda preference, usable: torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        ),
        ("never asks `usable`", lambda preference, usable: torch.device(preference[0])),
    ],
    "first_cause": [
        ("is a return missing?", _by_name),
        ("returns a word that is not in the list", lambda report: diagnose(report).cause.title()),
    ],
}
