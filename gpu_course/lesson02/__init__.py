"""Where is the tensor, and what did it cost to get it there? The exercises of lesson 02."""

import math
from collections import namedtuple
from collections.abc import Callable

import torch
from torch.utils._pytree import tree_map_only

from course_utils import counting
from gpu_course.checks import Case, edges, lesson
from gpu_course.common.probes import elsewhere
from gpu_course.lesson02.trips import cpu_ms, measure_ms, predicted_ms

__all__ = [
    "copy_time_ms", "cpu_ms", "fetch", "measure_ms", "move_batch", "move_pieces", "nearest", "normalise",
    "predicted_ms", "ramp", "windows",
]  # fmt: skip

exercise = lesson("02")


@exercise(
    title="Create on the device",
    minutes=6,
    difficulty=1,
    hints=(
        "One of the functions that create tensors makes even steps, both ends included. It takes `device=`.",
        "torch.linspace makes one row. Another method makes the other rows from it, on the device: no list, no loop.",
        "torch.linspace with `columns` numbers is one row. Tell `repeat` how often you want it downwards, then across.",
    ),
)
def ramp(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Return (rows, columns) numbers on `device`, each row evenly from 0 to 1."""
    row = torch.linspace(0, 1, columns, dtype=torch.float32, device=device)  # created where it is needed
    return row.repeat(rows, 1)  # the device itself writes the other rows


ramp.leaves_out(
    "from 0 to 1 there are two columns or more, and a size is a small number",
    "number_negative number_large limit",
)
ramp.leaves_out("PyTorch makes float32 as long as nobody changes that, and no lesson does", "default_type")


@ramp.checks
def _(case: Case) -> None:
    for device in (case.device, elsewhere(case.device), torch.device("cpu")):
        for rows, columns in ((2, 3), (1, 2), (4, 11), (2, 7), (3, 10), (1, 22), (2, 50), (1, 97), (2, 1001), (0, 4)):
            got = case.call(rows, columns, device)
            sent = case.counts.bytes_h2d
            case.instead(
                sent,
                f"creates it on the CPU and copies {sent} bytes to the device",
                "the device can write these numbers itself: give device= to the function that creates them. "
                "Python numbers in a list are on the host too",
            )
            case.instead(
                case.counts.bytes_d2h or case.counts.host_reads,
                "brings values back to the host",
                "the host must then wait for the device; nothing here needs to be read",
            )
            case.equal(
                got,
                torch.linspace(0, 1, columns).expand(rows, columns).to(device),
                why="each row runs from 0 to 1 in even steps, on the `device` that is asked for",
            )


@ramp.alternative("a view: further rows take no memory, but all rows are one, so who writes to one writes to all")
def _(rows, columns, device):
    return torch.linspace(0, 1, columns, device=device).expand(rows, columns)


@exercise(
    title="Move a nested batch",
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


move_batch.leaves_out("nothing is made, so no default is asked, and no number is compared", "default_type limit")


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
        case.instead(turned, "puts a dict into another order", "everything else stays as it is", got=list(got))


@move_batch.alternative("PyTorch's own walk: it knows more containers, but the module is private and may change")
def _(batch, device):
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), batch)


@move_batch.mistake(
    "`.to` does not move a tensor in place", "it returns the moved tensor: put that one into the result"
)
def _(batch, device):
    return batch


@exercise(
    title="Repair a function that mixes devices",
    minutes=6,
    difficulty=1,
    hints=(
        "One of the two must move. Which one is small?",
        "A tensor knows where it is: points.device. No name of a device is needed.",
        "One more line at the top is enough. Give the name `query` to what `.to` returns for the device of `points`.",
    ),
)
def nearest(points: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Return the index of the row of `points` nearest to `query`, where `points` is."""
    query = query.to(points.device)  # three numbers travel; all the points stay
    return ((points - query) ** 2).sum(dim=1).argmin()


nearest.leaves_out("of no points none is nearest", "empty scalar")
nearest.leaves_out(
    "coordinates are floating-point numbers of full width",
    "half bfloat16 whole bool complex not_finite",
)
nearest.leaves_out("nothing is made, so no default is asked", "default_type")


@nearest.checks
def _(case: Case) -> None:
    far = torch.tensor([[20000.0, -20000.0], [20001.0, -20003.0], [20003.0, -20002.0]])
    small = torch.tensor([[0.0, 0.0], [4.0, 4.0], [1.0, 2.0]])
    here, there = torch.device("cpu"), case.device
    for points, query, device in (
        (small, torch.tensor([3.0, 3.0]), there),
        (torch.rand(5000, 3), torch.rand(3), there),
        (small, torch.tensor([1.0, 1.0]), here),
        (torch.tensor([[3.0, 0.0], [2.0, 2.0]]), torch.zeros(2), there),
        (small, torch.tensor([3.0, 1.5]), elsewhere(there)),
        (torch.rand(64, 3), torch.rand(3), there),
        (torch.rand(1, 1), torch.rand(1), there),
        (far, torch.tensor([20002.0, -20002.0]), there),
        (1e-6 * small, torch.tensor([4e-6, 4e-6]), there),
        (1000 + 1e-5 * small.double(), torch.full((2,), 1000.00004, dtype=torch.float64), there),
        (edges.permuted(small), torch.tensor([3.0, 3.0]), there),
        (edges.sliced(small), torch.tensor([3.0, 3.0]), there),
    ):
        device = edges.supporting(device, points)
        points = edges.on(points, device)
        got = case.call(points, query)
        sent, read = case.counts.bytes_d2h, case.counts.host_reads
        case.instead(
            sent >= points.nbytes,
            "moves the large tensor instead of the small one",
            f"{sent} bytes travelled for `points`; `query` has {query.nbytes}",
        )
        case.instead(
            isinstance(got, int | float),
            "returns a Python number",
            "to read it, the host waits for the device; the next operation there could use it at once",
            got=got,
        )
        row = isinstance(got, torch.Tensor) and got.is_floating_point() and got.shape == query.shape
        case.instead(
            row,
            "returns the row, not its index",
            "the index is asked for; to take the row by it, the host reads it and waits",
            got=got,
        )
        case.instead(
            sent or read,
            "brings values back to the host",
            "the host must then wait for the device; nothing here needs to be read",
        )
        expected = ((points.cpu() - query) ** 2).sum(dim=1).argmin().to(device)
        case.equal(got, expected, why="the index, on the device of `points`, by the sum of squared differences")


@nearest.alternative("`query.to(points)` takes the dtype too, and the norm adds a square root for each point")
def _(points, query):
    return torch.linalg.vector_norm(points - query.to(points), dim=1).argmin()


@exercise(
    title="Normalise on the device",
    minutes=10,
    difficulty=2,
    hints=(
        "x.mean(dim=0) and x.std(dim=0) have one number for each column, and broadcast against x.",
        "If all values of a column are equal, divide by 1 instead. They are equal if the smallest equals the largest.",
        "x.amin(dim=0) == x.amax(dim=0) is a mask of such columns. torch.where takes 1.0 there, and the std elsewhere.",
    ),
)
def normalise(x: torch.Tensor) -> torch.Tensor:
    """Return `x` with each column at mean 0 and standard deviation 1, where `x` is."""
    std = x.std(dim=0)
    equal = x.amin(dim=0) == x.amax(dim=0)  # exact, where rounding may leave a deviation of 1e-9
    divisor = torch.where(equal, 1.0, std)  # a choice for each element, made on the device: no `if`
    return (x - x.mean(dim=0)) / divisor


normalise.leaves_out("of no rows there is no mean", "scalar empty")
normalise.leaves_out("the text speaks of NaN in the result alone", "not_finite")
normalise.leaves_out(
    "a deviation needs floating-point numbers, and more digits than 16 bits have",
    "half bfloat16 whole bool complex",
)
normalise.leaves_out("nothing is made, so no default is asked", "default_type")


@normalise.checks
def _(case: Case) -> None:
    table = torch.tensor([[-2.0, 0.0, 7.0], [2.0, 20.0, 7.0], [6.0, -30.0, 7.0]])
    for x in (
        torch.tensor([[1.0, 5.0], [3.0, 9.0]]),
        torch.tensor([[1.0, 5.0], [3.0, 5.0]]),
        torch.tensor([[1.0, 10.0, 7.0], [2.0, 20.0, 7.0], [6.0, 30.0, 7.0], [3.0, 80.0, 7.0]]),
        torch.tensor([[1e-9, 4e4], [3e-9, 1e4], [8e-9, 9e4]]),
        torch.tensor([[5.0], [5.0], [9.0], [5.0]]),
        torch.full((7, 1), 0.1),
        torch.tensor([[-1.0, 10000.0], [1.0, 10001.0], [-1.0, 10002.0]]),
        torch.tensor([[1e6], [1e6 + 1], [1e6 + 2]]),  # no two are equal, though `isclose` says so
        torch.tensor([[5.0, -3.0]]),  # "a column whose values are all equal": of one row, each
        edges.permuted(table),
        edges.sliced(table),
        1 + 1e-9 * table.double(),
    ):
        _normalised(case, x, edges.supporting(case.device, x))
    for device in (elsewhere(case.device), torch.device("cpu")):  # "where `x` is"
        _normalised(case, table, device)


def _normalised(case: Case, x: torch.Tensor, device: torch.device) -> None:
    got = case.call(edges.on(x, device))
    counts = case.counts
    case.instead(
        counts.copies_d2h,
        "copies to the host",
        f"{counts.bytes_d2h} bytes leave the device, and the host waits for them",
    )
    case.instead(
        counts.host_reads,
        "lets the host read a value",
        ".item(), print and an `if` on a value make the host wait: choose with torch.where instead",
    )
    columns = [[float(value) for value in x[:, i]] for i in range(x.shape[1])]
    expected = torch.tensor([_standard(column) for column in columns], dtype=x.dtype).T.to(device)
    case.equal(
        got,
        expected,
        rtol=1e-4,
        atol=1e-5,
        why="mean 0 and standard deviation 1; equal values become "
        "zeros, also where rounding leaves them a deviation above 0",
    )


def _standard(column: list[float]) -> list[float]:
    """Return what is right for one column, with Python's numbers."""
    if len(set(column)) == 1:
        return [0.0] * len(column)
    mean = math.fsum(column) / len(column)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in column) / (len(column) - 1))
    return [(value - mean) / std for value in column]


