"""First session on a real GPU: what fails on CUDA and what it measures, in one command and one file.

    python -m benchmarks.gpu_session --wheels .wheels --python 3.12   # at home: download what a bare machine lacks
    pip install --no-index --no-deps --target /tmp/site .wheels/*.whl                # there, at the repository's root:
    export PYTHONPATH=/tmp/site:$(echo $PWD/engines/* | tr " " :)
    python -m benchmarks.gpu_session --out gpu_session.json           # eight minutes at most
    python -m benchmarks.gpu_session --face T4 --out rehearsal.json   # rehearsal on a simulated GPU that says `cuda`

The machine needs an NVIDIA GPU and PyTorch, no Jupyter and no network. In this order: the reference of each exercise
through its own check, lessons 00 to 09 cell by cell, `benchmarks.against_cuda`, and the host's time by class of
operator. Each stage has its share of the minutes. Results reach the file as soon as they are known, so what a time
limit or a crash cuts off is missing and nothing else; what was not reached says so. The file also holds what each part
printed. Exit code 1 if anything failed or was not reached.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from gpu_course import catalogue
from tests.notebooks import on_face

ROOT = Path(__file__).parents[1]
SHARES = {"references": 0.3, "lessons": 0.45, "against_cuda": 0.1, "host": 0.15}  # of the minutes, in this order
LESSONS = ("00", "01", "02", "03", "04", "05", "06", "07", "08", "08b", "09")
PACKAGES = ("ipython", "ipywidgets", "platformdirs", "cloudpickle")  # beyond what comes with PyTorch and scikit-learn
WORKERS = 4  # lessons at a time; they share the GPU, so the stages that measure run alone
ROUNDS, ROW = 100, 20  # rows of calls, so short that CUDA's queue never fills
LOG_CHARACTERS = 50_000  # of what a part printed, at most
RESERVE_S = 15  # of the minutes, for what the session itself does before and after its children
COMPILED = ((1, False, None), (24, False, None), (24, True, None), (24, False, "reduce-overhead"))
MEMORY = "1 GiB"  # of the simulated GPU in a rehearsal


# ---- what a child process does: it writes what it knows to its own file after each step ------------------------------
def references(number: str, found: Path, face: str | None) -> None:
    """Give the reference of each exercise of lesson `number` to its check on CUDA."""
    exercises = [exercise for exercise in catalogue.registry() if exercise.task.lesson == number]
    seen: dict[str, Any] = {"failed": {exercise.name: on_face.NOT_REACHED for exercise in exercises}}
    for exercise in exercises:
        with noted(exercise.name, seen, found):
            exercise.examine(exercise.reference, torch.device("cuda", 0))


def lessons(number: str, found: Path, face: str | None) -> None:
    """Run the code cells of lesson `number`; in a rehearsal without those that only a real GPU can run."""
    (path,) = Path.cwd().glob(f"{number}_*.ipynb")
    left_out, may_fail = (on_face.LEFT_OUT, on_face.MAY_FAIL) if face else ({}, {})
    on_face.run_cells(path, found, left_out.get(number, {}), may_fail.get(number, {}))


def against_cuda(_: str, found: Path, face: str | None) -> None:
    """Measure the programs of `benchmarks.against_cuda` on this GPU, and on its simulation."""
    from benchmarks import against_cuda as comparison

    seen: dict[str, dict[str, Any]] = {"failed": {}, "measured": {}, "predicted": {}}
    torch.backends.cudnn.allow_tf32 = False
    for repeats in (1, 11):  # in the first round libraries load, and take workspaces that they keep
        for name, build in comparison.PROGRAMS.items():
            with noted(name, seen, found):
                seen["measured"][name] = comparison.measure(build, torch.device("cuda"), repeats)._asdict()
    row = simgpu.gpus.find(torch.cuda.get_device_name())
    with noted("simulation", seen, found):
        seen["predicted"] |= comparison.simulate_in_child(row.name) if row else {}


def host(_: str, found: Path, face: str | None) -> None:
    """Measure what the host takes for a call, in µs, by class of operator: the shortest mean over a row of calls."""
    seen: dict[str, dict[str, Any]] = {"failed": {}, "measured": {}}
    for name, make in host_rows(torch.device("cuda")):
        with noted(name, seen, found):
            seen["measured"][name] = host_us(make())


@contextlib.contextmanager
def noted(name: str, seen: dict[str, Any], found: Path) -> Iterator[None]:
    """Inside, an error is a failure `name` of `seen`; then write what is known, and how long it took, to `found`."""
    seen["failed"].pop(name, None)
    began = time.monotonic()
    try:
        yield
    except (Exception, SystemExit) as error:
        seen["failed"][name] = f"{type(error).__name__}: {error}"
    seen.setdefault("seconds", {})[name] = time.monotonic() - began
    on_face.keep(found, seen)


def host_us(call: Callable[[], object]) -> float:
    """Return the µs that `call` takes the host: the minimum over `ROUNDS` of the mean over `ROW` calls in a row.

    No call waits for the GPU, unless it does so itself, and the queue is empty before each row.
    """
    times = []
    for _ in range(ROUNDS + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(ROW):
            call()
        times.append((time.perf_counter() - began) / ROW * 1e6)
    torch.cuda.synchronize()
    return min(times[1:])  # the first warms up


def host_rows(device: torch.device) -> Iterator[tuple[str, Callable[[], Callable[[], object]]]]:
    """Yield names, "class: call", and functions that make the call. No kernel of theirs takes longer than its host."""
    x, m = torch.ones(16, device=device), torch.ones(4, 4, device=device)
    image, kernel = torch.ones(1, 1, 4, 4, device=device), torch.ones(1, 1, 3, 3, device=device)
    one, leaf = torch.ones((), device=device), torch.ones(16, device=device, requires_grad=True)
    linear, relu, norm = nn.Linear(4, 4, device=device), nn.ReLU(), nn.LayerNorm(4, device=device)
    query = torch.ones(1, 1, 4, 4, device=device)
    calls: dict[str, Callable[[], object]] = {
        "bare light: x + x": lambda: x + x,
        "bare light: relu": lambda: torch.relu(x),
        "bare light: x.add_(x)": lambda: x.add_(x),
        "bare library: m @ m": lambda: m @ m,
        "bare library: conv2d": lambda: F.conv2d(image, kernel),
        "bare library: layer_norm": lambda: F.layer_norm(m, (4,)),
        "bare library: attention": lambda: F.scaled_dot_product_attention(query, query, query),
        "view: x.view": lambda: x.view(4, 4),
        "create: empty": lambda: torch.empty(16, device=device),
        "create: zeros": lambda: torch.zeros(16, device=device),
        "copy: to bfloat16": lambda: x.to(torch.bfloat16),
        "wait: item": one.item,
        "recorded light: leaf * x": lambda: leaf * x,
        "module library: Linear, recorded": lambda: linear(m),
        "module light: ReLU": lambda: relu(x),
        "module library: LayerNorm, recorded": lambda: norm(m),
    }
    yield from ((name, partial(lambda call: call, call)) for name, call in calls.items())
    yield from ((f"backward: {nodes} nodes", partial(backward, leaf, x, nodes)) for nodes in (1, 11))
    for how in ("for loop", "foreach", "fused"):
        for count in (4, 44):
            yield f"optimizer: AdamW, {how}, {count} parameters", partial(step, device, how, count)
    yield from ((f"graph: replay of {nodes} nodes", partial(replay, x, nodes)) for nodes in (1, 101))
    for layers, gradients, mode in COMPILED:
        name = f"compiled: {layers} Linear, {'gradients' if gradients else 'no gradients'}, mode={mode}"
        yield name, partial(compiled, m, layers, gradients, mode)


def backward(leaf: torch.Tensor, x: torch.Tensor, nodes: int) -> Callable[[], object]:
    """Return the backward pass of so many products."""
    result = leaf
    for _ in range(nodes):
        result = result * x
    return lambda: torch.autograd.grad(result, leaf, x, retain_graph=True)


def step(device: torch.device, how: str, count: int) -> Callable[[], object]:
    """Return the step of AdamW over `count` parameters."""
    parameters = [nn.Parameter(torch.ones(4, device=device)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return torch.optim.AdamW(parameters, lr=1e-3, foreach=how == "foreach", fused=how == "fused").step


def replay(x: torch.Tensor, nodes: int) -> Callable[[], object]:
    """Return the replay of a CUDA graph with so many kernels."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(nodes):
            x.add_(1.0)
    return graph.replay


