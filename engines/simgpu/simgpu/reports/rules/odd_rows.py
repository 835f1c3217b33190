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
