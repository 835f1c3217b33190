"""Small programs whose operators, copies and host reads are known: `counting` counts exactly those."""

import threading

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

from course_utils import counting
from tests.simgpu.test_custom_operators import defined
from tests.simgpu.test_simulator_inference import PROGRAMS


def moved(counts):
    return counts.copies_h2d, counts.copies_d2h, counts.copies_d2d


def test_operators_and_views_are_counted_apart():
    x = torch.ones(4, 4)
    with counting.count() as counts:
        y = x.t() + 1
        y[0].mul_(2).view(2, 2)
    assert (counts.operators, counts.views) == (2, 3)
    assert counts.by_operator == {"add": 1, "mul_": 1}


def test_the_backward_pass_and_vmap_in_vmap_are_counted():
    layer, x = torch.nn.Linear(8, 4), torch.randn(2, 8)
    with counting.count() as counts:
        layer(x).sum().backward()
    assert counts.by_operator["addmm"] == 1
    assert counts.by_operator["mm"] == 1  # the gradient of the weight
    assert counts.flops == 2 * (2 * 2 * 8 * 4)
    with counting.count() as counts:
        got = torch.vmap(torch.vmap(lambda a, b: 0.5 * (a - b) ** 2))(torch.ones(2, 3), torch.zeros(2, 3))
    assert torch.equal(got, torch.full((2, 3), 0.5))
    assert counts.operators > 0 and counts.copies == []


@pytest.mark.parametrize("inference", [False, True], ids=["grad", "inference"])
def test_flops_are_those_of_pytorch(inference):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 5))
    x = torch.randn(2, 3, 8, 8)
    with torch.inference_mode(inference):
        with counting.count() as counts:
            model(x)
        with FlopCounterMode(display=False) as reference:
            model(x)
    assert counts.flops == reference.get_total_flops() > 0
    assert counts.by_operator["addmm"] == 1  # a layer is taken apart in both cases


A, B, C = torch.ones(2, 3, 4), torch.ones(2, 4, 5), torch.zeros(2, 3, 5)


@pytest.mark.parametrize(("product", "in_place"), [
    (lambda: A[0] @ B[0], lambda: C[0].addmm_(A[0], B[0])),
    (lambda: torch.addmm(C[0], A[0], B[0]), lambda: C[0].addmm_(A[0], B[0])),
    (lambda: A @ B, lambda: C.baddbmm_(A, B)),
    (lambda: torch.baddbmm(C, A, B), lambda: C.baddbmm_(A, B)),
])  # fmt: skip
def test_a_product_has_the_flops_of_pytorchs_formula_also_in_place(product, in_place):
    with FlopCounterMode(display=False) as reference:
        product()
    for call in (product, in_place):
        with counting.count() as counts:
            call()
        assert counts.flops == reference.get_total_flops() > 0


def test_reads_of_cpu_tensors_cost_no_waiting_and_are_counted_apart():
    x = torch.ones(3)
    with counting.count() as counts:
        x.sum().item()
        x.tolist()
        bool(x[0])
        repr(x)
        f"{x[0]:.2f}"
        x[x > 0]
        x.nonzero()
        torch.equal(x, x)
    assert (counts.host_reads, counts.cpu_reads) == (0, 8)


def test_nested_contexts_count_what_is_inside_each():
    x = torch.ones(3)
    with counting.count() as outer:
        x + 1
        with counting.count() as inner:
            x * 2
            x.tolist()
        x - 1
    assert (inner.operators, inner.cpu_reads) == (1, 1)
    assert (outer.operators, outer.cpu_reads) == (3, 1)


def test_an_exception_leaves_what_was_counted_and_a_usable_counter():
    x = torch.ones(3)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), counting.count() as counts:
        x + 1
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert counts.by_operator == {"add": 1, "ones": 2}
    with counting.count() as again:
        with pytest.raises(TypeError):
            x.__format__("d")  # a read that fails does not silence the counter
        x + 1
    x + 1
    assert again.operators == 1


def test_other_threads_and_numpy_of_a_cpu_tensor_are_not_counted():
    x = torch.ones(3)
    with counting.count() as counts:
        thread = threading.Thread(target=lambda: torch.ones(3) + 1)
        thread.start()
        thread.join()
        x.numpy()
        torch.from_numpy(np.ones(3))
        x.to("cpu")
        x.to(torch.float32)
    assert counts.operators == 0 and moved(counts) == (0, 0, 0)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_recurrent_layers_have_flops(kind, mode):
    model, x = kind(4, 8, num_layers=2, bidirectional=True), torch.randn(5, 3, 4)
    weights = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 1]))
    for given, tokens in ((x, 15), (packed, 10)):
        with mode(), counting.count() as counts:
            result = model(given)[0]
        assert counts.flops == 2 * tokens * weights
        with mode():
            assert torch.equal(*(torch.as_tensor(getattr(y, "data", y)) for y in (result, model(given)[0])))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("heads", [4, 3])
