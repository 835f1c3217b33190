"""Are the bytes right, and whose? Does a budget hold, and end? Does an estimate allocate nothing and leave nothing?"""

import copy
import gc
import itertools
import re
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.checkpoint import checkpoint

import simgpu
from course_utils import counting, memory, models, plots
from course_utils.memory import measurements
from course_utils.memory.budgets import Limited
from simgpu.accounting.ledger import Ledger
from tests import interrupts
from tests.course_utils import training_programs as programs
from tests.course_utils.training_programs import CASES, KIB, PROGRAMS, kib

CPU = torch.device("cpu")


@pytest.fixture
def sim():
    if simgpu.unavailable() is not None:
        pytest.skip(simgpu.unavailable())
    simgpu.enable()
    simgpu.reset()
    return torch.device("sim", 0)


@pytest.fixture(params=["cpu", "sim"])
def device(request):
    return CPU if request.param == "cpu" else request.getfixturevalue("sim")


def linear(**options):
    return nn.Linear(100, 50, bias=False, **options)


def vectors():
    return torch.ones(8, 100), torch.ones(8, 50)


def forecast(make_model=linear, make_batch=vectors, make_optimizer=torch.optim.Adam, **options):
    return simgpu.forecast(make_model, make_batch, make_optimizer, **options).memory


def step_with(loss):
    return programs.stepping(programs.Program(linear, vectors, torch.optim.Adam, loss=loss), "cpu")


# ---- measure --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CASES)
def test_measure_is_the_sum_of_storages(name, device):
    case, expected = CASES[name]
    measured = memory.measure(lambda: case(device), device)
    assert measured.peak_bytes == measured.parts.total_bytes == expected
    assert max(moment.bytes for moment in measured.timeline) == expected
    assert measured.other_bytes == 0


def test_measure_counts_what_is_used_or_freed_and_not_what_is_only_there(device):
    unrelated, used, freed = kib(8, device), kib(2, device), [kib(4, device)]

    def program():
        freed.clear()
        return used + 1

    measured = memory.measure(program, device)
    assert measured.peak_bytes == 6 * KIB  # used and freed at the start; then used and the sum
    assert measured.kept_bytes == -2 * KIB and unrelated.nbytes == 8 * KIB
    assert torch.equal(measured.value.cpu(), torch.full((512,), 2.0))


def test_measure_knows_the_owners(device):
    model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.Linear(256, 64)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(8, 64).to(device)
    parameters = sum(p.nbytes for p in model.parameters())

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for _ in range(2):  # the state exists from the first step on
        measured = memory.measure(step, device)
    owners = measured.parts
    assert owners.parameters_bytes == parameters + sum(b.nbytes for b in model.buffers())
    assert owners.gradients_bytes <= parameters and owners.optimizer_bytes == parameters
    at_end = memory.measure(optimizer.step, device).parts
    assert (at_end.gradients_bytes, at_end.optimizer_bytes) == (parameters, parameters)
    assert at_end.activations_bytes == 0


def test_measure_tells_phases_and_the_line_of_the_reader(device):
    x = kib(1, device, requires_grad=True)

    def program():
        checkpoint(lambda t: t.exp().exp(), x, use_reentrant=False).sum().backward()
        torch.optim.SGD([x], lr=0.1).step()

    measured = memory.measure(program, device)
    phases = [phase for phase, _ in itertools.groupby(moment.phase for moment in measured.timeline)]
    assert phases == ["forward", "recomputation", "backward", "optimizer step"]
    assert {one.made.partition(":")[0] for one in measured.at_peak if one.made} == {"test_memory.py"}
    assert any("checkpoint(lambda" in one.made for one in measured.at_peak)


def test_measure_leaves_nothing_behind(device):
    p = nn.Parameter(kib(1, device))
    hooks = len(nn.modules.module._global_forward_pre_hooks)
    with pytest.raises(ZeroDivisionError):
        memory.measure(lambda: (p.exp().sum().backward(), 1 / 0), device)
    assert len(nn.modules.module._global_forward_pre_hooks) == hooks and not p._post_accumulate_grad_hooks
    seen = []

    def program():
        y = p + 1
        seen.append(weakref.ref(y))

    measured = memory.measure(program, device)
    assert seen[0]() is None and measured.kept_bytes == 0