@normalise.alternative("makes NaN or noise and overwrites it: right here, but NaN gradients in a backward pass")
def _(x):
    scaled = (x - x.mean(dim=0)) / x.std(dim=0)
    return scaled.masked_fill(x.amin(dim=0) == x.amax(dim=0), 0.0)


@exercise(
    title="Predict the time of a copy",
    minutes=5,
    difficulty=1,
    hints=(
        "The bytes are the number of elements times the bytes of one: math.prod(shape) * dtype.itemsize.",
        "1 GB/s is 10**9 bytes a second, which is 10**6 bytes a millisecond; 1000 µs are 1 ms.",
        "Add two times in ms: latency_us / 1000, and the bytes divided by those that the bus carries in a millisecond.",
    ),
)
def copy_time_ms(shape: tuple[int, ...], dtype: torch.dtype, bandwidth_gbps: float, latency_us: float) -> float:
    """Return the milliseconds that copying a tensor of this shape and dtype takes."""
    nbytes = math.prod(shape) * dtype.itemsize
    return latency_us / 1e3 + nbytes / (bandwidth_gbps * 1e6)  # 1 GB/s is 10**6 bytes a millisecond


copy_time_ms.leaves_out(
    "no size, rate or latency is below 0, and of none of them a limit is named",
    "number_negative limit",
)


