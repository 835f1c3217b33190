"""Are the shared models right: shapes, placement, lengths, causality, training on real data?"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_utils import counting, data, devices, models

DEVICE = devices.pick()
ATOL = 1e-5 if DEVICE.type in ("cpu", "sim") else 1e-2  # real GPUs compute convolutions and LSTMs in TF32
PLACES = sorted({torch.device("cpu"), DEVICE, *devices.check_devices()}, key=str)


def tokens(batch=3, time=10, vocabulary=50, device=DEVICE):
    return torch.randint(0, vocabulary, (batch, time)).to(device)


MAKERS = {
    "convolutional": (lambda: models.ConvNet(width=8), lambda d: (torch.rand(2, 1, 8, 8).to(d),), (2, 10)),
    "classifier": (lambda: models.RecurrentClassifier(50, 8, 16, classes=4),
        lambda d: (tokens(device=d), torch.tensor([3, 10, 1]).to(d)), (3, 4)),
    "transformer": (lambda: models.TransformerLM(50, width=16, heads=2, layers=2, context=12),
        lambda d: (tokens(device=d),), (3, 10, 50)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("place", [*PLACES, torch.device("meta")], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_shape_device_and_gradients(name, place):
    make, batch, shape = MAKERS[name]
    model, inputs = make().to(place), batch(place)
    with counting.count() as counts:
        result = model(*inputs)
    assert result.shape == shape and result.device == place and result.dtype == torch.float32
    assert counts.copies == [] and counts.host_reads == 0  # everything is created where it is used
    result.sum().backward()
    assert all(p.grad is not None and p.grad.device == p.device for p in model.parameters())


@pytest.mark.parametrize("name", MAKERS)
def test_every_device_gives_the_numbers_of_the_cpu(name):
    make, batch, _ = MAKERS[name]
    model, inputs = make().eval(), batch("cpu")
    expected = model(*inputs)
    for place in PLACES:
        got = copy.deepcopy(model).to(place)(*(x.to(place) for x in inputs))
        assert torch.allclose(got.cpu(), expected, rtol=1e-4, atol=ATOL)


def test_the_classifier_reads_no_padding_and_agrees_with_packed_sequences():
    model, x, lengths = models.RecurrentClassifier(50, 8, 16, classes=4).to(DEVICE), tokens(), torch.tensor([3, 10, 1])
    other = x.clone()
    other[0, 3:], other[2, 1:] = 7, 9
    result = model(x, lengths.to(DEVICE))
    assert torch.allclose(result.cpu(), model(other, lengths.to(DEVICE)).cpu(), atol=1e-6)
    packed = nn.utils.rnn.pack_padded_sequence(model.embed(x), lengths, batch_first=True, enforce_sorted=False)
    assert torch.allclose(result.cpu(), model.head(model.lstm(packed)[1][0][-1]).cpu(), rtol=1e-5, atol=ATOL)
    assert torch.allclose(result[:1].cpu(), model(x[:1, :3], lengths[:1].to(DEVICE)).cpu(), rtol=1e-5, atol=ATOL)


def test_a_later_token_changes_nothing_before_it():
    model, x = MAKERS["transformer"][0]().to(DEVICE), tokens()
    other = x.clone()
    other[:, 6] = (other[:, 6] + 1) % 50
    before, after = model(x).cpu(), model(other).cpu()
    assert torch.allclose(before[:, :6], after[:, :6], rtol=1e-5, atol=ATOL)
    assert not torch.allclose(before[:, 6:], after[:, 6:], atol=1e-4)


def test_checkpointing_changes_no_number():
    x, gradients = tokens(), []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = models.TransformerLM(50, width=16, heads=2, layers=2, checkpointing=checkpointing).to(DEVICE)
        with counting.count() as counts:
            model(x).square().mean().backward()
        gradients.append(([p.grad.cpu() for p in model.parameters()], counts.flops))
    assert all(torch.equal(a, b) for a, b in zip(gradients[0][0], gradients[1][0], strict=True))
    assert gradients[1][1] > gradients[0][1]  # what was not kept is computed again


def test_the_first_loss_is_that_of_a_guess():
    model, x = models.TransformerLM().to(DEVICE), tokens(8, 32, 256)
    loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    assert loss.item() == pytest.approx(torch.log(torch.tensor(256.0)).item(), abs=0.2)


def test_wrong_sizes_are_named():
    with pytest.raises(ValueError, match="multiple of heads"):
        models.TransformerLM(width=10, heads=4)
    with pytest.raises(TypeError, match="heads"):
        models.TransformerLM(heads=2.5)
    with pytest.raises(ValueError, match="tokens has 10 places, the model has 4"):
        models.TransformerLM(50, width=16, heads=2, layers=1, context=4).to(DEVICE)(tokens())


def train(model, batches, lr=0.01):
    """Return the loss of each step."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=lr), []
    for *inputs, targets in batches:
        loss = F.cross_entropy(model(*inputs).flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_convolutional_network_learns_digits():
    x, y = (values.to(DEVICE) for values in data.digits())
    batches = [(x[start : start + 64], y[start : start + 64]) for start in range(0, 1600, 64)]
    losses = train(models.ConvNet(width=16).to(DEVICE), batches)
    assert losses[-1] < losses[0] / 2


def test_the_recurrent_classifier_learns_to_tell_code_from_prose():
    lines = data.code_lines()
    groups = [[lines[i] for i in group] for group in torch.randperm(len(lines))[: 32 * 30].view(30, 32).tolist()]
    batches = []
    for group in groups:
        texts = [torch.tensor(list(line.encode())) for line, _ in group]
        lengths, labels = torch.tensor([len(text) for text in texts]), torch.tensor([label for _, label in group])
        tokens = nn.utils.rnn.pad_sequence(texts, batch_first=True)
        batches.append((tokens.to(DEVICE), lengths.to(DEVICE), labels.to(DEVICE)))
    losses = train(models.RecurrentClassifier(256).to(DEVICE), batches)
    assert sum(losses[-5:]) / 5 < 0.75 * losses[0]


def test_the_language_model_learns_text():
    windows = [[part.to(DEVICE) for part in data.text_batch(8, 64)] for _ in range(30)]
    losses = train(models.TransformerLM(width=32, heads=2, layers=2, context=64).to(DEVICE), windows)
    assert losses[-1] < 0.75 * losses[0]
