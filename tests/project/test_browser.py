"""Do the explorers work in a real JupyterLab, and does a static page show their picture?"""

import os
import re
import shutil
import tomllib
from pathlib import Path

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import simgpu
from gpu_course import catalogue
from tests.notebooks import browser
from tools import notebooks, website, workbook

NAMES = (
    "bottleneck", "buckets", "choose_gpu", "collectives", "number_formats",
    "ring", "roofline", "transfer", "will_it_fit",
)  # fmt: skip
EXPLORERS = {name: catalogue.explorer(name) for name in NAMES}
PICTURES = ".jp-OutputArea-output img"
QUICK = ("transfer",)  # `make test` drives it, `make test-all` every one
OTHERS = tuple(name for name in EXPLORERS if name not in QUICK)
missing = browser.chromium() is None and not os.environ.get("CI")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(missing, reason="there is no Chromium on this machine")]


def notebook(name, outputs=()):
    source = f"from gpu_course import catalogue\ncatalogue.explorer({name!r}).explore()"
    cell = new_code_cell(source, outputs=list(outputs), execution_count=1 if outputs else None)
    made = new_notebook(cells=[new_markdown_cell("# Explorer"), cell])
    made.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return made


def shown(page):
    """Return the addresses of the visible pictures."""
    return [image.get_attribute("src") for image in page.locator(PICTURES).all() if image.is_visible()]