def test_measure_keeps_the_peak_that_others_count(sim):
    kib(64, sim)
    assert torch.sim.max_memory_allocated() >= 64 * KIB
    before = torch.sim.max_memory_allocated()
    assert memory.measure(lambda: kib(3, sim), sim).peak_bytes == 3 * KIB
    assert torch.sim.max_memory_allocated() == before


def test_measure_may_be_nested_and_counted(device):
    inner = []

    def program():
        a = kib(2, device)
        inner.append(memory.measure(lambda: a + 1, device).peak_bytes)
        return kib(1, device)

    with counting.count() as counts:
        outer = memory.measure(program, device)
    assert inner == [4 * KIB] and outer.peak_bytes == 4 * KIB and counts.operators >= 3


def test_measure_says_what_it_takes(device):
    with pytest.raises(TypeError, match="fn must be a function"):
        memory.measure(3)
    with pytest.raises(ValueError, match="device is 'cuda:99'"):
        memory.measure(lambda: None, "cuda:99")
    measured = memory.measure(lambda: None, device)
    assert measured.peak_bytes == 0 and "0 B" in str(measured) and plots.moments(measured)


@pytest.fixture
def cuda(monkeypatch):
    """There is CUDA here, as far as shapes go, and ledgers count its tensors as real ones."""
    own = lambda self, tensor: tensor.untyped_storage() if tensor.device == self.device else None  # noqa: E731
    monkeypatch.setattr(Ledger, "storage", own)
    with FakeTensorMode():
        yield torch.device("cuda", 0)


def test_the_allocator_of_cuda_is_asked(cuda, monkeypatch):
    """What the allocator says counts, and what of it no tensor accounts for is told apart."""
    answers = {"memory_allocated": 1000, "max_memory_allocated": 9192, "synchronize": 0, "reset_peak_memory_stats": 0}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer)
    monkeypatch.setattr(measurements, "resolve", lambda device: device)
    measured = memory.measure(lambda: torch.empty(1000, device=cuda), cuda)
    assert (measured.peak_bytes, measured.parts.total_bytes, measured.other_bytes) == (8192, 4000, 8192 - 4000)
    assert measured.label == "live"


# ---- budget ---------------------------------------------------------------------------------------------------------
WORDS = re.compile(
    r"^(sim|cpu|CUDA) out of memory\. Tried to allocate 4\.00 KiB\. (GPU 0|The budget) has a total capacity of "
    r"8\.00 KiB of which 2\.00 KiB is free\. Of the allocated memory 6\.00 KiB is allocated by PyTorch"
)


def test_a_budget_raises_in_cudas_words_at_the_operation_that_goes_over(device):
    before = kib(100, device)  # alive at the start: it does not count
    with memory.budget("8 KiB", device) as budget:
        x = kib(6, device)
        with pytest.raises(torch.OutOfMemoryError, match=WORDS):
            kib(4, device)
        y = kib(2, device)  # usable again, and up to the last byte
        with pytest.raises(torch.OutOfMemoryError):
            x + 1
        del x, y
        z = kib(8, device)
        assert budget.peak_bytes == 8 * KIB
    del z
    assert kib(200, device).nbytes > 0 and before.nbytes == 100 * KIB
    assert (budget.limit_bytes, budget.peak_bytes) == (8 * KIB, 8 * KIB) and "100%" in str(budget)


def test_a_budget_holds_in_the_backward_pass_and_in_the_optimizers_step(device):
    p = nn.Parameter(kib(4, device))
    with memory.budget(16 * KIB, device), pytest.raises(torch.OutOfMemoryError):
        p.sin().cos().sum().backward()
    p.grad = None
    with memory.budget(64 * KIB, device):
        p.sin().cos().sum().backward()
        torch.optim.Adam([p]).step()
    with memory.budget(4 * KIB, device), pytest.raises(torch.OutOfMemoryError):
        torch.optim.Adam([p]).step()


