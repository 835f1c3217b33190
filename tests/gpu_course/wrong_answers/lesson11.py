"""Further wrong answers to lesson 11, most of them silencings, each with what the message must say."""

from gpu_course.checks import edit

# fmt: off
_ASSERT, _DEAD, _SWALLOW = "device-side assert", "DataLoader worker", "swallows errors"
_IGNORE = ", ignore_index=-1"
_LOGITS = "logits.flatten(0, 1), tags.flatten()"
_CUT, _BACK, _KEEP = "state = state.detach()", "loss.backward()", "loss.backward(retain_graph=True)"
_NO_GRAD = "with torch.no_grad():"
_SGD, _FROZEN = "torch.optim.SGD(model.parameters(), lr=0.5)", "model.requires_grad_(False)"
_MODEL_HEAD = "model.head = head"
_KEPT = "copy.deepcopy(model.state_dict())"
_LSE, _SUMMED = "torch.logsumexp(scores, dim=1)", "scores.exp().sum(dim=1).log()"
_MAX = "dist.all_reduce(bad, op=dist.ReduceOp.MAX)"
_READ = "return archive.decode(index).float().mean().item()"


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


def _stream_that_catches(model, pieces, device):
    import torch
    import torch.nn.functional as F

    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    state, losses = None, []
    for x, y in pieces:
        try:
            output, state = model(x.to(device), state)
            loss = F.mse_loss(output, y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        except RuntimeError:
            state = None
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
        (_ASSERT, edit(_IGNORE, ", ignore_index=-2")),
        ("computes on cpu, expected on sim", edit("model.to(device)", "device = 'cpu'; model.to(device)")),
        ("takes the loss to the CPU", edit(_LOGITS, "logits.flatten(0, 1).cpu(), tags.flatten().cpu()")),
        ("expected 1.11", edit("lr=0.5", "lr=0.1")),
        ("leaves data out: 6 of 9 rows", edit("in batches:", "in batches[1:]:")),
        (_SWALLOW, edit("logits = model(words)", "if len(words) < 3: return []\n        logits = model(words)")),
    ],
    "train_on_stream": [
        ("the result has 2 entries, expected 4", _stream_that_catches),
        ("leaves data out", edit("in pieces:", "in pieces[:1]:")),
        ("computes on cpu", edit("model.to(device)", "device = 'cpu'; model.to(device)")),
        ("expected 0.558", edit("lr=0.2", "lr=0.1")),
        ("second time", edit(_CUT, "state = state.clone()")),
        ("modified by an inplace operation", edit(_CUT, "state = state.clone()", _BACK, _KEEP)),
        ("expected 4", edit("        losses.append(loss.item())\n    return losses", "    return [loss.item()]")),
    ],
    "train_and_validate": [
        ("leaves the model frozen", edit(_NO_GRAD, "if model.requires_grad_(False):")),
        (_SWALLOW, _validation_that_catches),
        ("alive at the peak", edit(_NO_GRAD, "with torch.enable_grad():")),
        ("alive at the peak", edit(_NO_GRAD, "if True:", "torch.cat(losses)", "torch.cat(losses).detach()")),
        ("computes on cpu", edit("    losses = []\n", "    losses, device = [], 'cpu'; model.cpu()\n")),
        ("the result[", edit("losses.append(F.cross_entropy(model(x.to(device))",
                             "losses.append(F.cross_entropy(model(x.to(device)).bfloat16().float()")),
        ("runs the model on", edit("optimizer.zero_grad()", "model(x.to(device)); optimizer.zero_grad()")),
    ],
    "photo_means": [
        ("other values", edit(".mean()", ".median()")),
        ("reads in its own process", edit("num_workers=workers", "num_workers=0")),
        ("reads in 1 processes", edit("num_workers=workers", "num_workers=1")),
        (_SWALLOW, _means_that_catch),
        ("changes what the archive counts", edit("    loader = ", "    archive._held = -(10**9)\n    loader = ")),
        ("leaves data out: 6 of 22", edit("len(archive)", "6")),
        (_DEAD, edit("    def mean_of", "    kept = []\n\n    def mean_of", _READ,
                     "kept.append(archive.decode(index)); return kept[-1].float().mean().item()")),
        ("reads in its own process", edit("loader = ", "return torch.tensor([mean_of(at) for at in range(22)])\n"
                                          "    loader = ")),
    ],
    "fine_tune": [
        ("does not require grad", edit(f"    {_MODEL_HEAD}\n", "")),
        (_SWALLOW, edit("optimizer.zero_grad()", "pass", "loss = F.cross_entropy(model(x.to(device)), y.to(device))",
                        "optimizer.zero_grad()\n        try:\n            loss = F.cross_entropy(model(x.to(device)), "
                        "y.to(device))\n        except RuntimeError: continue")),
        ("does not require grad", edit(f"    {_FROZEN}", "    pass", f"    {_MODEL_HEAD}\n", f"    {_MODEL_HEAD}\n    "
                                       f"{_FROZEN}\n")),
        ("leaves data out", edit("in batches:", "in batches[:2]:")),
        ("computes on cpu", edit("model.to(device)", "device = 'cpu'; model.to(device)")),
        ("trains another head", edit(_MODEL_HEAD, "model.head = copy.deepcopy(head)")),
        ("expected 0.50", edit(_SGD, "torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)")),
        ("expected 0.50", edit("optimizer.zero_grad()", "pass")),
    ],
    "fit": [
        ("leaves data out", edit("in batches:", "in batches[:3]:")),
        ("computes on cpu", edit("model.to(device)", "device = 'cpu'; model.to(device)")),
        ("expected 0.13", edit("lr=0.3", "lr=0.03")),
        ("expected 0.", edit("model.eval()", "pass")),
        ("runs the model on", edit("    return best_loss", "    return F.mse_loss(model(held_out[0]."
                                   "to(device)), held_out[1].to(device)).item()")),
        ("raises", edit(_KEPT, "None")),
    ],
    "train_pairs": [
        ("inf", edit(_LSE, _SUMMED)),
        ("inf", edit(_LSE, "scores.float().exp().sum(dim=1).log()")),
        ("leaves data out", edit("in batches:", "in batches[:1]:")),
        ("computes the products in torch.float32", edit("dtype=torch.float16)", "dtype=torch.float16, enabled=False)")),
        ("computes the products in torch.bfloat16", edit("dtype=torch.float16", "dtype=torch.bfloat16")),
        ("computes on cpu", edit("    model.to(device)", "    device = torch.device('cpu'); model.to(device)")),
        ("expected 30", edit("lr=1e-4", "lr=1e-6")),
        ("expected 3", edit("losses.append", "if loss.isfinite(): losses.append", _LSE, _SUMMED)),
    ],
    "train_together": [
        ("is 4, expected 3", edit("~torch.isfinite(loss)", "torch.isnan(loss)")),
        ("deadlock", edit(_MAX, "pass")),
        ("deadlock", edit(_MAX, "dist.barrier()")),
        ("deadlock", edit(_MAX, "group = dist.new_group(timeout=__import__('datetime').timedelta(hours=1))")),
        ("expected 3", edit("in batches:", "in [one for one in batches if one[0].isfinite().all() and "
                            "one[1].isfinite().all()][:3]:", "return taken", "return len(batches)")),
        ("takes every step", edit("if bad:", "if bad and not taken:")),
        ("other values", edit("lr=0.1", "lr=0.01")),
        ("takes every step", edit("F.mse_loss(model(x), y)", "F.mse_loss(model(x), y).nan_to_num(0.0, 0.0)",
                              "        bad = (~torch.isfinite(loss)).float()", "        bad = torch.zeros(())")),
    ],
}
