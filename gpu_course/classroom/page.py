"""Page of a class: which exercise stops whom, by which mistake, in sortable HTML.

Nothing that somebody wrote into a line becomes part of the page's code: texts are escaped, and the page lets no script
run but its own.
"""

import base64
import hashlib
import html
from collections.abc import Iterable
from pathlib import Path

from gpu_course import catalogue, exam, look, misconceptions
from gpu_course.checks import OTHER, beside
from gpu_course.classroom.people import Class, Person
from gpu_course.classroom.table import begun

__all__ = ["page"]

_STUCK = 2  # more wrong answers than that, and not solved
_MOST = 30  # mistakes that the page lists
_SIGNS = {"solved": "✓", "stuck": "✗", "tried": "·", "": ""}

_STYLE = "\n" + Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
_SCRIPT = "\n" + Path(__file__).with_suffix(".js").read_text(encoding="utf-8")

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src '{hash}'">
<title>Which exercise stops whom</title><style>{style}</style>
<main><h1>Which exercise stops whom</h1>
<p>✓ solved, · tried, ✗ wrong more than twice and not solved; the number counts wrong answers. Point at a cell to see
the mistakes. The head of a column sorts by it. Lessons that nobody has begun are left out.</p>
{sections}
</main><script>{script}</script></html>
"""


def page(of: Class) -> str:
    """Return the page."""
    sections = [
        _listed("Who is who", of.remarks),
        _listed("Lines that could not be read", map(str, of.unread)),
        _overview(of),
        *(_lesson(of.people, lesson, names) for lesson, names in begun(of)),
        _mistakes(of.people),
        exam.class_section([person.result for person in of.people if person.result is not None]),
    ]
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    return _PAGE.format(
        style=_STYLE, script=_SCRIPT, hash=f"sha256-{digest}", sections="\n".join(filter(None, sections))
    )


def _listed(title: str, texts: Iterable[str]) -> str:
    rows = "".join(f"<li><bdi>{html.escape(text)}</bdi></li>" for text in texts)
    return f"<h2>{title}</h2><ul>{rows}</ul>" if rows else ""


def _table(head: Iterable[str], rows: Iterable[str], foot: Iterable[str] = (), kind: str = "") -> str:
    cells = "".join(f'<th scope="col"><button>{html.escape(each)}</button></th>' for each in head)
    feet = "".join(f"<tr>{row}</tr>" for row in foot)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<table class="{kind}"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody><tfoot>{feet}</tfoot></table>'


def _who(person: Person) -> str:
    return f'<th scope="row"><bdi>{html.escape(person.shown)}</bdi></th>'


def _overview(of: Class) -> str:
    """Return a row for each person: how much of each lesson is solved, and where it stops."""
    lessons = begun(of)
    rows = []
    for person in of.people:
        cells, total = [], 0
        for lesson, names in lessons:
            kinds = [_kind(person, (lesson, name)) for name in names]
            solved, stuck = kinds.count("solved"), kinds.count("stuck")
            kind = "stuck" if stuck else "solved" if solved == len(names) else "tried" if any(kinds) else ""
            said = f"{solved}{f' ✗{stuck}' if stuck else ''}" if any(kinds) else ""
            cells.append(f'<td class="{kind}" data-sort="{solved}">{said}</td>')
            total += solved
        rows.append(f'{_who(person)}{"".join(cells)}<td data-sort="{total}">{total}</td>')
    head = ["name", *(f"{lesson} (of {len(names)})" for lesson, names in lessons), "all"]
    return "<h2>Solved by lesson</h2>" + _table(head, rows)


def _lesson(people: list[Person], lesson: str, names: list[str]) -> str:
    """Return the table of one lesson: a row for each person who has begun it, a column for each exercise."""
    here = [person for person in people if any(_kind(person, (lesson, name)) for name in names)]
    rows = [_who(person) + "".join(_cell(person, (lesson, name)) for name in names) for person in here]
    feet = []
    for title, kinds in (("solved", ("solved",)), ("stuck or tried", ("stuck", "tried"))):
        counts = [sum(_kind(person, (lesson, name)) in kinds for person in here) for name in names]
        feet.append(f"<th>{title}</th>" + "".join(f"<td>{count or ''}</td>" for count in counts))
    return f"<h3>Lesson {html.escape(lesson)}</h3>" + _table(["name", *names], rows, feet, "exercises")


def _wrong(person: Person, key: tuple[str, str]) -> dict[str, int]:
    return {each[2] or OTHER: count for each, count in person.tries.items() if each[:2] == key}


def _kind(person: Person, key: tuple[str, str]) -> str:
    count = sum(_wrong(person, key).values())
    return "solved" if key in person.solved else "stuck" if count > _STUCK else "tried" if count else ""


def _cell(person: Person, key: tuple[str, str]) -> str:
    """Return the cell of one person and exercise; its sign says whether it is solved, its number the wrong answers."""
    wrong, kind = _wrong(person, key), _kind(person, key)
    said = html.escape("; ".join(f"{name}: {times}" for name, times in sorted(wrong.items())))
    order = {"solved": 0, "tried": 1, "stuck": 2, "": 3}[kind]
    return (
        f'<td class="mark {kind}" title="{said}" data-sort="{order} {sum(wrong.values())}">'
        f"{_SIGNS[kind]}{sum(wrong.values()) or ''}</td>"
    )


def _mistakes(people: list[Person]) -> str:
    """Return a table of the mistakes that most people made; those of one exercise without a name count together."""
    known = {(found.lesson, found.name): found for found in catalogue.registry()}
    made: dict[tuple[str, str, str], list[int]] = {}
    for person in people:
        for each, count in person.tries.items():
            if count and each[:2] in known:
                made.setdefault((*each[:2], each[2] or OTHER), []).append(count)
    order = sorted(made, key=lambda each: (each[2] == OTHER, -len(made[each]), -sum(made[each]), each))[:_MOST]
    if not order:
        return ""
    rows = []
    for each in order:
        ids = {row.name: row.belief for row in beside(known[each[:2]].reference).rows if row.belief}
        belief = misconceptions.get(ids[each[2]]).name if each[2] in ids else ""
        texts = (f"{each[0]} {each[1]}", each[2], belief, str(len(made[each])), str(sum(made[each])))
        rows.append("".join(f"<td><bdi>{look.inline(text)}</bdi></td>" for text in texts))
    return "<h2>Mistakes made by most</h2>" + _table(["exercise", "mistake", "behind it", "people", "times"], rows)
