"""Are programs found beside the lesson? Do they run as their first lines say: by torchrun, on two nodes, and killed?"""

import argparse
import contextlib
import datetime
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_utils import data, models, programs
from ranklaunch import RankError, launch
from tests import children

PROGRAMS = Path(__file__).parents[2] / "notebooks" / "programs"
DDP, FSDP, BOTH = (PROGRAMS / f"train_{name}.py" for name in ("ddp", "fsdp", "2d"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
LIMIT_S = 600
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")},
    "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
    **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
}  # fmt: skip


needs_torchrun = pytest.mark.skipif(os.name == "nt", reason="torchrun asks for libuv, which Windows wheels lack")


def start(*command: object, **extra: str) -> subprocess.Popen:
    keywords = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    return subprocess.Popen([str(word) for word in command], env={**ENVIRONMENT, **extra}, **keywords)


def finish(process: subprocess.Popen) -> str:
    """Return what a program printed; it must end well."""
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out


def losses(text: str) -> dict[str, str]:
    """Return the loss that was printed for each step; where a step was done twice, both must be the same."""
    found: dict[str, str] = {}
    for step, loss in re.findall(r"^step (\d+) loss (\S+)$", text, re.MULTILINE):
        assert found.setdefault(step, loss) == loss
    return found


def on_two_nodes(*rendezvous: object, program: tuple[object, ...] = (DDP, "--epochs", 2), **extra: str) -> list[str]:
    """Return what two agents of one process each print, the shorter text first: each agent stands for a node."""
    command = (
        *TORCHRUN, "--nnodes", 2, "--nproc-per-node", 1, "--rdzv-backend", "c10d", "--local-addr", "127.0.0.1",
        *rendezvous, *program,
    )  # fmt: skip
    nodes = [start(*command, **extra), start(*command, **extra)]
    try:
        return sorted((finish(node) for node in nodes), key=len)
    finally:
        for node in nodes:
            node.kill()


@contextlib.contextmanager
def meeting_point():
    wait = datetime.timedelta(seconds=LIMIT_S)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=wait)
    yield "--rdzv-id", "two-nodes", "--rdzv-endpoint", f"127.0.0.1:{store.port}", "--rdzv-conf", "is_host=0"


@pytest.mark.slow
@needs_torchrun
def test_two_nodes_train_and_rank_0_alone_prints_the_accuracy_of_what_it_saves(tmp_path):
    """Both agents meet at a store of this test, on a port that the system has chosen; to them it is a c10d endpoint.

    Slow, since lesson 09 starts the program by torchrun in its cell `train-ddp`, on one node.
    """
    with meeting_point() as rendezvous:
        silent, text = on_two_nodes(*rendezvous, program=(DDP, "--epochs", 2, "--checkpoint", tmp_path / "run.pt"))
    lines = text.splitlines()
    assert silent == "" and lines[0] == "processes 2, backend gloo, device cpu, from the start"
    printed = [" ".join(line.split()[:2]) for line in lines[1:]]
    assert printed == ["step 8", "step 16", "step 24", "epoch 0", "step 32", "step 40", "step 48", "epoch 1"]
    found = [float(loss) for loss in losses(text).values()]
    assert found[-1] < found[0] / 2
    images, labels = data.digits()
    model = models.ConvNet(width=8).eval()
    model.load_state_dict(torch.load(tmp_path / "run.pt", weights_only=True)["model"])
    with torch.no_grad():
        right = model(images[1536:]).argmax(1).eq(labels[1536:]).double().mean()
    assert lines[-1] == f"epoch 1 accuracy {right:.3f}"


@pytest.fixture(scope="module")
def undisturbed():
    """What two processes of one node print in two epochs, with nobody disturbing them."""
    return finish(start(*TORCHRUN, "--standalone", "--nproc-per-node", 2, DDP, "--epochs", 2))


@pytest.mark.slow
@needs_torchrun
def test_a_killed_worker_is_started_again_and_goes_on_from_the_checkpoint(undisturbed, tmp_path):
    """Slow, since lesson 09 starts the same in its cell `train-ddp`; here every loss is compared."""
    text = finish(
        start(
            *TORCHRUN, "--standalone", "--nproc-per-node", 2, "--max-restarts", 1,
            DDP, "--epochs", 2, "--checkpoint", tmp_path / "run.pt", "--die-at", 30,
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        )
    )  # fmt: skip
    assert "processes 2, backend gloo, device cpu, from step 24" in text.splitlines()
    assert losses(text) == losses(undisturbed)
    assert text.splitlines()[-1] == undisturbed.splitlines()[-1]  # the accuracy
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


