"""Is `torch.inference_mode()` on the simulated GPU what `torch.no_grad()` is? Operators, memory, times and counts."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from tests.simgpu.simulated import on_sim


def _mixed_formats():
    x = torch.ones(30, 30, device="sim")
    with torch.autocast("sim"):
        return nn.Linear(30, 4, device="sim")(x), F.cosine_similarity(x, x), torch.cdist(x, x), torch.tensordot(x, x, 1)


def _layer(make, *shape):
    def run():
        with torch.inference_mode(False):  # as a model is made before it is asked
            model = make().to("sim").eval()
        return model(on_sim(*shape))

    return run


PROGRAMS = {
    "attention": lambda: F.scaled_dot_product_attention(*on_sim(3, 2, 4, 32, 16)),
    "attention with a mask": lambda: F.scaled_dot_product_attention(*on_sim(3, 2, 4, 8, 16), on_sim(8, 8) > 0),
    "convolution": _layer(lambda: nn.Conv2d(3, 4, 3), 2, 3, 8, 8),
    "LSTM": _layer(lambda: nn.LSTM(4, 8, 2), 5, 3, 4),
    "GRU": _layer(lambda: nn.GRU(4, 8, 2), 5, 3, 4),
    "Transformer": _layer(lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2, 5, 16),
    "CTC": lambda: F.ctc_loss(
        on_sim(5, 2, 4), torch.ones(2, 3, dtype=torch.long, device="sim"), torch.tensor([5, 5]), torch.tensor([2, 3])
    ),
    "autocast": _mixed_formats,
    "conjugate": lambda: torch.linalg.pinv(on_sim(4, 3, dtype=torch.complex64)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_times_memory_and_values_are_those_without_gradients(name):
    found = []
    for mode in (torch.no_grad, torch.inference_mode):
        simgpu.reset()
        before = torch.sim.memory_allocated()
        torch.manual_seed(0)
        with mode(), simgpu.timeline() as timeline:
            values = PROGRAMS[name]()
        peak = torch.sim.max_memory_allocated() - before
        values = [v.cpu() for v in (values if isinstance(values, tuple) else (values,)) if isinstance(v, torch.Tensor)]
        found.append((timeline.records, peak, [(v.dtype, v.tolist()) for v in values]))
        del values
    assert found[0] == found[1]
