"""The exercise “Memory of a rank”."""

from gpu_course.checks import Case, exercise

# ---- what a rank holds


@exercise(
    where="any machine: only numbers",
    minutes=8,
    difficulty=2,
    hints=(
        "First count the parameters of a rank before any sharding. Which two of the three sizes of the mesh cut them?",
        "Each takes 2, 2 and 12 bytes. Which of these does stage 1 divide by data, which stage 2, which stage 3? Data "
        "ranks have different batches, so they share no activations.",
        "With 1F1B, the first rank holds as many micro-batches as the pipeline has ranks, for each of its own layers. "
        "In stage 3, one layer is gathered while it computes, at 2 bytes a number: what tensor ranks leave of it, "
        "undivided by data.",
    ),
)
def rank_bytes(
    layers: int, parameters: int, split: int, whole: int, data: int, tensor: int, pipeline: int, stage: int
) -> dict[str, float]:
    """Return the bytes of each owner on a rank of the first pipeline stage."""
    mine = layers // pipeline
    held = mine * parameters / tensor  # numbers that a rank has before they are sharded
    gathered = parameters / tensor if stage == 3 else 0  # one layer, while it computes
    kept = split / tensor + whole  # of a layer and micro-batch
    return {
        "parameters": 2 * (held / (data if stage >= 3 else 1) + gathered),
        "gradients": 2 * held / (data if stage >= 2 else 1),
        "optimizer": 12 * held / (data if stage >= 1 else 1),
        "activations": mine * kept * pipeline,  # as many micro-batches as ranks
    }


_MODEL = {"layers": 24, "parameters": 1200, "split": 600, "whole": 200}
_MESHES = [  # data, tensor, pipeline, stage
    (1, 1, 1, 0), (8, 1, 1, 0), (8, 1, 1, 1), (8, 1, 1, 2), (8, 1, 1, 3), (1, 4, 1, 0), (1, 1, 3, 0), (4, 2, 1, 3),
    (2, 4, 3, 1), (2, 2, 3, 3), (1, 4, 1, 3), (7, 9, 1, 2),
]  # fmt: skip


def rank_of(layers: int, parameters: int, split: int, whole: int, data: int, tensor: int, pipeline: int, stage: int):
    """Count one layer after the other, what is there of it for each owner."""
    nbytes = dict.fromkeys(("parameters", "gradients", "optimizer", "activations"), 0.0)
    for _ in range(layers // pipeline):
        for owner, bytes_each, least in (("parameters", 2, 3), ("gradients", 2, 2), ("optimizer", 12, 1)):
            shards = tensor * data if stage >= least else tensor
            nbytes[owner] += bytes_each * parameters / shards
        for _ in range(pipeline):
            nbytes["activations"] += split / tensor + whole
    nbytes["parameters"] += 2 * parameters / tensor * (stage == 3)
    return nbytes


rank_bytes.exempt("counts are small numbers above 0", "number_negative number_large limit")


@rank_bytes.checks
def _(case: Case) -> None:
    for mesh in _MESHES:
        sizes = dict(zip(("data", "tensor", "pipeline", "stage"), mesh, strict=True))
        got, right = case.call(**_MODEL, **sizes), rank_of(**_MODEL, **sizes)
        same = isinstance(got, dict) and got.keys() == right.keys()  # in any order
        for owner in right if same else ():
            case.equal(got[owner], float(right[owner]), why=f"these are the bytes of the {owner}")
        if not same:
            case.equal(got, right)
