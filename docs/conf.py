"""Sphinx configuration of the site; sources come from tools/website.py, and nothing is executed."""

import html
import re
from pathlib import Path

from docutils import nodes

import course_utils
from tools.address import BRANCH, REPOSITORY

ROOT = Path(__file__).resolve().parents[2]  # of the copy in build/site-sources

CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")

project = html_title = "GPU computing with PyTorch"
(author,) = re.findall(r"^  - name: (.*)$", CITATION, re.MULTILINE)
copyright = author
description = (
    "A course in JupyterLab notebooks, from the first tensor on a GPU to training across several processes. Every "
    "claim is shown by a cell, every exercise is checked, and no GPU is needed."
)
release = course_utils.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
root_doc = "index"
exclude_patterns = ["notebooks/programs"]

nb_execution_mode = "off"
nb_number_source_lines = False
myst_enable_extensions = ["deflist"]  # of the glossary
myst_heading_anchors = 3
myst_links_external_new_tab = False

suppress_warnings = ["ref.python"]  # attributes that share a name with a type
default_role = "code"  # docstrings set names in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False

html_theme = "sphinx_book_theme"
html_static_path = ["static"]
html_css_files = ["course.css"]
html_js_files = ["course.js"]
html_copy_source = True  # the download of each notebook
html_sourcelink_suffix = ""
html_last_updated_fmt = None
html_favicon = "static/favicon.svg"
html_theme_options = {
    "use_download_button": True,
    "show_toc_level": 2,
    "home_page_in_toc": False,
    "max_navbar_depth": 1,  # the list of pages names no headings: without it each page copies all of them first
    "navigation_with_keys": True,
    "navbar_persistent": [],  # the list of pages has the search field
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

if REPOSITORY:  # without an address there is nothing that a button could open
    html_theme_options |= {
        "repository_url": REPOSITORY,
        "repository_branch": BRANCH,
        "launch_buttons": {"colab_url": "https://colab.research.google.com", "binderhub_url": "https://mybinder.org"},
        "use_repository_button": True,
    }


def setup(app):
    """Read docstrings as the plain text that they are: an indented block is code, a bar no substitution."""
    app.connect("autodoc-process-docstring", plain)
    app.connect("html-page-context", described)
    app.connect("html-page-context", kaggle, priority=502)  # after the theme has made the other buttons


def described(app, page, template, context, doctree):
    """Give a page its description, for search engines and for those who pass on its address."""
    words = [] if doctree is None else [node.astext() for node in doctree.findall(nodes.paragraph)]
    said = next((" ".join(text.split()) for text in words if len(text) > 60), description)
    said = said if len(said) <= 200 else said[:200].rpartition(" ")[0] + " …"
    named = {"description": said}
    shared = {
        "og:title": context.get("title", project), "og:description": said, "og:type": "article",
        "og:site_name": project,
    }  # fmt: skip
    if REPOSITORY:
        shared["og:image"] = f"{REPOSITORY}/raw/{BRANCH}/docs/lesson.png"
    tags = [f'<meta name="{name}" content="{html.escape(text)}">' for name, text in named.items()]
    tags += [f'<meta property="{name}" content="{html.escape(text)}">' for name, text in shared.items()]
    context["metatags"] = "\n".join([context.get("metatags", ""), *tags])


def kaggle(app, page, template, context, doctree):
    """Add Kaggle to the buttons that open a lesson elsewhere: the theme knows only the others."""
    for button in context.get("header_buttons", []):
        if button.get("label") == "launch-buttons":
            address = f"https://kaggle.com/kernels/welcome?src={REPOSITORY}/blob/{BRANCH}/{page}.ipynb"
            button["buttons"].append(
                {"type": "link", "text": "Kaggle", "tooltip": "Open in Kaggle", "url": address, "icon": "fas fa-play"}
            )


def plain(app, what, name, found, options, lines):
    """Change `lines` of a docstring in place."""
    text = re.sub(r"^(?=\S.*\|)(.*)$", lambda line: line[0].replace("|", r"\|"), "\n".join(lines), flags=re.MULTILINE)
    lines[:] = re.sub(r"\n\n(?= )", "\n\n::\n\n", text).replace("::\n\n::", "::").split("\n")