@pytest.mark.parametrize("names", [QUICK, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["quick", "others"])
def test_moving_a_slider_changes_the_one_picture_of_each_explorer(tmp_path, names):
    assert names
    for name in names:
        nbformat.write(notebook(name), tmp_path / f"{name}.ipynb")
    with browser.lab(tmp_path) as lab:
        for name in names:
            module = EXPLORERS[name]
            lab.open(f"{name}.ipynb")
            lab.run_all()
            page = lab.page
            page.locator(".widget-image").first.wait_for()
            page.wait_for_timeout(500)
            before = shown(page)
            assert len(before) == 1, f"{name}: {len(before)} pictures"
            words = page.locator(".jp-OutputArea-output .widget-html-content").last
            said = words.inner_text()
            slider = page.locator(".widget-slider:visible").first
            handle = slider.locator(".noUi-handle[aria-label]")  # what a screen reader says
            handle.wait_for()
            assert handle.get_attribute("aria-label") == slider.locator(".widget-label").inner_text()
            handle.focus()
            page.keyboard.press("ArrowRight")
            page.wait_for_function(
                "([selector, old]) => document.querySelector(selector).src !== old", arg=[PICTURES, before[0]]
            )
            words.filter(has_not_text=said).wait_for()
            assert module.explore().caption() == re.sub(r"\s+", " ", said)
            assert handle.get_attribute("aria-valuetext") == slider.locator(".widget-readout").inner_text()
            assert len(shown(page)) == 1
        assert lab.errors == []


CUT = Path(__file__).with_name("cut_words.js").read_text(encoding="utf-8").partition("\n")[2]


@pytest.mark.slow
def test_no_label_and_no_choice_of_an_explorer_is_cut(tmp_path):
    made = notebook("transfer")
    files = sorted(Path(catalogue.__file__).parent.glob("lesson*/explorers/*.py"))
    names = [path.stem for path in files if "def explore(" in path.read_text(encoding="utf-8")]
    made.cells += [new_code_cell(f"catalogue.explorer({name!r}).explore()") for name in names]
    nbformat.write(made, tmp_path / "all.ipynb")
    for width in (1280, 900):
        with browser.lab(tmp_path, width=width, height=20_000) as lab:
            lab.open("all.ipynb")
            lab.run_all()
            lab.page.wait_for_function(
                "count => document.querySelectorAll('.widget-image').length === count", arg=len(names) + 1
            )
            assert len(names) > 15 and lab.page.evaluate(CUT) == []


ASKS = """from gpu_course.lesson00 import double
from gpu_course.predict import predict

guess = predict("How long?", unit="ms")
double.check(lambda x, device: 2 * x.to(device));"""


KEYS = """from gpu_course import catalogue
from gpu_course.lesson00 import double
from gpu_course.predict import predict

guess = predict("How long?", unit="ms")
place = predict("Where?", choices=["on the CPU", "on the GPU"])
double.check(lambda x, device: 2 * x.to(device))
catalogue.explorer("transfer").explore()"""
FOCUSED = """() => {
    const at = document.activeElement, style = getComputedStyle(at);
    return [at.innerText || at.type || at.className, style.outlineStyle, parseFloat(style.outlineWidth),
            style.outlineColor === getComputedStyle(document.body).color || style.outlineColor];
}"""


TEXT = "() => document.querySelector('.jp-Notebook').innerText"


def tab_to(page, name):
    """Press Tab until what has the focus is called `name`, and assert that one sees where the keyboard is."""
    for _ in range(30):
        page.keyboard.press("Tab")
        called, style, width, _ = page.evaluate(FOCUSED)
        if name in called:
            assert style == "solid" and width >= 2, (called, style, width)
            return
    raise AssertionError(f"Tab never comes to {name}")


@pytest.mark.slow
def test_the_keyboard_alone_runs_a_cell_guesses_asks_for_a_hint_and_moves_a_slider(tmp_path):
    made = notebook("transfer")
    made.cells = [new_code_cell(KEYS)]
    nbformat.write(made, tmp_path / "keys.ipynb")
    with browser.lab(tmp_path, height=1600) as lab:
        lab.open("keys.ipynb")
        page, said = lab.page, lab.page.locator(".jp-OutputArea-output")
        page.keyboard.press("Control+Enter")
        page.locator(".widget-image").wait_for()
        tab_to(page, "text")
        page.keyboard.type("12")
        page.keyboard.press("Enter")
        said.filter(has_text="Your guess: 12 ms").wait_for()
        tab_to(page, "radio")
        page.keyboard.press("Space")
        said.filter(has_text="Your guess: on the CPU").wait_for()
        for button, key in (("Hint", "Enter"), ("Solution", "Space"), ("Stub", "Space"), ("Forget", "Enter")):
            before = page.evaluate(TEXT)
            tab_to(page, button)
            page.keyboard.press(key)
            page.wait_for_function(f"old => ({TEXT})() !== old", arg=before)
        picture = page.locator(PICTURES).get_attribute("src")
        tab_to(page, "noUi-handle")
        page.keyboard.press("ArrowRight")
        page.wait_for_function("([of, old]) => document.querySelector(of).src !== old", arg=[PICTURES, picture])
        page.evaluate("() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
        page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
        tab_to(page, "checkbox")
        light = page.evaluate(FOCUSED)[3]
        assert light is True or light.startswith("rgb(2"), f"{light} on a dark page"
        assert lab.errors == []


COPIES = """
from gpu_course import solved, your_line
solved.change({solved.key("00", "double"): True})
your_line.copy("Ada")
"""


@pytest.mark.slow
def test_the_button_below_your_line_copies_the_line_that_is_printed(tmp_path):
    made = notebook("transfer")
    made.cells = [new_code_cell(COPIES)]
    nbformat.write(made, tmp_path / "line.ipynb")
    with browser.lab(tmp_path) as lab:
        lab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        lab.open("line.ipynb")
        lab.run_all()
        said = lab.page.locator(".jp-OutputArea-output")
        said.locator("button").click()
        said.filter(has_text="Copied").wait_for()
        copied = lab.page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith("course-progress-") and copied in said.first.inner_text().splitlines()


@pytest.mark.slow
def test_a_saved_notebook_shows_its_widgets_when_it_is_opened_again(tmp_path):
    """In a JupyterLab that was started without `make lab`, with nothing but what the wheel brings."""
    brought = tomllib.loads((workbook.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for source, target in brought["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"].items():
        shutil.copytree(workbook.ROOT / source, tmp_path / "prefix" / target)
    made = notebook("ring")
    made.cells.insert(1, new_code_cell(ASKS))
    (tmp_path / "work").mkdir()
    nbformat.write(made, tmp_path / "work" / "ring.ipynb")
    with browser.lab(tmp_path / "work", settings=tmp_path / "prefix" / "share/jupyter/lab/settings") as lab:
        for again in (False, True):
            lab.open("ring.ipynb")
            if not again:
                lab.run_all()
            picture = lab.page.locator(".widget-image").first
            picture.wait_for()
            said = picture.evaluate(
                "image => getComputedStyle(image.closest('.jp-OutputArea-output').firstChild, '::before').content"
            )
            assert ("From an earlier session" in said) == again
            if not again:
                lab.page.wait_for_timeout(500)
                lab.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
                lab.page.evaluate("() => window.jupyterapp.serviceManager.sessions.shutdownAll()")
        assert picture.evaluate("image => image.naturalWidth") > 600
        assert lab.page.locator(".course-ask input").is_visible()
        assert lab.page.locator("button.widget-button").all_inner_texts() == ["Hint", "Solution", "Stub", "Forget"]
        assert "model not found" not in lab.page.content()


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_static_page_shows_one_picture_and_its_words(name):
    from nbconvert import HTMLExporter

    bundle = EXPLORERS[name].explore()._repr_mimebundle_()
    stored = {mime: text for mime, text in bundle.items() if mime.startswith("text/")}
    outputs = [new_output("execute_result", data=stored, execution_count=1)]
    html, _ = HTMLExporter().from_notebook_node(notebook(name, outputs))
    with browser.static_page(html) as page:
        pictures = page.locator(PICTURES)
        assert pictures.count() == 1 and pictures.first.is_visible()
        assert pictures.first.evaluate("image => image.naturalWidth") > 600
        assert EXPLORERS[name].explore().caption() in page.locator(".jp-OutputArea-output").inner_text()


CHOICES = """() => {
    const pen = document.createElement('canvas').getContext('2d'), cut = [];
    for (const list of document.querySelectorAll('select')) {
        pen.font = getComputedStyle(list).font;
        for (const option of list.options)
            if (pen.measureText(option.text).width > list.clientWidth) cut.push(option.text);
    }
    return cut;
}"""


@pytest.mark.parametrize("width", [400, 360])
def test_an_explorer_of_the_site_fits_a_phone_and_says_that_its_picture_is_wider(width):
    static = notebooks.ROOT / "docs" / "static"
    style, script = ((static / f"course.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    block = website.explorer_page("pipeline", website.grid_of("pipeline")).partition("\n\n")[2].partition("\n\n")[2]
    html = f"<style>{style} body {{ margin: 1rem }}</style><script>{script}</script>{block}"
    with browser.static_page("") as page:
        page.set_viewport_size({"width": width, "height": 900})
        page.set_content(html, wait_until="load")
        assert page.locator("select option").count() == 4 and page.locator("input").count() == 2
        assert page.evaluate(CHOICES) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        shown = page.evaluate("getComputedStyle(document.querySelector('.picture'), '::before').content")
        assert "sideways" in shown


def test_a_report_fits_a_page_of_400_pixels_and_keeps_the_names_of_its_columns(sim):
    with simgpu.cuda(record=True) as session:
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.randn(64, 64).cuda()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize(torch.device(f"cuda:{torch.cuda.current_device()}"))  # a line without a break
        html = session.report().html()
    with browser.static_page(html) as page:
        page.set_viewport_size({"width": 400, "height": 900})
        widths = page.evaluate("[...document.querySelectorAll('.scroll')].map(e => [e.scrollWidth, e.clientWidth])")
        assert len(widths) >= 6 and all(needed <= there <= 400 for needed, there in widths)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        shown = "getComputedStyle(document.querySelector('td[data-name=\"time\"]'), '::before').content"
        assert page.evaluate(shown).startswith('"time')
