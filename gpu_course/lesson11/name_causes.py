"""The exercise “Incidents”."""

from typing import Any

from gpu_course.checks import Case, edit, exercise
from gpu_course.lesson11.incidents import CAUSES, INCIDENTS, LOOKS, Incident


@exercise(
    title="Incidents",
    where="any machine: published incidents",
    minutes=16,
    difficulty=2,
    hints=(
        "First sort them: does a log name a part (memory, bus, shared memory, network), do ranks wait, is it only "
        "slower, or are the numbers wrong? Each cause occurs once.",
        "Print LOOKS: each look says what it can show. Choose the one that would prove your cause, or refute it.",
        "`judge(name, cause, look)` says of a wrong cause what would have been seen then. Compare that with what is "
        "shown.",
    ),
)
def name_causes() -> dict[str, tuple[str, str]]:
    """Return (cause, next look) for each incident."""
    return {
        "busy, and cool": ("ranks wait in a collective", "dumps of all ranks"),
        "a line in the kernel's log": ("a row of memory is replaced", "reset the GPU, count spare rows"),
        "a crash on one node": ("an error in memory that nothing corrects", "dcgmi diag, its longest test"),
        "a GPU that was there": ("the GPU is not on the bus", "the kernel's log, slot and power"),
        "two watchdogs": ("ranks call different collectives", "the code of both operations"),
        "the end of the epoch": ("ranks have different numbers of batches", "the batches of each rank"),
        "stuck in evaluation": ("a rank waits for its data", "the workers of that rank"),
        "eight GPUs, 6 GB/s": ("no fast link between the GPUs", "bandwidth of one socket alone"),
        "the network that was paid for": ("NCCL does not use InfiniBand", "InfiniBand inside the container"),
        "it does not start": ("/dev/shm is full", "df -h /dev/shm"),
        "a peak in the curve": ("a spike of the loss", "the next hundred steps"),
        "the run that never got far": ("training is unstable in float16", "norms of gradients and activations"),
        "five per cent": ("one GPU is slow", "step times without some nodes"),
        "glitches": ("a GPU computes wrong results", "dcgmi diag, its longest test"),
        "a job that ends": ("the scheduler took the machine", "when the program saves, and resumes"),
        "too good after each restart": ("data come again after a resume", "the position in the data"),
    }


name_causes.exempt("it takes no argument", "other_input")


@name_causes.checks
def _(case: Case) -> None:
    got = case.call()
    answers = got if isinstance(got, dict) else {}
    missing = [name for name in INCIDENTS if name not in answers]
    case.fail_if(missing, "does not answer all incidents", f"missing: {', '.join(missing[:3])}")
    strange = [name for name in answers if name not in INCIDENTS]
    case.fail_if(strange, f"has the key {strange[:1]}", "the names of the incidents are those of INCIDENTS")
    for name, incident in INCIDENTS.items():
        _check_answer(case, name, incident, answers.get(name))


def _check_answer(case: Case, name: str, incident: Incident, answer: Any) -> None:
    """Check the cause and the next look of one incident."""
    case.about(f"name_causes() for {name!r}: {answer}", case.device)
    pair = isinstance(answer, tuple) and len(answer) == 2
    known = pair and answer[0] in list(CAUSES) and answer[1] in list(LOOKS)  # lists take what is unhashable, too
    case.fail_if(not known, "is not (cause, look) of the two lists", "print CAUSES and LOOKS, and copy the names")
    if known:
        cause, look = answer
        case.fail_if(cause != incident.cause, f"its cause is not: {cause}", f"then {CAUSES[cause]}")
        case.fail_if(look != incident.look, f"does not follow from {cause}", f"{look} shows {LOOKS[look]}")


name_causes.alternative(
    "the answers as rows, which are easier to extend by incidents of your own",
    edit("""
        -    return {
        +    return dict({
        ...
        -    }
        +    })
    """),
)
