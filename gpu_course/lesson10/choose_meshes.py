"""The exercise “Choose for three clusters”."""

from typing import Any
from unittest import mock

from gpu_course.checks import Case, edit, exercise, whole_numbers
from gpu_course.lesson10 import plans

# ---- which mesh


TASKS = {
    "large": {"model": "GPT-3 175B", "cluster": "DGX H100, InfiniBand", "gpus": 64, "sequences": 1024},
    "slow": {"model": "Cerebras-GPT 2.7B", "cluster": "4 × RTX 4090, Ethernet", "gpus": 64, "sequences": 1024},
    "wide": {"model": "Cerebras-GPT 13B", "cluster": "DGX H100, InfiniBand", "gpus": 512, "sequences": 512},
}


@exercise(
    title="Choose for three clusters",
    where="any machine: formulas",
    minutes=8,
    difficulty=2,
    hints=(
        "Try meshes with parallel_plan.plan, or in the explorer, and look at `fits` and at `times`. Where do the slow "
        "ones spend their time?",
        "Ask for each task: does one GPU hold the model? If not, which group can stay inside a machine? If it does, "
        "what would have to travel over the slow link for each micro-batch?",
        "Have no more tensor ranks than a machine has GPUs. A pipeline wants many more micro-batches than ranks, so "
        "few data ranks. Sharding the parameters sends them for each micro-batch; sharding the optimizer alone sends "
        "no more than plain data parallelism.",
    ),
)
def choose_meshes() -> dict[str, tuple[int, int, int]]:
    """Return (tensor, pipeline, stage) for each of the three tasks."""
    return {
        "large": (4, 16, 0),  # no GPU holds it: tensors inside a machine, then deep, with 1,024 micro-batches
        "slow": (1, 1, 1),  # the model fits: only gradients travel, and the optimizer is shared
        "wide": (1, 1, 3),  # fast links, small batches: all is gathered behind the computation
    }


_MOST_PLANS = 30  # in one call; a search tries hundreds


choose_meshes.exempt("it takes no argument", "other_input")


@choose_meshes.checks
def _(case: Case) -> None:
    counted = mock.Mock(wraps=plans.Rank)  # each plan makes one
    with mock.patch.object(plans, "Rank", counted):
        got = case.call()
    case.fail_if(
        counted.call_count > _MOST_PLANS,
        f"tries {counted.call_count} meshes: that is a search, not a choice",
        "the next cluster is in no list: reason which mesh suits, and try a few",
        got=got,
    )
    case.fail_if(
        not isinstance(got, dict) or {*got} != {*TASKS},
        "does not answer the three tasks",
        'return {"large": (tensor, pipeline, stage), "slow": …, "wide": …}',
        got=got,
    )
    for name, task in TASKS.items():
        _check_mesh(case, name, task, got.get(name) if isinstance(got, dict) else None)


def _check_mesh(case: Case, name: str, task: dict[str, Any], mesh: Any) -> None:
    """Check one choice by the explorer's formulas."""
    case.about(f"choose_meshes() for {name}: {mesh}", case.device)
    case.fail_if(
        not whole_numbers(mesh, 3) or min(mesh) < 0 or mesh[2] > 3 or 0 in mesh[:2],
        "is no (tensor, pipeline, stage)",
        "a tuple of three whole numbers, the last from 0 to 3",
    )
    try:
        tensor, pipeline, stage = map(int, mesh)
        made = plans.plan(**task, tensor=tensor, pipeline=pipeline, stage=stage)
    except (ValueError, TypeError) as error:
        case.fail(str(error))
    best, links = plans.plans(**task)[0], plans.CLUSTERS[task["cluster"]]
    slow, gap = made.step_s > 1.25 * best.step_s, made.step_s / best.step_s
    held = f"{made.memory_bytes / 2**30:.0f} GiB on the fullest rank, and a GPU has {made.room_bytes / 2**30:.0f}"
    case.fail_if(not made.fits, "does not fit", held)
    most = max(list(made.times)[1:], key=made.times.__getitem__)  # beside computation
    case.fail_if(
        slow and most == "tensor messages" and made.tensor > links.per_machine,
        "tensor parallel across machines",
        f"{made.times['tensor messages']:.1f} s of a step of {made.step_s:.1f} s: four all-reduces a layer, "
        f"which nothing hides, leave the machine of {links.per_machine} GPUs",
    )
    case.fail_if(
        slow and most == "data messages" and made.stage > 1,
        "waits for what is sharded",
        f"gradients{' and parameters' * (made.stage == 3)} are sent for every "
        f"micro-batch: {made.times['data messages']:.1f} s of a step of {made.step_s:.1f} s over this link",
    )
    case.fail_if(
        slow and most == "pipeline" and made.pipeline - 1 > 0.2 * made.micro_batches,
        "a pipeline with few micro-batches",
        f"{made.micro_batches} micro-batches for {made.pipeline} ranks: "
        f"{made.times['pipeline']:.2f} s of a step of {made.step_s:.2f} s are waiting and messages",
    )
    case.fail_if(
        slow,
        f"takes {gap:.2f} times the best, and 1.25 is the limit",
        f"of {made.step_s:.2f} s most beside computation: {most}, {made.times[most]:.2f} s",
    )


choose_meshes.alternative(
    "a tensor group as large as a machine, and a shorter pipeline: 1.16 times as long, with fewer activations",
    edit("""
-        "large": (4, 16, 0),  # no GPU holds it: tensors inside a machine, then deep, with 1,024 micro-batches
+        "large": (8, 4, 1),  # no GPU holds it: tensors in a whole machine, then four stages, the optimizer shared
    """),
)
