"""Does a tensor on the simulated GPU behave as one on CUDA does? Placement, errors, identity and copies."""

import copy
import gc
import io
import pickle
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from course_utils import simulator

pytestmark = pytest.mark.skipif(simulator.unavailable() is not None, reason=str(simulator.unavailable()))


@pytest.fixture(autouse=True)
def _fresh():
    simulator.enable()
    simulator.reset()
    yield
    torch.set_default_device(None)
    simulator.reset()


def on_sim(*shape, **options):
    return torch.randn(*shape, device="sim", **options)


def consistent(tensor):
    """Say that wrapper and values agree: what C++ believes is what the CPU computed."""
    inner = tensor._inner
    assert (tensor.shape, tensor.stride(), tensor.dtype) == (inner.shape, inner.stride(), inner.dtype)
    assert tensor.storage_offset() == inner.storage_offset()
    assert torch.equal(tensor.detach().cpu(), inner.detach())
    return tensor


# ---- placement --------------------------------------------------------------------------------------------------
FACTORIES = {
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "full": lambda d: torch.full((2,), 3.0, device=d),
    "arange": lambda d: torch.arange(1, 7, 2, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 5, device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "randn": lambda d: torch.randn(3, device=d),
    "randint": lambda d: torch.randint(0, 9, (3,), device=d),
    "randperm": lambda d: torch.randperm(9, device=d),
    "normal": lambda d: torch.normal(0.0, 1.0, (3,), device=d),
    "tensor": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "as_tensor": lambda d: torch.as_tensor(np.ones(3), device=d),
    "rand_like": lambda d: torch.rand_like(torch.zeros(4, device=d)),
    "new_full": lambda d: torch.zeros(2, device=d).new_full((3,), 2.0),
    "new_tensor": lambda d: torch.zeros(2, device=d).new_tensor([2]),
    "hann_window": lambda d: torch.hann_window(5, device=d),
    "fftfreq": lambda d: torch.fft.fftfreq(5, device=d),
    "one_hot": lambda d: F.one_hot(torch.tensor([1, 2], device=d)),
    "multinomial": lambda d: torch.multinomial(torch.ones(5, device=d), 3),
    "dropout": lambda d: F.dropout(torch.ones(50, device=d)),
    "tril_indices": lambda d: torch.tril_indices(3, 3, device=d),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_makes_the_cpus_values_on_the_device(name):
    torch.manual_seed(3)
    expected = FACTORIES[name]("cpu")
    torch.manual_seed(3)
    got = consistent(FACTORIES[name]("sim:1"))
    assert got.device == torch.device("sim:1")
    assert torch.equal(got.cpu(), expected)


def test_placement_is_said_as_cuda_says_it():
    x = on_sim(2, 3)
    assert (x.device, x.get_device(), x.is_cpu, x.is_meta, x.is_cuda) == (torch.device("sim:0"), 0, False, False, False)
    assert (x + 1).device == x.t().device == x[0].device == x.half().device == x.long().device == x.device
    assert x.cpu().device == torch.device("cpu")
    assert x.to("meta").device == torch.device("meta")
    assert torch.ones(2).to(x).device == x.device
    assert f"{torch.ones((), device='sim') * 1.234:.2f}" == "1.23"
    assert torch.tensor([[1, 2]], device="sim").tolist() == [[1, 2]]
    assert (float(x.new_ones(1)), int(x.new_ones(1)), bool(x.new_zeros(1))) == (1.0, 1, False)
    assert [10, 20][torch.tensor(1, device="sim")] == 20


def test_to_returns_the_same_tensor_where_nothing_changes():
    x = on_sim(2)
    assert x.to("sim") is x and x.to("sim:0") is x and x.to(torch.float32) is x and x.to(x) is x and x.contiguous() is x
    for changed in (x.to("sim:1"), x.to("sim:0", copy=True), x.to(torch.float16), x.to("cpu"), x.clone()):
        assert changed is not x
    assert consistent(x.to("sim:1", torch.float16)).device == torch.device("sim:1")


def test_the_current_device_is_where_sim_without_index_means():
    torch.sim.set_device(1)
    for made in (torch.ones(2, device="sim"), torch.tensor([1], device="sim"), torch.ones(2).to("sim")):
        assert made.device.index == 1
    torch.sim.set_device(0)
    with torch.sim.device(1):
        assert torch.sim.current_device() == 1
        assert torch.zeros(1, device="sim").device.index == 1
    assert torch.sim.current_device() == 0
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        torch.sim.set_device(2)


def test_default_device_and_device_context():
    with torch.device("sim:1"):
        assert torch.ones(2).device == nn.Linear(2, 2).weight.device == torch.device("sim:1")
    torch.set_default_device("sim:1")
    assert torch.ones(2).device == torch.tensor([1.0]).device == nn.Linear(2, 2).bias.device == torch.device("sim:1")
    torch.set_default_device(None)
    assert torch.ones(2).device == torch.device("cpu")


# ---- errors -----------------------------------------------------------------------------------------------------
MIXED = {
    "add": lambda: on_sim(2) + torch.ones(2),
    "devices": lambda: on_sim(2) + torch.ones(2, device="sim:1"),
    "matmul": lambda: on_sim(2, 2) @ torch.ones(2, 2),
    "model on the CPU": lambda: nn.Linear(2, 2)(on_sim(1, 2)),
    "input on the CPU": lambda: nn.Linear(2, 2).to("sim")(torch.ones(1, 2)),
    "loss": lambda: F.cross_entropy(on_sim(2, 3), torch.tensor([1, 1])),
    "embedding": lambda: nn.Embedding(3, 2).to("sim")(torch.tensor([1])),
    "in-place": lambda: torch.ones(2).add_(on_sim(2)),
    "out=": lambda: torch.add(on_sim(2), 1, out=torch.ones(2)),
    "index": lambda: torch.ones(3)[torch.tensor([0, 1], device="sim")],
    "cat": lambda: torch.cat([on_sim(2), torch.ones(2)]),
    "set_": lambda: on_sim(2).set_(torch.ones(2)),
}


@pytest.mark.parametrize("name", MIXED)
def test_two_devices_in_one_operation(name):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device, but .*sim:0"):
        MIXED[name]()


@pytest.mark.parametrize(
    ("attempt", "kind", "message"),
    [
        (lambda: torch.ones(2, device="sim:7"), torch.AcceleratorError, "sim error: invalid device ordinal"),
        (lambda: torch.ones(2).to("sim:7"), torch.AcceleratorError, "sim error: invalid device ordinal"),
        (lambda: nn.Linear(2, 2).to("sim:7"), torch.AcceleratorError, "sim error: invalid device ordinal"),
        (lambda: on_sim(2).numpy(), TypeError, "can't convert sim:0 device type tensor to numpy. Use Tensor.cpu"),
        (lambda: np.asarray(on_sim(2)), TypeError, "can't convert sim:0 device type tensor to numpy"),
        (lambda: torch.empty(2**30, device="sim"), torch.OutOfMemoryError, "sim out of memory. Tried to allocate 4.00"),
        (lambda: on_sim(2).pin_memory(), RuntimeError, "only dense CPU tensors can be pinned"),
        (lambda: on_sim(2).share_memory_(), RuntimeError, "cannot be shared between processes"),
        (lambda: torch.eye(2, device="sim").to_sparse(), NotImplementedError, "no tensors of layout torch.sparse_coo"),
        (lambda: torch.eye(2).to_sparse().to("sim"), NotImplementedError, "no tensors of layout torch.sparse_coo"),
        (lambda: torch.quantize_per_tensor(on_sim(2), 0.1, 0, torch.qint8), NotImplementedError, "no quantized"),
        (lambda: nn.Linear(2, 2, device="meta").to("sim"), NotImplementedError, "Cannot copy out of meta tensor"),
        (lambda: on_sim(2).add_(on_sim(3, 2)), RuntimeError, "doesn't match the broadcast shape"),
        (lambda: setattr(on_sim(2), "grad", torch.ones(2)), RuntimeError, "gradient on cpu to a tensor on sim:0"),
        (lambda: setattr(on_sim(2), "data", torch.ones(2)), RuntimeError, "cannot assign a tensor on cpu"),
        (lambda: setattr(torch.ones(2), "data", on_sim(2)), RuntimeError, "incompatible tensor type"),
        (lambda: torch.compile(lambda x: x + 1)(on_sim(2)), Exception, "torch.compile does not work on the simulated"),
        (lambda: torch.from_dlpack(on_sim(2)), (ValueError, BufferError), "sim"),
    ],
)  # fmt: skip
def test_an_error_has_cudas_type_and_words(attempt, kind, message):
    with pytest.raises(kind, match=message):
        attempt()


def test_data_parallel_is_refused_in_one_sentence():
    if torch.backends.cuda.is_built():
        pytest.skip("a CUDA build has DataParallel's own code")
    with pytest.raises(RuntimeError, match="use DistributedDataParallel"):
        nn.DataParallel(nn.Linear(2, 2).to("sim"))(on_sim(4, 2))


def test_tensors_of_no_dimension_on_the_cpu_may_join():
    assert (on_sim(2) + torch.tensor(2.0)).device.type == "sim"
    assert torch.where(on_sim(3) > 0, on_sim(3), torch.tensor(0.0)).device.type == "sim"
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3) + torch.tensor(1.0, device="sim")


# ---- shapes, views, in place ------------------------------------------------------------------------------------
CHANGES = {
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "squeeze_": lambda x: x.unsqueeze_(0).squeeze_(),
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "resize_ up": lambda x: x.resize_(5, 7),
    "resize_ down": lambda x: x.resize_(2),
    "as_strided_": lambda x: x.as_strided_((2, 2), (1, 3)),
    "set_": lambda x: x.set_(torch.arange(5.0, device="sim")),
    "data": lambda x: setattr(x, "data", torch.zeros(7, device="sim")),
    "data of another type": lambda x: setattr(x, "data", x.data.half()),
    "out= of another shape": lambda x: torch.add(torch.ones(4, 5, device="sim"), 1, out=x.resize_(0)),
    "mm out=": lambda x: torch.mm(on_sim(3, 4), on_sim(4, 5), out=x.resize_(0)),
    "cat out=": lambda x: torch.cat([on_sim(3), on_sim(4)], out=x.resize_(0)),
    "sort out=": lambda x: torch.sort(on_sim(9), out=(x.resize_(0), torch.empty(0, dtype=torch.long, device="sim"))),
    "add_": lambda x: x.add_(1),
    "set item": lambda x: x.__setitem__((slice(None), 1), torch.tensor(3.0)),
    "masked": lambda x: x.__setitem__(x > 1, 7),
    "copy_": lambda x: x.copy_(torch.ones(4)),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_wrapper_and_values_stay_equal(name):
    x = torch.arange(12.0, device="sim").reshape(3, 4).clone()
    CHANGES[name](x)
    consistent(x)
    consistent(x + 1)


def test_views_share_memory():
    x = torch.zeros(3, 4, device="sim")
    row, column, flat = x[1], x[:, 2], x.view(-1)
    x.add_(1)
    row.mul_(5)
    assert [v.tolist() for v in (consistent(row), consistent(column))] == [[5.0] * 4, [1.0, 5.0, 1.0]]
    assert flat.sum().item() == 8 + 20
    assert x.view(-1).data_ptr() == x.data_ptr() and row.data_ptr() == x.data_ptr() + 16
    assert row._base is x
    assert x.untyped_storage().nbytes() == 48


def test_data_shares_values_but_not_the_version():
    p = nn.Parameter(torch.ones(3, device="sim"))
    loss = (p * p).sum()
    p.data.add_(1)  # autograd does not see it, as everywhere
    loss.backward()
    assert p.tolist() == [2.0] * 3 and p.grad is not None and not p.data.requires_grad
    x = p.detach()
    loss = (p * p).sum()
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradcheck():
    x = torch.randn(3, dtype=torch.float64, device="sim", requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: x.sin() * x, (x,))


def test_vector_to_parameters():
    model = nn.Linear(2, 2).to("sim")
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(torch.full_like(vector, 3.0), model.parameters())
    assert model(torch.ones(1, 2, device="sim")).tolist() == [[9.0, 9.0]]
    for p in model.parameters():
        consistent(p)


def test_memory_formats_and_complex_numbers():
    x = on_sim(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert consistent(x).is_contiguous(memory_format=torch.channels_last)
    conv = nn.Conv2d(3, 4, 3).to("sim", memory_format=torch.channels_last)
    assert consistent(conv(x)).is_contiguous(memory_format=torch.channels_last)
    z = torch.tensor([1 + 2j, 3 - 1j], device="sim")
    assert z.conj().imag.tolist() == [-2.0, 1.0] and z.conj().is_conj() and (z * z.conj()).real.tolist() == [5.0, 10.0]
    assert torch.view_as_real(z).tolist() == [[1.0, 2.0], [3.0, -1.0]]
    assert torch.fft.ifft(torch.fft.fft(z)).cpu().allclose(z.cpu())


def test_cpu_tensors_of_indices():
    x = torch.arange(12.0, device="sim").reshape(3, 4)
    assert x[torch.tensor([0, 2])].tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert x[torch.tensor([True, False, False])].tolist() == [[0, 1, 2, 3]]
    x[torch.tensor([1])] = 0.0
    assert x[1].sum().item() == 0


# ---- modules ----------------------------------------------------------------------------------------------------
def make_model():
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))


def step(model, optimizer):
    before = [p.detach().cpu().clone() for p in model.parameters()]
    optimizer.zero_grad()
    model(torch.ones(4, 2, device=next(model.parameters()).device)).square().sum().backward()
    optimizer.step()
    return [not torch.equal(a, b.detach().cpu()) for a, b in zip(before, model.parameters(), strict=True)]


@pytest.mark.parametrize("route", [("sim",), ("sim:1",), ("sim", "cpu"), ("sim", "sim:1", "sim:1"), ("cpu", "sim")])
def test_an_optimizer_made_before_to_trains_the_moved_model(route):
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    parameters = list(model.parameters())
    for device in route:
        model.to(device)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert {p.device for p in parameters} == {
        torch.device("cpu" if route[-1] == "cpu" else f"sim:{route[-1][4:] or 0}")
    }
    assert all(step(model, optimizer))
    assert all(isinstance(p, nn.Parameter) and p.is_leaf and p.grad.device == p.device for p in parameters)


@pytest.mark.parametrize("start", ["cpu", "sim"])
@pytest.mark.parametrize("end", ["cpu", "sim", "sim:1"])
def test_a_model_moves_while_an_old_graph_a_view_and_a_weak_reference_hold_it(start, end):
    model = make_model().to(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    old = model(torch.ones(1, 2, device=start)).sum()
    view, weak = model[0].weight[0], weakref.ref(model[2].weight)
    model.to(end)
    assert weak() is model[2].weight and view.device == torch.device(start).__class__(
        start, 0 if start == "sim" else None
    )
    assert all(step(model, optimizer))
    if torch.device(start).type != torch.device(end).type:
        with pytest.raises(RuntimeError, match="before a parameter in it moved"):
            old.backward()


def test_hooks_attributes_gradients_and_ties_go_along():
    model, seen = nn.Linear(2, 2), []
    model.weight.mark = "mine"
    handle = model.weight.register_hook(lambda grad: seen.append(grad.device.type))
    model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.device.type))
    model(torch.ones(1, 2)).sum().backward()
    gradient = model.weight.grad
    model.to("sim")
    assert model.weight.mark == "mine" and model.weight.grad is gradient and gradient.device.type == "sim"
    model(on_sim(1, 2)).sum().backward()
    handle.remove()
    model(on_sim(1, 2)).sum().backward()
    assert seen == ["cpu", "cpu", "sim", "sim", "sim"]
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    tied.to("sim")
    assert tied[0].weight is tied[1].weight


