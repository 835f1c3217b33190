"""Solutions on paper for instructors: `make solutions` writes build/solutions.html."""

import html
import sys
from pathlib import Path

from gpu_course.catalogue import registry
from gpu_course.checks import Exercise, source_of

__all__ = ["main", "page"]

TARGET = Path(__file__).resolve().parents[1] / "build" / "solutions.html"
STYLE = """
body { font: 15px/1.5 Georgia, serif; max-width: 52rem; margin: 2rem auto; color: #222222; background: #ffffff; }
pre { font: 13px/1.4 "DejaVu Sans Mono", monospace; white-space: pre-wrap; border-left: 3px solid #0072b2; padding-left: 1em; }
section { break-inside: avoid; } h2 { break-before: page; }
"""  # noqa: E501


def page() -> str:
    """Return the page: exercises by lesson, each with the reference, other styles, and known mistakes."""
    parts, lesson = [], ""
    for found in registry():
        if found.lesson != lesson:
            lesson = found.lesson
            parts.append(f"<h2>Lesson {lesson}</h2>")
        parts.append(_section(found))
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Solutions</title><style>{STYLE}</style>'
    return f"{head}<h1>Solutions</h1>{''.join(parts)}</html>\n"


def _section(found: Exercise) -> str:
    task = found.task
    parts = [f"<h3>{html.escape(task.title)}: <code>{found.name}</code>, {task.minutes} minutes</h3>"]
    parts.append(f"<pre>{html.escape(source_of(found.reference).rstrip())}</pre>")
    for other in found.alternatives:
        cost = html.escape(other.cost)
        parts.append(f"<p>Another style: {cost}.</p><pre>{html.escape(other.source.rstrip())}</pre>")
    known = dict.fromkeys((mistake.name, mistake.why) for mistake in found.mistakes)
    rows = "".join(f"<li><b>{html.escape(name)}</b>: {html.escape(why)}</li>" for name, why in known)
    return f"<section>{''.join(parts)}<p>Mistakes that the check names:</p><ul>{rows}</ul></section>"


def main() -> int:
    """Write the page; return the exit status."""
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(page(), encoding="utf-8")
    print(TARGET.as_uri())
    return 0


if __name__ == "__main__":
    sys.exit(main())
