"""A product in 16 bits of matrices with rows of no multiple of 8 elements is slow on some GPUs."""

from collections.abc import Iterable

from simgpu.reports.rule import Outcome, Rule


class OddRows(Rule, about="time", often="each step"):
    text = (
        "This multiplies matrices in 16 bits whose rows are no multiple of 8 elements: tensor cores read them in "
        "small pieces. Round the size up, such as 50,257 to 50,304, and leave the rest unused."
    )
    cure = "sizes that are multiples of 8"

    def late_lines(self, outcome: Outcome) -> Iterable[str]:
        return outcome.odd_rows


BAD = [
    (
        "scores = model(x)\n",
        "scores = model(x) + (torch.ones(6145, 6145, device='cuda').half() @ torch.ones(6145, 4, device='cuda').half())"
        ".float().mean()\n",
        "torch.ones(6145, 4",
    ),
]  # fmt: skip
GOOD = {
    "few odd rows": (
        "scores = model(x)\n",
        "scores = model(x) + (torch.ones(65, 65, device='cuda').half() @ torch.ones(65, 4, device='cuda').half())"
        ".float().mean()\n",
    ),
}  # fmt: skip
