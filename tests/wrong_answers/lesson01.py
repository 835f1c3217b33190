"""What do people answer in lesson 01 that is wrong, and what must they be told?"""

import math

import torch

from course_utils.devices.diagnosis import MINIMUM_DRIVER, diagnose
from course_utils.exercises import lesson01

__all__ = ["WRONG"]


def pick_string(preference, usable):
    return next((kind for kind in preference if usable(kind)), "cpu")


def pick_crashes(preference, usable):
    kinds = [kind for kind in preference if usable(kind)]
    return torch.device(kinds[0])


def pick_own_order(preference, usable):
    for kind in ("cuda", "mps", "xpu"):
        if usable(kind):
            return torch.device(kind)
    return torch.device("cpu")


def pick_is_available(preference, usable):
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pick_first(preference, usable):
    return torch.device(preference[0])


def pick_overwrites(preference, usable):
    for kind in preference:
        device = torch.device(kind if usable(kind) else "cpu")
    return device


def pick_no_return(preference, usable):
    for kind in preference:
        if usable(kind):
            return torch.device(kind)


def visible_falsy(setting, count):
    if not setting:
        return list(range(count))
    return [int(n) for n in setting.split(",")]


def visible_filters(setting, count):
    if setting is None:
        return list(range(count))
    return [int(n) for n in setting.split(",") if n.isdigit() and int(n) < count]


def visible_sorted(setting, count):
    if setting is None:
        return list(range(count))
    return sorted(n for n in range(count) if str(n) in setting.split(","))


def visible_texts(setting, count):
    if setting is None:
        return list(range(count))
    return setting.split(",")


def visible_int_of_empty(setting, count):
    if setting is None:
        return list(range(count))
    return [int(n) for n in setting.split(",")]


def visible_renumbers(setting, count):
    if setting is None:
        return list(range(count))
    return list(range(len([n for n in setting.split(",") if n])))


def cause_trusts_available(report):
    return "works" if report.cuda_available else diagnose(report).cause


def cause_driver_first(report):
    if not report.cuda_available and report.driver is None:
        return "no driver"
    return diagnose(report).cause


def cause_text(report):
    if report.cuda_available or report.cuda_build is None or report.driver is None:
        return diagnose(report).cause
    minimum = MINIMUM_DRIVER[int(report.cuda_build.split(".")[0])]
    return "driver too old" if report.driver < str(minimum) else "hidden"


def cause_one_minimum(report):
    if report.cuda_available or report.cuda_build is None or report.driver is None:
        return diagnose(report).cause
    return "driver too old" if int(report.driver.split(".")[0]) < 580 else "hidden"


def cause_float(report):
    if report.cuda_available or report.cuda_build is None or report.driver is None:
        return diagnose(report).cause
    return "driver too old" if float(report.driver) < 580 else "hidden"


def cause_falsy_hidden(report):
    cause = diagnose(report).cause
    return "works" if cause == "hidden" and not report.visible_devices else cause


def cause_hidden_first(report):
    if not report.cuda_available and report.visible_devices is not None:
        return "hidden"
    return diagnose(report).cause


def cause_by_name(report):
    return {"Tesla P100-PCIE-16GB": "unsupported capability", "Tesla T4": "works"}.get((report.gpu_names or [""])[0])


def formats_bf16(capability):
    fast = {"fp16"}
    if capability >= (7, 5):
        fast |= {"int8", "bf16"}
    if capability >= (8, 0):
        fast |= {"tf32"}
    if capability >= (8, 9):
        fast |= {"fp8"}
    if capability >= (10, 0):
        fast |= {"fp4"}
    return fast


_SINCE = {"fp16": (7, 0), "int8": (7, 5), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9), "fp4": (10, 0)}


def formats_as_text(capability):
    version = f"{capability[0]}.{capability[1]}"
    return {name for name, first in _SINCE.items() if version >= f"{first[0]}.{first[1]}"}


def formats_major_only(capability):
    return {name for name, first in _SINCE.items() if capability[0] >= first[0]}


def formats_exact(capability):
    return {name for name, first in _SINCE.items() if capability == first or (first < (8, 0) and capability >= first)}


def formats_list(capability):
    return [name for name, first in _SINCE.items() if capability >= first]


