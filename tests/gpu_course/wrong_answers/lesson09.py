"""Further wrong answers to lesson 09, each with what the message must say."""

import torch
import torch.distributed as dist

from gpu_course.checks import Edit, edit


def _yields(values):
    both = torch.stack([values.sum(), values.new_tensor(len(values))])
    dist.all_reduce(both)
    yield both[0] / both[1]


def _passes_all_of_it(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    total, passing = x.clone(), x.clone()
    for _ in range(n - 1):
        arrived = torch.empty_like(passing)
        sent = dist.isend(passing, (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        sent.wait()
        total, passing = total + arrived, arrived
    return total


FAULTS = {  # of the script: what stands in it in place of lines of the reference
    "epoch": "-        sampler.set_epoch(epoch)  # 1: else every epoch has the same order",
    "model": """
-            loss = nn.functional.mse_loss(ddp(x), y)  # 2: ddp.module(x) goes around the averaging
+            loss = nn.functional.mse_loss(ddp.module(x), y)""",
    "losses": """
-        dist.all_reduce(last, op=dist.ReduceOp.AVG)  # 3: on every rank, else one waits for ever
-        losses.append(last.item())
+        if dist.get_rank() == 0: dist.all_reduce(last, op=dist.ReduceOp.AVG); losses.append(last.item())""",
    "file": "-    if dist.get_rank() == 0:  # 4: ranks that write to one file destroy it\n+    if True:",
    "names": """
-        torch.save(ddp.module.state_dict(), path)  # 5: the names of ddp.state_dict() begin with "module."
+        torch.save(ddp.state_dict(), path)""",
}
LEFT = {  # which faults are left, and what is said of them
    "waits for ranks that have returned": "epoch model losses file names",
    "every rank must call": "epoch losses file names",
    "the ranks end with different weights": "model file names",
    "epochs have the same order": "epoch file names",
    "every rank writes the file": "file names",
    'begin with "module."': "names",
}


def _script(left: str) -> Edit:
    """Return the reference with the faults of the script that are left in it."""
    return edit("\n...\n".join(FAULTS[fault].strip("\n") for fault in left.split()))


WRONG = {
    "global_mean": [
        ("rank 0 returned what cannot be sent", _yields),
    ],
    "ring_all_reduce": [
        ("a ring needs at most", _passes_all_of_it),
    ],
    "train": [(phrase, _script(left)) for phrase, left in LEFT.items()],
}
