"""Do modules, autograd, files and loaders behave on the simulated GPU as on CUDA?"""

import copy
import io
import pickle
import weakref
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import simgpu
from tests.simgpu.simulated import consistent, on_sim, read_calls


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
    assert {str(p.device) for p in parameters} == {"sim:0" if route[-1] == "sim" else route[-1]}
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
    assert weak() is model[2].weight and str(view.device) == ("sim:0" if start == "sim" else start)
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
    assert {p.dtype for p in make_model().to("sim").half().parameters()} == {torch.float16}
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


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_to_empty_makes_new_parameters_of_those_on_meta_and_unties_them(device):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    old = list(model.parameters())
    kept = nn.Linear(2, 2, device=device)
    weight = kept.weight
    kept.to_empty(device=device)
    assert kept.weight is weight
    model.half()
    assert model[0].weight is old[0] and model[0].weight.dtype == torch.float16
    model.to_empty(device=device)
    assert {p.device.type for p in model.parameters()} == {device} and {p.device.type for p in old} == {"meta"}
    assert model[0].weight is not model[1].weight and len(list(model.parameters())) == 4


@pytest.mark.parametrize("make", [lambda: nn.LazyLinear(3), lambda: nn.Sequential(nn.LazyBatchNorm1d())])
def test_a_lazy_module_notes_where_its_parameters_are_to_be(make):
    model, x = make().to("sim").double().float(), torch.ones(2, 5)
    parameters = list(model.parameters())
    places = {p.device for p in parameters}
    assert places == {torch.device("sim:0")} == {copy.deepcopy(nn.LazyLinear(3).to("sim"))(x.to("sim")).device}
    model(x.to("sim")).sum().backward()
    assert all(a is b and a.grad.device == b.device for a, b in zip(parameters, model.parameters(), strict=True))
    assert {one.device for one in (*parameters, *model.buffers())} == places
    assert make().to("sim").cpu()(x).device.type == "cpu"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_in_one_sentence():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    mask, x = torch.tensor([[False, False, True], [False, False, False]]), torch.ones(2, 3, 8)
    for nested in (True, False):
        encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested).eval()
        with torch.no_grad(), pytest.raises(NotImplementedError, match="no nested") if nested else nullcontext():
            expected = encoder(x, src_key_padding_mask=mask)
            got = encoder.to("sim")(x.to("sim"), src_key_padding_mask=mask.to("sim"))
            torch.testing.assert_close(got.cpu(), expected)


@pytest.mark.parametrize(
    "make", [torch.clone, lambda x: x.to("sim"), lambda x: tuple(x.tolist())], ids=["cpu", "device", "tuples"]
)
def test_lengths_of_the_ctc_loss_may_be_anywhere(make):
    scores, targets = torch.randn(12, 2, 5).log_softmax(2), torch.randint(1, 5, (2, 4))
    inputs, lengths = torch.tensor([12, 9]), torch.tensor([4, 2])
    given = scores.to("sim").requires_grad_()
    loss = F.ctc_loss(given, targets.to("sim"), make(inputs), make(lengths))
    expected = scores.clone().requires_grad_()
    F.ctc_loss(expected, targets, inputs, lengths).backward()
    loss.backward()
    assert loss.device == given.device and torch.equal(given.grad.cpu(), expected.grad)


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


def test_hooks_on_modules_and_saved_tensors_and_torch_func():
    seen, model = [], nn.Linear(2, 2).to("sim")
    model.register_forward_hook(lambda m, i, o: seen.append(o.device.type))
    model.register_full_backward_hook(lambda m, i, o: seen.append(o[0].device.type))
    with torch.autograd.graph.save_on_cpu():
        loss = model(on_sim(1, 2, requires_grad=True)).sin().sum()
    loss.backward()
    assert seen == ["sim", "sim"]
    x = on_sim(5, 3)
    assert torch.equal(torch.vmap(lambda row: row * 2)(x).cpu(), x.cpu() * 2)
    assert torch.equal(torch.func.grad(lambda x: (x * x).sum())(x).cpu(), x.cpu() * 2)
    assert torch.func.jacrev(torch.sin)(x[0]).device.type == "sim"
    model = nn.Linear(3, 2).to("sim")
    gradient = torch.func.grad(lambda p, row: torch.func.functional_call(model, p, (row,)).sum())
    each = torch.vmap(gradient, in_dims=(None, 0))(dict(model.named_parameters()), x)
    assert each["weight"].shape == (5, 2, 3)


