"""What did programs of others ask of CUDA's face that it did not know? One case for each cause that was mended."""

import multiprocessing.reduction
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import simgpu
from tests.simgpu.simulated import read_calls

FACE = {"memory": "1 GiB"}


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_what_is_pinned_on_the_gpu_is_refused_and_scripts_know_the_factories():
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.zeros(2, device="cuda", pin_memory=True)
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = (torch.ones(2, device="cuda", requires_grad=True) ** 2).sum()
    y.backward()

    class Counting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.zeros(2) + torch.tensor([1.0, 2.0])

    assert torch.jit.script(Counting())(torch.ones(2)).tolist() == [2.0, 3.0]


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_the_default_tensor_type_of_old_programs():
    torch.set_default_tensor_type("torch.cuda.HalfTensor")
    made = torch.ones(2), torch.Tensor(2), torch.Tensor([1, 2])
    torch.set_default_tensor_type(torch.FloatTensor)
    assert {(x.device.type, x.dtype, x.shape) for x in made} == {("cuda", torch.float16, (2,))}
    assert torch.ones(2).device.type == torch.Tensor(2).device.type == "cpu"


def test_settings_of_cudnn_for_a_while():
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        assert torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark_limit = 3
    assert torch.backends.cudnn.benchmark_limit == 3 and not torch.backends.cudnn.benchmark


def test_history_of_memory_by_the_arguments_of_old():
    torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=50, trace_alloc_record_context=True)
    kept = [torch.empty(n, device="cuda") for n in (2, 3)]
    assert len(torch.cuda.memory._snapshot()["device_traces"][0]) >= len(kept)
    torch.cuda.memory._record_memory_history(False)


def test_a_profiler_of_the_gpu_alone():
    with profile(activities=[ProfilerActivity.CUDA]) as profiled, torch.autograd.profiler.emit_nvtx():
        torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda")
    assert {row.key for row in profiled.key_averages()} == {"ones", "mm"}
    with torch.autograd.profiler.profile(use_cuda=True) as profiled:
        torch.ones(4, 4, device="cuda").relu()
    assert "relu" in {row.key for row in profiled.key_averages()}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm", [None, nn.LayerNorm(8)])
def test_an_encoder_that_leaves_out_padding(norm):
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, norm).eval()
    x, padding = torch.randn(2, 4, 8), torch.tensor([[False, False, False, True], [False, False, True, True]])
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=padding)
        found = encoder.cuda()(x.cuda(), src_key_padding_mask=padding.cuda())
    encoder.cpu()
    torch.testing.assert_close(found.cpu(), expected)
    assert encoder.norm is norm and encoder.use_nested_tensor


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_a_scripted_module_runs_and_is_written_from_the_cpu(tmp_path):
    x = torch.ones(1, 2)
    module = torch.jit.script(nn.BatchNorm1d(2)).eval()
    expected = module(x)
    torch.jit.save(module, tmp_path / "module.pt")
    loaded = torch.jit.load(tmp_path / "module.pt", map_location="cuda")
    for one in (loaded, torch.jit.load(tmp_path / "module.pt").cuda(), module.to("cuda")):
        assert one(x.cuda()).is_cuda and torch.equal(one(x.cuda()).cpu(), expected)
    for one in (module, torch.jit.trace(nn.Conv1d(1, 1, 1).cuda(), x.cuda())):
        with pytest.raises(NotImplementedError, match=r"cannot be written to a file: write module.cpu\(\)"):
            torch.jit.save(one, tmp_path / "module.pt")


