"""Are sparse tensors of the layouts COO, CSR and CSC on the simulated GPU what they are on the CPU, with gradients?"""

import io

import pytest
import torch
from torch import nn

from simgpu.device import enabling
from tests.simgpu.simulated import read_calls

FACE = {"gpus": 2, "memory": "1 GiB"}

PLACES = ("cuda", "cpu")


def coo(place, values=(3.0, 4.0, 5.0)):
    rows_and_columns = torch.tensor([[1, 0, 1], [2, 2, 0]], device=place)
    return torch.sparse_coo_tensor(rows_and_columns, torch.as_tensor(values, device=place), (2, 3))


def csr(place, values=(3.0, 4.0, 5.0)):
    starts, columns = torch.tensor([0, 1, 3], device=place), torch.tensor([2, 0, 2], device=place)
    return torch.sparse_csr_tensor(starts, columns, torch.as_tensor(values, device=place), (2, 3))


def ones(place, *shape):
    return torch.ones(*shape, device=place)


SAME = read_calls("sparse", globals(), "d")


@pytest.mark.parametrize("name", SAME)
def test_a_sparse_tensor_has_the_values_of_the_cpu(name):
    found, expected = (SAME[name](place) for place in PLACES)
    assert found.layout == expected.layout and found.shape == expected.shape and found.dtype == expected.dtype
    assert found.is_sparse == expected.is_sparse and found.is_sparse_csr == expected.is_sparse_csr
    if name != "number of elements":
        assert found.device == torch.device("cuda:0") and found.is_cuda
    torch.testing.assert_close(found.cpu().to_dense(), expected.to_dense())


@pytest.mark.parametrize("make", [coo, csr])
def test_gradients_of_values_and_of_the_dense_factor(make):
    found = []
    for place in PLACES:
        values = torch.tensor([3.0, 4.0, 5.0], device=place, requires_grad=True)
        dense = ones(place, 3, 2).requires_grad_()
        (make(place, values) @ dense).square().sum().backward()
        found.append((values.grad.cpu(), dense.grad.cpu()))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("make", [lambda: coo("cpu"), lambda: csr("cpu"), lambda: coo("cpu").to_sparse_csc()])
def test_a_sparse_tensor_is_moved_and_counted(make):
    there = make()
    before = torch.cuda.memory_allocated()
    here = there.cuda()
    assert torch.cuda.memory_allocated() - before >= 3 * 4 + 3 * 8
    other = here.to("cuda:1")
    assert (here.device.index, other.device.index) == (0, 1)
    torch.testing.assert_close(other.cpu().to_dense(), there.to_dense())
    assert "device='cuda:1'" in repr(other)
    del here, other
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam])
def test_an_embedding_with_sparse_gradients_trains(optimizer):
    trained = []
    for place in PLACES:
        torch.manual_seed(0)
        table = nn.Embedding(5, 2, sparse=True).to(place)
        steps = optimizer(list(table.parameters()), lr=0.1)
        for _ in range(2):
            steps.zero_grad()
            table(torch.tensor([1, 1, 2], device=place)).square().sum().backward()
            assert table.weight.grad.is_sparse
            steps.step()
        trained.append(table.weight.detach().cpu())
    torch.testing.assert_close(*trained)


def test_a_factor_on_the_cpu_is_refused_as_on_cuda():
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        coo("cuda") @ torch.ones(3, 2)


@pytest.mark.parametrize("make", [coo, csr])
def test_a_sparse_tensor_is_saved(make):
    file = io.BytesIO()
    torch.save(make("cuda:1"), file)
    for place in (None, "cpu"):
        file.seek(0)
        found = torch.load(file, map_location=place)
        assert found.device == torch.device(place or "cuda:1") and found.layout == make("cpu").layout
        torch.testing.assert_close(found.cpu().to_dense(), make("cpu").to_dense())


def test_what_stays_refused_says_so_in_a_sentence():
    with pytest.raises(NotImplementedError, match=r"no tensors of layout torch.sparse_bsr: use dense ones, or layouts"):
        torch.eye(4, device="cuda").to_sparse_bsr((2, 2))


def test_a_sparse_tensor_is_made_beside_memory_whose_views_are_stale(monkeypatch):
    monkeypatch.setitem(enabling.world().stale, -1, (None, False))
    assert torch.zeros(2, 3, layout=torch.sparse_coo, device=PLACES[0]).layout is torch.sparse_coo
