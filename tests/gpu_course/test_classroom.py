"""Is each line of a class read as mails, forms and chats deliver it, and is nobody's row another one's?"""

import html
import quopri
import re
import textwrap
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote_plus

import pytest

from gpu_course import catalogue, classroom, exam, misconceptions, sealing
from gpu_course.classroom import written

GUIDE = Path(__file__).parents[2] / "docs" / "instructors" / "progress.md"
REAL = {(one.lesson, one.name): one.reference for one in catalogue.registry()}
EXERCISES = [
    SimpleNamespace(
        lesson=lesson,
        name=name,
        task=SimpleNamespace(title=name.title(), minutes=3),
        reference=REAL.get((lesson, name), classroom.page),  # beside which no answers stand
    )
    for lesson, name in [("00", "double"), ("01", "pick"), ("01", "free"), ("01", "last"), ("05", "train_step")]
]
MARKS = {skill: (1, 2) for skill in exam.SKILLS}
BELIEVED = [misconceptions.every()[0].id, misconceptions.every()[4].id]
LONG = classroom.write(
    "Zoë O'Hara; 100 %", "k3f9", {("00", "double"), ("01", "pick"), ("05", "train_step")},
    {("01", "pick", "returns a string"): 4, ("01", "free", "leaves it on the CPU: 3 · ½ “so”"): 2},
)  # fmt: skip
RESULT = exam.results.line("Zoë O'Hara; 100 %", "k3f9", MARKS, MARKS, BELIEVED)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Let the course have few exercises."""
    monkeypatch.setattr(catalogue, "registry", lambda: iter(EXERCISES))


def broken(text: str, at: int, by: str = "\n") -> str:
    return by.join(textwrap.wrap(text, at, break_long_words=True))


def as_mail(text: str) -> str:
    return quopri.encodestring(text.encode()).decode()


def as_html(text: str) -> str:
    return html.escape(text).encode("ascii", "xmlcharrefreplace").decode()


def each_row(text: str, before: str) -> str:
    """Break the text into rows, each behind words in which a number goes on."""
    return "\n".join(f"{before.format(at)}{row}" for at, row in enumerate(textwrap.wrap(text, 60), 12))


def coloured(text: str) -> str:
    parts = re.split(r"(\W)", text)
    return "<pre>" + "".join(f'<span class="k">{html.escape(part)}</span>' for part in parts if part) + "</pre>"


DELIVERED = {
    "as it is": lambda line: line,
    "a BOM": lambda line: "\ufeff" + line,
    "carriage returns": lambda line: f"{line}\r\n",
    "indented": lambda line: f"\t    {line}   ",
    "a name before it": lambda line: f"Zoë: {line}",
    "a time and a name": lambda line: f"[10:03, 23.11.2026] Zoë O'Hara: {line}",
    "a name that ends in what a line ends in": lambda line: f"Bob 12:double;0a1b2c3 {line}",
    "quoted": lambda line: f"> > {line}",
    "quotation marks": lambda line: f"“{line}”,",
    "a table of a form": lambda line: f'"2026/11/23 10:02:11","Zoë","{line}"',
    "a table of markdown": lambda line: f"| Zoë | {line} |",
    "a bullet": lambda line: f"• {line}",
    "a number": lambda line: f"1. {line} 👍",
    "code": lambda line: f"`{line}`",
    "emphasis": lambda line: f"**{line}**",
    "angles": lambda line: f"<{line}>",
    "a full stop": lambda line: f"{line}.",
    "words that look like its end": lambda line: f"{line} edited",
    "words glued to it": lambda line: f"{line}abc (edited)",
    "spaces": lambda line: line.replace(";", "; "),
    "other spaces": lambda line: line.replace(";", ";\u200b\u00a0"),
    "NFD": lambda line: unicodedata.normalize("NFD", line),
    "a phone's capital": lambda line: line[0].upper() + line[1:],
    "wrapped": lambda line: broken(line, 40),
    "wrapped and indented": lambda line: broken(line, 72, "\n      "),
    "wrapped and quoted": lambda line: "> " + broken(line, 50, "\n> "),
    "wrapped and quoted twice": lambda line: "> > " + broken(line, 50, "\n> > "),
    "wrapped, with words behind it": lambda line: broken(line, 60) + "\nbest regards\nAda",
    "a mail in HTML": lambda line: f"<div dir='ltr'><p>{as_html(line)}</p><br></div>",
    "a mail in HTML that breaks words": lambda line: "<wbr>".join(textwrap.wrap(as_html(line), 40)),
    "a word processor's dashes": lambda line: line.replace("-", "–"),
    "a mail in HTML that quotes": lambda line: "&gt; " + as_html(line).replace("-", "-\n&gt; "),
    "the call that takes it": lambda line: f'your_line.paste("{line}")  # mine',
    "a messenger's unseen signs": lambda line: f"[26.11.26, 10:03] ~\u202fZoë: \u200e{line} \u200e<edited>",
    "unseen signs everywhere": "\u200b".join,
    "soft hyphens": lambda line: line.replace("n", "\u00adn"),
    "other directions of writing": lambda line: "\u202a" + line.replace("-", "-\u2066").replace(";", ";\u2069"),
    "a channel before it": lambda line: f"#gpu-class  Zoë  [10:03 AM]  {line}",
    "HTML made twice": lambda line: html.escape(as_html(line)),
    "a space in its mark": lambda line: line.replace("-", "- ", 1),
    "a space behind its mark": lambda line: line.replace(";", " ;", 1),
    "twice": lambda line: f"{line}\n{line}",
    "twice on one row": lambda line: f"{line} {line}",
}


@pytest.mark.parametrize("line", [LONG, RESULT], ids=["progress", "examination"])
@pytest.mark.parametrize("how", DELIVERED)
def test_a_line_is_read_as_mails_and_chats_deliver_it(line, how):
    delivered = DELIVERED[how](line).split("\n")
    given = ["Hello all,", "here is my line", "", *delivered, "", "Bye; see you at 10:30"]
    made = classroom.gathered(given)
    assert made.unread == [] and [(one.name, one.code) for one in made.people] == [("Zoë O'Hara; 100 %", "k3f9")]
    person = made.people[0]
    assert {*person.lines} <= {*range(4, 4 + len(delivered))}
    if line is LONG:
        said = written.read(LONG)
        assert (person.solved, person.tries) == (said.solved, said.tries) and len(said.tries) == 2
    else:
        assert (person.result.before, person.result.after) == (MARKS, MARKS)
        assert person.result.believed == dict.fromkeys(BELIEVED, 1)


def test_text_that_nearly_looks_like_lines_comes_to_an_end():
    given = [
        "c" + " " * 20_000,
        "c<" * 20_000,
        "course-" * 5_000,
        LONG[:40] + " " * 20_000,
        f"course-exam-{'9' * 6000};",
    ]
    given += ["A" * 76, "A" * 20, "Q" * 76, "=" * 9, "/" * 70, "+/8="]  # letters that say nothing
    made = classroom.gathered([*given, "c", *[""] * 20_000, *[LONG[:-1]] * 50, *["word " * 20] * 500])
    assert made.people == [] and len(made.unread) == 51


CHATTER = [
    "thanks!", "is anyone else stuck on 02? ;)", "https://example.org/a?x=1;y=2", "[10:22] Tom left the meeting", "",
    "course starts at 10:00; bring coffee", "course-progress is where?", "00:double is easy", "02: nearest? idk", "```",
    "see course-exam in lesson 00", "| a | b |",
]  # fmt: skip


def line_of(name: str, code: str = "", *parts: str) -> str:
    return sealing.sealed(";".join([written.PREFIX, quote_plus(name), code, "0.1.0", *parts]))


@pytest.mark.parametrize(
    "given, number, said",
    [
        (["hi", LONG[:-1]], 2, "seems to be of Zoë O'Hara; 100 % and could not be read: its end is missing"),
        ([LONG.replace("pick", "pack", 1)], 1, "of Zoë O'Hara; 100 % and could not be read: something in it"),
        ([RESULT.replace("1.2", "2.2", 1)], 1, "of Zoë O'Hara; 100 % and could not be read: something in it"),
        ([LONG.upper()], 1, "seems to be of ZOË O'HARA; 100 % and could not be read: its letters were made capitals."),
        ([f"{LONG[:44]} … {LONG[-20:]}"], 1, "of Zoë O'Hara; 100 % and could not be read: something in it"),
        ([LONG[1:].replace("pick", "pack", 1)], 1, "of Zoë O'Hara; 100 % and could not be read: its beginning"),
        (["", f"10:02 Ada Miller: {LONG[LONG.index(';00:') :]}"], 2, "of Ada Miller and could not be read: its"),
        ([RESULT[RESULT.index("before") :]], 1, "does not say whose it is and could not be read: its beginning"),
        ([sealing.sealed("course-progress-9;Ada;k3f9;x")], 1, "it comes from a later version of the course"),
        ([line_of("Bob", "k3f9", "!01:pick:x")], 1, "seems to be of Bob and could not be read: its checksum is right"),
        ([line_of("Bob", "<b>", "00:double")], 1, "seems to be of Bob and could not be read: something in it"),
    ],
)  # fmt: skip
def test_of_a_line_that_cannot_be_read_it_is_said_which_whose_and_what_to_do(given, number, said):
    made = classroom.gathered([*given, line_of("Carol", "abcd", "00:double")])
    assert [person.name for person in made.people] == ["Carol"]
    (unread,) = made.unread
    assert str(unread).startswith(f"line {number} ") and said in str(unread)
    assert re.search(r"It must be copied|Update", str(unread))
    assert html.escape(str(unread)) in classroom.page(made) and str(unread) in classroom.table(made)


def test_two_people_of_one_name_stay_two_and_it_is_said():
    lines = [line_of("Ben", "aaaa", "00:double"), line_of("ben", "bbbb", "01:pick"), line_of("Ben", "aaaa", "01:free")]
    made = classroom.gathered(lines)
    assert [(one.shown, one.solved) for one in made.people] == [
        ("Ben (aaaa)", {("00", "double"), ("01", "free")}),
        ("ben (bbbb)", {("01", "pick")}),
    ]
    assert made.remarks == [
        "Ben (aaaa), ben (bbbb): one name and several codes, so these are several people, or one person who went on "
        "without restoring the line of before."
    ]
    assert "Ben (aaaa)" in classroom.table(made) and made.remarks[0] in classroom.page(made)


def test_what_stands_twice_on_one_line_of_the_text_is_told_once():
    made = classroom.gathered([f"{LONG} {RESULT}", f"{LONG[:-1]} {RESULT[:-1]}"])
    assert [person.lines for person in made.people] == [[1]] and len(made.unread) == 1


def test_several_lines_of_one_person_add_up_in_any_order():
    first = line_of("Ada", "aaaa", "00:double", "!01:pick:a:3")
    second = line_of("Ada", "aaaa", "01:pick", "!01:pick:a:2", "!05:train_step:b:1")
    for lines in ([first, second], [second, first, first]):
        (ada,) = classroom.gathered(lines).people
        assert ada.solved == {("00", "double"), ("01", "pick")}
        assert ada.tries == {("01", "pick", "a"): 3, ("05", "train_step", "b"): 1}


def test_results_before_and_after_may_come_apart_and_the_first_of_each_counts():
    low, high = {"place": (0, 2)}, {"place": (2, 2)}
    before, after = (exam.results.line("Ada", "aaaa", *marks, []) for marks in ((low, {}), ({}, high)))
    again = exam.results.line("Ada", "aaaa", high, {}, [])
    (ada,) = classroom.gathered([before, after]).people
    assert (ada.result.before, ada.result.after) == (low, high)
    made = classroom.gathered([before, after, again])
    assert made.people[0].result.before == low
    assert made.remarks == ["Ada: line 3 has another result before the course; that of the earlier line counts."]
    assert "<td>0</td><td>100</td><td>+100</td>" in classroom.page(made)


HOSTILE = [
    line_of("<script>alert(1)</script>", "cccc", "!01:free:" + quote_plus("<b onclick=x>") + ":1"),
    line_of('" onmouseover="x', "dddd", "!01:pick:" + quote_plus('"><img src=x>') + ":1"),
    line_of("Eve\nAda  1  4 of 4\x1b[2J\u202e\r", "eeee", "00:double"),
    line_of("Z" + "\u0301\u0302\u0303" * 40, "ffff", "00:double"),
    line_of("x" * 3000, "gggg", "00:double"),
    line_of("Mallory", "hhhh", "!01:pick:x:99999999999999999999"),
    line_of("Trudy", "jjjj", "!01:pick:x:-5", "!99:nothing:x:1", "99:nothing"),
    "course-progress-3;Ada;aaaa;0.1.0;01:pick,free,last;00000000",
    "course-progress-3;" * 500,
    "<style>*{display:none}</style></table></main>",
]


def test_nothing_that_is_pasted_spoils_anothers_row_runs_code_or_breaks_the_page():
    ada = line_of("Ada", "aaaa", "00:double", "!01:pick:returns+a+string:4")
    alone, among = classroom.gathered([ada]), classroom.gathered([*HOSTILE[:5], ada, *HOSTILE[5:], "{", "{hash} %s"])
    of = lambda made: next(person for person in made.people if person.name == "Ada")  # noqa: E731
    assert (of(alone).solved, of(alone).tries) == (of(among).solved, of(among).tries)
    row = re.findall(r'<tr><th scope="row"><bdi>Ada</bdi>.*?</tr>', classroom.page(alone))
    page = classroom.page(among)
    assert row[1:] == re.findall(r'<tr><th scope="row"><bdi>Ada</bdi>.*?</tr>', page)[1:] and len(row) == 3
    assert page.count("<script>") == page.count("</script>") == 1 and "&lt;script&gt;" in page and "<b " not in page
    assert "<img" not in page and "<style>*" not in page and page.count("<style>") == 1 and 'onmouseover="' not in page
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" in page
    assert not re.search("[\x1b\u202e]", page) and "\u0301\u0302\u0303\u0301" not in page
    table = classroom.table(among)
    assert table.replace("\n", "").isprintable() and len([row for row in table.splitlines() if "Ada" in row[:4]]) == 1
    assert ">999<" in page and "nothing" not in page and max(map(len, re.findall("x+", page))) <= 200


def test_the_page_shows_only_lessons_that_somebody_has_begun_with_who_stands_where():
    lines = [line_of(f"P{at}", "", "00:double", "!01:pick:returns+a+string:4", "!01:free::1") for at in range(28)]
    lines.append(line_of("Solved", "", "01:pick"))
    page = classroom.page(classroom.gathered(lines))
    assert "Lesson 05" not in page and "train_step" not in page
    assert "05" not in classroom.table(classroom.gathered(lines))
    assert re.findall(r"<h3>(.*?)</h3>", page) == ["Lesson 00", "Lesson 01"]
    assert page.count('class="mark stuck"') == 28 and page.count('class="mark tried"') == 28
    cells = "<td><bdi>returns a string</bdi></td><td><bdi></bdi></td><td><bdi>28</bdi></td><td><bdi>112</bdi></td>"
    assert cells in page
    assert page.index("<bdi>returns a string</bdi>") < page.index("<bdi>other</bdi>")
    assert "<th>solved</th><td>1</td><td></td><td></td>" in page
    assert "<th>stuck or tried</th><td>28</td><td>28</td><td></td>" in page
    assert 'title="returns a string: 4"' in page


def test_the_page_of_nobody_is_a_page():
    page = classroom.page(classroom.gathered(["hello", ""]))
    assert "<h1>Which exercise stops whom</h1>" in page and "Mistakes made" not in page and "Examination" not in page


def test_the_page_is_printed_whole_and_has_dark_colours():
    page = classroom.page(classroom.gathered([LONG]))
    assert "prefers-color-scheme: dark" in page and "@media print" in page and "table-header-group" in page
    assert not re.search(r"overflow: (auto|scroll)|max-height|position: sticky|<details", page)


def test_the_examples_of_the_guide_are_read(monkeypatch):
    monkeypatch.undo()
    blocks = re.findall(r"^```\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    examples = [block.strip() for block in blocks if block.startswith("course-")]
    assert [line.partition(";")[0] for line in examples] == [written.PREFIX, exam.PREFIX]
    made = classroom.gathered(examples)
    assert made.unread == [] and len(made.people) == 1
    (ada,) = made.people
    known = {(one.lesson, one.name) for one in catalogue.registry()}
    assert ada.solved <= known and ada.tries and ada.result.before and ada.result.after
    chat = next(block for block in blocks if "course-" in block and not block.startswith("course-"))
    made = classroom.gathered(chat.splitlines())
    assert (len(made.people), len(made.unread)) == (3, 1)
