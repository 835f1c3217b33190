"""Answers to lesson 02 that people give, each with what the message must say."""

import math

import torch


# ---- ramp
def _created_then_moved(rows, columns, device):
    return torch.linspace(0, 1, columns).repeat(rows, 1).to(device)


def _from_a_list(rows, columns, device):
    return torch.tensor([[c / (columns - 1) for c in range(columns)]] * rows, device=device)


def _forgets_device(rows, columns, device):
    return torch.linspace(0, 1, columns).repeat(rows, 1)


def _down_the_columns(rows, columns, device):
    return torch.linspace(0, 1, rows, device=device)[:, None].repeat(1, columns)


def _ends_early(rows, columns, device):
    return (torch.arange(columns, device=device) / columns).repeat(rows, 1)


def _one_row(rows, columns, device):
    return torch.linspace(0, 1, columns, device=device)


# ---- move_batch
def _top_level(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
    if hasattr(batch, "_fields"):
        return type(batch)(*[v.to(device) if isinstance(v, torch.Tensor) else v for v in batch])
    return type(batch)(v.to(device) if isinstance(v, torch.Tensor) else v for v in batch)


def _tuple_to_list(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {k: _tuple_to_list(v, device) for k, v in batch.items()}
    if isinstance(batch, list | tuple):
        return [_tuple_to_list(v, device) for v in batch]
    return batch


def _named_tuple_to_tuple(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {k: _named_tuple_to_tuple(v, device) for k, v in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_named_tuple_to_tuple(v, device) for v in batch)
    if isinstance(batch, list):
        return [_named_tuple_to_tuple(v, device) for v in batch]
    return batch


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


def _to_is_not_in_place(batch, device):
    if isinstance(batch, torch.Tensor):
        batch.to(device)
    elif isinstance(batch, dict):
        for value in batch.values():
            _to_is_not_in_place(value, device)
    elif isinstance(batch, list | tuple):
        for value in batch:
            _to_is_not_in_place(value, device)
    return batch


def _only_tensors(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {k: _only_tensors(v, device) for k, v in batch.items()}
    if hasattr(batch, "_fields"):
        return type(batch)(*[_only_tensors(v, device) for v in batch])
    return type(batch)(_only_tensors(v, device) for v in batch)


# ---- nearest
def _moves_the_points(points, query):
    return ((points.cpu() - query.cpu()) ** 2).sum(dim=1).argmin()


def _moves_the_points_and_back(points, query):
    return ((points.to("cpu") - query.to("cpu")) ** 2).sum(dim=1).argmin().to(points.device)


def _fixed_device(points, query):
    return ((points - query.to("sim" if hasattr(torch, "sim") else "cuda")) ** 2).sum(dim=1).argmin()


def _python_number(points, query):
    return ((points - query.to(points.device)) ** 2).sum(dim=1).argmin().item()


def _unchanged(points, query):
    return ((points - query) ** 2).sum(dim=1).argmin()


def _farthest(points, query):
    return ((points - query.to(points.device)) ** 2).sum(dim=1).argmax()


# ---- normalise
def _items(x):
    columns = [(c - c.mean().item()) / (c.std().item() or 1.0) for c in x.unbind(1)]
    return torch.stack(columns, dim=1)


def _numpy(x):
    return (x - x.mean(0)) / torch.where(x.std(0) > 0, x.std(0), 1.0) + 0 * x.numpy().sum()


def _cpu(x):
    host = x.cpu()
    std = host.std(dim=0)
    return ((host - host.mean(dim=0)) / torch.where(std > 0, std, 1.0)).to(x.device)


def _if(x):
    std = x.std(dim=0)
    if (std == 0).any():
        std = std + (std == 0)
    return (x - x.mean(dim=0)) / std


def _not_a_number(x):
    return (x - x.mean(dim=0)) / x.std(dim=0)


def _whole(x):
    return (x - x.mean()) / x.std()


def _rows(x):
    return (x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True)


def _population(x):
    std = x.std(dim=0, correction=0)
    return (x - x.mean(dim=0)) / torch.where(std > 0, std, 1.0)


def _in_place(x):
    std = x.std(dim=0)
    x -= x.mean(dim=0)
    x /= torch.where(std > 0, std, 1.0)
    return x


# ---- copy_time_ms
def _bits(shape, dtype, bandwidth_gbps, latency_us):
    return latency_us / 1e3 + math.prod(shape) * dtype.itemsize * 8 / (bandwidth_gbps * 1e6)


def _gib(shape, dtype, bandwidth_gbps, latency_us):
    return latency_us / 1e3 + math.prod(shape) * dtype.itemsize / (bandwidth_gbps * 2**30) * 1e3


def _elements(shape, dtype, bandwidth_gbps, latency_us):
    return latency_us / 1e3 + math.prod(shape) / (bandwidth_gbps * 1e6)


def _no_latency(shape, dtype, bandwidth_gbps, latency_us):
    return math.prod(shape) * dtype.itemsize / (bandwidth_gbps * 1e6)


def _seconds(shape, dtype, bandwidth_gbps, latency_us):
    return latency_us / 1e6 + math.prod(shape) * dtype.itemsize / (bandwidth_gbps * 1e9)


def _latency_in_ms(shape, dtype, bandwidth_gbps, latency_us):
    return latency_us + math.prod(shape) * dtype.itemsize / (bandwidth_gbps * 1e6)


def _four_bytes(shape, dtype, bandwidth_gbps, latency_us):
    return latency_us / 1e3 + math.prod(shape) * 4 / (bandwidth_gbps * 1e6)


def _text(shape, dtype, bandwidth_gbps, latency_us):
    return f"{latency_us / 1e3 + math.prod(shape) * dtype.itemsize / (bandwidth_gbps * 1e6)} ms"


# ---- move_pieces
def _copies_each(pieces, device):
    return [piece.to(device) for piece in pieces]


def _copies_each_then_joins(pieces, device):
    return list(torch.cat([piece.to(device) for piece in pieces]).split([len(piece) for piece in pieces]))


def _joined(pieces, device):
    return torch.cat(pieces).to(device)


def _equal_parts(pieces, device):
    return list(torch.cat(pieces).to(device).chunk(len(pieces)))


def _split_not_moved(pieces, device):
    return list(torch.cat(pieces).split([len(piece) for piece in pieces]))


def _lengths_on_the_device(pieces, device):
    lengths = torch.tensor([len(piece) for piece in pieces], device=device)
    return list(torch.cat(pieces).to(device).split(lengths.tolist()))


def _absolute(points, query):
    return (points - query.to(points.device)).abs().sum(dim=1).argmin()


def _always_the_first_gpu(rows, columns, device):
    place = "sim:0" if device.type in ("sim", "meta") else device
    return torch.linspace(0, 1, columns, device=place).repeat(rows, 1)


def _floats(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device).float()
    if isinstance(batch, dict):
        return {k: _floats(v, device) for k, v in batch.items()}
    if isinstance(batch, list | tuple):
        moved = [_floats(v, device) for v in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def _no_tuples(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {k: _no_tuples(v, device) for k, v in batch.items()}
    return [_no_tuples(v, device) for v in batch] if isinstance(batch, list) else batch


def _batch_to_the_first_gpu(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to("sim:0" if device.type == "sim" else device)
    if isinstance(batch, dict):
        return {k: _batch_to_the_first_gpu(v, device) for k, v in batch.items()}
    if isinstance(batch, list | tuple):
        moved = [_batch_to_the_first_gpu(v, device) for v in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def _nothing_for_empty(batch, device):
    if isinstance(batch, list) and not batch:
        return None
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {k: v if v == [] else _nothing_for_empty(v, device) for k, v in batch.items()}
    if isinstance(batch, list | tuple):
        moved = [_nothing_for_empty(v, device) for v in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def _divisor(x):
    return torch.where(x.std(dim=0) > 0, x.std(dim=0), 1.0)


def _double(x):
    return ((x - x.mean(dim=0)) / _divisor(x)).double()


def _not_shifted(x):
    return x / _divisor(x)


def _not_scaled(x):
    return x - x.mean(dim=0)


def _variance(x):
    return (x - x.mean(dim=0)) / _divisor(x) ** 2


def _min_max(x):
    width = x.amax(dim=0) - x.amin(dim=0)
    return (x - x.amin(dim=0)) / torch.where(width > 0, width, 1.0)


def _rounded(shape, dtype, bandwidth_gbps, latency_us):
    return round(latency_us / 1e3 + math.prod(shape) * dtype.itemsize / (bandwidth_gbps * 1e6), 2)


def _microseconds(shape, dtype, bandwidth_gbps, latency_us):
    return latency_us + math.prod(shape) * dtype.itemsize / (bandwidth_gbps * 1e3)


def _larger_part(shape, dtype, bandwidth_gbps, latency_us):
    return max(latency_us / 1e3, math.prod(shape) * dtype.itemsize / (bandwidth_gbps * 1e6))


def _mib(shape, dtype, bandwidth_gbps, latency_us):
    return latency_us / 1e3 + math.prod(shape) * dtype.itemsize / (bandwidth_gbps * 2**20)


def _times_bandwidth(shape, dtype, bandwidth_gbps, latency_us):
    return latency_us / 1e3 + math.prod(shape) * dtype.itemsize * bandwidth_gbps / 1e6


def _latency_in_seconds(shape, dtype, bandwidth_gbps, latency_us):
    return latency_us / 1e6 + math.prod(shape) * dtype.itemsize / (bandwidth_gbps * 1e6)


WRONG = {
    "ramp": [
        ("ignores its argument `device`", _always_the_first_gpu),
        ("creates it on the CPU and copies", _created_then_moved),
        ("Python numbers in a list are on the host too", _from_a_list),
        ("without `device=`, a new tensor is on the CPU", _forgets_device),
        ("runs down the columns", _down_the_columns),
        ("ends before 1", _ends_early),
        ("has shape", _one_row),
    ],
    "move_batch": [
        ("moves only the top level", _top_level),
        ("turns a tuple into another type", _tuple_to_list),
        ("turns a named tuple into another type", _named_tuple_to_tuple),
        ("modifies its input", _changes_the_input),
        ("put that one into the result", _to_is_not_in_place),
        ("in line", _only_tensors),
        ("ignores its argument `device`", _batch_to_the_first_gpu),
        ("returns a tuple as it came", _no_tuples),
        ("the device changes and nothing else", _floats),
        ("None", _nothing_for_empty),
    ],
    "nearest": [
        ("moves the large tensor instead of the small one", _moves_the_points),
        ("moves the large tensor instead of the small one", _moves_the_points_and_back),
        ("works on one device only", _fixed_device),
        ("returns a Python number", _python_number),
        ("two devices", _unchanged),
        ("other values", _farthest),
        ("sum of squared differences", _absolute),
    ],
    "normalise": [
        ("lets the host read a value", _items),
        ("to numpy", _numpy),
        ("copies to the host", _cpu),
        ("choose with torch.where", _if),
        ("makes NaN", _not_a_number),
        ("normalises the tensor as a whole", _whole),
        ("normalises the rows", _rows),
        ("divides by n instead of n - 1", _population),
        ("float64", _double),
        ("does not subtract the mean", _not_shifted),
        ("does not divide by the standard deviation", _not_scaled),
        ("divides by the variance", _variance),
        ("scales to the range from 0 to 1", _min_max),
        ("modifies its input", _in_place),
    ],
    "copy_time_ms": [
        ("takes bits for bytes", _bits),
        ("takes GiB for GB", _gib),
        ("counts elements, not bytes", _elements),
        ("forgets the latency", _no_latency),
        ("returns seconds", _seconds),
        ("takes microseconds for milliseconds", _latency_in_ms),
        ("takes 4 bytes for every type", _four_bytes),
        ("returns str, expected a number", _text),
        ("rounds the time", _rounded),
        ("returns microseconds", _microseconds),
        ("takes the larger part", _larger_part),
        ("takes MiB for MB", _mib),
        ("multiplies by the bandwidth", _times_bandwidth),
        ("adds the latency in seconds", _latency_in_seconds),
    ],
    "move_pieces": [
        ("copies each piece", _copies_each),
        ("copies each piece", _copies_each_then_joins),
        ("returns one tensor, not a list", _joined),
        ("has shape", _equal_parts),
        ("is still on another device", _split_not_moved),
        ("the limit is 1", _lengths_on_the_device),
    ],
}