@pytest.mark.parametrize("sizes", [(4, 16), (16, 4)])
@pytest.mark.parametrize("ends_first", [0, 1])
def test_the_tightest_of_nested_budgets_holds_whichever_ends_first(device, sizes, ends_first):
    def limited(size):
        with memory.budget(size * KIB, device) as budget:
            yield budget

    blocks = [limited(size) for size in sizes]
    first = next(blocks[0])
    kib(3, device)
    budgets = [first, next(blocks[1])]
    kib(2, device)
    assert [budget.peak_bytes for budget in budgets] == [3 * KIB, 2 * KIB]
    with counting.count():
        with pytest.raises(torch.OutOfMemoryError):
            kib(5, device)
        assert next(blocks.pop(ends_first), None) is None
        size = sizes[1 - ends_first]
        kib(size, device)
    with pytest.raises(torch.OutOfMemoryError):
        kib(size + 1, device)
    assert next(blocks.pop(), None) is None
    kib(17, device)
    assert budgets[1 - ends_first].peak_bytes == size * KIB and budgets[ends_first].peak_bytes >= 2 * KIB


def test_a_tensor_of_given_values_counts(device):
    values = [1.0] * 1024
    assert memory.measure(lambda: torch.tensor(values, device=device), device).kept_bytes == 4 * KIB
    with memory.budget(8 * KIB, device) as budget:
        kept = [torch.tensor(values, device=device) for _ in range(2)]
        assert budget.peak_bytes == 8 * KIB == sum(x.nbytes for x in kept)
        with pytest.raises(torch.OutOfMemoryError):
            torch.tensor(values, device=device)


def test_an_exception_takes_the_budget_away(device):
    before = simgpu.settings() if device.type == "sim" else None
    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error), memory.budget(1, device):
            raise error
    assert kib(8, device).nbytes == 8 * KIB
    if device.type == "sim":
        assert simgpu.settings() == before and not any(before.budgets)
        assert kib(8, "sim:1").nbytes == 8 * KIB


def test_the_error_of_a_budget_holds_no_tensor(device):
    gc.collect()
    before = memory.census(device).total_bytes
    with memory.budget(8 * KIB, device):
        try:
            kib(9, device)
        except torch.OutOfMemoryError as error:
            kept = error
    assert kept.__traceback__ is not None
    assert memory.census(device).total_bytes == before


def test_a_budget_on_the_simulated_gpu_is_on_each_of_them_and_outlives_a_reset(sim):
    with memory.budget("1 MiB"):
        simgpu.reset()
        simgpu.configure(capacity="2 GiB")
        for index in range(2):
            with pytest.raises(torch.OutOfMemoryError, match=rf"GPU {index} has a total capacity of 1\.00 MiB"):
                kib(1025, torch.device("sim", index))
    assert torch.sim.mem_get_info()[1] == 2 * 2**30
    with memory.budget("1 GB"), memory.budget("900 MiB"):
        simgpu.configure(capacity="1 MiB")  # the capacity is the tightest now
        with pytest.raises(torch.OutOfMemoryError, match=r"total capacity of 1\.00 MiB"):
            kib(1025, sim)
    simgpu.reset()


def test_a_budget_on_cuda_uses_cudas_words(cuda):
    with Limited(cuda, 8 * KIB) as limited:
        x = torch.empty(1536, device=cuda)
        with pytest.raises(torch.OutOfMemoryError, match=WORDS):
            torch.empty(1024, device=cuda)
        del x
        assert torch.empty(2048, device=cuda).nbytes == 8 * KIB
        torch.empty(2**20)  # the CPU's memory has no part in it
    assert limited.peak_bytes == 8 * KIB


@pytest.mark.parametrize("size", ["", "64", "64 MB/s", "0.1 B", 0, -1, 1.5, True, None])
def test_a_budget_says_what_it_takes(size):
    with pytest.raises(ValueError, match="size must be a positive number of bytes or text such as '64 MiB'"):
        memory.budget(size).__enter__()


# ---- estimate -------------------------------------------------------------------------------------------------------
SMALL = {  # name: a batch that takes less time than the whole one
    "MLP, SGD, autocast": lambda: programs.vectors(32),
    "LSTM classifier, Adam": lambda: programs.texts(32, 32),
    "GRU, Adam": lambda: programs.next_tokens(8, 8),
    "Transformer, SGD, both": lambda: programs.next_tokens(1, 32),
}


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS)])
def test_the_estimate_is_what_is_measured(name, request, device):
    program = PROGRAMS[name]
    if request.node.get_closest_marker("slow") is None:
        program = program._replace(make_batch=SMALL[name])
    both = programs.compared(program, device)
    assert both.ratio == pytest.approx(1, abs=0.05)
    assert both.estimated.parameters_bytes == both.measured.parameters_bytes
    assert both.estimated.optimizer_bytes == pytest.approx(both.measured.optimizer_bytes, rel=1e-3)


