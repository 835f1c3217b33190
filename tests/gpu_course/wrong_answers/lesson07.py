"""Further wrong answers to lesson 07, each with what the message must say."""

import torch
import torch.nn.functional as F

from gpu_course import lesson07
from gpu_course.checks import edit


def _naive(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x).transpose(1, 2), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _naive_in_bfloat16(model, optimizer, x, y):
    with torch.autocast(x.device.type, torch.bfloat16):
        return _naive(model, optimizer, x, y)


def _packs_in_half(blocks, x, kept_bytes, limit_bytes):
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept.half(), lambda kept: kept.float()):
        return lesson07.run_blocks(blocks, x, kept_bytes, sum(kept_bytes))


def _offloads(blocks, x, kept_bytes, limit_bytes):
    with torch.autograd.graph.save_on_cpu():
        return lesson07.run_blocks(blocks, x, kept_bytes, sum(kept_bytes))


def _inside(step, limit, fits=0):
    while limit > fits:
        size = (fits + limit + 1) // 2
        try:
            step(size)
            fits = size
        except torch.OutOfMemoryError:
            return _inside(step, size - 1, fits)
    return fits


# fmt: off
_CLEAR, _BACK, _ADD = "    optimizer.zero_grad()\n", "loss.backward()", "total += loss.detach()"
_SGD = "torch.optim.SGD(model.parameters(), lr=0.1)"
_HEAD = "model.head(model.norm(nn.Sequential(*model.blocks)(model.embed(part))))"
_CPU = "device = x.device; model.cpu(); x, y = x.cpu(), y.cpu()\n"
_HOME = "model.to(device)\n    return total.to(device)"
_HALVES = "x.split(8), y.split(8)"
_EIGHT = "x.split(2), y.split(2)"
_ON, _OFF = "model.checkpointing = True", "model.checkpointing = False"
_STEP, _RETURN = "optimizer.step()", "    return total"
_ENTROPY = "F.cross_entropy(model(part)"
_HOOKS = "    for one in model.parameters(): one.register_hook(lambda gradient: gradient)\n"


_GIVEN = "    total, chosen"
_TAKE = "        x = checkpoint(block, x, use_reentrant=False) if place in chosen else block(x)"
_PATCH = """        if place in chosen:
            block.forward = lambda z, plain=block.forward: checkpoint(plain, z, use_reentrant=False)
        x = block(x)"""
_LISTS, _NOTE, _DONE = "losses, problems = [], []", "problems.append(str(error))", "    return losses, problems"
_GRAPH = ("torch.inference_mode()", "torch.enable_grad()")
_ITEM, _OOM = "losses.append(loss.item())", "except torch.OutOfMemoryError:"
_THIN, _ZEROS, _FROZEN = "x @ self.down.T @ self.up.T", "new_zeros(outputs, rank)", "linear.requires_grad_(False)"
_UP, _SMALL = f"nn.Parameter(linear.weight.{_ZEROS})", "(rank, inputs).normal_(std=0.02)"
_SELF_UP = "        self.up = "
_SIZE, _COUNT = "split(rows), y.split(rows)", "    count = "