def fits_bits(shape, dtype, free_gib, workspace_mib):
    return math.prod(shape) * torch.empty(0, dtype=dtype).element_size() * 8 + workspace_mib * 2**20 <= free_gib * 2**30


def fits_gb(shape, dtype, free_gib, workspace_mib):
    return math.prod(shape) * dtype.itemsize + workspace_mib * 2**20 <= free_gib * 10**9


def fits_gb_and_mb(shape, dtype, free_gib, workspace_mib):
    return math.prod(shape) * dtype.itemsize + workspace_mib * 10**6 <= free_gib * 10**9


def fits_no_workspace(shape, dtype, free_gib, workspace_mib):
    return math.prod(shape) * dtype.itemsize <= free_gib * 2**30


def fits_strict(shape, dtype, free_gib, workspace_mib):
    return math.prod(shape) * dtype.itemsize + workspace_mib * 2**20 < free_gib * 2**30


def fits_four_bytes(shape, dtype, free_gib, workspace_mib):
    return math.prod(shape) * 4 + workspace_mib * 2**20 <= free_gib * 2**30


def fits_finfo(shape, dtype, free_gib, workspace_mib):
    return math.prod(shape) * torch.finfo(dtype).bits // 8 + workspace_mib * 2**20 <= free_gib * 2**30


def _one_too_many(setting, count):
    if setting is None:
        return list(range(count))
    seen = []
    for entry in setting.split(","):
        if not entry.isdigit() or int(entry) > count:
            break
        seen.append(int(entry))
    return seen


def _characters(setting, count):
    if setting is None:
        return list(range(count))
    seen = []
    for entry in setting.replace(",", ""):
        if not entry.isdigit() or int(entry) >= count:
            break
        seen.append(int(entry))
    return seen


def _by_capability(report):
    if report.cuda_available and report.capability and float(report.capability) < 7.5:
        return "unsupported capability"
    return lesson01.first_cause.reference(report)


def _workspace_off(shape, dtype, free_gib, workspace_mib):
    return math.prod(shape) * dtype.itemsize - workspace_mib * 2**20 <= free_gib * 2**30


WRONG = {
    "pick_device": [
        ("returns a string", pick_string),
        ("raises IndexError", pick_crashes),
        ("ignores `preference` or its order", pick_own_order),
        ("never asks `usable`", pick_is_available),
        ("never asks `usable`", pick_first),
        ("lets a later kind overwrite", pick_overwrites),
        ("returns nothing where no kind is usable", pick_no_return),
    ],
    "visible_gpus": [
        ("takes `count` for a GPU", _one_too_many),
        ("reads single digits", _characters),
        ("treats an empty setting as not set", visible_falsy),
        ("goes on after a number that does not exist", visible_filters),
        ("loses the order", visible_sorted),
        ("returns texts, not numbers", visible_texts),
        ("raises ValueError", visible_int_of_empty),
        ("returns the program's own numbers", visible_renumbers),
    ],
    "first_cause": [
        ("an older build runs on this GPU", _by_capability),
        ("overlooks the kernel_error", cause_trusts_available),
        ("asks for the driver before the build", cause_driver_first),
        ("compares versions as text", cause_text),
        ("takes the minimum of another CUDA", cause_one_minimum),
        ("could not convert string to float", cause_float),
        ("overlooks an empty CUDA_VISIBLE_DEVICES", cause_falsy_hidden),
        ("asks for hidden GPUs before the driver", cause_hidden_first),
        ("is a return missing?", cause_by_name),
    ],
    "fast_formats": [
        ("takes bf16 for fast below 8.0", formats_bf16),
        ("takes 10.0 for older than 7.0", formats_as_text),
        ("looks at the first number only", formats_major_only),
        ("knows single capabilities only", formats_exact),
        ("returns a list, not a set", formats_list),
    ],
    "fits": [
        ("takes the workspace off the tensor", _workspace_off),
        ("counts bits for bytes", fits_bits),
        ("takes GB for GiB", fits_gb),
        ("forgets the workspace", fits_no_workspace),
        ("takes GB for GiB", fits_gb_and_mb),
        ("says no where it is exactly full", fits_strict),
        ("takes 4 bytes for every type", fits_four_bytes),
        ("raises TypeError", fits_finfo),
    ],
}
