"""Is a capstone program that trains another way rejected by the name of what it does, and a right one scored?"""

import re
from pathlib import Path

import pytest
import torch

from course_utils import counting, devices, programs, simulator
from course_utils.exercises.lesson12 import cards, changes, scoring
from course_utils.exercises.lesson12.program import SMALL, Rejected

REFERENCE = programs.path("capstone_reference.py").read_text(encoding="utf-8")
needs_simulator = pytest.mark.skipif(devices.simulated() is None, reason="beside a real GPU the lesson tries this")
LOSS, STEP = "        loss = loss_of(model, window)\n", "        optimizer.step()\n"
LOOP = "    for step, window in enumerate(windows):\n"
READ = "    losses = (losses / ranks).tolist()  # the one read\n"
BEFORE = "    rank, ranks = (dist"
SIM = 'if device.type == "sim":\n        '


def edited(*pairs: str, source: str = REFERENCE) -> str:
    """Return a program with texts replaced: old, new, old, new; each old one stands in it once."""
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


def before_training(*lines: str) -> tuple[str, str]:
    """Return the edit that puts lines at the beginning of `train`."""
    return BEFORE, "".join(f"    {line}\n" for line in lines) + BEFORE


# What a program does, and what the message must say. Most are the reference with one text replaced.
CHEATS = {
    "half of the rows": ("fewer tokens: 6 of 12 windows", LOSS, LOSS.replace("window)", "window[:2])")),
    "shorter windows": ("fewer tokens: windows of 4 bytes", LOSS, LOSS.replace("window)", "window[:, :5])")),
    "one row again and again": ("fewer tokens: ", LOOP, "    for step, window in enumerate(windows[:1].expand_as(windows)):\n"),
    "a smaller model": ("a smaller model", "return GPT(width,", "return GPT(width // 2,"),
    "a layer less": ("a smaller model", "range(layers)", "range(layers - 1)"),
    "a layer that is not used": ("another model: with the same weights", "in self.blocks:", "in self.blocks[:1]:"),
    "no norm at the end": ("another model: with the same weights", "self.head(self.norm(x))", "self.head(x)"),
    "no causal mask": ("sees the future", "is_causal=True", "is_causal=False"),
    "a layer used in evaluation alone": ("never trains blocks.1", "in self.blocks:", "in self.blocks[: 1 + (not torch.is_grad_enabled())]:"),
    "no backward pass": ("the backward pass is left out", "        loss.backward()\n", ""),
    "backward every other step": ("the backward pass is left out", "        loss.backward()\n", "        if step == 0:\n            loss.backward()\n"),
    "no optimizer step": ("skips the optimizer's step: 0 of 3", STEP + "    if", "    if"),
    "an optimizer step left out": ("skips the optimizer's step: 2 of 3", STEP + "    if", "        if step < 2:\n            optimizer.step()\n    if"),
    "two optimizer steps": ("another number of steps: 6 for 3", STEP + "    if", STEP * 2 + "    if"),
    "one step less": ("fewer tokens: 8 of 12", LOOP, "    for step, window in enumerate(windows[:-1]):\n"),
    "more losses than steps": ("another number of steps: 4 losses", READ, READ.replace(".tolist()", ".tolist() + [1.0]")),
    "no zero_grad": ("trains another way", "        optimizer.zero_grad()\n", ""),
    "gradients clipped": ("trains another way", STEP + "    if", "        nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n" + STEP + "    if"),
    "another learning rate": ("another optimizer: lr is 0.01", "lr=3e-3", "lr=1e-2"),
    "no weight decay": ("another optimizer: weight_decay is 0.0", "lr=3e-3", "lr=3e-3, weight_decay=0.0"),
    "plain gradient descent": ("another optimizer: weight_decay", "AdamW(model.parameters(), lr=3e-3, fused=True)", "SGD(model.parameters(), lr=3e-3)"),
    "losses written down": ("reports losses that are not", READ, READ + "    losses = [5.4, 5.2, 5.0][: len(losses)]\n"),
    "the losses of a few rows": ("windows go through the model more than once", "losses[step] = loss.detach()", "losses[step] = loss_of(model, window[:1]).detach() if step else loss.detach()"),
    "the loss after the step": ("reports losses that are not", READ, READ.replace("losses / ranks", "losses.roll(-1) / ranks")),
    "losses from a cache": ("loss from a cache", *before_training("if KEPT.setdefault('calls', []):", "    return [5.0] * len(starts)"),
                            "class Attention", "KEPT = {'calls': [1]}\n\n\nclass Attention"),
    "what it returned before": ("loss from a cache", *before_training("if len(starts) in KEPT:", "    return KEPT[len(starts)]"),
                                READ, READ + "    KEPT[len(starts)] = losses\n", "class Attention", "KEPT = {}\n\n\nclass Attention"),
    "the evaluation text": ("trains on the evaluation text", *before_training(
        "raw = chr(10).join(topics[name] for name in []) or None", "from course_utils import data",
        "text = data.tokens(torch.uint8)[2**18 :][: 2**15]", "starts = starts % (2**15 - 100)")),
    "windows of its own": ("trains on other windows", *before_training("starts = starts // 2 + 3")),
    "evaluation of less": ("evaluates something else", "starts, model.context, device).split(16)", "starts[:1], model.context, device).split(16)"),
    "a training step in evaluate": ("evaluate changes the model", "    total = torch.zeros((), device=device)\n", "    total = torch.zeros((), device=device)\n    model.head.weight.mul_(1.001)\n"),
    "weights of 16 bits": ("in 16 bits", "    return GPT(width, heads, layers, context)\n", "    return GPT(width, heads, layers, context).bfloat16()\n"),
    "a list that is read later": ("train returns no list of floats", READ, READ.replace(".tolist()", "") + "    return losses\n"),
    "a thread": ("works after the clock", *before_training("import threading, time", "threading.Thread(target=time.sleep, args=(3,), daemon=True).start()")),
    "computes on the CPU": ("computed elsewhere than on the GPU", *before_training(
        'if device.type == "sim":', "    state = {name: value.cpu() for name, value in model.state_dict().items()}",
        "    twin = GPT(len(state['norm.weight']), model.blocks[0].attention.heads, 2, model.context)",
        "    twin.load_state_dict(state)", "    its = ITS.setdefault(id(optimizer), make_optimizer(twin))",
        "    its.param_groups[0]['params'] = list(twin.parameters())", "    found = train(twin, its, text, starts, torch.device('cpu'))",
        "    model.load_state_dict(twin.state_dict())", "    return found"), "class Attention", "ITS = {}\n\n\nclass Attention"),
    "the second GPU": ("uses a second GPU", *before_training(SIM + "    torch.ones(9, device='sim:1') * 2")),
    "the peak reset": ("changes what measures it: the peak", LOOP, LOOP + "        torch.sim.reset_peak_memory_stats() if device.type == 'sim' else None\n"),
    "a cheaper launch": ("changes what measures it", *before_training("from course_utils import simulator",
                         SIM + "    simulator.configure(costs=simulator.Costs(launch_ns=1))")),
    "a timeline of its own": ("changes what measures it", *before_training("from course_utils import counting", "counting.count = lambda: None")),
    "another program on the GPU": ("computes less on the GPU", LOSS, "        loss = loss_of(model, window[:2] if device.type == 'sim' else window)\n"),
    "leaves": ("raises SystemExit", *before_training("raise SystemExit(0)")),
    "an error": ("train raises ZeroDivisionError", *before_training("1 / 0")),
    "a function missing": ("lacks load", "def load(path", "def loads(path"),
    "other arguments": ("train takes other arguments", "def train(model, optimizer, text, starts, device):", "def train(model, optimizer):"),
    "another shape": ("the model returns the shape", "return self.head(self.norm(x))", "return self.head(self.norm(x)).flatten(0, 1)"),
}  # fmt: skip