def compiled(m: torch.Tensor, layers: int, gradients: bool, mode: str | None) -> Callable[[], object]:
    """Return the call of a compiled stack of layers, compiled and warm."""
    model = nn.Sequential(*(nn.Linear(4, 4, device=m.device) for _ in range(layers))).requires_grad_(gradients)
    fast = torch.compile(model, mode=mode)
    for _ in range(4):
        fast(m)
    return lambda: fast(m)


STAGES = {"references": references, "lessons": lessons, "against_cuda": against_cuda, "host": host}


# ---- the session: children with time limits, and one file ------------------------------------------------------------
def parts(stage: str) -> tuple[str, ...]:
    """Return the parts of a stage, each a process of its own: lessons by number, or all at once."""
    return {"references": tuple(catalogue.numbers()), "lessons": LESSONS}.get(stage, ("all",))


def run_part(stage: str, part: str, until: float, face: str | None) -> dict[str, Any]:
    """Run one part of a stage in a process of its own, ended at the time `until`; return what it wrote and printed."""
    limit = until - time.monotonic()
    if limit <= 0:
        return {"failed": {}, "not_run": "no time was left"}
    with tempfile.TemporaryDirectory() as temporary:
        folder, found = Path(temporary), Path(temporary) / "found.json"
        shutil.copytree(ROOT / "notebooks", folder / "notebooks")
        command = [sys.executable, "-m", "benchmarks.gpu_session", "--child", stage, part, str(found)]
        path = [ROOT, *(ROOT / "engines" / name for name in on_face.ENGINES), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ, "COURSE_DEVICE": "cuda", "MPLBACKEND": "agg", "PYTHONPATH": os.pathsep.join(map(str, path)),
            "COURSE_PROGRESS": str(folder / "progress.json"),
        }  # fmt: skip
        with (folder / "log").open("wb") as log:
            child = subprocess.Popen(
                [*command, *(["--face", face] if face else [])], cwd=folder / "notebooks", env=environment,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                status = child.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)  # what it started, too
                status = f"ended after {limit:.0f} s, {child.wait()}"
        seen = json.loads(found.read_text(encoding="utf-8")) if found.exists() else {"failed": {"start": "see its log"}}
        seen["log"] = (folder / "log").read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:]
    return seen if status == 0 else {**seen, "ended": status}


