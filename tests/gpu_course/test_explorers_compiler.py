"""Does the explorer of lesson 14 count kernels and bytes as PyTorch's compiler does, and does the longer time count?"""

import pytest
import torch

import simgpu
from gpu_course.lesson14.explorers import fusion
from tests.gpu_course.explorer_settings import settings

NOTHING, END, MIDDLE = fusion.PRODUCTS


def found(**chosen):
    return fusion.fusion(**{"operators": 6, "rows": 16, "product": NOTHING, "gpu": "T4", "graph": False, **chosen})


def chain(x, weight, product, operators):
    """Return what the explorer describes: element-wise operators, and a product at the end, in the middle or not."""
    half = operators // 2 if product == MIDDLE else operators
    for _ in range(half):
        x = torch.sin(x)
    x = x @ weight if product != NOTHING else x
    for _ in range(operators - half):
        x = torch.sin(x)
    return x


@pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))
@pytest.mark.parametrize("product", fusion.PRODUCTS)
def test_kernels_and_bytes_are_those_that_the_compiler_says(product):
    x, weight = torch.ones(16, fusion.WIDTH).half(), torch.ones(fusion.WIDTH, fusion.WIDTH).half()
    torch._dynamo.reset()
    said = simgpu.compiled(chain, x, weight, product, 6)
    fused = found(product=product).fused
    assert len(said.kernels) == fused.kernels and said.nbytes == fused.nbytes


def test_over_all_settings_only_the_host_makes_fusing_lose_and_the_longer_time_is_the_whole():
    for setting in settings(fusion.explore()):
        one = fusion.fusion(**setting)
        assert one.gain >= 1 or one.fused.launch_s > one.separate.total_s
        assert one.fused.kernels <= one.separate.kernels and one.fused.nbytes <= one.separate.nbytes
        for way in (one.separate, one.fused):
            assert way.total_s == max(way.launch_s, way.memory_s + way.product_s)
        assert one.fused.launches == 1 or not setting["graph"]


def test_a_chain_gains_as_many_times_as_it_has_operators_on_any_gpu_and_a_product_takes_most_of_that():
    for gpu in ("T4", "H100 SXM"):
        assert found(operators=8, rows=16384, gpu=gpu).gain == pytest.approx(8)
    assert 1 < found(operators=8, rows=4096, product=END).gain < 2
    assert found(operators=1, rows=1).gain < 1  # entering a graph takes the host longer than one operator
    captured, launched = (found(rows=1, operators=16, product=MIDDLE, graph=how).fused for how in (True, False))
    assert captured.launches < launched.launches and captured.launch_s > launched.launch_s  # there are three to save


def test_the_picture_has_the_bytes_and_the_times():
    one = found(operators=4, product=END)
    left, right = fusion.draw(one).axes
    assert [bar.get_width() * 2**20 for bar in left.patches] == [one.separate.nbytes, one.fused.nbytes]
    assert [bar.get_width() for bar in right.patches][-1] == pytest.approx(1e6 * one.fused.launch_s)
    assert "2 kernels move" in fusion.describe(one)
