"""Is attention the kernel that CUDA would choose, with the CPU's numbers and CUDA's memory?"""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import simgpu

HALF, FLOAT, DOUBLE = torch.float16, torch.float32, torch.float64
LENGTH = 512
SCORES_BYTES = 4 * LENGTH**2 * 4  # of four heads


def qkv(width=16, value_width=None, heads=4, dtype=FLOAT, length=LENGTH, device="sim"):
    made = torch.Generator().manual_seed(0)
    sizes = (1, heads, length, width), (1, heads, length, width), (1, heads, length, value_width or width)
    return [torch.randn(size, generator=made).to(device, dtype).requires_grad_() for size in sizes]


def kept_bytes(**options):
    """Return the bytes that are kept for backward, and the peak of a step above what was there."""
    q, k, v = qkv(**{name: options.pop(name) for name in ("value_width", "dtype") if name in options})
    before = torch.sim.memory_allocated()
    torch.sim.reset_peak_memory_stats()
    result = F.scaled_dot_product_attention(q, k, v, **options)
    kept = torch.sim.memory_allocated() - before
    result.sum().backward()
    return kept, torch.sim.max_memory_allocated() - before


@pytest.mark.parametrize(
    "options", [{}, {"dropout_p": 0.1}, {"value_width": 32}, {"dtype": HALF, "dropout_p": 0.5}], ids=str
)
def test_a_fused_kernel_keeps_no_scores(options):
    kept, peak = kept_bytes(**options)
    assert kept < SCORES_BYTES / 8 and peak < SCORES_BYTES / 4


@pytest.mark.parametrize("options", [{"dtype": DOUBLE}, {"dtype": DOUBLE, "dropout_p": 0.1}], ids=str)
def test_the_formula_keeps_all_scores(options):
    kept, _ = kept_bytes(**options)
    assert kept > SCORES_BYTES


MASKS = {
    "none": lambda shape: None,
    "bool": lambda shape: torch.rand(shape[-2:]) > 0.3,
    "numbers": lambda shape: torch.randn(1, 1, *shape[-2:]),
    "learned": lambda shape: torch.randn(shape[1:]).requires_grad_(),
}


@pytest.mark.parametrize(("mask", "dropout", "value_width"), list(itertools.product(MASKS, (0.0, 0.25), (8, 24))))
def test_values_and_gradients_are_the_cpus_in_all_bits(mask, dropout, value_width):
    results = []
    for device in ("cpu", "sim"):
        torch.manual_seed(1)
        given = qkv(width=8, value_width=value_width, length=20, device=device)
        bias = MASKS[mask]((1, 4, 20, 20))
        learned = bias is not None and bias.requires_grad
        bias = None if bias is None else bias.detach().to(device).requires_grad_(learned)
        torch.manual_seed(2)
        result = F.scaled_dot_product_attention(*given, attn_mask=bias, dropout_p=dropout)
        (result * torch.arange(value_width, device=device)).sum().backward()
        grads = [tensor.grad for tensor in (*given, *([bias] if learned else []))]
        results.append([one.detach().cpu() for one in (result, *grads)])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


NOT = pytest.raises(RuntimeError, match=r"^No available kernel\. Aborting execution\.$")


@pytest.mark.parametrize(("backend", "works", "refused"), [
    (SDPBackend.FLASH_ATTENTION,
     [{"dtype": HALF}, {"dtype": HALF, "width": 12}], [{}, {"dtype": DOUBLE}, {"dtype": HALF, "value_width": 32}]),
    (SDPBackend.EFFICIENT_ATTENTION,
     [{}, {"dtype": HALF}, {"value_width": 32}], [{"dtype": DOUBLE}, {"dtype": HALF, "width": 12}, {"width": 6}]),
    (SDPBackend.CUDNN_ATTENTION, [{"dtype": HALF}], [{}, {"dtype": HALF, "width": 12}]),
    (SDPBackend.MATH, [{}, {"dtype": DOUBLE}, {"width": 6}], []),
])  # fmt: skip
def test_a_chosen_kernel_takes_what_cudas_takes(backend, works, refused):
    """`can_use_flash_attention` and its kin in sdp_utils.cpp."""
    simgpu.configure(spec="A100 40GB")
    with sdpa_kernel(backend):
        for options in works:
            assert F.scaled_dot_product_attention(*qkv(length=8, **options)).shape[-2] == 8
        for options in refused:
            with NOT:
                F.scaled_dot_product_attention(*qkv(length=8, **options))
        if backend is SDPBackend.FLASH_ATTENTION:
            with NOT:
                mask = torch.ones(8, 8, dtype=torch.bool, device="sim")
                F.scaled_dot_product_attention(*qkv(length=8, dtype=HALF), attn_mask=mask)


