"""The course as one file to print: `make pdf` writes build/site/course.pdf from the built site.

Needs the pages that `make site` wrote, and the system's Chromium; where there is none, one sentence says so.
"""

import argparse
import shutil
import sys
from pathlib import Path

import yaml

from tools import notebooks, website

__all__ = ["FLAGS", "chromium", "main", "printable"]

NAME = "course.pdf"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
LOOK = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
# What is of no use on paper.
HIDDEN = "a.headerlink, script, .admonition.note, details.hide:not(.below-input), details.hide > summary"
FOOT = (
    '<div style="width: 100%; text-align: center; font: 8px sans-serif;">'
    '<span class="pageNumber"></span> / <span class="totalPages"></span></div>'
)


def chromium() -> str | None:
    """Return the path of the system's Chromium or Chrome, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def printable(site: Path) -> str:
    """Return one page, as it would lie in `site`/notebooks: a title, the contents, and every lesson in its order."""
    from bs4 import BeautifulSoup

    found: list[str] = []
    titles: list[str] = []
    for path in notebooks.lessons():
        page = BeautifulSoup((site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8"), "html.parser")
        (article,) = page.select("article.bd-article")
        for hidden in article.select(
            "a.headerlink, script, .admonition.note, details.hide:not(.below-input), details.hide > summary"
        ):
            hidden.decompose()
        for details in article.select("details"):
            details["open"] = ""
        titles.append(article.select("h1")[0].get_text())
        found.append(str(article))
    listed = "".join(f"<li>{title}</li>" for title in titles)
    cited = yaml.safe_load((notebooks.ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    authors = ", ".join(author["name"] for author in cited["authors"])
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{cited["title"]}</title>'
        f'<link rel="stylesheet" href="../_static/pygments.css"><style>{LOOK}</style></head><body data-theme="light">'
        f'<section class="title"><h1>{cited["title"]}</h1><p>{authors}</p>'
        f'<p>Version {cited["version"]}</p></section><nav class="contents"><h2>Lessons</h2>'
        f'<ul style="list-style: none">{listed}</ul></nav>{"".join(found)}</body></html>'
    )


def main(site: Path = website.SITE) -> int:
    """Print the pages in `site` to one file there, and show the link to it; return the exit status."""
    if not (program := chromium()):
        print("No Chromium was found, so the site has no PDF.")
        return 0
    from playwright.sync_api import sync_playwright

    source = site / "notebooks" / "course-to-print.html"  # beside the lessons, so that their pictures are found
    notebooks.write(source, printable(site))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        page = browser.new_page()
        page.goto(source.as_uri())
        page.pdf(
            path=site / NAME, format="A4", print_background=True, outline=True, tagged=True,
            margin={"top": "16mm", "bottom": "18mm", "left": "16mm", "right": "16mm"},
            display_header_footer=True, header_template="<span></span>", footer_template=FOOT,
        )  # fmt: skip
        browser.close()
    source.unlink()
    index = site / "index.html"
    text = index.read_text(encoding="utf-8")
    notebooks.write(index, text.replace(website.PDF_PLACE, website.PDF_LINK))
    print(f"The PDF is there: {(site / NAME).as_uri()}")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=Path, default=website.SITE, help="folder of the built site")
    sys.exit(main(parser.parse_args().site))