WRONG = {
    "four_parts": [
        ("requires_grad is False, was True", edit("    return {", "    model.requires_grad_(False)\n    return {")),
        ("of type tuple", lambda *given: tuple(lesson07.four_parts(*given).values())),
    ],
    "LowRank": [
        ("makes a tuple, not a module", edit("self.linear(x) + ", "self.linear(x) + ", "    def __init__",
                                             "    def __new__(cls, *given): return given\n\n    def __init__")),
        ("before Module.__init__() call", edit("super().__init__()", "pass")),
        ("`up` is a plain tensor", edit(_UP, "linear.weight.new_zeros(outputs, rank)")),
        ("`up` has another shape", edit(_ZEROS, "new_zeros(rank, outputs)", "self.up.T", "self.up")),
        ("`down` is frozen", edit(_SMALL, f"{_SMALL}, requires_grad=False")),
        ("`up` is not where", edit(f"linear.weight.{_ZEROS}", "torch.zeros(outputs, rank)")),
        ("trains the weight and the bias of `linear`", edit(_FROZEN, "linear")),
        ("trains the bias of `linear`", edit(_FROZEN, "linear; linear.weight.requires_grad_(False)")),
        ("has no tensor `up`", edit("self.up = ", "self.upward = ", "self.up.T", "self.upward.T")),
        ("does not hold `linear` itself", edit(_FROZEN, f"__import__('copy').deepcopy({_FROZEN})")),
        ("has further parameters", edit(_SELF_UP, f"        self.scale = nn.Parameter(torch.ones(()))\n{_SELF_UP}")),
        ("starts both at zero", edit(".normal_(std=0.02)", "")),
        ("`up` does not start at zero", edit(_ZEROS, f"{_ZEROS}.normal_()", _SMALL, "(rank, inputs)")),
        ("a matrix as large as the weight", edit(_THIN, "x @ (self.up @ self.down).T")),
        ("changes the weights of `linear`", edit(_SELF_UP, f"        linear.weight.data.zero_()\n{_SELF_UP}")),
        ("gives `down` no gradient", edit("self.down.T", "self.down.detach().T")),
        ("gives x another gradient", edit("self.linear(x) +", "self.linear(x.detach()) +")),
        ("the same number everywhere", edit(_SMALL, "(rank, inputs) + 1")),
        ("starts with large numbers", edit("std=0.02", "std=1")),
    ],
    "quarter_step": [
        ("the step is 0.25 times that of the whole batch's mean", edit("/ y.numel()", "/ y.numel() / 4")),
        ("the step is 8 times that of the whole batch's mean", edit(
            _HALVES, _EIGHT, "/ y.numel()", "/ target.numel()")),
        ("takes 2 steps", edit(_ADD, f"{_ADD}; {_STEP}; optimizer.zero_grad()", f"    {_STEP}\n", "")),
        ("takes no step with the given optimizer", edit(_STEP, "pass")),
        ("14 of 16 rows do not count", edit(_HALVES, _EIGHT, "        loss =", f"    {_CLEAR}        loss =")),
        ("12 of 16 rows do not count", edit("    total = torch", "    x, y = x[:4], y[:4]\n    total = torch")),
        ("the step is another one", edit("model(part)", _HEAD)),
        ("something of the first step is left or lost", edit(_STEP, f"optimizer.state.clear(); {_STEP}")),
        ("takes a step, and no weight changes", edit(_STEP, f"optimizer.zero_grad(); {_STEP}")),
        ("returns the loss with its graph", edit("loss.detach()", "loss")),
        ("returns a Python number", edit("return total", "return float(total)")),
        ("computes on the CPU", edit(_CLEAR, f"    {_CPU}{_CLEAR}", "return total", _HOME)),
        ("training is False, was True", edit(_RETURN, f"    model.eval()\n{_RETURN}")),
        ("hooks is 2, was 0", edit(_CLEAR, _HOOKS + _CLEAR)),
        ("modifies x or y", edit(_RETURN, f"    x.zero_()\n{_RETURN}")),
        ("comes near that of the whole batch", _naive_in_bfloat16),
        ("checkpointing is True, was False", edit(_OFF, "pass")),
        ("waits for the bus", edit(_ON, "", "    loss = F", "    with torch.autograd.graph.save_on_cpu(): loss = F")),
        ("8 rows went through the model at a time, and backward computed the blocks again", edit(
            f"loss = {_ENTROPY}",
            "keep = [model(part), *locals().get('keep', ())]; loss = F.cross_entropy(keep[0]")),
        ("names that hold memory by then: `logits`", edit(_HALVES, "[x], [y]", f"loss = {_ENTROPY}",
                                                          "logits = model(part); loss = F.cross_entropy(logits")),
    ],
    "accumulate": [
        ("takes a step", edit(_RETURN, f"    {_SGD}.step()\n{_RETURN}")),
        ("takes 3 rows at a time, and `rows` is 2", edit(_SIZE, "split(rows + 1), y.split(rows + 1)")),
        ("takes 1 row at a time, and `rows` is 2", edit(_SIZE, "split(1), y.split(1)")),
        ("9 rows went through the model, and the batch has 5", edit(_COUNT, f"    model(x[1:]);{_COUNT}")),
        ("computes on the CPU", edit(_COUNT, f"    {_CPU}{_COUNT}", "return total", _HOME)),
        ("embed.weight.dtype is torch.float32, was torch.float64", edit("model(part)", "model.float()(part)")),
        ("the gradient comes near", edit('reduction="sum"', 'reduction="sum", label_smoothing=0.1')),
        ("modifies x or y", edit(_RETURN, f"    y.clamp_(min=0)\n{_RETURN}")),
        ("the gradient is 2 times", edit('reduction="sum") / count', 'reduction="sum") / count * 2')),
        ("training is False, was True", edit(_COUNT, f"    model.eval()\n{_COUNT}")),
        ("leaves parameters without a gradient", edit(_BACK, "pass")),
        ("returns a Python number", edit("return total", "return total.item()")),
        ("returns the loss with its graph", edit("loss.detach()", "loss")),
    ],
    "run_blocks": [
        ("modifies kept_bytes", edit("chosen.add(place)", "chosen.add(place); kept_bytes[place] = x.nbytes")),
        ("makes x require a gradient", edit(_GIVEN, f"    x.requires_grad_()\n{_GIVEN}")),
        ("this is the gradient of x", _packs_in_half),
        ("calls backward()", edit("    return x", "    x.sum().backward(retain_graph=True)\n    return x")),
        ("modifies x", edit(_GIVEN, f"    x.data.add_(0.25)\n{_GIVEN}")),
        ("leaves the blocks changed: ", edit(_TAKE, _PATCH)),
        ("training is False, was True", edit("    return x", "    blocks.eval()\n    return x")),
        ("without a graph", edit("use_reentrant=False", "use_reentrant=True")),
        ("without a graph", edit(_TAKE, "        with torch.set_grad_enabled(place not in chosen): x = block(x)")),
        ("gives x no gradient", edit(_GIVEN, f"    x = x.detach()\n{_GIVEN}")),
        ("copies to the host", _offloads),
    ],
    "evaluate_batches": [
        ("keeps the batches, on the CPU", edit("in batches", "in list(batches)")),
        ("goes through the batches more than once", edit(_LISTS, f"number = sum(1 for _ in batches)\n    {_LISTS}")),
        ("training is True, was False", edit(_DONE, f"    model.train()\n{_DONE}")),
        ("training is False, was True", edit(_LISTS, f"model.eval(); {_LISTS}")),
        ("leaves gradients in the model", edit(*_GRAPH, _ITEM, f"loss.backward(); {_ITEM}")),
        ("notes an error for a good batch: Expected all tensors", edit("x.to(device)", "x")),
        ("computes on the CPU", edit(_LISTS, f"{_LISTS}; home, device = device, torch.device('cpu'); model.cpu()",
                                     _DONE, f"    model.to(home)\n{_DONE}")),
        ("raises RuntimeError", edit("except RuntimeError", "except KeyError")),
        ("expected two lists", edit("losses, problems\n", "losses\n")),
        ("leaves ", edit(_NOTE, f"{_NOTE}; model.last = error")),
    ],
    "largest_batch": [
        ("calls step(0)", edit("fits, fails = 0", "fits, fails = -1")),
        ("tries again inside the except block", _inside),
        ("does not end: it called step 300 times, with size 1 again and again", edit("fits = size", "fits = fits")),
        ("size must be a whole number", edit("// 2", "/ 2")),
        ("raises OutOfMemoryError", edit("except torch.OutOfMemoryError", "except KeyError")),
        ("hides an error", edit("torch.OutOfMemoryError", "RuntimeError")),
        ("bytes alive", edit(_OOM, f"{_OOM[:-1]} as error:\n            largest_batch.error = error")),
        ("returns a float", edit("return fits", "return float(fits)")),
    ],
}