@copy_time_ms.checks
def _(case: Case) -> None:
    for shape, dtype, bandwidth_gbps, latency_us in (
        ((1000, 1000), torch.float32, 16.0, 10.0),
        ((1000, 1000), torch.float32, 16.0, 0.0),
        ((2000, 500, 3), torch.float16, 4.0, 20.0),
        ((64, 64), torch.float64, 25.0, 5.0),
        ((10_000_000,), torch.uint8, 12.5, 8.0),
        ((), torch.float32, 16.0, 10.0),
        ((0, 5), torch.float32, 16.0, 10.0),
        ((7, 5, 3, 2, 2), torch.bfloat16, 0.5, 1.5),
        ((2**31, 3), torch.int64, 25.0, 5.0),
        ((33, 41), torch.bool, 25.0, 0.0),
        ((33, 41), torch.complex64, 25.0, 0.0),
    ):
        got = case.call(shape, dtype, bandwidth_gbps, latency_us)
        bytes_ms = torch.empty(shape, dtype=dtype, device="meta").nbytes / bandwidth_gbps / 1e6
        expected = latency_us / 1e3 + bytes_ms
        rounded = isinstance(got, float) and any(0 != got == round(expected, n) != expected for n in range(6))
        case.instead(
            rounded,
            "rounds the time",
            "the caller adds up thousands of small copies: return what you computed",
            expected=expected,
            got=got,
        )
        case.equal(
            got,
            expected,
            rtol=1e-12,
            atol=0,
            why=f"{latency_us / 1e3:g} ms of latency and {bytes_ms:.6g} ms for the bytes",
        )


