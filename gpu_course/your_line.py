"""Line that carries progress to the next notebook, where each notebook has a machine of its own.

On Colab it has, and neither Colab nor Kaggle keeps anything when a session ends. So each lesson ends there with one
line to copy, and begins with a place to paste it; elsewhere a line is made for whoever writes a name, for a teacher:

    your_line.copy("Ada")
    your_line.paste("course-progress-3;Ada;…")

The line holds what is solved, how often which mistake was made, and the results of the examination, and nothing else.
Several lines of one person add up, and may be pasted together.
"""

import html
import os

from course_utils import arguments, devices
from gpu_course import catalogue, progress
from gpu_course import solved as store

__all__ = ["copy", "paste"]

_NAME = "name"  # under which the name is kept beside the progress
_EMPTY = "No exercise is solved yet."
_PASTE = "Do you have a line from an earlier lesson? Paste it between the quotes above, and run this cell again."
_SAYS = """\
For a teacher, it also names the mistakes that you made. Without them: your_line.copy("{}", mistakes=False)"""
# The old way to copy works in a frame of another host, as on Colab, and on a page without encryption, too.
_COPIES = "this.nextElementSibling.select(); document.execCommand('copy'); this.textContent = 'Copied'"
_LOOK = "font-family: monospace; width: min(40em, 75%)"


def paste(text: str) -> None:
    """Add what your lines in `text` say to what is solved here, and print how much that is.

    Words around a line are passed over. Of a line that cannot be read, it is printed why; it changes nothing. Neither
    do lines of several people.
    """
    if arguments.text("text", text).strip():
        for remark in _taken(text):
            print(remark)
    print(_count())
    if _forgets() and not store.solved():
        print(_PASTE)


def _count() -> str:
    """Return in one sentence how much of the course is solved."""
    every = {(lesson, name) for lesson, names in catalogue.names().items() for name in names}
    count = len(every & store.solved())
    return f"{count} of {len(every)} exercises are solved." if count else _EMPTY


def _forgets() -> bool:
    """Return whether this machine is lent, and keeps no progress."""
    return devices.service() is not None or "BINDER_SERVICE_HOST" in os.environ


def _taken(text: str) -> list[str]:
    """Apply the lines in `text`, and return remarks on them."""
    from gpu_course import classroom, exam

    read = list(classroom.lines(text.splitlines()))
    lines = [each.says for each in read if isinstance(each, classroom.Line)]
    names = sorted({each.name for each in lines if each.name}, key=str.casefold)
    if len({name.casefold() for name in names}) > 1 and len({each.code for each in lines}) > 1:
        return [f"These are lines of several people: {', '.join(names)}. Nothing was taken; paste your own line alone."]
    for each in lines:
        if isinstance(each, classroom.Progress):
            progress.take(each)
        else:
            exam.take(each)
    if names:
        store.keep(_NAME, lambda _: names[0], str)
    unread = [each for each in read if isinstance(each, classroom.Unread)]
    remarks = [f"A line could not be read: {each.fault} {each.cure}" for each in unread]
    return remarks or ([] if lines else ["This text holds no line. Yours begins with course-progress."])


def copy(name: str = "", *, mistakes: bool = True) -> None:
    """Print the line to copy, with a button for it; `name` tells an instructor whose it is, and is kept in the line.

    Without a name there is none on a machine that keeps the progress by itself. Without `mistakes` the line does not
    say which mistakes were made.
    """
    from gpu_course import exam

    if arguments.text("name", name).strip():
        store.keep(_NAME, lambda _: name.strip(), str)
    known = store.kept(_NAME, str) or ""
    if not (store.solved() or store.tries() or exam.ended()):
        print(_EMPTY)
        return
    if not (known or _forgets()):
        print(f"{_count()} This machine keeps your progress: there is nothing to copy.")
        return
    line = progress.export(known or None, mistakes=mistakes)
    if exam.ended():
        line = f"{line} {exam.line(known)}"
    place = " Paste it into the second cell of the next lesson." if _forgets() else ""
    print(f"Copy this line.{place}", line, sep="\n")
    if mistakes and store.tries():
        print(_SAYS.format(known))
    _show_button(line)


def _show_button(line: str) -> None:
    """Show a button that copies the line, and the line in a field, where HTML is shown."""
    from IPython.display import display

    button = f'<button type="button" onclick="{_COPIES}">Copy</button>'
    field = f'<input readonly aria-label="your line" style="{_LOOK}" value="{html.escape(line)}">'
    display({"text/plain": "", "text/html": f"<div>{button} {field}</div>"}, raw=True)