def session(minutes: float, face: str | None, out: Path) -> dict[str, Any]:
    """Run all stages within `minutes`, and write what is known to `out` after each part."""
    began = until = time.monotonic()
    result: dict[str, Any] = {"machine": machine(face), "stages": {name: {} for name in STAGES}}
    for stage, share in SHARES.items():
        until += share * (minutes * 60 - RESERVE_S)
        with ThreadPoolExecutor(WORKERS) as pool:
            running = {pool.submit(run_part, stage, part, until, face): part for part in parts(stage)}
            for future in as_completed(running):
                error = future.exception()
                seen = {"failed": {"session": repr(error)}} if error else future.result()
                result["stages"][stage][running[future]] = seen
                result["seconds"] = round(time.monotonic() - began, 1)
                on_face.keep(out, result)
    return result


def machine(face: str | None) -> dict[str, Any]:
    """Return what is needed to read the figures: GPU, driver's memory, versions, cores; a rehearsal says so."""
    known = {"torch": torch.__version__, "python": sys.version.split()[0], "cores": os.cpu_count()}
    if face:
        return known | {"gpu": f"simulated {face}", "rehearsal": True}
    properties = torch.cuda.get_device_properties(0)
    found = {"gpu": properties.name, "memory_bytes": properties.total_memory, "cuda": torch.version.cuda}
    return known | found | {"capability": list(torch.cuda.get_device_capability(0))}


def summary(result: dict[str, Any]) -> str:
    """Return a line for each failure and one for each stage."""
    lines = []
    for stage, by_part in result["stages"].items():
        all_of = [(part, name, text) for part, seen in by_part.items() for name, text in seen["failed"].items()]
        wrong = [one for one in all_of if one[2] != on_face.NOT_REACHED]
        cut = [part for part, seen in by_part.items() if "ended" in seen or "not_run" in seen]
        lines += [f"  {part} {name}: {text.splitlines()[0][:200]}" for part, name, text in wrong]
        counts = f"{len(wrong)} failed, {len(all_of) - len(wrong)} not reached"
        lines.append(f"{stage}: {counts}; ended early or not run: {', '.join(cut) or 'none'}")
    return "\n".join([*lines, f"{result['seconds']} s"])


def download(folder: Path, python: str) -> int:
    """Download the wheels that a machine with PyTorch alone lacks; return pip's exit code."""
    platforms = [f"--platform=manylinux{name}_x86_64" for name in ("_2_28", "_2_17", "2014")]
    command = [sys.executable, "-m", "pip", "download", "--only-binary=:all:", "--python-version", python, *platforms]
    return subprocess.run([*command, "--dest", str(folder), *PACKAGES]).returncode


def main(arguments: list[str] | None = None) -> int:
    """Run the session, a child of it, or the download of wheels; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_session", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="for all stages together (default: 8)")
    parser.add_argument("--out", type=Path, default=Path("gpu_session.json"), help="the file of results")
    parser.add_argument("--face", metavar="GPU", help="rehearse on a simulated GPU that says `cuda`")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="download the wheels to carry, and stop")
    parser.add_argument("--python", default="3.12", help="with --wheels: the version of Python there")
    parser.add_argument("--child", nargs=3, metavar=("STAGE", "PART", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.wheels:
        return download(options.wheels, options.python)
    if options.child:
        if options.face:
            simgpu.cuda(options.face, gpus=1, memory=MEMORY)
        stage, part, found = options.child
        STAGES[stage](part, Path(found), options.face)
        return 0
    if not options.face and not torch.cuda.is_available():
        print("There is no CUDA device here. Rehearse with --face T4.", file=sys.stderr)
        return 2
    options.out.parent.mkdir(parents=True, exist_ok=True)
    result = session(options.minutes, options.face, options.out.absolute())
    print(summary(result))
    return int(any(seen["failed"] for by_part in result["stages"].values() for seen in by_part.values()))


if __name__ == "__main__":
    raise SystemExit(main())