@copy_time_ms.alternative("everything in seconds, one conversion at the end: a line longer, and harder to get wrong")
def _(shape, dtype, bandwidth_gbps, latency_us):
    nbytes = math.prod(shape) * dtype.itemsize
    seconds = latency_us * 1e-6 + nbytes / (bandwidth_gbps * 1e9)
    return 1e3 * seconds


@exercise(
    title="One copy instead of N",
    minutes=7,
    difficulty=2,
    hints=(
        "Three steps: join the pieces on the host, copy once, take them apart on the device.",
        "torch.cat(pieces).to(device) is the one copy. Views take it apart, and copy nothing.",
        "Keep the length of each piece. Call `split` with these lengths on the tensor that was moved, then list().",
    ),
)
def move_pieces(pieces: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return the tensors of `pieces` on `device`, moved with one copy."""
    lengths = [len(piece) for piece in pieces]
    joined = torch.cat(pieces).to(device)  # latency is paid once
    return list(joined.split(lengths))  # views: nothing is copied again


move_pieces.leaves_out("the text says one-dimensional", "scalar permuted")
move_pieces.leaves_out("the text says float32", "half bfloat16 double whole bool complex default_type")
move_pieces.leaves_out("without a piece there is nothing to move", "no_entries")


@move_pieces.checks
def _(case: Case) -> None:
    ugly = [edges.UGLY[0], edges.UGLY[1, :2], edges.sliced(edges.UGLY[1]), edges.UGLY[:, 0]]
    rows = []
    for device, lengths in (
        *((case.device, lengths) for lengths in ((2, 3, 1), (4,), (5, 1, 0, 7), (6, 6, 6))),
        (case.device, tuple(range(1, 33))),
        (elsewhere(case.device), (1, 2)),
    ):
        rows.append((device, [torch.rand(length) for length in lengths]))
    for device, pieces in (*rows, (case.device, ugly), (case.device, ugly[::-1])):
        lengths = [len(piece) for piece in pieces]
        got = case.call(pieces, device)
        case.instead(
            isinstance(got, torch.Tensor),
            "returns one tensor, not a list",
            "the caller wants the pieces back: tensor.split(lengths) gives views",
            got=got,
        )
        case.instead(type(got) is tuple, "returns a tuple, not a list", "split gives a tuple: list(…) makes the list")
        copies, back = case.counts.copies_h2d, case.counts.copies_d2h + case.counts.host_reads
        case.instead(
            len(lengths) > 2 and copies >= len(lengths) - lengths.count(0),
            "copies each piece",
            f"{copies} copies pay the latency {copies} times: join the pieces first, then copy once",
        )
        case.equal(got, [piece.to(device) for piece in pieces])
        case.budget("copies from the host", copies, 1, "each pays the latency again")
        case.budget("reads or copies back to the host", back, 0, "the lengths are known on the host already")


@move_pieces.alternative("no lengths to keep, but every piece travels with padding up to the longest")
def _(pieces, device):
    padded = torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True).to(device)
    return [row[: len(piece)] for row, piece in zip(padded, pieces, strict=True)]


@exercise(
    title="Windows without a copy",
    minutes=10,
    difficulty=2,
    hints=(
        "Row i + 1 begins one element of x behind row i; so does column j + 1 behind column j.",
        "A tensor of length n has n - length + 1 windows. Both strides are the same number, the stride of x.",
        "as_strided takes the shape as a tuple, then the two strides as a tuple: x.stride(0), not 1.",
    ),
)
def windows(x: torch.Tensor, length: int) -> torch.Tensor:
    """Return a view of `x` whose row i holds the `length` elements from x[i] on."""
    step = x.stride(0)  # 1 only where the elements of x are neighbours in memory
    return x.as_strided((len(x) - length + 1, length), (step, step))


windows.leaves_out(
    "`x` has one dimension, and a window needs `length` elements of it",
    "scalar empty permuted number_zero number_negative number_large",
)
windows.leaves_out(
    "only where the elements lie matters, not which they are",
    "huge tiny not_finite negative tied bfloat16 bool complex default_type",
)


@windows.checks
def _(case: Case) -> None:
    edges.note("limit")  # a window as long as `x`, of 6 elements and of 1
    numbers = torch.arange(24.0, device=case.device)
    for x, length in (
        (numbers[:5], 2),
        (numbers[:7], 3),
        (numbers[:6], 6),
        (numbers[:4], 1),
        (numbers[10:19], 4),
        (numbers.view(8, 3)[:, 1], 3),
        (numbers[1::5], 2),
        (torch.arange(9, device=case.device), 5),
        (numbers[5:6], 1),
        (torch.arange(12.0, dtype=torch.float64, device=edges.supporting(case.device, torch.float64))[3::2], 3),
        (torch.arange(12.0, device=case.device).half()[1:], 3),
        (torch.arange(6.0, device=elsewhere(case.device))[1:], 2),
        (torch.arange(6.0)[1:], 2),
    ):
        got = case.call(x, length)
        expected = torch.stack([x[i : i + length] for i in range(len(x) - length + 1)])
        case.equal(got, expected, why="row i holds x[i] to x[i + length - 1]; `x` may step over elements of its memory")
        shared = got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        case.instead(not shared, "copies elements", "a view looks at the memory of `x` and takes none of its own")


@windows.alternative("PyTorch has it: no stride to get wrong, and the result is the same view")
def _(x, length):
    return x.unfold(0, length, 1)


@exercise(
    title="Bring results back, wait once",
    minutes=10,
    difficulty=2,
    hints=(
        "Two rounds: first start every copy, then wait.",
        "To copy to the CPU while the host goes on, you need a keyword of `.to`, which `.cpu()` does not have.",
        "Make a list of the results of `.to` with non_blocking=True. Below it call synchronize(), and then return.",
    ),
)
def fetch(tensors: list[torch.Tensor], synchronize: Callable[[], None]) -> list[torch.Tensor]:
    """Return CPU copies of `tensors`: start every copy, then wait once."""
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]  # each call returns at once
    synchronize()  # now all of them have arrived
    return copies


fetch.leaves_out("the text says float32", "half bfloat16 double whole bool complex default_type")
fetch.leaves_out("on the CPU, and without a tensor, there is nothing to fetch", "cpu no_entries")
fetch.leaves_out("it is handed a function", "second_call")


@fetch.checks
def _(case: Case) -> None:
    ugly = [
        edges.on(x, case.device)
        for x in (edges.UGLY, edges.permuted(edges.UGLY), edges.sliced(edges.UGLY), torch.ones(0, 3))
    ]
    shapes = ((4,),), ((2, 3), (5,)), ((2**16,), (3, 2), ()), ((7,),) * 12, ((1,), (5,), (3,))
    drawn = [[torch.rand(shape).to(case.device) for shape in group] for group in shapes]
    far = elsewhere(case.device)
    for tensors in (*drawn, ugly, ugly[::-1], [torch.rand(3, device=far)]):
        device = tensors[0].device
        with counting.count() as before:
            synchronize = _noting(device, before)
            got = case.call(tensors, synchronize)
        copies, asked = [copy for copy in case.counts.copies if copy.direction == "d2h"], synchronize.asked
        held = sum(not copy.non_blocking for copy in copies) + case.counts.host_reads
        case.instead(
            held,
            "holds the host in a copy or a read",
            f"copies and reads that make the host wait: {held}; one with non_blocking=True does not",
        )
        case.instead(
            copies and not asked,
            "never calls the `synchronize` that it was given",
            "nothing else has to wait until the values have arrived: call it before the return",
        )
        case.instead(
            copies and len(asked) > 1,
            "waits more than once",
            f"{len(asked)} waits: start all copies first, then wait for all of them",
        )
        case.instead(
            copies and asked[0] < len(copies),
            "waits before all copies are started",
            "what is started after synchronize() may arrive after the return",
        )
        case.equal(
            got,
            [tensor.cpu() for tensor in tensors],
            why="the same tensors on the CPU, in order, in a list, and not used before they have arrived",
        )


def _noting(device: torch.device, counts: counting.Counts) -> Callable[[], None]:
    """Return a function that waits for `device`, and keeps in `asked` how many copies had been started each time."""

    def synchronize() -> None:
        synchronize.asked.append(counts.copies_d2h)
        torch.accelerator.synchronize(device)

    synchronize.asked = []
    return synchronize


@fetch.alternative("one copy pays one latency, and the joined tensor takes memory on the device")
def _(tensors, synchronize):
    joined = torch.cat([tensor.flatten() for tensor in tensors]).to("cpu", non_blocking=True)
    synchronize()
    parts = joined.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
