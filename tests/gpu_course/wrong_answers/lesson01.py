"""Further wrong answers to lesson 01, each with what the message must say."""

import torch

from course_utils.devices import diagnose
from gpu_course.checks import edit

# fmt: off
_LAST = 'return torch.device("cpu")'


def _by_name(report):
    return {"Tesla P100-PCIE-16GB": "unsupported capability", "Tesla T4": "works"}.get((report.gpu_names or [""])[0])


WRONG = {
    "pick_device": [
        ("returns a string", edit("return torch.device(kind)", "return kind")),
        ("raises KeyError", lambda preference,
         usable: torch.device({k: 0 for k in preference if usable(k)}.popitem()[0])),
        ("never asks `usable`",
         lambda preference, usable: torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        ("never asks `usable`", lambda preference, usable: torch.device(preference[0])),
        ("returns nothing where no kind is usable", edit(_LAST, "pass")),
    ],
    "visible_gpus": [
        ("returns texts, not numbers", edit("seen.append(int(entry))", "seen.append(entry)")),
        ("raises ValueError", edit("not entry.isdigit() or ", "")),
        ("returns nothing where the variable", edit("return list(range(count))", "return None")),
    ],
    "first_cause": [
        ("could not convert string to float", edit('int(report.driver.split(".")[0])', "float(report.driver)")),
        ("is a return missing?", _by_name),
        ("newer than its build", edit("report.kernel_error is None",
         "report.kernel_error is None or float(report.capability) >= 7")),
        ("returns a word that is not in the list", lambda report: diagnose(report).cause.title()),
    ],
    "fast_formats": [
        ("returns a list, not a set", edit("{name for", "[name for", "first}", "first]")),
        ("returns a format that was not asked for", edit('"fp4"', '"fp32": (1, 0), "fp4"')),
    ],
    "fits": [
        ("raises TypeError", edit("dtype.itemsize", "torch.finfo(dtype).bits // 8")),
    ],
}
