"""Is each term explained in one place, and does the glossary find that place and its sentence?"""

import re
import tomllib
from collections import Counter
from pathlib import Path

import nbformat
from nbformat import v4

from tools import glossary, notebooks

SEVERAL_MEANINGS = {"fused", "mask", "schedule", "shared memory"}  # each of its own lesson

TEXT = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["text"]


def made(tmp_path):
    path = tmp_path / "03_made.ipynb"
    cells = [v4.new_markdown_cell("# 03 Made"), v4.new_markdown_cell(TEXT), v4.new_code_cell("2**3**4")]
    nbformat.write(v4.new_notebook(cells=cells), path)
    return path


def test_a_term_has_the_sentence_the_item_or_the_row_that_explains_it(tmp_path):
    assert {(entry.term, entry.sentence) for entry in glossary.entries([made(tmp_path)])} == {
        ("host", "The CPU and its main memory, where Python runs, are the host."),
        ("kernel", "A kernel is a program that runs on the GPU."),
        ("peak rate", "the peak rate: what it can do at most, as its data sheet says"),
        ("overhead", "Python and the driver need some time for each line. This is overhead."),
        ("live", "live: measured on this machine"),
    }


def test_each_place_gets_a_label_and_keeps_its_text():
    marked = glossary.with_targets(TEXT, "03")
    labels = re.findall(r"^\((term-[\w-]+)\)=\n", marked, re.MULTILINE)
    assert labels == ["term-03-host", "term-03-kernel", "term-03-overhead", "term-03-peak-rate", "term-03-live"]
    assert re.sub(r"^\(term-[\w-]+\)=\n", "", marked, flags=re.MULTILINE) == TEXT


def test_each_term_of_the_course_is_explained_once():
    found = glossary.entries()
    assert len({entry.label for entry in found}) == len(found)  # once in a lesson
    count = Counter(entry.term.casefold() for entry in found)
    assert {term for term, times in count.items() if times > 1} == SEVERAL_MEANINGS
    assert len(found) > 150
    lessons = {notebooks.number(path) for path in notebooks.lessons()} - {"00b"}  # whose terms the lessons explain
    assert {entry.lesson.split()[0] for entry in found} >= lessons
    short = [entry.term for entry in found if len(entry.sentence.split()) < len(entry.term.split()) + 3]
    assert short == []


def test_the_page_lists_all_terms_in_order_and_links_each():
    page = glossary.page()
    terms = re.findall(r"^\*\*(.+)\*\*$", page, re.MULTILINE)
    assert terms == sorted(terms, key=str.casefold)
    links = re.findall(r"\]\(#(term-[\w-]+)\)$", page, re.MULTILINE)
    assert sorted(links) == sorted(entry.label for entry in glossary.entries())