class WithConstants(nn.Module):
    """A frozen layer, and tensors that are neither parameters nor buffers: one made here, one that was there before."""

    def __init__(self, constant):
        super().__init__()
        self.frozen, self.head = nn.Linear(100, 100).requires_grad_(False), nn.Linear(100, 50)
        self.made, self.constant = torch.ones(100, 100, device=constant.device), constant

    def forward(self, x, times):
        return self.head(self.frozen(torch.cat([self.constant, x @ self.made]))) * times


def with_constants(device):
    constant, weight = torch.ones(8, 100, device=device), torch.ones(16, 50, device=device)
    batch = (torch.ones(8, 100), 3), torch.ones(16, 50)  # a plain number among them
    loss = lambda output, target: F.mse_loss(output * weight, target)  # noqa: E731
    return programs.Program(lambda: WithConstants(constant), lambda: batch, torch.optim.Adam, loss=loss)


def with_a_loss(loss):
    """Return a program with a loss that keeps what it computed of each element."""
    batch = torch.ones(800, 100), torch.ones(800, 100)
    layer = lambda: nn.Linear(100, 100, bias=False)  # noqa: E731
    return lambda device: programs.Program(layer, lambda: batch, programs.sgd, loss=loss)


@pytest.mark.parametrize(
    "make", [with_constants, *map(with_a_loss, (F.mse_loss, F.smooth_l1_loss, F.soft_margin_loss))]
)
def test_constants_frozen_layers_and_losses_that_keep_elements_are_estimated(make, device):
    both = programs.compared(make(device), device)
    assert both.ratio == pytest.approx(1, abs=0.01)
    assert both.estimated.parameters_bytes == both.measured.parameters_bytes


def test_the_parts_of_a_layer_by_hand(device):
    weight = 100 * 50 * 4
    found = forecast(make_optimizer=torch.optim.AdamW, device=device)
    assert found.parameters == 5000 and found.largest.parameters_bytes == weight
    assert found.largest.gradients_bytes == weight
    assert weight * 2 <= found.largest.optimizer_bytes <= weight * 2 + 4  # two states and a counter
    assert sum(found.parts.by_owner().values()) == found.peak_bytes == found.peak_moment.bytes
    assert found.parts.activations_bytes >= 8 * (100 + 50) * 4
    assert forecast(make_optimizer=torch.optim.SGD).largest.optimizer_bytes == 0


@pytest.mark.parametrize(("kind", "in_lists"), [("cpu", False), ("mps", False), ("xpu", True), (None, True)])
def test_an_estimate_takes_the_optimizer_that_pytorch_takes_on_a_device(kind, in_lists):
    """Source: `_get_foreach_kernels_supported_devices` of torch 2.13."""
    found = forecast(make_batch=lambda: torch.ones(1, 100), make_optimizer=torch.optim.AdamW, device=kind)
    assert ("_foreach" in found.peak_moment.operator) == in_lists


def test_an_estimate_allocates_nothing(device):
    before = memory.census(device).total_bytes
    made = lambda: nn.Sequential(*[nn.Linear(100_000, 100_000, bias=False) for _ in range(10)])  # noqa: E731
    with memory.budget(64 * KIB, device) as budget:
        found = forecast(made, lambda: torch.ones(1, 100_000), device=device)
    assert budget.peak_bytes < 8 * KIB  # on the CPU: a few numbers and the state of the random numbers
    assert found.parameters == 10**11 and found.peak_bytes > 4 * 4 * 10**11
    assert memory.census(device).total_bytes == before
    assert memory.measure(lambda: forecast(device=device), device).peak_bytes < 8 * KIB


def fakes():
    """Return the fake tensors that are alive; other tests may have left some, in the caches of DTensor for instance."""
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is FakeTensor]


