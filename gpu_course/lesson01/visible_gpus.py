"""The exercise “Who is cuda:0?”."""

from itertools import takewhile

from gpu_course.checks import Case, edges, exercise


@exercise(
    title="Who is cuda:0?",
    minutes=10,
    difficulty=2,
    hints=(
        "None and the empty text differ. If the variable is not set, the program sees all GPUs; if it is empty, none.",
        "setting.split(',') gives the numbers as text. Go through them in order and collect them as int.",
        "`break` ends the loop: at an entry that is no number (`isdigit`), and at a number that no GPU has. The empty "
        "text needs no `if` of its own.",
    ),
)
def visible_gpus(setting: str | None, count: int) -> list[int]:
    """Return the numbers of the GPUs that a program sees, in its own order."""
    if setting is None:
        return list(range(count))
    seen = []
    for entry in setting.split(","):
        if not entry.isdigit() or int(entry) >= count:  # "", "-1" and numbers that do not exist end the list
            break
        seen.append(int(entry))
    return seen


visible_gpus.exempt("a machine has no fewer GPUs than none, and no billions", "number_negative number_large")


@visible_gpus.checks
def _(case: Case) -> None:
    edges.note("one_entry", "order", "limit")  # of the text: "1"; "2,0" and "1,2,0"; 4 of four GPUs
    for setting, count, expected in (
        (None, 2, [0, 1]),
        ("1", 2, [1]),
        ("", 2, []),
        ("2,0", 4, [2, 0]),
        ("-1", 2, []),
        ("0,2,-1,1", 4, [0, 2]),
        ("3,9,1", 4, [3]),
        ("1,2,0", 2, [1]),
        ("10,2", 16, [10, 2]),
        ("3,1,4,0", 4, [3, 1]),
        (None, 0, []),
        ("0", 0, []),
        ("3,1,2,0", 4, [3, 1, 2, 0]),  # "the numbers of the GPUs that a program sees", all of them
    ):
        got = case.call(setting, count)
        case.fail_if(
            got is None and setting is None,
            "returns nothing where the variable is not set",
            "then nothing is hidden: the program sees every GPU",
        )
        texts = isinstance(got, list) and any(isinstance(entry, str) for entry in got)
        case.fail_if(texts, "returns texts, not numbers", "'10' and 10 differ: use int(…)", expected=expected, got=got)
        case.equal(got, expected)


@visible_gpus.alternative("no branch for None and none inside the loop; the reader must know takewhile")
def _(setting, count):
    known = [str(number) for number in range(count)]
    entries = known if setting is None else setting.split(",")
    return [int(entry) for entry in takewhile(known.__contains__, entries)]