def test_half_to_empty_and_inference():
    model = make_model().to("sim").half()
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    empty = nn.Linear(2, 2, device="meta").to_empty(device="sim")
    assert empty.weight.device == torch.device("sim:0")
    empty.load_state_dict(nn.Linear(2, 2).state_dict())
    with torch.inference_mode():
        moved = make_model().to("sim")
        y = moved(torch.ones(1, 2, device="sim"))
        assert y.is_inference() and consistent(y).device.type == "sim"
        moved.cpu()
    loaded = nn.Linear(2, 2, device="meta")
    loaded.load_state_dict(nn.Linear(2, 2).to("sim").state_dict(), assign=True)
    assert loaded.weight.device.type == "sim"


def test_parametrizations_run():
    for change in (nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm):
        change(nn.Linear(2, 2)).to("sim")(on_sim(1, 2)).sum().backward()
    average = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2).to("sim"))
    average.update_parameters(nn.Linear(2, 2).to("sim"))
    assert average.module.weight.device.type == "sim"


def test_packed_sequences():
    torch.manual_seed(0)
    x, model = torch.randn(2, 3, 4), nn.LSTM(4, 5, batch_first=True)
    moved = copy.deepcopy(model).to("sim")
    results = []
    for data, lstm in ((x, model), (x.to("sim"), moved)):
        packed = nn.utils.rnn.pack_padded_sequence(data, torch.tensor([3, 2]), batch_first=True)
        assert packed.batch_sizes.device.type == "cpu"
        results.append(nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)[0])
    assert results[1].device.type == "sim"
    assert torch.allclose(results[0], results[1].cpu(), rtol=1e-6, atol=1e-7)  # other order of sums than the CPU's


