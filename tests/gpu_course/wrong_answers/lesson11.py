"""Further wrong answers to lesson 11, most of them silencings, each with what the message must say."""

_SWALLOW = "swallows errors"


def _tagger_that_catches(model, batches, device):
    import torch
    import torch.nn.functional as F

    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for words, tags in batches:
        try:
            logits = model(words.to(device))
            loss = F.cross_entropy(logits.flatten(0, 1), tags.to(device).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        except RuntimeError:
            continue
    return losses


def _validation_that_catches(model, batches, held_out, device):
    import torch
    import torch.nn.functional as F

    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    losses = []
    with torch.no_grad():
        for x, y in held_out:
            try:
                losses.append(F.cross_entropy(model(x.to(device)), y.to(device), reduction="none"))
            except Exception:
                continue
    return torch.cat(losses).tolist() if losses else []


def _means_that_catch(archive, workers):
    import torch
    from torch.utils.data import DataLoader

    from gpu_course.lesson11 import Samples

    def mean_of(index):
        try:
            return archive.decode(index).float().mean().item()
        except RuntimeError:
            return 0.0

    return torch.tensor(list(DataLoader(Samples(len(archive), mean_of), batch_size=None, num_workers=workers)))


WRONG = {
    "train_tagger": [
        ("leaves data out: 3 of 9 rows", _tagger_that_catches),
    ],
    "train_and_validate": [
        (_SWALLOW, _validation_that_catches),
    ],
    "photo_means": [
        (_SWALLOW, _means_that_catch),
    ],
}
