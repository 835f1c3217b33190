"""Do the seven programs of lesson 06 have the causes that they are said to have, and is each repair seen as one?"""

import pytest
import torch
import torch.nn.functional as F

import simgpu
from gpu_course import lesson06
from gpu_course.lesson06 import cases

pytestmark = pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))
NUMBERS = sorted(cases.CASES)


@pytest.fixture(scope="module", autouse=True)
def sim():
    simgpu.enable()
    simgpu.reset()


def train(prepare, **loading):
    """Return a program that prepares each batch on the device with `prepare`, and reads once."""

    def program(model, optimizer, photos, device):
        losses = []
        for x, y in photos.loader(**{"pin_memory": True} | loading):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(prepare(x / 255)), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean().item()

    return program


def normalised(x):
    return (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True)


def on_the_host(x):
    return x.cpu().flip(-1).to(x.device)


def plain(x):
    return x


REPAIRS = {
    1: train(normalised), 3: train(plain), 4: train(plain, num_workers=8), 5: train(lambda x: x.flip(-1)),
}  # fmt: skip


def said(number, program, capsys):
    lesson06.repaired(number, program)
    return capsys.readouterr().out


@pytest.mark.parametrize("number", NUMBERS)
def test_the_causes_of_a_case_cost_most_and_what_is_left_costs_little(number):
    causes, timeline = cases.CASES[number][0], cases.original(number).timeline
    lost = cases.lost_ms(timeline)
    others = sum(ms for cause, ms in lost.items() if cause not in causes)
    assert sum(lost.values()) == pytest.approx(timeline.total_ms - timeline.busy_ms(), abs=0.05)  # none is left over
    if causes == {"none"}:
        assert timeline.utilisation() > 0.9
    else:
        assert min(lost[cause] for cause in causes) > 1.5 * max(ms for c, ms in lost.items() if c not in causes)
        assert others < 0.25 * timeline.total_ms < 2 * sum(lost[cause] for cause in causes)


@pytest.mark.parametrize("number", REPAIRS)
def test_a_repair_of_a_case_is_seen_as_one_and_the_case_itself_is_not(number, capsys):
    assert said(number, REPAIRS[number], capsys).startswith(f"case {number}: repaired, ")
    assert "not repaired: it leaves a cause as it is" in said(number, cases.program(number), capsys)


@pytest.mark.parametrize(
    ("number", "program", "phrase"),
    [
        (4, train(plain), "leaves a cause as it is: loader"),
        (5, train(on_the_host), "brings the data back to the host in every step"),
        (5, train(plain), "changes the result"),
        (3, lambda model, optimizer, photos, device: 0.0, "is faster by doing less (batches loaded: 0 instead of 8)"),
        (6, train(plain, num_workers=8), "returns something else (the case returns 2.3015, 0.1035)"),
        (7, lambda *given: max(cases.program(7)(*given) for _ in range(2)), "does more than before"),
    ],
)
def test_what_is_no_repair_is_told_why(number, program, phrase, capsys):
    assert f"case {number}: not repaired: it {phrase}" in said(number, program, capsys)


def test_a_run_that_is_over_holds_no_memory():
    cases.original(7)
    held = torch.sim.memory_allocated()
    cases.CaseRun(7, torch.device("sim", 0)).do(cases.program(7))
    assert torch.sim.memory_allocated() == held


def test_evidence_against_a_cause_is_what_the_trace_says_and_a_source_is_printed(capsys):
    assert "at most 1.0" in cases.evidence(3, "synchronisation") and " 17 events" in cases.evidence(3, "copies")
    assert cases.evidence(1, "none").startswith("the GPU computes for 57% of")
    lesson06.source(5)
    assert "with_numpy(" in capsys.readouterr().out
    assert lesson06.table(cases.original(4).timeline).splitlines()[1].startswith("host: work of its own")
