"""The exercise “Write a schedule”."""

from gpu_course.checks import Case, exercise
from gpu_course.lesson10.pipelines import Schedule, ScheduleError


@exercise(
    minutes=10,
    difficulty=2,
    where="schedules of 1 to 5 ranks",
    hints=(
        "Draw it for 3 ranks. When can the first gradient reach rank 2, then rank 1, then rank 0? Until then, a rank "
        "can do nothing but forward passes.",
        "The last rank does F0 B0 F1 B1 and so on. Each rank before it does one more forward pass at the start.",
        "A line has three parts: first ranks - 1 - rank forward passes (but never more than there are micro-batches), "
        "then one F and one B in turn, then the backward passes that are left. Collect the words in a list, and join "
        "them.",
    ),
)
def write_schedule(ranks: int, micro: int) -> str:
    """Return a schedule's text: GPipe's bubble, at most `ranks` held on each rank."""
    lines = []
    for rank in range(ranks):
        early = min(micro, ranks - 1 - rank)  # until the first gradient can be here
        line = [f"F{number}" for number in range(early)]
        for number in range(micro):
            if early + number < micro:
                line.append(f"F{early + number}")
            line.append(f"B{number}")
        lines.append(" ".join(line))
    return "\n".join(lines)


write_schedule.exempt("counts are small numbers above 0", "number_zero number_negative number_large limit")


@write_schedule.checks
def _(case: Case) -> None:
    for ranks, micro in ((1, 2), (2, 3), (3, 2), (3, 1), (3, 6), (4, 8), (5, 3), (5, 7)):
        text = case.call(ranks, micro)
        why = 'the lines are joined by "\\n"'
        case.fail_if(
            not isinstance(text, str), f"returns {type(text).__name__}, expected one text: a line for each rank", why
        )
        try:
            schedule = Schedule(text)
        except ScheduleError as error:
            case.fail(str(error), "no ranks can run that: they would raise, or wait for ever", got=text)
        size = len(schedule.ranks), schedule.micro
        case.fail_if(
            size != (ranks, micro),
            f"has {size[0]} lines and {size[1]} micro-batches, expected {ranks} and {micro}",
            "write a line for each rank, and in it each micro-batch, from 0 on",
            got=text,
        )
        case.fail_if(schedule.stages != ranks, f"has {schedule.stages} stages, expected {ranks}: one a rank", got=text)
        most, allowed = max(schedule.held), (ranks - 1) / (micro + ranks - 1)
        case.fail_if(
            most > ranks,
            f"rank {schedule.held.index(most)} holds {most} micro-batches at once, the limit is {ranks}",
            "activations are kept from F to B: go back as soon as a gradient can be there",
            got=text,
        )
        case.fail_if(
            schedule.bubble > allowed + 1e-9,
            f"ranks idle too long: the bubble is {schedule.bubble:.1%}, that of GPipe {allowed:.1%}",
            "while the first micro-batch is on its way, a rank can do the next",
            got=text,
        )
