"""Right answers of lesson 01 that are no edits of the reference."""

import torch

from course_utils.devices import MINIMUM_DRIVER


def counts_through_the_list(preference, usable):
    at = 0
    while at < len(preference) and not usable(preference[at]):
        at += 1
    chosen = preference[at] if at < len(preference) else "cpu"
    return torch.device(chosen)


def lists_all_usable_kinds(preference, usable):
    kinds = [kind for kind in preference if usable(kind)]
    kinds.append("cpu")
    return torch.device(kinds[0])


def stops_by_an_exception(setting, count):
    if setting is None:
        return [*range(count)]
    seen = []
    try:
        for text in setting.split(","):
            number = int(text)
            if not 0 <= number < count:
                return seen
            seen += [number]
    except ValueError:
        pass
    return seen


def finds_where_it_ends(setting, count):
    entries = [str(number) for number in range(count)] if setting is None else setting.split(",")
    end = next((at for at, entry in enumerate(entries) if entry not in map(str, range(count))), len(entries))
    return list(map(int, entries[:end]))


def asks_with_a_helper(report):
    def major(version):
        return int(version[: version.index(".")])

    if report.cuda_available and not report.kernel_error:
        return "works"
    if report.cuda_available:
        return "unsupported capability"
    if not report.cuda_build:
        return "cpu-only build"
    if not report.driver:
        return "no driver"
    if major(report.driver) < MINIMUM_DRIVER[major(report.cuda_build)]:
        return "driver too old"
    return "hidden"


def decides_in_one_match(report):
    match report:
        case _ if report.cuda_available:
            cause = "unsupported capability" if report.kernel_error else "works"
        case _ if report.cuda_build is None:
            cause = "cpu-only build"
        case _ if report.driver is None:
            cause = "no driver"
        case _:
            needed = MINIMUM_DRIVER[int(report.cuda_build.partition(".")[0])]
            cause = ("hidden", "driver too old")[float(report.driver.split(".")[0]) < needed]
    return cause


def adds_in_a_loop(capability):
    found = set()
    for name, first in [("fp16", (7, 0)), ("int8", (7, 5)), ("bf16", (8, 0)), ("tf32", (8, 0)), ("fp8", (8, 9))]:
        if first <= tuple(capability):
            found.add(name)
    if capability[0] >= 10:
        found.add("fp4")
    return found


def counts_in_tenths(capability):
    major, minor = capability
    number = 10 * major + minor
    steps = {70: {"fp16"}, 75: {"int8"}, 80: {"bf16", "tf32"}, 89: {"fp8"}, 100: {"fp4"}}
    return set().union(*(formats for first, formats in steps.items() if number >= first))


def multiplies_in_a_loop(shape, dtype, free_gib, workspace_mib):
    elements = 1
    for size in shape:
        elements *= size
    needed = elements * dtype.itemsize
    workspace = workspace_mib * 1024 * 1024
    left = free_gib * 1024**3 - needed - workspace
    return left >= 0


def returns_early(shape, dtype, free_gib, workspace_mib):
    free = free_gib * 2**30 - workspace_mib * 2**20
    if free < 0:
        return False
    return torch.Size(shape).numel() * torch.empty((), dtype=dtype).element_size() <= free


RIGHT = {
    "pick_device": [counts_through_the_list, lists_all_usable_kinds],
    "visible_gpus": [stops_by_an_exception, finds_where_it_ends],
    "first_cause": [asks_with_a_helper, decides_in_one_match],
    "fast_formats": [adds_in_a_loop, counts_in_tenths],
    "fits": [multiplies_in_a_loop, returns_early],
}
