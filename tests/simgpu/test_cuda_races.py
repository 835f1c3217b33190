"""Are uses of the same memory that nothing orders told with both lines, and are programs without a race left alone?"""

import warnings

import pytest
import torch
from torch import nn

import simgpu
from tests import children

FACE = {"gpus": 2, "memory": "1 GiB", "races": "error"}


class Two:
    """A second stream, and what is computed on the first."""

    def __init__(self):
        self.stream = torch.cuda.Stream()
        self.pinned = torch.ones(4).pin_memory()
        self.x = torch.ones(4, device="cuda")


def read_without_waiting(two):
    y = two.x * 2  # written
    with torch.cuda.stream(two.stream):
        return y + 1  # read


def write_without_waiting(two):
    y = two.x * 2
    two.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(two.stream):
        z = y + 1  # read on the second
    y.zero_()  # written on the first
    return z


def result_used_without_waiting(two):
    two.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(two.stream):
        y = two.x * 2
    return y.sum()


def copy_used_without_waiting(two):
    with torch.cuda.stream(two.stream):
        y = two.pinned.to("cuda", non_blocking=True)
    return y + 1


def event_of_another_gpu(two):
    y = two.x.to("cuda:1")
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    other = torch.cuda.Stream("cuda:1")
    z = y * 2
    event = torch.cuda.current_stream(0).record_event()  # the product ran on GPU 1
    other.wait_event(event)
    with torch.cuda.stream(other):
        return z + 1


def pinned_overwritten(two):
    y = two.pinned.to("cuda", non_blocking=True)
    two.pinned.fill_(3)
    return y


def part_of_pinned_overwritten(two):
    y = two.pinned.to("cuda", non_blocking=True)
    two.pinned[:2] = 3
    return y


def freed_while_used(two, order=lambda two, y: None):
    y = torch.ones(1000, device="cuda")
    two.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(two.stream):
        z = y * 2
    order(two, y)
    del y
    return torch.ones(900, device="cuda"), z


RACES = {
    "reads.* what .*y = two.x .* writes": read_without_waiting,
    "writes.* what .*z = y .* reads": write_without_waiting,
    "y.sum.* reads": result_used_without_waiting,
    "return y . 1 reads": copy_used_without_waiting,
    "on stream .* of cuda:1, what .* the default stream of cuda:1": event_of_another_gpu,
    "fill_.3. overwrites pinned memory that the copy of .*non_blocking=True": pinned_overwritten,
    ":2. = 3 overwrites pinned memory": part_of_pinned_overwritten,
    "may get memory that was freed while stream .* uses it: .*z = y": freed_while_used,
}


def waits_for_the_stream(two):
    y = two.x * 2
    two.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(two.stream):
        z = y + 1
    torch.cuda.current_stream().wait_stream(two.stream)
    y.zero_()
    return z.sum()


def waits_for_an_event(two):
    y = two.x * 2
    done = torch.cuda.Event()
    done.record()
    with torch.cuda.stream(two.stream):
        done.wait()
        return y + 1


def lets_the_host_wait(two):
    y = two.x * 2
    torch.cuda.synchronize()
    with torch.cuda.stream(two.stream):
        z = y + 1
    two.stream.synchronize()
    return z.sum()


def reads_a_value(two):
    y = two.x * 2
    y.sum().item()
    with torch.cuda.stream(two.stream):
        return y + 1


def reads_on_both(two):
    torch.cuda.synchronize()
    with torch.cuda.stream(two.stream):
        z = two.x + 1
    return two.x + 2, z


def halves(two):
    torch.cuda.synchronize()
    with torch.cuda.stream(two.stream):
        two.x[:2] = 3.0 * two.x[:2]
    two.x[2:].mul_(2)


def pinned_after_an_event(two):
    y = two.pinned.to("cuda", non_blocking=True)
    copied = torch.cuda.current_stream().record_event()
    copied.synchronize()
    two.pinned.fill_(3)
    return y