# ---- autograd and torch.func ------------------------------------------------------------------------------------
def test_backward_crosses_devices():
    w = torch.ones(3, requires_grad=True)
    (w.to("sim:1") * 2).to("sim:0").sum().backward()
    assert w.grad.device.type == "cpu" and w.grad.tolist() == [2.0] * 3
    v = torch.ones(3, device="sim:1", requires_grad=True)
    (v.cpu() * 2).sum().backward()
    assert v.grad.device == torch.device("sim:1")


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_repeats_the_random_numbers(reentrant):
    def gradient(wrap):
        torch.manual_seed(0)
        x = torch.ones(50, device="sim", requires_grad=True)
        wrap(lambda x: F.dropout(x.sin()), x).sum().backward()
        return x.grad.cpu()

    plain = gradient(lambda f, x: f(x))
    assert torch.equal(plain, gradient(lambda f, x: checkpoint(f, x, use_reentrant=reentrant)))


def test_hooks_on_modules_and_saved_tensors():
    seen, model = [], nn.Linear(2, 2).to("sim")
    model.register_forward_hook(lambda m, i, o: seen.append(o.device.type))
    model.register_full_backward_hook(lambda m, i, o: seen.append(o[0].device.type))
    with torch.autograd.graph.save_on_cpu():
        loss = model(on_sim(1, 2, requires_grad=True)).sin().sum()
    loss.backward()
    assert seen == ["sim", "sim"]


