"""Gains of torch.compile: published times of networks with and without it, beside the clock's predictions.

    python -m benchmarks.compiled

Stored are twenty networks, two drawn by chance and one of each of the quickest families, most of them small; and those
that a rule drew, which was fixed before any of them was predicted: of the networks that timm's tables of the RTX 5090
have with the same size of image and the same batch, plain and compiled, in the order of their names, every fourth,
which are 256; and of all others every twenty-eighth, from the third on. On the RTX 4090 those of them whose tables
agree so. What could not be predicted was named, and left out. `benchmarks.published` predicts them again. Stored are
predictions from before kernels had their loops and buffers of more than a billion numbers: of 45 drawn again 34 are
the same, and the median error of a step is 4.8 % instead of 4.6.

No constant of the clock was chosen by compiled runs, and none by any run on the RTX 5090.
"""

import itertools
import statistics

from course_utils import tables
from simgpu import evidence

CLASSES = (1, 5, 20)  # bounds of the classes of size: billions of multiplications and additions for an image


def show(bar: evidence.ErrorBar) -> None:
    """Print how far the clock is from these runs, by GPU and by size of the network."""
    found = []
    for gpu in ("RTX 5090", "RTX 4090"):
        runs = bar.where(lambda run, gpu=gpu: run.gpu == gpu and run.eager is not None)
        for name, low, high in _classes():
            part = runs.where(lambda run, low=low, high=high: low <= run.eager.gmacs < high)
            if len(part.runs) > 1:
                found.append([gpu, name, f"{len(part.runs):,}", *_cells(part)])
    head = ("GPU", "GMACs", "networks", "error of a step", "gain, measured", "error of the gain", "rank correlation")
    print(tables.text(found, head, right=range(2, 7)))
    print("Errors are medians of |predicted / measured - 1|; the correlation is Spearman's, of the gains.")


def _classes() -> list[tuple[str, float, float]]:
    bounds = [0.0, *map(float, CLASSES), float("inf")]
    parts = [(f"{low:g} to {high:g}", low, high) for low, high in itertools.pairwise(bounds)]
    return [("all", 0.0, float("inf")), *parts]


def _cells(bar: evidence.ErrorBar) -> list[str]:
    gain = statistics.median(run.eager.measured_ms / run.measured_ms for run in bar.runs)
    return [
        f"{bar.median_error:.1%}", f"{gain:.2f}", f"{bar.gains.median_error:.1%}", f"{bar.gains.rank_correlation:.2f}"
    ]  # fmt: skip


if __name__ == "__main__":
    show(evidence.error_bar())