def pinned_behind_a_value(two):
    y = two.pinned.to("cuda", non_blocking=True)
    y.sum().item()
    two.pinned.fill_(3)


def pageable_overwritten(two):
    batch = torch.ones(4)
    y = batch.to("cuda", non_blocking=True)
    batch.fill_(3)
    return y


def recorded_for_the_stream(two):
    freed_while_used(two, lambda two, y: y.record_stream(two.stream))


def freed_after_waiting(two):
    freed_while_used(two, lambda two, y: torch.cuda.current_stream().wait_stream(two.stream))


def between_gpus(two):
    y = (two.x * 2).to("cuda:1")
    return (y + 1).to("cuda:0") + two.x


def captured(two):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = two.x * 2  # on a stream of the capture, where nothing runs
    two.x.fill_(3)
    graph.replay()
    return y + two.x


def trains(two):
    """Prefetches batches on a second stream, as the usual loops do."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        with torch.cuda.stream(two.stream):
            batch = torch.ones(5, 4).pin_memory().to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(two.stream)
        batch.record_stream(torch.cuda.current_stream())
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


FINE = (
    waits_for_the_stream, waits_for_an_event, lets_the_host_wait, reads_a_value, reads_on_both, halves,
    pinned_after_an_event, pinned_behind_a_value, pageable_overwritten, recorded_for_the_stream, freed_after_waiting,
    between_gpus, captured, trains,
)  # fmt: skip


@pytest.mark.parametrize("words", RACES)
def test_a_race_is_told_with_both_lines(words):
    two = Two()
    torch.cuda.synchronize()
    with pytest.raises(simgpu.RaceError, match=words) as caught:
        RACES[words](two)
    assert str(caught.value).count("test_cuda_races.py:") == 2


@pytest.mark.parametrize("program", FINE)
def test_what_is_ordered_is_left_alone(program):
    two = Two()
    torch.cuda.synchronize()
    program(two)


def test_a_race_is_a_warning_or_a_row_of_the_report():
    simgpu.face.switch.last().off()
    with simgpu.cuda(gpus=2, races="warn", record=True) as session:
        with pytest.warns(UserWarning, match="a race: .* nothing orders the two") as caught:
            found = read_without_waiting(Two())
            torch.cuda.synchronize()
            assert found.tolist() == [3] * 4
        assert caught[0].filename == __file__
        report = session.report()
    assert [(error.kind, "return y + 1" in error.text) for error in report.errors] == [("a race", True)]
    assert "a race" in str(report)


def test_without_asking_nothing_is_said():
    simgpu.face.switch.last().off()
    with simgpu.cuda(gpus=2), warnings.catch_warnings():
        warnings.simplefilter("error")
        read_without_waiting(Two())
    with pytest.raises(ValueError, match="races must be 'warn', 'error' or None, not 'maybe'"):
        simgpu.cuda(races="maybe")


def test_the_command_line_and_the_plugin_ask_for_it(tmp_path):
    simgpu.face.switch.last().off()  # the process that starts children must not have it
    program = tmp_path / "test_race.py"
    lines = ["import torch", "def test_it():", "    x = torch.ones(4, device='cuda')"]
    lines += [
        "    with torch.cuda.stream(torch.cuda.Stream()):",
        "        x + 1",
        "if __name__ == '__main__': test_it()",
    ]
    program.write_text("\n".join(lines))
    done = children.run("-m", "simgpu", "--races", "error", program)
    assert done.returncode == 1 and "RaceError: a race: test_race.py:5: x + 1 reads" in done.stderr
    options = ("-p", "simgpu.pytest", "--simgpu-races", "error", "-q", "-p", "no:cacheprovider")
    done = children.run("-m", "pytest", *options, program, cwd=tmp_path)
    assert done.returncode == 1 and "RaceError" in done.stdout