def test_torch_func():
    x = on_sim(5, 3)
    assert torch.equal(torch.vmap(lambda row: row * 2)(x).cpu(), x.cpu() * 2)
    assert torch.equal(torch.func.grad(lambda x: (x * x).sum())(x).cpu(), x.cpu() * 2)
    assert torch.func.jacrev(torch.sin)(x[0]).device.type == "sim"
    model = nn.Linear(3, 2).to("sim")
    each = torch.vmap(
        torch.func.grad(lambda p, row: torch.func.functional_call(model, p, (row,)).sum()), in_dims=(None, 0)
    )(dict(model.named_parameters()), x)
    assert each["weight"].shape == (5, 2, 3)


# ---- copies, files, loaders -------------------------------------------------------------------------------------
def test_deepcopy_and_pickle():
    model = make_model().to("sim:1")
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            assert b.device == a.device and isinstance(b, nn.Parameter) and b.requires_grad
            assert b.data_ptr() != a.data_ptr() and torch.equal(a.cpu(), b.cpu())
    x = on_sim(3)
    pair = copy.deepcopy([x, x[1:]])
    assert pair[1].data_ptr() == pair[0].data_ptr() + 4
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(on_sim(2, requires_grad=True) * 2)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, "sim:1"), ("cpu", "cpu"), ("sim", "sim:0"), ("sim:1", "sim:1"), (torch.device("cpu"), "cpu"),
        ("meta", "meta"), ({"sim:1": "sim:0"}, "sim:0"), (lambda storage, location: storage, "cpu"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("weights_only", [True, False])
def test_load_with_every_map_location(where, expected, weights_only):
    x, file = torch.arange(6.0, device="sim:1"), io.BytesIO()
    torch.save({"all": x, "part": x[2:]}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=where, weights_only=weights_only)
    assert {t.device for t in loaded.values()} == {torch.device(expected)}
    if expected != "meta":
        assert loaded["part"].tolist() == [2.0, 3.0, 4.0, 5.0]
        assert loaded["part"].data_ptr() == loaded["all"].data_ptr() + 8


def test_load_a_cpu_file_to_the_device_and_to_one_that_is_not_there(tmp_path):
    torch.save(torch.ones(2), tmp_path / "x.pt")
    for mapped in (False, True):
        assert consistent(torch.load(tmp_path / "x.pt", map_location="sim:1", mmap=mapped)).device.index == 1
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        torch.load(tmp_path / "x.pt", map_location="sim:9")


def test_pinning_and_a_pinning_loader():
    plain = torch.ones(2)
    pinned = plain.pin_memory()
    assert (plain.is_pinned(), pinned.is_pinned(), pinned.pin_memory() is pinned) == (False, True, True)
    assert pinned.view(1, 2).is_pinned()
    for workers in (0, 1):
        loader = DataLoader(TensorDataset(torch.ones(4, 2)), 2, pin_memory=True, num_workers=workers)
        batches = [batch.to("sim", non_blocking=True) for (batch,) in loader]
        assert [b.device.type for b in batches] == ["sim", "sim"]
        assert all(batch.is_pinned() for (batch,) in loader)


def test_values_of_a_non_blocking_copy_arrive_late():
    x = torch.ones(1000, device="sim")
    early = x.to("cpu", non_blocking=True)
    assert early.sum().item() == 0
    torch.sim.synchronize()
    assert early.sum().item() == 1000
    target = torch.zeros(1000).pin_memory()
    target.copy_(x, non_blocking=True)
    assert target.sum().item() == 0
    torch.accelerator.synchronize()
    assert target.sum().item() == 1000
    assert x.to("cpu").sum().item() == 1000


# ---- random numbers, autocast, accelerator ----------------------------------------------------------------------
def test_generators_follow_cudas_rule():
    generator = torch.Generator(device="sim:1").manual_seed(3)
    assert generator.device == torch.device("sim:1") and isinstance(generator, torch.Generator)
    plain = torch.Generator().manual_seed(3)
    assert isinstance(plain, torch.Generator) and plain.device.type == "cpu"
    expected = torch.randn(4, generator=plain)
    twins = copy.deepcopy(generator), pickle.loads(pickle.dumps(generator)), generator
    for twin in twins:
        assert torch.equal(torch.randn(4, generator=twin, device="sim").cpu(), expected)
    torch.empty(3, device="sim").uniform_(generator=generator)
    for attempt in (lambda: torch.randn(2, device="sim", generator=plain), lambda: on_sim(2).normal_(generator=plain)):
        with pytest.raises(RuntimeError, match="Expected a 'sim' device type for generator but found 'cpu'"):
            attempt()
    with torch.random.fork_rng(device_type="sim"):
        first = on_sim(2)
    assert torch.equal(first.cpu(), on_sim(2).cpu())


def test_autocast_uses_cudas_lists():
    x, w = on_sim(2, 4), on_sim(4, 4, requires_grad=True)
    with torch.autocast("sim"):
        y = x @ w
        assert y.dtype is torch.float16 and F.linear(x, w).dtype is torch.float16
        assert y.softmax(-1).dtype is y.sum().dtype is y.exp().dtype is torch.float32
        assert F.cross_entropy(y, torch.zeros(2, dtype=torch.long, device="sim")).dtype is torch.float32
        assert F.layer_norm(y, (4,)).dtype is torch.float32 and y.relu().dtype is torch.float16
        assert torch.addcmul(y, x, y).dtype is torch.float32
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32  # the CPU is not touched
        with torch.autocast("sim", enabled=False):
            assert (x @ w).dtype is torch.float32
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(torch.ones(2, device="sim"), torch.ones(2, device="sim"))
    with torch.autocast("sim", dtype=torch.bfloat16):
        assert (x @ w).dtype is torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ w).dtype is torch.float32
    y.sum().backward()
    assert w.grad.dtype is torch.float32