def test_attention_has_the_flops_of_its_two_products(mode, heads):
    q = torch.randn(2, heads, 32, 16)
    with mode(), counting.count() as forward:
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert forward.flops == 2 * (2 * 2 * heads * 32 * 32 * 16)


@pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyOptions"), reason="new in torch 2.13")
@pytest.mark.parametrize(("reduction", "forward", "both"), [("mean", 3, 3), ("none", 1, 4)])  # logits twice
def test_a_layer_and_its_loss_in_one_operator_have_the_flops_of_their_products(reduction, forward, both):
    x, weight, y = torch.randn(64, 16, requires_grad=True), torch.randn(32, 16), torch.zeros(64, dtype=torch.long)
    for gradients, expected in ((2, forward), (1, min(forward, 2)), (0, 1)):
        weight.requires_grad_(gradients == 2)
        with counting.count() as counts, torch.set_grad_enabled(gradients > 0):
            loss = torch.nn.functional.linear_cross_entropy(
                x, weight, y, reduction=reduction, options=torch.nn.LinearCrossEntropyOptions(batch_chunk_size=8)
            )
            assert counts.flops == expected * 2 * 64 * 16 * 32
            if gradients == 2:
                loss.sum().backward()
                assert counts.flops == both * 2 * 64 * 16 * 32


@pytest.mark.parametrize(("layer", "shape", "times"), [
    (lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q), (2, 4, 32, 16), 2.5),  # scores twice
    (lambda x: torch.nn.LSTM(4, 8)(x)[0], (5, 3, 4), 2),
])  # fmt: skip
def test_gradients_cost_more_than_the_forward_pass(layer, shape, times):
    with counting.count() as forward:
        y = layer(torch.randn(shape, requires_grad=True))
    with counting.count() as backward:
        y.sum().backward()
    assert backward.flops == times * forward.flops > 0


def test_counts_print_as_one_line_and_as_a_table():
    with counting.count() as counts:
        torch.ones(2, 3) @ torch.ones(3, 4)
    line = "operators 3, views 0, copies H2D 0, copies D2H 0, copies D2D 0, host reads 0, FLOPs 48"
    assert str(counts) == line == repr(counts)
    assert counts._repr_html_().count("<tr>") == 7


def test_each_direction_of_a_copy_each_parameter_of_a_module_and_pinned_copies_are_counted(sim):
    other = torch.device("sim:1")
    x = torch.ones(10, 10)
    with counting.count() as counts:
        a = x.to(sim)
        a.to(other)
        a.cpu()
        a.to("cpu", torch.float64)
        a.to(sim)
        torch.empty(10, 10).copy_(a)
        a.copy_(x)
    assert moved(counts) == (2, 3, 1)
    assert (counts.bytes_h2d, counts.bytes_d2h, counts.bytes_d2d) == (800, 400 + 800 + 400, 400)
    assert counts.host_reads == 0
    pinned = torch.ones(3).pin_memory()
    with counting.count() as counts:
        torch.nn.Linear(3, 2).to(sim)
        pinned.to(sim, non_blocking=True)
    bytes_and_kinds = [(24, False, False), (8, False, False), (12, True, True)]
    assert counts.copies == [counting.Copy("h2d", *kind) for kind in bytes_and_kinds]


def test_what_is_made_on_the_device_or_joins_it_as_a_number_is_no_copy_and_a_list_is_one(sim):
    with counting.count() as counts:
        torch.zeros(3, device=sim)
        torch.randn(3, device=sim)
        torch.arange(3, device=sim)
        torch.full((3,), 1.5, device=sim)
    assert moved(counts) == (0, 0, 0)
    with counting.count() as counts:
        torch.tensor([1.0, 2.0, 3.0], device=sim)
    assert moved(counts) == (1, 0, 0) and counts.bytes_h2d == 12
    with counting.count() as counts:
        torch.as_tensor(np.ones(3), device=sim)
        torch.zeros(3, device=sim).new_tensor([1.0])
    assert moved(counts) == (2, 0, 0)
    x = torch.ones(3, device=sim)
    with counting.count() as counts:
        x + 1.5
        x * torch.tensor(2.0)
        x.masked_fill(x > 0, 0.0)
    assert moved(counts) == (0, 0, 0) and counts.host_reads == 0