def test_an_estimate_leaves_nothing_behind(recwarn):
    others = fakes()  # held, so that no new one takes the number of one of them
    apply, state = nn.Module._apply, torch.get_rng_state()
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))

    def formats():
        with torch.autocast("cpu", torch.bfloat16):
            return F.layer_norm(x, (8,)).dtype, F.softmax(x @ x.T, -1).dtype

    before = formats()
    model = lambda: models.TransformerLM(width=16, heads=2, layers=1, checkpointing=True)  # noqa: E731
    forecast(model, lambda: torch.zeros(1, 8, dtype=torch.long), device="sim" if simgpu.enabled() else "cpu")
    assert formats() == before and nn.Module._apply is apply and torch.equal(torch.get_rng_state(), state)
    assert torch.empty(3).fill_(2).sum() == 6 and not [w.message for w in recwarn if "torch" in str(w.filename)]
    assert nn.init.trunc_normal_(torch.zeros(100)).std() > 0.5 and nn.init.ones_(torch.zeros(3)).sum() == 3
    assert {id(thing) for thing in fakes()} <= {id(thing) for thing in others}


def on_default(device):
    torch.set_default_device(device)
    try:
        return linear()
    finally:
        torch.set_default_device(None)


def of_two(device):
    model = copy.deepcopy(nn.ModuleList([linear(), linear()]))
    model[1].weight = model[0].weight
    return copy.deepcopy(model)[1]


SAME_MODELS = {
    "cuda": lambda device: linear().cuda(),
    "text": lambda device: linear().to("cuda:1"),
    "empty": lambda device: linear(device="meta").to_empty(device=device),
    "default": on_default,
    "copies": of_two,
}


@pytest.mark.parametrize("name", SAME_MODELS)
def test_devices_named_copies_and_first_values_change_nothing(name, device):
    found, expected = forecast(lambda: SAME_MODELS[name](device), device=device), forecast(device=device)
    assert (found.peak_bytes, found.parts, found.timeline) == (expected.peak_bytes, expected.parts, expected.timeline)


def test_real_batches_and_batches_that_need_values(device):
    x, y = (t.to(device) for t in vectors())
    expected = forecast(device=device)
    for make_batch in (lambda: (x, y), lambda: (x[x.sum(1) > 0], y[: int(y.sum() > 0) * 8])):
        assert forecast(make_batch=make_batch, device=device).peak_bytes == expected.peak_bytes
    half = forecast(lambda: linear().half(), lambda: [x.half(), y.half()], device=device)
    assert half.parts.parameters_bytes * 2 == expected.parts.parameters_bytes


def test_an_own_step_and_the_loss_without_a_target():
    def in_parts(model, batch, optimizer):
        optimizer.zero_grad()
        for part in zip(*(t.chunk(4) for t in batch), strict=True):
            F.mse_loss(model(part[0]), part[1]).backward()
        optimizer.step()

    make_batch = lambda: (torch.ones(4096, 100), torch.ones(4096, 50))  # noqa: E731
    whole, parts = forecast(make_batch=make_batch), forecast(make_batch=make_batch, step=in_parts)
    assert parts.peak_bytes < whole.peak_bytes and parts.largest.gradients_bytes == 100 * 50 * 4
    keywords = forecast(make_batch=lambda: {"input": torch.ones(4096, 100)})
    assert keywords.peak_bytes < whole.peak_bytes  # there is no target


def test_autocast_takes_the_formats_of_a_gpu(sim):
    """The CPU's autocast leaves softmax in bfloat16, a GPU's does not."""
    model, batch = lambda: nn.Sequential(nn.Linear(64, 64), nn.Softmax(-1)), lambda: torch.ones(4096, 64)

    def step(model, batch, optimizer):
        with torch.autocast("sim", torch.bfloat16):
            model(batch).mean().backward()

    peaks = [forecast(model, batch, step=step, device=device).peak_bytes for device in (sim, CPU)]
    assert peaks[0] > peaks[1] < forecast(model, batch).peak_bytes


def raises(*_):
    raise RuntimeError("mine")


THERE_ALREADY = linear()
SPARSE = {
    "make_model": lambda: nn.Embedding(9, 4, sparse=True),
    "make_batch": lambda: torch.zeros(3, dtype=torch.long),
    "make_optimizer": torch.optim.SparseAdam,
}


