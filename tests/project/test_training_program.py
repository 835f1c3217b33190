"""Does train_photos.py, killed at any moment, go on to the losses of a run that nobody disturbed, to the last bit?"""

import argparse
import importlib.util
import io
import os
import re
import subprocess
import sys

import psutil
import pytest
import torch
from torch.utils._pytree import tree_leaves

import simgpu
from course_utils import counting, devices, programs
from gpu_course.checks import difference
from tests import children

PROGRAM = programs.path("train_photos.py")
STEPS, EVERY = 24, 4
OPTIONS = ["--steps", STEPS, "--every", EVERY, "--batch", 4, "--length", 28]  # 7 steps an epoch: not a multiple of 4
LINE = re.compile(r"step (\d+) loss (\S+)")


def start(checkpoint, *more):
    """Start the program in a process."""
    command = [str(word) for word in (sys.executable, PROGRAM, "--checkpoint", checkpoint, *OPTIONS, *more)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8")


def follow(process, losses, until=None):
    """Put the losses that the program prints into `losses`, up to a line with `until`; a step has one loss for ever."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := LINE.fullmatch(line.strip()):
            assert losses.setdefault(int(found[1]), found[2]) == found[2], line
        if until and until in line:
            return
    assert process.wait(60) == 0 and until is None, "".join(lines)


def kill(process):
    """Kill the program as the system does it when memory is short, and wait until its workers are gone too."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    assert process.wait(60) != 0 and not psutil.wait_procs(family, timeout=60)[1]
    process.stdout.close()


def step_of(checkpoint):
    return torch.load(checkpoint, map_location="cpu", weights_only=True)["step"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The losses of a run without workers and without a break, by step, as they are written."""
    losses = {}
    follow(start(tmp_path_factory.mktemp("undisturbed") / "run.pt", "--workers", 0), losses)
    assert list(losses) == list(range(1, STEPS + 1)) and len(set(losses.values())) > STEPS // 2
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted({"fork", "spawn"} & set(torch.multiprocessing.get_all_start_methods())))
def test_killed_at_every_moment_it_gives_the_same_losses(undisturbed, tmp_path, method):
    """Slow, since lesson 05 kills it while it writes a checkpoint, and compares the losses in its cell `resumed`."""
    checkpoint, losses = tmp_path / "run.pt", {}
    options = ("--workers", 2, "--start-method", method)
    for moment in ("step 4", "half@12", "written@12", "step 16", "replaced@20", "half@24"):
        name, _, at = moment.partition("@")
        process = start(checkpoint, *options, *(["--pause", moment] if at else []))
        follow(process, losses, "standing still" if at else f"{moment} loss")
        kill(process)
        if at:  # the checkpoint is whole, and the one that it must be
            assert step_of(checkpoint) == (int(at) if name == "replaced" else int(at) - EVERY)
    follow(start(checkpoint, *options), losses)
    assert losses == undisturbed


@pytest.mark.skipif(os.name == "nt", reason="Windows ends a program without asking")
def test_asked_to_end_it_saves_and_ends(tmp_path):
    checkpoint = tmp_path / "new" / "run.pt"
    words = [str(word) for word in (PROGRAM, "--checkpoint", checkpoint, *OPTIONS, "--workers", 0)]
    code = f"import runpy, sys\nsys.argv = {words!r}\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    done = children.run("-c", children.ASKED.format(at="step 4 loss") + code)
    assert done.returncode == 0, done.stderr
    steps = [int(step) for step, _ in LINE.findall(done.stdout)]
    assert 4 <= step_of(checkpoint) == max(steps) < STEPS


def test_a_run_goes_on_with_the_options_that_it_began_with(program, tmp_path):
    options = {"steps": 24, "batch": 4, "length": 28, "seed": 0}
    path, run = tmp_path / "run.pt", program.Run(torch.device("cpu"), seed=0, steps=24)
    run.step = 3
    program.save(run.state_dict() | {"options": options}, path)
    program.load(run, argparse.Namespace(checkpoint=path, **options))
    assert run.step == 3 and set(options) == set(program.SAME)
    for name, old in options.items():
        with pytest.raises(SystemExit, match=f"a run with --{name} {old}"):
            program.load(run, argparse.Namespace(checkpoint=path, **options | {name: old + 1}))


def saved(program, path):
    """Save a run that has done one step, and return it with the options to load it."""
    options = {"steps": 24, "batch": 4, "length": 28, "seed": 0}
    run = program.Run(torch.device("cpu"), seed=0, steps=24)
    run.train(*next(batches(1)))
    program.save(run.state_dict() | {"options": options}, path)
    return run, argparse.Namespace(checkpoint=path, **options)


def test_of_a_damaged_checkpoint_it_names_the_file(program, tmp_path):
    path = tmp_path / "run.pt"
    run, options = saved(program, path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:10], whole[: len(whole) // 2], b"PK" * 99):
        path.write_bytes(damaged)
        with pytest.raises(SystemExit, match=r"run\.pt is damaged"):
            program.load(run, options)
    torch.save({"step": 1}, path)
    with pytest.raises(SystemExit, match=r"run\.pt is damaged, or of another program \(KeyError: 'options'\)"):
        program.load(run, options)


def test_no_flipped_byte_is_loaded_unnoticed(program, tmp_path):
    path = tmp_path / "run.pt"
    run, options = saved(program, path)
    whole, state, refused = path.read_bytes(), tree_leaves(stored(run)), 0
    for at in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            program.load(run, options)
        except SystemExit:
            refused += 1
        else:  # padding between the parts
            assert not difference(tree_leaves(stored(run)), state), at
    assert refused > 20


@pytest.mark.parametrize(("option", "given"), [("every", "0"), ("steps", "-1"), ("batch", "0"), ("length", "ten")])
def test_numbers_that_cannot_be_are_refused(program, monkeypatch, capsys, option, given):
    monkeypatch.setattr(sys, "argv", ["train_photos.py", "--checkpoint", "run.pt", f"--{option}", given])
    with pytest.raises(SystemExit):
        program.arguments()
    assert f"argument --{option}: '{given}' is no whole number from 1" in capsys.readouterr().err


@pytest.fixture
def program(monkeypatch):
    """The program as a module, with torch's settings put back afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("train_photos", PROGRAM)
    loaded = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, loaded)  # so that its sampler can be pickled
    spec.loader.exec_module(loaded)
    yield loaded
    torch.set_num_threads(threads)


def batches(number):
    generator = torch.Generator().manual_seed(3)
    for _ in range(number):
        images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8, generator=generator)
        yield images, torch.randint(0, 8, (4,), generator=generator)