def test_gradscaler_skips_a_step_with_infinite_gradients():
    model = nn.Linear(4, 1).to("sim")
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("sim", init_scale=2.0**16)
    before = model.weight.detach().cpu().clone()
    with torch.autocast("sim"):
        loss = (model(torch.ones(1, 4, device="sim")) * 1e4).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**15 and torch.equal(before, model.weight.detach().cpu())


def test_accelerator_benchmark_and_modes_go_on():
    from torch.utils import benchmark
    from torch.utils.flop_counter import FlopCounterMode

    assert torch.accelerator.current_accelerator() == torch.device("sim")
    assert torch.accelerator.device_count() == 2 and torch.accelerator.current_device_index() == 0
    torch.accelerator.synchronize()
    assert torch.get_device_module() is torch.sim is torch.get_device_module("sim")
    assert benchmark.Timer("x + x", globals={"x": torch.ones(2)}).timeit(10).median > 0
    with FlopCounterMode(display=False) as counter:
        on_sim(2, 3) @ on_sim(3, 4)
    assert counter.get_total_flops() == 48
    with torch.profiler.profile() as profile:
        on_sim(2) + 1
    assert any("add" in event.key for event in profile.key_averages())
    with torch.autograd.detect_anomaly(check_nan=True), pytest.raises(RuntimeError, match="returned nan"):
        zero = torch.zeros(2, device="sim", requires_grad=True)
        (zero / zero).sum().backward()


