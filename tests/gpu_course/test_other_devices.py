"""Does each check accept right answers on devices that nobody has here, such as Apple's GPUs and Intel's?

The simulated GPU stands for one without float64: an operator that would put float64 on it raises the error of MPS.
"""

import ast
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_utils import devices
from gpu_course import lesson05
from gpu_course.catalogue import registry
from gpu_course.checks import WrongAnswer, edges, edit
from gpu_course.common import events
from tools import notebooks

pytestmark = pytest.mark.skipif(devices.simulated() is None, reason="there is a real GPU beside it")
REFUSED = "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64."
WIDE = torch.float64, torch.complex128
DRAW_IT = (  # exercises whose checks have a case in float64, or a scaler
    "double move_batch nearest normalise huber MaskedLinear last_states load_checkpoint "
    "forward_on_two train_step evaluate mean_loss train_epoch amp_step bias_gelu_backward keep_rows_operator "
    "train_pairs"
)
EXERCISES = [
    pytest.param(one, id=one.name, marks=[pytest.mark.slow] * (one.name not in DRAW_IT.split()))
    for one in registry()
    if not one.task.simulated  # that runs on the simulated GPU everywhere
]


class NoFloat64(TorchDispatchMode):
    """Raises the error of an Apple GPU where an operator puts float64 on the simulated GPU."""

    supports_higher_order_operators = True  # those of `torch.library.opcheck`

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "sim" and leaf.dtype in WIDE:
                raise TypeError(REFUSED)
        return result


@contextmanager
def without_float64():
    probes = edges.has_double, edges.scaling
    for probe in probes:
        probe.cache_clear()
    try:
        with NoFloat64():
            yield
    finally:
        for probe in probes:
            probe.cache_clear()


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_reference_is_accepted_and_float64_is_tried_all_the_same(exercise):
    with without_float64(), edges.recording() as seen:
        exercise.examine(exercise.reference, devices.simulated())
    assert seen.missing() & {"double", "double_model"} <= set(exercise.exempted)


STORED = [
    pytest.param(one, answer, id=f"{one.lesson}-{one.name}-{at}")
    for one in registry()
    if one.name in DRAW_IT.split()
    for at, (row, answer) in enumerate(one.stored("right"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "answer"), STORED)
def test_a_stored_right_answer_is_accepted(exercise, answer):
    with without_float64():
        exercise.examine(answer, devices.simulated())


def test_where_nothing_is_pinned_a_copy_must_not_be_left_running(monkeypatch):
    """A Mac then reads memory that Python has given to the next batch."""
    monkeypatch.setitem(lesson05.train_epoch.reference.__globals__, "PINNING", ())
    waits = edit("""
        -    can_pin = device.type in ("cuda", "xpu", "sim")  # elsewhere a copy must be done before its source goes
        +    can_pin = False
    """).of(lesson05.train_epoch.reference)
    lesson05.train_epoch.examine(waits, devices.simulated())
    with pytest.raises(WrongAnswer, match="from memory that is not pinned"):
        lesson05.train_epoch.examine(lesson05.train_epoch.reference, devices.simulated())


class WaitsForEver(Exception):
    """What would never return on an Apple GPU."""


class MpsEvent:
    """An event of `torch.mps`: whoever waits for it takes the signal that `elapsed_time` needs (pytorch#162872)."""

    def __init__(self, enable_timing=False):
        self.signalled = False

    def record(self):
        self.signalled = True

    def synchronize(self):
        self.signalled = False

    def elapsed_time(self, end):
        if not end.signalled:
            raise WaitsForEver
        return 1.0


@pytest.mark.parametrize("device", ["mps", "cuda"])
def test_no_event_is_waited_for_before_its_time_is_asked(monkeypatch, device):
    """On other devices than Apple's the time is that between two events."""
    waits = []
    backend = SimpleNamespace(Event=MpsEvent, synchronize=lambda: waits.append("device"))
    monkeypatch.setattr(torch, "get_device_module", lambda device: backend)
    took_ms = events.median_ms(lambda: None, torch.device(device), 3)
    assert len(waits) == 6 and (took_ms == 1.0) == (device == "cuda")


def waited_for(source):
    """Return the names in `source` that hold an event of a device, and that something waits for."""
    nodes = list(ast.walk(ast.parse(source)))
    made = [
        ast.unparse(target)
        for node in nodes
        if isinstance(node, ast.Assign) and "Event(enable_timing=True)" in ast.unparse(node.value)
        for target in ast.walk(node.targets[0])
    ]
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    return {name for name in made if f"{name}.synchronize" in called}


def test_nothing_waits_for_an_event_whose_time_it_asks():
    cells = [
        cell.source for path in notebooks.lessons() for cell in notebooks.read(path).cells if cell.cell_type == "code"
    ]
    cells = [source for source in cells if "enable_timing" in source]
    files = [path.read_text("utf-8") for path in (notebooks.ROOT / "gpu_course").rglob("*.py")]
    assert len(cells) >= 2 and [source for source in cells + files if waited_for(source)] == []
    careless = "start, end = Event(enable_timing=True), Event(enable_timing=True)\nend.synchronize()"
    assert waited_for(careless) == {"end"}


def cells_of(lesson):
    """Return the sources of a lesson's cells of code by their ids."""
    (path,) = (path for path in notebooks.lessons() if notebooks.number(path) == lesson)
    return {cell.id: cell.source for cell in notebooks.read(path).cells if cell.cell_type == "code"}


@pytest.mark.parametrize(("device", "found"), [("cuda", (2, 2, True)), ("cpu", (0, 3, False)), ("sim", (0, 3, False))])
def test_beside_two_gpus_ranks_of_lesson_09_are_where_the_lesson_is(monkeypatch, device, found):
    for name, value in (("is_available", True), ("device_count", 2), ("mem_get_info", (2**34, 2**35))):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    cells = cells_of("09")
    settings = "\n".join(cells[name].partition("\ndef ")[0] for name in ("one-and-all", "step-ms"))
    names = {"torch": torch, "DEVICE": torch.device(device)}
    exec(settings, names)
    assert (names["GPUS"], names["RANKS"], names["HAS_ROOM"]) == found
    assert [name for name, source in cells.items() if "cuda.is_available()" in source] == ["program"]  # on its own


@pytest.mark.parametrize(
    ("error", "fits"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB."), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 5.56 GB, max allowed: 6.80 GB)."), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False),
    ],
)
def test_the_program_of_lesson_07_halves_the_parts_where_memory_runs_out_and_nowhere_else(error, fits):
    names = {}
    exec(cells_of("07")["program"], names)

    def backward(model, x, y, rows):
        if rows > 8:
            raise error
        return torch.zeros(())

    names["backward"] = backward
    step = names["train_step"], names["network"], names["optimizer"], None, None, 32
    if fits:
        assert step[0](*step[1:])[1] == 8
    else:
        with pytest.raises(RuntimeError, match="shapes"):
            step[0](*step[1:])
