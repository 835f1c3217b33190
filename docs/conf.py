"""How does Sphinx make the site? Of the sources that tools/website.py puts together; nothing is executed."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of the copy in build/site-sources
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = html_title = "GPU computing with PyTorch"
release = PYPROJECT["version"]
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
html_theme_options = {
    "repository_url": PYPROJECT["urls"]["Repository"],
    "use_repository_button": True,
    "use_download_button": True,
    "show_toc_level": 2,
    "home_page_in_toc": False,
    "navigation_with_keys": True,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


def setup(app):
    """Read docstrings as the plain text that they are: an indented block is code, a bar no substitution."""
    app.connect("autodoc-process-docstring", plain)


def plain(app, what, name, found, options, lines):
    """Change `lines` of a docstring in place."""
    text = re.sub(r"^(?=\S.*\|)(.*)$", lambda line: line[0].replace("|", r"\|"), "\n".join(lines), flags=re.MULTILINE)
    lines[:] = re.sub(r"\n\n(?= )", "\n\n::\n\n", text).replace("::\n\n::", "::").split("\n")
