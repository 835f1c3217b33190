"""Does a tensor on the simulated GPU behave as one on CUDA does? Placement, errors, identity and copies."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import simgpu
from tests.simgpu.simulated import consistent, on_sim, outcome, read_calls


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


ERRORS = read_calls("errors_of_sim", globals())


# PyTorch says that quantized tensors will go, and its compiler still uses what it deprecates.
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:.torch.jit.script_method")
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_has_cudas_type_and_words(name):
    words, attempt = ERRORS[name]
    assert re.search(words, outcome(attempt))


def test_tensors_of_no_dimension_on_the_cpu_may_join():
    assert (on_sim(2) + torch.tensor(2.0)).device.type == "sim"
    assert torch.where(on_sim(3) > 0, on_sim(3), torch.tensor(0.0)).device.type == "sim"


CHANGES = read_calls("changes", globals(), "x")


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_wrapper_and_values_stay_equal(name):
    x = torch.arange(12.0, device="sim").reshape(3, 4).clone()
    CHANGES[name](x)
    consistent(x)
    consistent(x + 1)


def test_views_share_memory_and_live_on_after_a_reset():
    x = torch.zeros(3, 4, device="sim")
    simgpu.reset()
    row, column, flat = x[1], x[:, 2], x.view(-1)
    x.add_(1)
    row.mul_(5)
    assert [v.tolist() for v in (consistent(row), consistent(column))] == [[5.0] * 4, [1.0, 5.0, 1.0]]
    assert flat.sum().item() == 8 + 20
    assert x.view(-1).data_ptr() == x.data_ptr() and row.data_ptr() == x.data_ptr() + 16
    assert row._base is x
    assert x.untyped_storage().nbytes() == 48


def test_a_library_finds_which_tensors_share_a_storage():
    """By PyTorch's protocol for wrappers, as huggingface_hub does before it saves a model."""
    x = on_sim(2, 3)
    (name,), _ = x.__tensor_flatten__()
    storages = [getattr(one, name).untyped_storage().data_ptr() for one in (x, x[1], x + 1)]
    assert storages[0] == storages[1] != storages[2]


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
    with pytest.raises(RuntimeError, match="found at least two devices, sim:0 and cpu"):
        x[torch.tensor([0, 1])] = torch.ones(2)


INDICES = [
    [1, 2], [True, False, True], ([0, 1], [1, 0]), (..., [2, 0]), ([2, 1], slice(1, None)), [[0, 2], [1, 1]], [[1, 2]],
    [], [2] * 40, range(2), (range(2), 1), np.array([2, 0]), (np.array([0, 1]), np.int64(1)), ((0, 1), [2, 2]), [-1],
    (None, [0]), ([torch.tensor(1), torch.tensor(0)], 2),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_sequences_among_indices_pick_what_they_pick_on_the_cpu(index):
    plain = torch.arange(9.0).view(3, 3)
    ours = plain.to("sim")
    assert torch.equal(ours[index].cpu(), plain[index]) and ours[index].device.type == "sim"
    ours[index] = plain[index] = 7.0
    assert torch.equal(ours.cpu(), plain)


@pytest.mark.parametrize("target", ["sim:0", "sim:1", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("copy", [False, True])
def test_to_moves_in_inference_mode_as_elsewhere(target, dtype, copy):
    x = torch.arange(6.0).view(2, 3)
    there = x.to("sim:0")
    with torch.inference_mode():
        like = torch.ones(1, dtype=dtype, device=target)
        for moved in (there.to(target, dtype, copy=copy), there.to(like, copy=copy)):
            assert moved.device == torch.device(target) and moved.dtype == dtype
            assert torch.equal((moved + torch.ones(3, dtype=dtype, device=target)).cpu().float(), x + 1)
            assert (moved is there) == (target == "sim:0" and dtype == torch.float32 and not copy)
        ordered = torch.ones(1, 2, 3, 4, device="sim").to(memory_format=torch.channels_last)
        assert ordered.is_contiguous(memory_format=torch.channels_last) and ordered.device.type == "sim"


@pytest.mark.filterwarnings("ignore")
def test_old_constructors_and_distributions_stay_on_the_device():
    x = on_sim(2)
    for made, shape in ((x.new(), (0,)), (x.new(2, 3), (2, 3)), (x.new(torch.Size([4])), (4,)), (x.new(x), (2,))):
        assert made.device == x.device and made.shape == shape and made.dtype == x.dtype
    assert x.new([1, 2]).tolist() == [1.0, 2.0]
    one, made = torch.distributions, {}
    for device in ("cpu", "sim:0"):
        a, p = torch.tensor([1.0, 2.0], device=device), torch.tensor([0.25, 0.75], device=device)
        torch.manual_seed(0)
        drawn = [
            d.sample((3,))
            for d in (one.Exponential(a), one.Weibull(a, a), one.Pareto(a, a), one.Geometric(p), one.Multinomial(5, p))
        ]
        assert {v.device for v in drawn} == {a.device}
        made[device] = [v.tolist() for v in drawn]
    assert made["cpu"] == made["sim:0"]


def test_whole_numbers_are_counted_as_on_cuda():
    ids = torch.tensor([0, 1, 1, 3], dtype=torch.int32)
    counted = torch.histc(ids.to("sim"), bins=4, min=0, max=3)
    assert counted.dtype == torch.int32 and counted.tolist() == [1, 2, 0, 1]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_rank_is_written_where_out_says(mode):
    matrix, rtol = torch.diag(torch.tensor([1.0, 2.0, 0.0], device="sim")), torch.tensor(0.9, device="sim")
    for options, rank in (
        ({}, 2),
        ({"atol": 1e-3}, 2),
        ({"tol": torch.ones((), device="sim")}, 1),
        ({"rtol": rtol}, 1),
    ):
        with mode():
            out = torch.full((), -1, device="sim")
            assert torch.linalg.matrix_rank(matrix, out=out, **options) is out
        assert out.item() == rank
