"""Are these the names of all tensors in a module, by device?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from course_utils.checks import Case, shown
from course_utils.exercises.common.mistakes import name_first

__all__ = ["Scale", "listed"]

# fmt: off


class Scale(nn.Module):
    """Holds a tensor of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.zeros(2), persistent=False)
        self.register_parameter("bias", None)
        self.factor, self.name, self.nothing = torch.ones(2), "scale", None


def _same_end(name: str, other: str) -> bool:
    """Return whether `other` ends with the attribute of `name`, whatever stands before it."""
    return other.endswith(name.rpartition(".")[2])


def _renamed(expected: dict[torch.device, list[str]], got: dict) -> Iterator[tuple[str, str]]:
    """Yield pairs of a missing name and one that stands for it: those at the same place in the lists first."""
    wanted, given = ([name for names in found.values() for name in names] for found in (expected, got))
    together = zip(wanted, given, strict=True) if len(wanted) == len(given) else ()
    for name, other in itertools.chain(together, itertools.product(sorted(wanted), sorted(given))):
        if name not in given and other not in wanted and _same_end(name, other):
            yield name, other


def listed(case: Case, got: Any, expected: dict[torch.device, list[str]]) -> None:
    """Fail unless `got` has the expected names, in any order."""
    case.instead(not isinstance(got, dict),
                 f"returns {type(got).__name__}, expected a dict from devices to lists of names")
    for wrong in (key for key in got if not isinstance(key, torch.device)):
        case.fail(f"has the key {shown(wrong)}, expected a torch.device", "tensor.device is one", got=got)
    flat = [isinstance(names, list | tuple | set) and all(isinstance(n, str) for n in names) for names in got.values()]
    case.instead(not all(flat), "has values that are no lists of names", expected=expected, got=got)
    case.instead([] in [list(names) for names in got.values()], "names a device that holds nothing",
                 "the number of devices in the dict is the number of places: leave out empty lists", got=got)
    wanted = {name for names in expected.values() for name in names}
    given = {name for names in got.values() for name in names}
    show = {"expected": expected, "got": got}
    missed, last = sorted(wanted - given), {name.rpartition(".")[2] for name in wanted - given}
    renamed = next(_renamed(expected, got), ("", ""))
    name_first(case, expected, got, (
        (renamed[0], f"calls {renamed[0]} {renamed[1]!r}", "a name is the path of the module, a dot and the attribute; "
         "the path of the model itself is empty, and no dot follows it"),
        (not given and missed and not any("." in name for name in wanted), "leaves out the model itself",
         "it is a module too: named_modules() begins with it, under the empty path"),
        (missed and not any("." in name for name in given) and any("." in name for name in wanted),
         "looks at the model itself only", "modules hold modules: named_modules() gives all of them"),
        ("factor" in last and last == {"factor"}, "misses the plain attribute",
         "nothing moves it, so it is the usual straggler; vars(module) holds it"),
        (last & {"mean", "running_mean", "num_batches_tracked"}, "misses the buffers",
         "they are moved and used like parameters; state_dict() leaves out those that are not persistent"),
    ))
    case.instead(missed, f"misses {', '.join(missed)}", **show)
    every = [name for names in got.values() for name in names]
    twice = ", ".join(sorted({name for name in every if every.count(name) > 1}))
    case.instead(twice, f"lists {twice} more than once",
                 "named_modules() gives every module: take of each what it holds itself, with recurse=False", **show)
    more = ", ".join(sorted(given - wanted))
    case.instead(more, f"lists {more}, which is no tensor of the model", **show)
    case.instead(any(set(got.get(device, ())) != set(expected.get(device, ())) for device in {*got, *expected}),
                 "has names under the wrong device", **show)
