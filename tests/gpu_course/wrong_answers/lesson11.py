"""Further wrong answers to lesson 11, most of them silencings, each with what the message must say."""

from gpu_course.checks import edit

# fmt: off
_SWALLOW = "swallows errors"
_IGNORE = ", ignore_index=-1"
_LOGITS = "logits.flatten(0, 1), tags.flatten()"
_CUT, _BACK, _KEEP = "state = state.detach()", "loss.backward()", "loss.backward(retain_graph=True)"
_NO_GRAD = "with torch.no_grad():"
_MODEL_HEAD = "model.head = head"
_KEPT = "copy.deepcopy(model.state_dict())"


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
        ("changes the tags", edit(_IGNORE, "", "words, tags = words", "tags[tags < 0] = -100; words, tags = words")),
        ("leaves data out: 3 of 9 rows", _tagger_that_catches),
        ("computes on cpu, expected on sim", edit("model.to(device)", "device = 'cpu'; model.to(device)")),
        ("takes the loss to the CPU", edit(_LOGITS, "logits.flatten(0, 1).cpu(), tags.flatten().cpu()")),
        ("leaves data out: 6 of 9 rows", edit("in batches:", "in batches[1:]:")),
        (_SWALLOW, edit("logits = model(words)", "if len(words) < 3: return []\n        logits = model(words)")),
    ],
    "train_on_stream": [
        ("computes on cpu", edit("model.to(device)", "device = 'cpu'; model.to(device)")),
        ("modified by an inplace operation", edit(_CUT, "state = state.clone()", _BACK, _KEEP)),
    ],
    "train_and_validate": [
        ("leaves the model frozen", edit(_NO_GRAD, "if model.requires_grad_(False):")),
        (_SWALLOW, _validation_that_catches),
        ("computes on cpu", edit("    losses = []\n", "    losses, device = [], 'cpu'; model.cpu()\n")),
        ("runs the model on", edit("optimizer.zero_grad()", "model(x.to(device)); optimizer.zero_grad()")),
    ],
    "photo_means": [
        ("reads in its own process", edit("num_workers=workers", "num_workers=0")),
        ("reads in 1 processes", edit("num_workers=workers", "num_workers=1")),
        (_SWALLOW, _means_that_catch),
        ("changes what the archive counts", edit("    loader = ", "    archive._held = -(10**9)\n    loader = ")),
        ("leaves data out: 6 of 22", edit("len(archive)", "6")),
    ],
    "fine_tune": [
        ("does not require grad", edit(f"    {_MODEL_HEAD}\n", "")),
        (_SWALLOW, edit("optimizer.zero_grad()", "pass", "loss = F.cross_entropy(model(x.to(device)), y.to(device))",
                        "optimizer.zero_grad()\n        try:\n            loss = F.cross_entropy(model(x.to(device)), "
                        "y.to(device))\n        except RuntimeError: continue")),
        ("leaves data out", edit("in batches:", "in batches[:2]:")),
        ("computes on cpu", edit("model.to(device)", "device = 'cpu'; model.to(device)")),
        ("trains another head", edit(_MODEL_HEAD, "model.head = copy.deepcopy(head)")),
    ],
    "fit": [
        ("computes on cpu", edit("model.to(device)", "device = 'cpu'; model.to(device)")),
        ("runs the model on", edit("    return best_loss", "    return F.mse_loss(model(held_out[0]."
                                   "to(device)), held_out[1].to(device)).item()")),
        ("raises", edit(_KEPT, "None")),
    ],
    "train_pairs": [
        ("leaves data out", edit("in batches:", "in batches[:1]:")),
        ("computes the products in torch.float32", edit("dtype=torch.float16)", "dtype=torch.float16, enabled=False)")),
        ("computes the products in torch.bfloat16", edit("dtype=torch.float16", "dtype=torch.bfloat16")),
        ("computes on cpu", edit("    model.to(device)", "    device = torch.device('cpu'); model.to(device)")),
    ],
    "decide": [
        ("it must return a Decision", edit("return Decision(restart=True)", "return None")),
        ("cause is 'cable'", edit('cause="network"', 'cause="cable"')),
        ("exchanges nodes that are well", edit('return Decision(restart=True, cause="hang")', "return Decision("
                                               'restart=True, exclude=tuple(seen.silent_s)[:3], cause="hang")')),
        ("loses more than a tenth of the week: goodput", edit("_s >= week", "_s >= 0.1 * week")),
        ("starts again from the damaged checkpoint", edit("seen.checkpoints[-2]", "seen.checkpoints[-1]")),
        ("raises KeyError", edit('notes.get("stops", 0)', 'notes["stops"]')),
    ],
    "blame": [
        ("keeps the name of the backend", edit('["profiling_name"].split(":")[1]', '["profiling_name"]')),
        ("is not a rank, a call", edit("return blamed, ", "return ")),
        ("in call 4 rank 2 stands in the barrier", edit("return blamed, ", "return 0, ")),
    ],
    "name_causes": [
        ("missing: it does not start", edit('"it does not start"', '"it starts"')),
        ("is not (cause, look) of the two lists", edit('"/dev/shm is full"', '"memory is full"')),
        ("then NCCL or a DataLoader would fail at the start", edit('"one GPU is slow"', '"/dev/shm is full"')),
        ("does not follow from one GPU is slow", edit('"the same run without some nodes"', '"df -h /dev/shm"')),
    ],
}