@pytest.mark.slow
@needs_torchrun
def test_two_agents_meet_at_an_endpoint_that_one_of_them_hosts(undisturbed):
    """The line that the lesson and the program give: no store is there before the agents. All on the loopback address,
    since the name of a machine may not resolve. Two nodes print to the last bit what two processes of one print.
    """
    for _ in range(3):  # somebody else may take the port before the agent does
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = one.getsockname()[1]
        try:
            texts = on_two_nodes("--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", 1)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failure = error
        else:
            assert texts == ["", undisturbed]
            return
    raise failure


@pytest.mark.skipif(os.name == "nt", reason="Windows ends a program without asking")
def test_one_process_needs_no_torchrun_and_asked_to_end_it_saves_and_leaves_no_thread_of_gloo(tmp_path):
    """A thread that outlives the group may drop a tensor while Python ends: "terminate called", SIGABRT."""
    checkpoint = tmp_path / "new" / "run.pt"
    code = children.ASKED.format(at="step 8 loss") + (
        "import gc, runpy, sys, weakref, torch.distributed as dist; destroy = dist.destroy_process_group; seen = []\n"
        "dist.destroy_process_group = lambda: (seen.append(weakref.ref(dist.group.WORLD)), destroy())\n"
        f"sys.argv = {[str(DDP), '--epochs', '500', '--checkpoint', str(checkpoint)]!r}\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "gc.collect(); print('groups alive:', [group() is not None for group in seen])"
    )
    done = children.run("-c", code, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    first, *_, asked, groups = done.stdout.splitlines()
    assert first == "processes 1, backend gloo, device cpu, from the start"
    assert groups == "groups alive: [False]"
    step = torch.load(checkpoint, weights_only=True)["step"]
    assert asked == f"asked to stop, after step {step}" and step < 500 * 24


@pytest.mark.slow
@needs_torchrun
def test_torchrun_asked_to_end_lets_all_processes_end_after_the_same_step(undisturbed, tmp_path):
    command = (*TORCHRUN, "--standalone", "--nproc-per-node", 2, DDP, "--every", 2, "--checkpoint", tmp_path / "run.pt")
    process = start(*command, "--epochs", 500)
    lines = [process.stdout.readline() for _ in range(5)]  # up to step 8, which the undisturbed run prints too
    process.send_signal(signal.SIGTERM)  # to torchrun, which passes it on
    lines += process.communicate(timeout=LIMIT_S)[0].splitlines()
    assert re.fullmatch(r"asked to stop, after step \d+", lines[-1]) and process.returncode != 0
    step = lines[-1].split()[-1]
    text = finish(start(*command, "--epochs", int(step) // 24 + 1))
    assert text.startswith(f"processes 2, backend gloo, device cpu, from step {step}\n")
    assert losses("\n".join(lines)).items() & losses(undisturbed).items()
    other = start(sys.executable, DDP, "--checkpoint", tmp_path / "run.pt", "--batch", 32)
    assert "--batch 64" in other.communicate(timeout=LIMIT_S)[1] and other.returncode != 0


@pytest.fixture
def program():
    """The program's functions."""
    return loaded(DDP)


@pytest.mark.parametrize(("option", "words"), [
    ("--epochs=0", "--epochs is 0, it must be at least 1"), ("--batch=-64", "--batch is -64, it must be at least 1"),
    ("--every=0", "--every is 0, it must be"), ("--batch=1537", "--batch is 1537, there are only 1536 images"),
])  # fmt: skip
def test_options_out_of_range_are_named(program, monkeypatch, capsys, option, words):
    monkeypatch.setattr(sys, "argv", ["train_ddp.py", option])
    with pytest.raises(SystemExit):
        program.arguments()
    assert words in capsys.readouterr().err


def test_a_run_goes_on_with_the_options_that_it_began_with(program, monkeypatch, tmp_path):
    chosen = argparse.Namespace(checkpoint=tmp_path / "run.pt", batch=64, seed=0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda found: None)
    program.save(chosen, model, optimizer, 3)
    assert program.load(chosen, model, optimizer) == 3
    for name, old in (("batch", 64), ("seed", 0)):
        other = argparse.Namespace(**vars(chosen) | {name: old + 1})
        with pytest.raises(SystemExit, match=f"a run with --{name} {old}"):
            program.load(other, model, optimizer)


def flipped(whole: bytes) -> bytes:
    """Return the bytes of a checkpoint with one bit of a weight turned over."""
    place = whole.index(torch.full((2,), 0.5).numpy().tobytes())
    return whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]


@pytest.mark.parametrize("damage", [
    lambda whole: b"", lambda whole: whole[: len(whole) // 2], lambda whole: b"not a checkpoint", flipped,
], ids=["empty", "half", "text", "one bit"])  # fmt: skip
def test_a_damaged_checkpoint_is_named_on_rank_0_and_ends_all(program, monkeypatch, tmp_path, damage):
    chosen = argparse.Namespace(checkpoint=tmp_path / "run.pt", batch=64, seed=0)
    model = torch.nn.Linear(4, 1)
    torch.nn.init.constant_(model.weight, 0.5)
    optimizer = torch.optim.SGD(model.parameters())
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda found: told.extend(found))
    told = []
    program.save(chosen, model, optimizer, 3)
    chosen.checkpoint.write_bytes(damage(chosen.checkpoint.read_bytes()))
    with pytest.raises(SystemExit, match=r"run\.pt is damaged"):
        program.load(chosen, model, optimizer)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda found: found.__setitem__(0, told[0]))
    with pytest.raises(SystemExit, match=r"^1$"):
        program.load(chosen, model, optimizer)


def test_a_checkpoint_with_numbers_that_are_not_finite_is_neither_written_nor_taken(program, monkeypatch, tmp_path):
    chosen = argparse.Namespace(checkpoint=tmp_path / "run.pt", batch=64, seed=0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    program.save(chosen, model, optimizer, 3)
    good = chosen.checkpoint.read_bytes()
    torch.nn.init.constant_(model.weight, float("nan"))
    program.save(chosen, model, optimizer, 4)
    assert chosen.checkpoint.read_bytes() == good
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]
    state = program.read(chosen.checkpoint)
    state["optimizer"]["state"][0] = {"exp_avg": torch.tensor([1.0, float("inf")])}
    torch.save(state, chosen.checkpoint)
    assert "numbers that are not finite" in program.read(chosen.checkpoint)


def test_another_file_is_no_checkpoint(program, tmp_path):
    torch.save({"weight": torch.ones(1)}, tmp_path / "other.pt")
    assert "other.pt is damaged, or no checkpoint of this program" in program.read(tmp_path / "other.pt")


def loaded(path: Path):
    """Return the functions of a program, which may take some from another one beside it."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(path.parent))
    return module


def sharded_run(path, checkpoint, steps, shards=None, **changed):
    """Be a process of train_fsdp.py, or of train_2d.py with `tensor`, and return what it prints."""
    module, lines = loaded(path), []
    module.log = lines.append
    options = {"steps": steps, "batch": 8, "every": 4, "seed": 0, "die_at": None, "shards": shards, **changed}
    module.train(argparse.Namespace(checkpoint=checkpoint, **options), torch.device("cpu"))
    return lines


def same_run(lines, expected):
    found = [float(loss) for loss in losses("\n".join(lines)).values()]
    assert found == pytest.approx([float(loss) for loss in losses("\n".join(expected)).values()], rel=1e-5)
    assert len(found) > 1 and found[-1] < found[0]


def test_a_sharded_run_goes_on_with_another_number_of_processes(tmp_path):
    first = launch(sharded_run, FSDP, tmp_path, 4)[0]
    assert first[0] == "processes 2, shards 2, backend gloo, device cpu, from the start"
    ((alone, second),) = launch(lambda: [sharded_run(FSDP, None, 8), sharded_run(FSDP, tmp_path, 8)], nprocs=1)
    assert second[0] == "processes 1, shards 1, backend gloo, device cpu, from step 4"
    same_run(first + second, alone)


@pytest.mark.slow
def test_a_sharded_run_goes_on_with_another_split_and_says_what_does_not_fit(tmp_path):
    """4 processes, as 2 copies of 2 shards, then 2 that share one."""
    (alone,) = launch(sharded_run, FSDP, None, 12, nprocs=1)
    first = launch(sharded_run, FSDP, tmp_path, 8, 2, nprocs=4)[0]
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-00000008"]
    second = launch(sharded_run, FSDP, tmp_path, 12, nprocs=2)[0]
    assert first[0] == "processes 4, shards 2, backend gloo, device cpu, from the start"
    assert second[0] == "processes 2, shards 2, backend gloo, device cpu, from step 8"
    same_run(first + second, alone)
    for changed, words in (({"seed": 1}, "a run with --seed 0"), ({"shards": 2}, "--shards 2 must divide the 1")):
        with pytest.raises(RankError, match=words):
            launch(sharded_run, FSDP, tmp_path, 16, nprocs=1, **changed)
    part = next((tmp_path / "step-00000012").glob("*.distcp"))
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(RankError, match="step-00000012 is damaged"):
        launch(sharded_run, FSDP, tmp_path, 16, nprocs=2)


@pytest.mark.parametrize("nprocs", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_run_that_is_split_both_ways_equals_one_process_and_resumes_to_the_same_bits(tmp_path, nprocs):
    """On a mesh, undisturbed and in two parts; then one process alone, and one that goes on from the others."""

    def ranks():
        folders = ((8, "whole"), (4, "cut"), (8, "cut"))
        return [sharded_run(BOTH, tmp_path / name, steps, tensor=2) for steps, name in folders]

    undisturbed, first, second = launch(ranks, nprocs=nprocs)[0]
    assert undisturbed[0] == f"mesh {nprocs // 2} x 2, backend gloo, device cpu, from the start"
    assert second[0] == f"mesh {nprocs // 2} x 2, backend gloo, device cpu, from step 4"
    assert first[1:] + second[1:] == undisturbed[1:]  # all digits
    ((alone, resumed),) = launch(
        lambda: [sharded_run(BOTH, folder, 12, tensor=1) for folder in (None, tmp_path / "cut")], nprocs=1
    )
    assert resumed[0] == "mesh 1 x 1, backend gloo, device cpu, from step 8"
    same_run(undisturbed + resumed, alone)


@pytest.mark.slow
@needs_torchrun
def test_a_run_that_is_split_both_ways_runs_unchanged_on_simulated_gpus(tmp_path):
    """Slow: torchrun under simgpu takes 25 seconds of CPU. Its NCCL is simulated too."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 4)
    text = finish(start(sys.executable, "-m", "simgpu", "--gpus", 4, *torchrun, BOTH, "--tensor", 2, "--steps", 8))
    alone = finish(start(sys.executable, BOTH, "--steps", 8))
    assert "mesh 2 x 2, backend nccl, device cuda, from the start" in text
    (expected,) = losses(alone).values()
    assert float(losses(text)["8"]) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize(("changed", "words"), [
    ({"tensor": 4}, "--tensor 4 must divide the 2 processes and the 8 heads"),
    ({"tensor": 1, "batch": 7}, "--batch is 7, it must be a multiple of the 2 rows of processes"),
])  # fmt: skip
def test_a_mesh_that_does_not_fit_is_named(changed, words):
    with pytest.raises(RankError, match=words):
        launch(sharded_run, BOTH, None, 4, nprocs=2, **changed)


def flip_a_number(folder):
    """Change one byte in the middle of the largest file: a tensor, which loads all the same."""
    part = max(folder.glob("*.distcp"), key=lambda file: file.stat().st_size)
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 0x40
    part.write_bytes(data)


def spoiled_run(checkpoint, steps):
    """Train with gradients that are no numbers."""
    module = loaded(FSDP)
    clip = torch.nn.utils.clip_grad_norm_

    def spoil(parameters, norm):
        for p in parameters:
            p.grad.fill_(float("nan"))

    torch.nn.utils.clip_grad_norm_ = spoil
    try:
        options = {"steps": steps, "batch": 8, "every": 4, "seed": 0, "die_at": None, "shards": None}
        module.train(argparse.Namespace(checkpoint=checkpoint, **options), torch.device("cpu"))
    finally:
        torch.nn.utils.clip_grad_norm_ = clip


def test_a_sharded_checkpoint_with_a_flipped_byte_is_not_taken_and_nan_does_not_replace_it(tmp_path):
    launch(sharded_run, FSDP, tmp_path, 4, nprocs=1)
    good = tmp_path / "step-00000004"
    before = {file.name: file.read_bytes() for file in good.iterdir()}
    with pytest.raises(RankError, match="after step 8 some weights are not finite: not saved"):
        launch(spoiled_run, tmp_path, 8, nprocs=1)
    assert {file.name: file.read_bytes() for file in good.iterdir()} == before
    flip_a_number(good)
    with pytest.raises(RankError, match=r"step-00000004 is damaged \(the checksum of __0_0\.distcp differs\)"):
        launch(sharded_run, FSDP, tmp_path, 8, nprocs=1)


def test_the_batch_is_named_where_it_is_the_cause():
    with pytest.raises(RankError, match="--batch is 7, it must be a multiple of the 2 processes"):
        launch(sharded_run, FSDP, None, 4, nprocs=2, batch=7)


@pytest.mark.slow
@needs_torchrun
def test_a_sharded_run_on_two_nodes_that_is_killed_goes_on_to_the_same_bits(tmp_path):
    undisturbed = finish(start(*TORCHRUN, "--standalone", "--nproc-per-node", 2, FSDP))
    with meeting_point() as rendezvous:
        program = (FSDP, "--checkpoint", tmp_path, "--die-at", 30)
        silent, text = on_two_nodes(
            "--max-restarts", 1, *rendezvous, program=program, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"
        )
    assert silent == "" and "processes 2, shards 2, backend gloo, device cpu, from step 24" in text.splitlines()
    assert losses(text) == losses(undisturbed) and len(losses(text)) == 6
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-00000048"]


@pytest.mark.needs("shellcheck")
@pytest.mark.parametrize("name", ["train_ddp.sbatch", "train_fsdp.sbatch", "train_2d.sbatch"])
def test_the_slurm_script_passes_the_shell_linter(name):
    beside = Path(sys.executable).with_name("shellcheck" + (".exe" if os.name == "nt" else ""))
    linter = str(beside) if beside.exists() else shutil.which("shellcheck")
    assert linter, "shellcheck is missing: install the development dependencies"
    subprocess.run([linter, "--severity=style", PROGRAMS / name], check=True, timeout=60)


@pytest.mark.skipif(os.name == "nt", reason="Slurm runs on Linux")
@pytest.mark.parametrize(("name", "checkpoint", "split"), [
    ("ddp", "train-ddp-123456.pt", ()), ("fsdp", "train-fsdp-123456", ()), ("2d", "train-2d-123456", ("--tensor", "4")),
])  # fmt: skip
def test_the_slurm_script_starts_a_torchrun_that_torchrun_understands(tmp_path, name, checkpoint, split):
    """The script runs for real, between a scontrol and an srun that print what they are given."""
    for tool, line in {"scontrol": "printf 'node1\\nnode2\\n'", "srun": "printf '%s\\n' \"$@\""}.items():
        (tmp_path / tool).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (tmp_path / tool).chmod(0o755)
    slurm = {"NODELIST": "node[1-2]", "ID": "123456", "NUM_NODES": "2"}
    given = {f"SLURM_JOB_{key}": value for key, value in slurm.items()}
    given |= {
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_CPUS_PER_TASK": "16",
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
    }
    from torch.distributed.run import parse_args

    words = finish(start("bash", PROGRAMS / f"train_{name}.sbatch", "--seed", 3, **given)).splitlines()
    assert words[0] == "torchrun"
    options = parse_args(words[1:])
    assert (options.nnodes, options.nproc_per_node, options.max_restarts) == ("2", "4", 3)
    assert (options.rdzv_backend, options.rdzv_endpoint, options.rdzv_id) == ("c10d", "node1:23456", "123456")
    assert [options.training_script, *options.training_script_args] == [
        f"train_{name}.py", "--checkpoint", checkpoint, *split, "--seed", "3",
    ]  # fmt: skip


def test_the_nearest_copy_of_a_program_is_taken(tmp_path, monkeypatch):
    """It lies beside the lesson, else in the repository, else in the installed package."""
    folders = [tmp_path / "here" / "programs", tmp_path / "repository", tmp_path / "installed"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "train.py").touch()
    monkeypatch.setattr(programs, "_REPOSITORY", folders[1])
    monkeypatch.setattr(programs, "_INSTALLED", folders[2])
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ValueError, match=r"name is 'other\.py', it must be one of: train\.py"):
        programs.path("other.py")
    with pytest.raises(TypeError, match="name must be text"):
        programs.path(3)
    for folder in folders:
        assert programs.path("train.py") == (folder / "train.py").resolve()
        (folder / "train.py").unlink()
    with pytest.raises(ValueError, match=r"name is 'train\.py'"):
        programs.path("train.py")