def test_cudnns_kernel_comes_behind_the_formula():
    simgpu.configure(spec="A100 40GB")
    given, mask = qkv(dtype=HALF, length=8), torch.ones(8, 8, dtype=torch.bool, device="sim")
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
        assert F.scaled_dot_product_attention(*given, attn_mask=mask).dtype == HALF
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]):
        before = torch.sim.memory_allocated()
        given = qkv(dtype=HALF)
        result = F.scaled_dot_product_attention(*given)
        assert torch.sim.memory_allocated() - before > SCORES_BYTES and result.shape == given[0].shape


def test_dropout_is_drawn_anew_each_time_and_again_with_the_seed():
    given = qkv(length=32)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(F.scaled_dot_product_attention(*given, dropout_p=0.5))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_grouped_queries_with_dropout_are_fused():
    q = qkv(heads=4, length=LENGTH)[0]
    _, k, v = qkv(heads=2, length=LENGTH)
    before = torch.sim.memory_allocated()
    result = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, enable_gqa=True)
    assert torch.sim.memory_allocated() - before < SCORES_BYTES / 8 and result.shape == q.shape


def test_a_forecast_chooses_as_the_device_does():
    """A layer of a Transformer with PyTorch's usual dropout, in training."""

    def model():
        return torch.nn.TransformerEncoderLayer(64, 4, 64, batch_first=True)

    ahead = simgpu.forecast(model, lambda: torch.randn(1, LENGTH, 64), torch.optim.SGD)
    assert any("efficient_attention" in record.name for record in ahead.on("T4").records)
    assert ahead.memory.peak_bytes < 3 * SCORES_BYTES


def test_bfloat16_is_the_formula_with_all_scores_below_compute_capability_8():
    """`less_than_sm80_mem_efficient_dtypes` in sdp_utils.cpp has no bfloat16."""
    names = {}
    for gpu in ("T4", "A100 40GB"):
        simgpu.enable(spec=gpu)
        with simgpu.timeline() as timeline:
            F.scaled_dot_product_attention(*qkv(length=8, dtype=torch.bfloat16))
        names[gpu] = [record.name for record in timeline.select("kernel")]
    simgpu.enable(spec="T4")
    assert names["T4"].count("bmm") == 2 and not any("attention" in name for name in names["T4"])
    assert len(names["A100 40GB"]) == 1 and "attention" in names["A100 40GB"][0]


def test_a_forecast_for_an_old_gpu_has_the_scores_of_bfloat16_attention_in_its_memory():
    def forward(model, batch, optimizer):
        F.scaled_dot_product_attention(*[model(batch)] * 3).sum().backward()

    def make() -> nn.Module:
        return nn.Linear(16, 16, dtype=torch.bfloat16)

    ahead = simgpu.forecast(make, lambda: torch.zeros(1, 4, 512, 16, dtype=torch.bfloat16), step=forward)
    scores = 4 * 512 * 512 * 2
    old, new = (ahead.on(gpu).what_if(host="server").peak for gpu in ("T4", "A100 40GB"))
    assert old > new + scores and new == ahead.memory.peak_bytes
    told = [ahead.on("A100 40GB").what_if(gpu=gpu).assumptions[0] for gpu in ("T4", "H100 SXM")]
    assert "with all its scores in memory" in told[0] and "bfloat16" not in told[1]