def test_printing():
    assert repr(torch.tensor([1.0, 2.0], device="sim:1")) == "tensor([1., 2.], device='sim:1')"
    assert repr(torch.ones(1, device="sim", requires_grad=True) * 2).endswith("device='sim:0', grad_fn=<MulBackward0>)")
    p = nn.Parameter(torch.ones(1, device="sim"))
    assert repr(p) == "Parameter containing:\ntensor([1.], device='sim:0', requires_grad=True)"
    (p * 2).sum().backward()
    assert repr(p.grad) == "tensor([2.], device='sim:0')"
    assert "device='sim:0'" in repr(torch.ones(3000, device="sim")) and repr(on_sim(0)) == "tensor([], device='sim:0')"


def test_the_names_of_torch_cuda():
    assert torch.sim.is_available() and torch.sim.device_count() == 2
    assert (
        torch.sim.get_device_name() == torch.sim.get_device_properties(0).name and "T4" in torch.sim.get_device_name()
    )
    free, total = torch.sim.mem_get_info()
    assert 0 < free <= total == 2**30
    assert "allocated" in torch.sim.memory_summary() and torch.sim.OutOfMemoryError is torch.OutOfMemoryError
    torch.sim.empty_cache()
    torch.sim.manual_seed_all(0)
    with torch.sim.stream(None), torch.sim.stream(torch.sim.Stream()):
        on_sim(1)
    gc.collect()