def test_deepcopy_and_pickle():
    model = make_model().to("sim:1")
    loaded = pickle.loads(pickle.dumps(model))
    for twin in (copy.deepcopy(model), loaded, copy.deepcopy(loaded)):
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            assert b.device == a.device and isinstance(b, nn.Parameter) and b.requires_grad
            assert b.data_ptr() != a.data_ptr() and torch.equal(a.cpu(), b.cpu())
    x = on_sim(3)
    pair = copy.deepcopy([x, x[1:]])
    assert pair[1].data_ptr() == pair[0].data_ptr() + 4
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(on_sim(2, requires_grad=True) * 2)
    leaf, parameter = on_sim(2, requires_grad=True), nn.Parameter(on_sim(2))
    leaf.grad, parameter.grad = on_sim(2), on_sim(2)  # of which a parameter's is not copied
    assert torch.equal(copy.deepcopy(leaf).grad.cpu(), leaf.grad.cpu()) and copy.deepcopy(parameter).grad is None


def saved(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


def test_copies_and_files_keep_the_values_of_conjugate_and_negative_views():
    on_cpu = torch.tensor([1 + 2j, 3 - 1j])
    for device in ("cpu", "sim"):
        z = on_cpu.to(device)
        for view, values in ((z.conj(), [1 - 2j, 3 + 1j]), (z.conj().imag, [-2.0, 1.0]), (z.imag, [2.0, -1.0])):
            assert copy.deepcopy(view).tolist() == view.tolist() == values
            for moved in (saved(view), saved(view, map_location="sim:1"), saved(view, map_location="cpu")):
                assert moved.tolist() == values and moved.is_conj() == view.is_conj()
                assert (moved + 0).tolist() == values


def test_load_a_cpu_file_to_the_device_and_to_one_that_is_not_there(tmp_path):
    torch.save(torch.ones(2), tmp_path / "x.pt")
    for mapped in (False, True):
        assert consistent(torch.load(tmp_path / "x.pt", map_location="sim:1", mmap=mapped)).device.index == 1
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        torch.load(tmp_path / "x.pt", map_location="sim:9")


PINNED = read_calls("pinned", globals(), "d")


@pytest.mark.parametrize("place", ["sim", "cuda"])
@pytest.mark.parametrize("name", PINNED)
def test_factories_pin_memory(name, place):
    with simgpu.cuda() if place == "cuda" else nullcontext():
        made = PINNED[name](place)
        assert made.is_pinned() and made.device.type == "cpu" and not torch.ones(3, pin_memory=False).is_pinned()
        assert (made.requires_grad, made.is_leaf) == (name in ("trained", "a copy"), name != "a copy")


def test_a_factory_pins_memory_of_the_host_alone_and_a_copy_into_it_is_not_waited_for():
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.zeros(2, device="sim", pin_memory=True)
    source, target = torch.ones(1000, device="sim"), torch.zeros(1000, pin_memory=True)
    target.copy_(source, non_blocking=True)
    assert target.sum() == 0
    torch.sim.synchronize()
    assert target.sum() == 1000


def test_functions_that_pin_memory_are_pytorchs_own_for_scripts_graphs_and_default_devices():
    def change(x):
        return x + torch.zeros(2) + torch.ones_like(x) + x.new_zeros(2) + torch.tensor([1.0, 2.0])

    x = torch.ones(2)
    compiled = torch.compile(change, backend="eager", fullgraph=True)
    assert compiled(x).tolist() == change(x).tolist() == [3.0, 4.0]
    with torch.device("sim"):
        assert torch.zeros(1).device.type == torch.tensor([1]).device.type == "sim"


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
    with torch.random.fork_rng(range(torch.sim.device_count()), device_type="sim"):
        first = on_sim(2)
    assert torch.equal(first.cpu(), on_sim(2).cpu())


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
    from torch.utils.flop_counter import FlopCounterMode

    assert torch.get_device_module() is torch.sim is torch.get_device_module("sim")
    with FlopCounterMode(display=False) as counter:
        on_sim(2, 3) @ on_sim(3, 4)
    assert counter.get_total_flops() == 48
    with torch.profiler.profile() as profile:
        on_sim(2) + 1
    assert any("add" in event.key for event in profile.key_averages())
    zero = torch.zeros(2, device="sim", requires_grad=True)
    with (
        pytest.warns(UserWarning, match=r"Anomaly Detection|Error detected in DivBackward0.*"),
        torch.autograd.detect_anomaly(check_nan=True),
        pytest.raises(RuntimeError, match="returned nan"),
    ):
        (zero / zero).sum().backward()


def test_printing():
    assert repr(torch.tensor([1.0, 2.0], device="sim:1")) == "tensor([1., 2.], device='sim:1')"
    assert repr(torch.ones(1, device="sim", requires_grad=True) * 2).endswith("device='sim:0', grad_fn=<MulBackward0>)")
    p = nn.Parameter(torch.ones(1, device="sim"))
    assert repr(p) == "Parameter containing:\ntensor([1.], device='sim:0', requires_grad=True)"
    (p * 2).sum().backward()
    assert repr(p.grad) == "tensor([2.], device='sim:0')"
    assert "device='sim:0'" in repr(torch.ones(3000, device="sim")) and repr(on_sim(0)) == "tensor([], device='sim:0')"