AVERAGE = "            average(model, ranks)\n"
LATER = {  # what is wrong after a resume
    "the optimizer is forgotten": ("the losses are others", '    optimizer.load_state_dict(saved["optimizer"])\n', ""),
    "the weights are forgotten": ("the losses are others", '    model.load_state_dict(saved["model"])\n', ""),
    "weights of 16 bits are kept": ("the losses are others", '{"model": model.state_dict()', '{"model": {name: value.half() for name, value in model.state_dict().items()}'),
    "the step is forgotten": ("load returns the step 0", 'return saved["step"]', "return 0"),
    "nothing is written": ("raises FileNotFoundError", "    torch.save(", "    return\n    torch.save("),
}  # fmt: skip
RANKS = {  # what is wrong on two ranks
    "the gradients stay apart": ("the weights are not those", AVERAGE, "            pass\n"),
    "the gradients are added": ("the gradients are not the mean", "(flat / ranks)", "flat"),
    "each takes all rows": ("each rank computes all rows", "starts[:, rank::ranks]", "starts"),
    "each reports its own loss": ("the losses are not those", "    if ranks > 1:\n        dist.all_reduce(losses)\n", "    losses *= ranks\n"),
}  # fmt: skip


def tried(source: str, seed: int = 1) -> scoring.Costs:
    """Try a program with a small model, in this process."""
    return scoring.examine(source, "my_capstone.py", seed, SMALL)


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """Put back what a program changes."""
    monkeypatch.setattr(counting, "count", counting.count)
    yield
    if simulator.enabled():
        simulator.reset()


@needs_simulator
@pytest.mark.parametrize("name", CHEATS)
def test_a_program_that_trains_another_way_is_rejected_under_its_name(name):
    phrase, *edits = CHEATS[name]
    with pytest.raises(Rejected) as found:
        tried(edited(*edits))
    assert phrase in scoring._sentence(found.value)


@needs_simulator
@pytest.mark.parametrize("name", LATER)
def test_a_resume_that_is_not_bitwise_costs_its_credit(name):
    phrase, *edits = LATER[name]
    costs = tried(edited(*edits))
    assert phrase in costs.resume
    assert scoring.Score(costs, costs).level_of("resume") == 0


def test_a_program_that_is_wrong_on_two_ranks_is_named():
    sources = [edited(*edits) for _, *edits in RANKS.values()]
    right = [changes.given(), REFERENCE]
    found = scoring._on_ranks([(source, "my_capstone.py") for source in (*right, *sources)])
    assert found[:2] == [{"ranks": "", "messages": 27 + 1}, {"ranks": "", "messages": 1 + 1 / 3}]
    for (phrase, *_), one in zip(RANKS.values(), found[2:], strict=True):
        assert phrase in one["ranks"]
