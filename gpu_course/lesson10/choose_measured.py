"""The exercise “Choose a split that somebody measured”."""

from typing import Any

from gpu_course.checks import Case, exercise, whole_numbers
from gpu_course.lesson10 import measured

MEASURED = {"1B on 64 GPUs": ("1B", 64), "8B on 64 GPUs": ("8B", 64), "80B on 128 GPUs": ("80B", 128)}
_SIZES = "(data, tensor, pipeline, ZeRO stage, sequences of a micro-batch)"
_LIMIT = 1.25


@exercise(
    where="any machine: published runs",
    minutes=8,
    difficulty=2,
    hints=(
        "Ask for each model: does one GPU hold its weights, gradients and optimizer state, 16 bytes for each "
        "parameter? Which of them can ZeRO 1 divide?",
        "Split no more than memory asks for. Then choose what each further split costs: tensor ranks exchange "
        "activations in every layer, pipeline ranks wait at both ends of a step.",
        "1B fits into each GPU: data ranks alone. 8B does not quite: two pipeline or two tensor ranks are enough. 80B "
        "needs 32 GPUs for one copy: four tensor ranks inside a machine, the rest a pipeline, with micro-batches of 1.",
    ),
)
def choose_measured() -> dict[str, tuple[int, int, int, int, int]]:
    """Return (data, tensor, pipeline, stage, each) for each of the three tasks."""
    return {
        "1B on 64 GPUs": (64, 1, 1, 1, 1),
        "8B on 64 GPUs": (32, 1, 2, 1, 1),
        "80B on 128 GPUs": (2, 4, 16, 1, 1),
    }


choose_measured.exempt("it takes no argument", "other_input")


@choose_measured.checks
def _(case: Case) -> None:
    got = case.call()
    why = f'return {{"1B on 64 GPUs": {_SIZES}, "8B on 64 GPUs": …, "80B on 128 GPUs": …}}'
    case.fail_if(not isinstance(got, dict) or {*got} != {*MEASURED}, "does not answer the three tasks", why, got=got)
    for task, (model, gpus) in MEASURED.items():
        _check_choice(case, task, measured.runs(model, gpus), got.get(task) if isinstance(got, dict) else None)


def _check_choice(case: Case, task: str, tried: tuple[measured.Run, ...], choice: Any) -> None:
    """Check one choice by what was measured."""
    case.about(f"choose_measured() for {task}: {choice}", case.device)
    case.fail_if(not whole_numbers(choice, 5), f"is not {_SIZES}", "a tuple of five whole numbers")
    data, tensor, pipeline = choice[:3]
    gpus = tried[0].gpus
    why = "the product of data, tensor and pipeline ranks is the number of GPUs"
    case.fail_if(
        data * tensor * pipeline != gpus, f"is a mesh of {data * tensor * pipeline} GPUs, expected {gpus}", why
    )
    run = next((one for one in tried if (*one.way, one.each) == choice), None)
    others = _listed(tried, choice[:3])
    case.fail_if(
        run is None,
        "was not tried by anybody",
        f"of this mesh they tried {others}"
        if others
        else "data, tensor and pipeline ranks were powers of two, tensor ranks at most 32, the ZeRO stage 0 or 1",
    )
    case.about(f"choose_measured() for {task}: {choice}, {_billions(run):.2g} billion parameters a rank,", case.device)
    why = "16 bytes a parameter, of which ZeRO 1 divides 12 among the data ranks, and activations of `each` sequences"
    case.fail_if(not run.tokens_per_s, "ran out of memory or crashed", why)
    fastest = measured.best(tried)
    ratio = run.step_s / fastest.step_s
    said = f"{run.step_s:.2f} s a step were measured, and {fastest.step_s:.2f} s for the fastest way"
    slow = ratio > _LIMIT
    why = f"{said}: its all-reduces, four a layer, leave the machine of {measured.CLUSTER.per_machine} GPUs"
    case.fail_if(slow and run.tensor > measured.CLUSTER.per_machine, "tensor parallel across machines", why)
    why = (
        f"{said}: {run.micro} micro-batches for {run.pipeline} ranks, so the bubble is "
        f"{(run.pipeline - 1) / (run.micro + run.pipeline - 1):.0%}"
    )
    case.fail_if(slow and run.pipeline - 1 > (_LIMIT - 1) * run.micro, "a pipeline with few micro-batches", why)
    why = f"{said}: with {run.memory_gb:.0f} of 80 GB in use, an allocator has to free and ask again"
    case.fail_if(slow and run.kind == measured.LEFT_OUT[0], "fills the memory", why)
    case.fail_if(
        slow and run.tensor > 1 and fastest.tensor < run.tensor,
        "has more tensor ranks than memory asks for",
        f"{said}: with {run.tensor} tensor ranks each product is {run.tensor} times smaller, and each layer "
        "waits for its all-reduces",
    )
    case.fail_if(slow, f"takes {ratio:.2f} times as long as the fastest, and {_LIMIT} is the limit", said)


def _listed(tried: tuple[measured.Run, ...], mesh: tuple[int, ...]) -> str:
    return ", ".join(f"ZeRO {one.stage} with micro-batches of {one.each}" for one in tried if one.way[:3] == mesh)


def _billions(run: measured.Run) -> float:
    """Return how many thousand million parameters a rank of this run has."""
    sizes = measured.MODELS[run.model]
    numbers = sizes["layers"] * sizes["numbers"] + (1 if sizes["tied"] else 2) * sizes["vocabulary"] * sizes["width"]
    return numbers / run.tensor / run.pipeline / 1e9