def test_the_default_device_is_the_same_to_the_counter(sim):
    with counting.count() as inside, torch.device(sim):
        torch.tensor([1.0])
        torch.zeros(3)
    with torch.device(sim), counting.count() as outside:
        torch.tensor([1.0])
        torch.zeros(3)
    assert moved(inside) == moved(outside) == (1, 0, 0)
    assert inside.by_operator == outside.by_operator


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(), lambda x: float(x.sum()), lambda x: bool(x.sum() > 0), lambda x: x.tolist(), repr,
        print, lambda x: f"{x.sum():.2f}", lambda x: x.nonzero(), lambda x: x[x > 0], lambda x: torch.equal(x, x),
        lambda x: torch.allclose(x, x), lambda x: 1 if x.max() > 0 else 0,
    ],
)  # fmt: skip
@pytest.mark.parametrize("inference", [False, True], ids=["grad", "inference"])
def test_each_way_of_reading_a_value_is_one_host_read_and_no_copy(sim, read, inference):
    with torch.inference_mode(inference):
        x = torch.ones(3, device=sim)
        with counting.count() as counts:
            read(x)
    assert (counts.host_reads, counts.cpu_reads) == (1, 0)
    assert moved(counts) == (0, 0, 0)


def test_indices_on_the_cpu_are_copied_and_a_number_written_through_a_mask_is_no_read(sim):
    x, values, indices = torch.arange(4.0).to(sim), torch.arange(3.0).to(sim), torch.tensor([0, 2])
    with counting.count() as counts:
        x[indices]
    assert moved(counts) == (1, 0, 0) and counts.bytes_h2d == 16
    for index in ([0, 2], np.array([0, 2]), range(0, 4, 2), ([0, 2],)):
        with counting.count() as counts:
            x[index], x.cpu()[index]
        assert moved(counts) == (1, 1, 0) and counts.bytes_h2d == 16
    table = torch.zeros(2, 2, device=sim)
    with counting.count() as counts:
        table[list(range(2)), indices // 2] = 1.0
        table[:, [0]] = table[:, [1]]
    assert moved(counts) == (4, 0, 0) and counts.bytes_h2d == 16 + 16 + 8 + 8
    with counting.count() as counts:
        x[x > 1] = 7
    assert counts.host_reads == 0 and counts.copies == []
    with counting.count() as counts:
        x[x > 0] = values
    assert counts.host_reads == 1


def test_training_on_the_device_counts_as_on_the_cpu(sim):
    def step(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
        x = torch.randn(4, 8).to(device)
        with counting.count() as counts:
            model(x).square().mean().backward()
            optimizer.step()
        return counts

    here, there = step("cpu"), step(sim)
    assert there.by_operator == here.by_operator
    assert there.flops == here.flops == 3 * 2 * 4 * (8 * 8 + 8 * 2) - 2 * 4 * 8 * 8  # no gradient of the input
    assert moved(there) == (0, 0, 0) and there.host_reads == 0


@pytest.mark.parametrize(("options", "most"), [({"foreach": False}, 40), ({"foreach": True}, 20), ({"fused": True}, 2)])
def test_the_steps_of_an_optimizer_are_counted_also_where_they_return_nothing(options, most):
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = torch.optim.AdamW(parameters, **options)
    for _ in range(2):
        sum(parameter.sum() for parameter in parameters).backward()
        with counting.count() as counts:
            optimizer.step()
    assert 0 < counts.operators <= most
    names = set(counts.by_operator)
    assert ("_fused_adamw_" in names) is ("fused" in options)
    assert ("_foreach_mul_" in names) is bool(options.get("foreach")), names


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_in_inference_mode_count_as_those_without_gradients(sim, name):
    found = []
    for mode in (torch.no_grad, torch.inference_mode):
        torch.manual_seed(0)
        with mode(), counting.count() as counts:
            PROGRAMS[name]()
        found.append((str(counts), counts.by_operator))
    assert found[0] == found[1]


def test_an_operator_of_ones_own_counts_with_the_flops_of_its_formula(sim):
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b).relu() + 1

    op, x = defined(product), torch.ones(64, 64, device=sim)

    def flops(a_shape, b_shape, *args, out_shape=None, **kwargs):
        return 2 * a_shape[0] * a_shape[1] * b_shape[1]

    register_flop_formula(op._opoverload.overloadpacket)(flops)
    with counting.count() as counts:
        op(x, x)
    assert counts.flops == 2 * 64**3 and counts.by_operator == {op._qualname: 1}