class Traced(nn.Module):
    """Convolutions, which the tracer leaves to C++, and what it warns of at the line that asks for it."""

    def __init__(self):
        super().__init__()
        self.one, self.up = nn.Conv2d(3, 4, 3, padding="same"), nn.ConvTranspose2d(4, 2, 2, groups=2)

    def forward(self, x):
        mixed = nn.functional.group_norm(self.one(x), 2) * 2
        mixed[mixed > 1] = torch.tensor(1.0, device=x.device)
        print(f"{mixed.mean():.1f}", mixed.sum().tolist() > 0)
        return nn.functional.cross_entropy(self.up(mixed), x[:, 0, :1, :1].new_ones(2, 9, 9).long())


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize("quietly", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_what_is_traced_is_the_program_and_no_part_of_the_simulation(quietly):
    def operators(device):
        model, x = Traced().to(device), torch.rand(2, 3, 8, 8, device=device)
        with quietly(), pytest.warns(torch.jit.TracerWarning) as said:
            traced = torch.jit.trace(model, x, check_trace=False)
        assert not [one for one in said if "engines" in Path(one.filename).parts]
        other = 1 - x
        torch.testing.assert_close(traced(other), model(other))
        (traced(other) * 2).backward()
        assert model.one.weight.grad.device == x.device and not torch._C._is_tracing()
        kinds = [node.kind() for node in traced.inlined_graph.nodes()]
        return [
            one for one in kinds if one.startswith("aten::") and not one.endswith(("to", "detach", "scalar_tensor"))
        ]

    with simgpu.cuda(memory="1 GiB", record=True):
        assert operators("cuda") == operators("cpu")
        with pytest.raises(RuntimeError, match="expected input"):
            torch.jit.trace(nn.Conv1d(2, 2, 1).cuda(), torch.ones(1, 3, 3, device="cuda"))
        assert not torch._C._is_tracing()


def test_data_may_be_on_another_device():
    layer = nn.Linear(2, 2)
    weight = layer.weight
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer(torch.ones(1, 2)).sum().backward()
    for place in ("cuda", "cpu", "cuda"):
        for parameter in layer.parameters():
            parameter.data = parameter.data.to(place)
            assert parameter.device.type == parameter.grad.device.type == place
    before = weight.detach().clone()
    optimizer.step()
    assert layer.weight is weight and isinstance(weight, nn.Parameter) and layer(torch.ones(1, 2).cuda()).is_cuda
    assert torch.equal(before - 1, weight.detach())
    x = torch.ones(2)
    x.data = torch.zeros(3, device="cuda")
    assert x.is_cuda and x.shape == (3,) and not x.requires_grad


@pytest.mark.filterwarnings("ignore")
def test_graphs_that_run_operator_by_operator():
    from torch.distributed.optim import ZeroRedundancyOptimizer  # scripts optimizers when it is imported
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 2, 16, 8, device="cuda")
    assert torch.allclose(flex_attention(q, q, q), nn.functional.scaled_dot_product_attention(q, q, q), atol=1e-5)
    assert torch.compile(nn.Linear(8, 2).cuda(), backend="aot_eager")(q).is_cuda and ZeroRedundancyOptimizer


def test_sharing_is_nothing_and_sending_is_refused():
    x = torch.ones(2, device="cuda")
    assert x.share_memory_() is x and x.is_shared() and nn.Linear(2, 2).cuda().share_memory() is not None
    with pytest.raises(RuntimeError, match="cannot be sent to another process"):
        multiprocessing.reduction.ForkingPickler.dumps(x)


NOT_THERE = read_calls("not_there", globals())


@pytest.mark.parametrize("name", NOT_THERE)
def test_what_is_not_there_is_refused_in_a_sentence(name):
    with pytest.raises(NotImplementedError, match=f"{name} of CUDA was asked for: the simulated GPU does not have it"):
        NOT_THERE[name]()


def added(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


def moved(a: torch.Tensor) -> torch.Tensor:
    return a.to("cuda")


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_a_script_ends_with_the_words_of_the_operator_that_failed():
    """The interpreter finds none in an exception of Python: its message ended with "RuntimeError:"."""
    x, layer = torch.rand(2, 2), nn.Linear(2, 2)
    by_hand, other = torch.jit.script(added), nn.Linear(2, 2).cuda()
    assert torch.equal(by_hand(x.cuda(), x.cuda()).cpu(), 2 * x)
    words = r"HERE\nRuntimeError: Expected all tensors to be on the same device, but found at least two devices"
    with pytest.raises(RuntimeError, match=words):
        by_hand(x.cuda(), x)
    for module in (torch.jit.script(layer).cuda(), torch.jit.trace(other, x.cuda())):
        with pytest.raises(RuntimeError, match="but got mat1 is on cpu, different from other tensors on cuda:0"):
            module(x)
    with pytest.raises(RuntimeError, match="a TorchScript program cannot move tensors to `cuda`"):
        torch.jit.script(moved)(x)
