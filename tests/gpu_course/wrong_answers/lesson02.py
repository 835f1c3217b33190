"""Further wrong answers to lesson 02, each with what the message must say."""

import torch

from gpu_course.checks import edit

# fmt: off


def _changes_the_input(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        for k in batch:
            batch[k] = _changes_the_input(batch[k], device)
    elif isinstance(batch, list):
        for i in range(len(batch)):
            batch[i] = _changes_the_input(batch[i], device)
    elif hasattr(batch, "_fields"):
        return type(batch)(*[_changes_the_input(v, device) for v in batch])
    elif isinstance(batch, tuple):
        return tuple(_changes_the_input(v, device) for v in batch)
    return batch


def _items(x):
    columns = [(c - c.mean().item()) / (c.std().item() or 1.0) for c in x.unbind(1)]
    return torch.stack(columns, dim=1)


_FIRST = 'torch.device("sim", 0) if hasattr(torch, "sim") else device'
_REPEAT = "row.repeat(rows, 1)"
_DISTANCE, _SPLIT = "((points - query) ** 2).sum(dim=1)", "list(joined.split(lengths))"
_RESULT, _TIME = "return (x - x.mean(dim=0)) / divisor", "latency_us / 1e3 + nbytes / (bandwidth_gbps * 1e6)"

WRONG = {
    "ramp": [
        ("the `device` that is asked for", edit("device=device", f"device={_FIRST}")),
        ("creates it on the CPU and copies", edit(", device=device", "", _REPEAT, f"{_REPEAT}.to(device)")),
        ("brings values back", edit(f"return {_REPEAT}", f"print(row); return {_REPEAT}")),
    ],
    "move_batch": [
        ("modifies its input", _changes_the_input),
        ("calls itself without end", edit("isinstance(batch, list | tuple)", "True")),
        ("is on sim:0, expected on sim:1", edit("batch.to(device)", f"batch.to({_FIRST})")),
        ("None", edit("    return batch  #", "    return None  #")),
        ("None", edit("    if isinstance(batch, list | tuple):",
         "    if batch == []: return None\n    if isinstance(batch, list | tuple):")),
    ],
    "nearest": [
        ("moves the large tensor instead of the small one", edit("query = query.to(points.device)",
         "points, query = points.cpu(), query.cpu()")),
        ("returns a Python number", edit("argmin()", "argmin().item()")),
        ("returns the row, not its index", edit("    return ((", "    return points[((", "argmin()", "argmin()]")),
        ("sum of squared differences", edit(_DISTANCE, "(points - query).abs().sum(dim=1)")),
        ("brings values back", edit(f"return {_DISTANCE}", f"print(query); return {_DISTANCE}")),
    ],
    "normalise": [
        ("lets the host read a value", _items),
        ("to numpy", edit(_RESULT, f"{_RESULT} + 0 * x.numpy().sum()")),
        ("copies to the host", edit("std = x.std(dim=0)", "x = x.cpu(); std = x.std(dim=0)")),
        ("other values", edit("x.amin(dim=0) == x.amax(dim=0)", "x[0] == x[1]")),
    ],
    "copy_time_ms": [
        ("rounds the time", edit(f"return {_TIME}", f"return round({_TIME}, 2)")),
    ],
    "move_pieces": [
        ("copies each piece", edit(_SPLIT, "[piece.to(device) for piece in pieces]")),
        ("returns one tensor, not a list", edit(_SPLIT, "joined")),
        ("returns a tuple, not a list", edit(_SPLIT, "joined.split(lengths)")),
        ("the limit is", edit("joined.split(lengths)", "joined.split(torch.tensor(lengths, device=device).tolist())")),
    ],
    "windows": [
        ("copies elements", lambda x, length: torch.stack([x[i : i + length] for i in range(len(x) - length + 1)])),
    ],
    "fetch": [
        ("holds the host in a copy", edit('tensor.to("cpu", non_blocking=True)', "tensor.cpu()")),
        ("never calls the `synchronize`", edit("    synchronize()  #", "    pass  #")),
        ("then: torch.empty(3).pin_memory()", edit('tensor.to("cpu", non_blocking=True)',
         "torch.empty(tensor.shape, pin_memory=True).copy_(tensor, non_blocking=True)")),
        ("waits more than once", lambda tensors, synchronize: [
            (tensor.to("cpu", non_blocking=True), synchronize())[0] for tensor in tensors]),
        ("waits before all copies are started", edit("    copies = [", "    synchronize()\n    copies = [",
         "    synchronize()  #", "    pass  #")),
    ],
}
