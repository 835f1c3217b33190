"""The exercise “Move a nested batch”."""

from collections import namedtuple

import torch
from torch.utils._pytree import tree_map_only

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import elsewhere


@exercise(
    minutes=12,
    difficulty=2,
    hints=(
        "Ask with `isinstance` what `batch` is: a tensor, a dict, a tuple or list, or anything else. Each needs a "
        "return.",
        "The function calls itself for each value of a dict and each entry of a list or tuple.",
        "Collect the moved entries in a list, and make a container of the same type: type(batch)(…). A named tuple, "
        "which has `_fields`, takes them one by one: put a star before the list.",
    ),
)
def move_batch(batch: object, device: torch.device) -> object:
    """Return `batch` with every tensor in it moved to `device`."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {name: move_batch(value, device) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        moved = [move_batch(value, device) for value in batch]
        # a named tuple takes its values one by one, a list or a tuple takes them all in one
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch  # text, numbers, None: nothing to move


Sample = namedtuple("Sample", "image label")


class _Timer:
    """Something that is no tensor and has a method `to`."""

    def to(self, device: object) -> str:
        return f"sent to {device}"

    def __eq__(self, other: object) -> bool:
        return type(other) is _Timer

    def __repr__(self) -> str:
        return "timer"


move_batch.exempt("nothing is made, so no default is asked, and no number is compared", "default_type limit")


@move_batch.checks
def _(case: Case) -> None:
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3])
    for device, batch in (
        *(
            (case.device, batch)
            for batch in (
                x,
                {"x": x, "y": y},
                [x, y],
                (x, y),
                {"x": x, "name": "cat", "n": 2, "nothing": None},
                Sample(x, y),
                {"pair": (x, y)},
                [{"x": x}, {"x": y}],
                {0: x, "1": y, (2, 3): "cat"},
                (x, _Timer()),
                {"samples": [Sample(x, "cat"), Sample(y, None)], "empty": [], "deep": ({"y": [y]},)},
                [],
                [y, x],
                [y, x, 0, -2.5, 2**40, True],
                (torch.nn.Parameter(x, requires_grad=False), y),  # "every tensor": a parameter is one
                {"": torch.tensor(7.0), "none": torch.ones(0, 3), "row": torch.ones(1, 33)},
                [
                    edges.permuted(edges.UGLY),
                    edges.sliced(edges.UGLY),
                    {"x": edges.UGLY.half(), "y": edges.UGLY.bfloat16()},
                ],
                (edges.UGLY.double(), torch.tensor([True, False]), torch.tensor([1 + 2j]), {"a", "b"}, range(3)),
            )
        ),
        (elsewhere(case.device), [torch.ones(1)]),
    ):
        device = edges.supporting(device, batch)
        got = case.call(batch, device)
        expected = tree_map_only(torch.Tensor, lambda tensor, device=device: tensor.to(device), batch)
        case.equal(got, expected, why="the device changes and nothing else: values, types, what is no tensor")
        turned = isinstance(got, dict) and list(got) != list(batch)
        case.fail_if(turned, "puts a dict into another order", "everything else stays as it is", got=list(got))