@pytest.mark.parametrize(("change", "kind", "words"), [
    ({"make_model": lambda: 3}, TypeError, "make_model must return a torch.nn.Module"),
    ({"make_optimizer": lambda p: 3}, TypeError, "make_optimizer must return a torch.optim.Optimizer"),
    ({"make_model": lambda: THERE_ALREADY}, ValueError, "build it inside the function"),
    ({"make_model": lambda: nn.LazyLinear(4)}, TypeError, "make_model must give every layer its sizes"),
    ({"make_model": lambda: copy.deepcopy(linear().weight * 2)}, RuntimeError, "only tensors that are leaves"),
    ({"step": step_with(lambda y, t: y.sum() / y.mean().item())}, RuntimeError, "leave .item()"),
    ({"step": step_with(lambda y, t: y.sum() * float(t.max()))}, RuntimeError, "(test_memory.py:LINE: ({"),
    ({"step": raises}, RuntimeError, "mine"),
    (SPARSE, RuntimeError, "no tensors of layout torch.sparse_coo: leave sparse=True out of it"),
    ({"device": "cuda:99"}, ValueError, "device is 'cuda:99'"),
])  # fmt: skip
def test_an_estimate_says_what_it_takes(change, kind, words):
    with pytest.raises(kind, match=re.escape(words).replace("LINE", r"\d+")):
        forecast(**change)


def test_tables_and_pictures_say_every_part():
    found = forecast(device=CPU)
    measured = memory.measure(lambda: nn.functional.linear(*[kib(4, CPU).view(32, 32)] * 2), CPU)
    both = memory.reconcile(found, measured)
    for text in (str(found), found._repr_html_(), str(both), both._repr_html_(), str(measured), measured._repr_html_()):
        for owner in ("parameters", "gradients", "optimizer state", "activations", "temporaries", "peak"):
            assert owner in text
    assert "predicted" in str(found) and "live" in str(measured)
    assert plots.png(plots.moments(found)) and plots.png(plots.moments(measured))
    with pytest.raises(TypeError, match="measured must be"):
        memory.reconcile(found, found)
    with pytest.raises(TypeError, match="estimated must be"):
        memory.reconcile(measured, measured)


# ---- census ---------------------------------------------------------------------------------------------------------
def test_a_census_lists_each_storage_once_and_keeps_none(device):
    before = memory.census(device)
    x = kib(3, device)
    views = x[1:], x.view(2, -1), x.detach()
    new = memory.census(device) - before
    assert len(new) == 1 and new.storages[0].bytes == new.total_bytes == 3 * KIB
    alive = weakref.ref(x)
    del x, views
    assert alive() is None and new.total_bytes == 3 * KIB
    assert len(memory.census(device) - before) == 0


def test_a_census_finds_a_leak_and_the_line_that_made_it(device):
    w = nn.Parameter(kib(1, device))
    losses = []
    with memory.watch(device):
        before = memory.census(device)
        for _ in range(5):
            losses.append((w * 2).sin().sum())  # each keeps its graph
    leaked = memory.census(device) - before
    assert leaked.total_bytes >= 5 * (KIB + 4)
    assert "losses.append((w * 2).sin().sum())" in str(leaked)
    losses = [loss.item() for loss in losses]
    assert (memory.census(device) - before).total_bytes == 0 and len(losses) == 5


def test_a_census_knows_owners_and_does_not_mistake_a_new_tensor_for_an_old_one(device):
    model = nn.Linear(16, 16, bias=False).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(kib(1, device).view(16, 16)).sum().backward()
    optimizer.step()
    mine = {(one.owner, one.bytes) for one in memory.census(device).storages if one.shape == (16, 16)}
    assert mine >= {("parameters", KIB), ("gradients", KIB), ("optimizer", KIB)}
    for _ in range(3):  # the address of a freed storage is used again
        x = kib(5, device)
        before = memory.census(device)
        del x
        y = kib(5, device)
        assert len(memory.census(device) - before) == 1 and y.nbytes == 5 * KIB
        del y


def test_a_census_of_the_simulated_gpu_accounts_for_every_byte(sim):
    w = kib(1, sim, requires_grad=True)
    loss = w.sin().cos().sum()
    found = memory.census(sim)
    assert found.total_bytes == torch.sim.memory_allocated() and loss.item() != 0


_LEDGER = """
from simgpu.accounting.ledger import Ledger
def work():
    x = [torch.ones(100) + i for i in range(5)]
    y = torch.zeros(7).uniform_()
    x = y
ledger = Ledger(torch.device("cpu"), [])
ledger.places = False
ledger.__enter__()
"""


def test_no_interrupt_is_lost_where_memory_is_measured():
    """An exception in what a weak reference calls is printed and lost: there the loop would never end."""
    assert interrupts.survived(_LEDGER) == (["300", "0"], "")