def stored(run):
    """Return the state of a run as a file gives it back."""
    file = io.BytesIO()
    torch.save(run.state_dict(), file)
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


@pytest.mark.skipif(simgpu.unavailable() is not None, reason=str(simgpu.unavailable()))
@pytest.mark.parametrize("lost", [(), ("model",), ("optimizer",), ("scheduler",), ("scaler",), ("step",), ("random",)])
def test_each_part_of_the_state_is_needed(program, lost):
    """Without any one part the run goes on differently: nothing is saved in vain, and the tests above can fail."""
    simgpu.enable()
    device, data = torch.device("sim", 0), list(batches(12))
    run = program.Run(device, seed=0, steps=12)
    run.scaler.set_growth_interval(2)
    [run.train(*batch) for batch in data[:5]]
    state = stored(run)

    def outcome(one):
        return [one.train(*batch).item() for batch in data[5:]], one.scaler.state_dict(), one.step

    expected = outcome(run)
    lost = ("random", "device_random") if lost == ("random",) else lost  # here both are the CPU's
    again = program.Run(device, seed=1, steps=12)
    again.load_state_dict(state | {name: again.state_dict()[name] for name in lost})
    assert (outcome(again) == expected) == (not lost)


def test_the_order_goes_on_where_it_was(program):
    order = program.Order(10, seed=4)
    whole = list(order)
    assert sorted(whole) == list(range(10)) and len(order) == 10
    order.start = 4
    assert list(order) == whole[4:] and len(order) == 6
    order.start, order.epoch = 0, 1
    assert sorted(order) == sorted(whole) and list(order) != whole


@pytest.mark.parametrize("failing", ["save", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_checkpoint(program, tmp_path, monkeypatch, failing):
    path = tmp_path / "run.pt"
    program.save({"step": 1}, path)

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(torch if failing == "save" else os, failing, fail)
    with pytest.raises(OSError, match="no space"):
        program.save({"step": 2}, path)
    monkeypatch.undo()
    assert torch.load(path, weights_only=True) == {"step": 1}
    program.save({"step": 3}, path)
    assert torch.load(path, weights_only=True) == {"step": 3}
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


def test_losses_stay_on_the_device_until_they_are_reported(program, capsys):
    run = program.Run(devices.pick(), seed=0, steps=8)
    run.scaler = torch.amp.GradScaler(run.device.type, enabled=False)
    with counting.count() as counts:
        losses = [run.train(*batch) for batch in batches(4)]
    assert counts.host_reads == 0
    program.report(run, losses)
    assert re.findall(r"step (\d+)", capsys.readouterr().out) == ["1", "2", "3", "4"]
    assert not losses


@pytest.mark.parametrize(("kind", "capabilities", "native", "expected"), [
    ("cpu", {"amx_bf16": True}, None, torch.bfloat16), ("cpu", {"avx512_bf16": True}, None, torch.bfloat16),
    ("cpu", {"bf16": True}, None, torch.bfloat16), ("cpu", {"avx2": True}, None, None), ("mps", {}, None, None),
    ("cuda", {}, True, torch.bfloat16), ("cuda", {}, False, torch.float16),
])  # fmt: skip
def test_the_format_fits_the_device(program, monkeypatch, kind, capabilities, native, expected):
    class Backend:
        @staticmethod
        def is_bf16_supported(including_emulation=True):
            return including_emulation or native

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch, "get_device_module", lambda device: Backend)
    assert program.amp_dtype(torch.device(kind)) is expected
