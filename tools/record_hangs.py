"""Recorder of hangs: runs the programs of lesson 11 under PyTorch's flight recorder.

python tools/record_hangs.py                  write gpu_course/lesson11/hangs.json anew, one dump a line
python tools/record_hangs.py "other types"    record this program anew, and keep the other dumps

Each rank is a process with gloo. Ten seconds after its start it writes down what `_dump_fr_trace` returns, as NCCL's
watchdog does when a collective has taken too long. Names of folders are taken out, and so are frames of what starts it.
"""

import importlib
import json
import linecache
import multiprocessing
import os
import pickle
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from gpu_course.lesson11 import flight

DUMP_AFTER_S = 10.0
PROGRAM, LIBRARY = "/home/you/train.py", "/home/you/.venv/lib/python3.12/site-packages/torch/"
DROPPED = ("thread_id", "thread_name")


def record(hang: flight.Hang) -> list[dict[str, Any] | None]:
    """Run the program of `hang`, and return the dump of each rank; None where a rank ended before."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        ranks = [context.Process(target=_rank, args=(hang, rank, port, folder)) for rank in range(hang.ranks)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
        paths = [Path(folder) / f"rank_{rank}" for rank in range(hang.ranks)]
        return [_cleaned(pickle.loads(path.read_bytes())) if path.exists() else None for path in paths]


def _rank(hang: flight.Hang, rank: int, port: int, folder: str) -> None:
    """Run the program as one rank, and write its dump, unless the program ends the process."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCH_FR_BUFFER_SIZE": str(hang.keeps)}
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=rank, world_size=hang.ranks)
    path = Path(folder) / f"rank_{rank}"
    names: dict[str, Any] = {"dist": dist, "os": os, "time": time, "torch": torch}
    if hang.at:
        _in_turn(dist, hang, rank, path)
    lines = hang.program.splitlines(keepends=True)
    linecache.cache[PROGRAM] = len(hang.program), None, lines, PROGRAM
    exec(compile(hang.program, PROGRAM, "exec"), names)  # the programs are ours
    threading.Thread(target=names["train"], args=(rank,), daemon=True).start()
    time.sleep(DUMP_AFTER_S)
    _write(path)
    os._exit(0)


def _write(path: Path) -> None:
    if not path.exists():  # by its name: PyTorch's types do not have the recorder
        path.write_bytes(importlib.import_module("torch._C._distributed_c10d")._dump_fr_trace())


def _in_turn(dist: Any, hang: flight.Hang, rank: int, path: Path) -> None:
    """Make call number `hang.at` on the ranks `hang.first` before the others; each is recorded at once."""
    calls, all_reduce = 0, dist.all_reduce

    def counted(tensor: Any) -> None:
        nonlocal calls
        calls += 1
        if calls < hang.at:
            all_reduce(tensor)
            return
        earlier = [path.with_name(f"rank_{one}") for one in hang.first if rank not in hang.first]
        while not all(one.exists() for one in earlier):
            time.sleep(0.01)
        all_reduce(tensor, async_op=True)
        _write(path)
        time.sleep(2 * DUMP_AFTER_S)

    dist.all_reduce = counted


def _cleaned(dump: dict[str, Any]) -> dict[str, Any]:
    """Return the dump without what is of this machine alone."""
    for entry in dump["entries"]:
        kept = []
        for frame in entry["frames"]:
            if "/torch/" in frame["filename"]:
                name = LIBRARY + frame["filename"].rpartition("/torch/")[2]
                kept.append({**frame, "filename": name})
            elif frame["filename"] == PROGRAM:
                kept.append(frame)
        entry["frames"] = kept
        for name in DROPPED:
            entry.pop(name, None)
    return dump


def main(*names: str) -> None:
    """Record the hangs of these names, or all, and write the file."""
    kept = json.loads(flight.DUMPS.read_text(encoding="utf-8")) if names else {}
    named = {one: record(hang) if not names or one in names else kept[one] for one, hang in flight.programs().items()}
    rows = []
    for name, dumps in named.items():
        lines = ",\n  ".join(json.dumps(dump) for dump in dumps)
        rows.append(f" {json.dumps(name)}: [\n  {lines}\n ]")
    flight.DUMPS.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
