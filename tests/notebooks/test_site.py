"""Is the site complete, does it answer without a kernel and without a network, and can a fork publish it?"""

import contextlib
import gzip
import html
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import jupyter_client
import nbclient
import nbformat
import pytest
import yaml

from tests.notebooks import browser
from tools import address, environment, notebooks, pdf, slides, solutions, website

WORKFLOW = yaml.safe_load((notebooks.ROOT / ".github" / "workflows" / "site.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    website.pages(folder)
    return folder


def test_every_lesson_and_every_guide_is_a_page_in_the_table_of_contents(sources):
    listed = re.findall(r"^([\w/-]+)$", (sources / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    made = {str(path.relative_to(sources).with_suffix("").as_posix()) for path in sources.rglob("*.*")}
    found = {name for name in made if (sources / f"{name}.md").exists() or (sources / f"{name}.ipynb").exists()}
    assert found - {"index"} == set(listed) - {f"explorers/{name}" for name in website.EXPLORED}
    assert len(notebooks.lessons()) == sum(name.startswith("notebooks/") for name in listed)


def test_links_between_pages_lead_somewhere(sources):
    count = 0
    for page in [*sources.rglob("*.md"), *sources.rglob("*.ipynb")]:
        for target in re.findall(r"\]\((?!https?:)([^)\s#]+\.\w+)[)#]", page.read_text(encoding="utf-8")):
            count += 1
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
    assert count > 20


def test_the_answers_to_the_examination_are_a_page_of_their_own(sources):
    asked = (sources / "examination.md").read_text(encoding="utf-8")
    said = (sources / "examination_answers.md").read_text(encoding="utf-8")
    assert asked.count("<p><b>") == said.count(".** ") == 12
    assert asked.rstrip().endswith("[The answers](examination_answers.md)")
    sentences = [set(re.findall(r"[^.\n]{40,}\.", text)) for text in (asked, said)]
    assert all(sentences) and not set.intersection(*sentences)


def test_plans_add_up_to_their_minutes_and_give_homework_that_there_is():
    """Their headings and exercises are looked up in `test_plans`."""
    from gpu_course.catalogue import registry

    known = {(found.lesson, found.name) for found in registry()}
    text = (notebooks.ROOT / "docs" / "instructors" / "plans.md").read_text(encoding="utf-8")
    for wanted, plan in zip((90, 180, 720), text.split("\n## ")[1:4], strict=True):
        minutes = sum(map(int, re.findall(r"^\| (\d+) \|", plan, re.MULTILINE)))
        assert minutes == wanted and "sign-in" in plan and "break" in plan, plan.partition("\n")[0]
    homework = [(lesson, name) for lesson, names in re.findall(r"\| (\d\d) (`.*`) \|$", text, re.MULTILINE)
                for name in re.findall(r"`(\w+)`", names)]  # fmt: skip
    assert len(homework) > 8 and set(homework) <= known


def test_slides_name_cells_and_every_lesson_has_some():
    marks = slides.marks()
    assert set(marks) == {notebooks.number(path) for path in notebooks.lessons()}
    for path in notebooks.lessons():
        slide_cells = marks[notebooks.number(path)]
        deck = slides.deck(path, slide_cells)
        texts = [cell.source for cell in deck.cells if cell.cell_type == "markdown"]
        questions = [text for text in texts if text.startswith("**Predict:** ")]
        headings = [text for text in texts if text not in questions]
        assert headings[0].startswith("# ") and all(text.startswith("##") for text in headings[1:])
        assert len(headings) > 5 and len(set(headings)) > len(headings) / 2
        code = "\n".join(cell.source for cell in deck.cells if cell.cell_type == "code")
        alone = [slides.deck(path, [names]).cells[-1].source for names in slide_cells if len(names) == 1]
        assert not [text for text in alone if text.endswith(":")]
        assert not re.search(r"^assert |\.reveal\(|A good place to stop", "\n".join([code, *texts]), re.MULTILINE)


def cells_of(path):
    return {cell.id: cell for cell in notebooks.read(path).cells}


def test_on_a_slide_the_question_comes_before_its_result():
    path = next(path for path in notebooks.lessons() if notebooks.number(path) == "02")
    deck = slides.deck(path, [["views-text", "views"]])
    text, code, question, heading, *results = deck.cells[1:]
    assert question.source.startswith("**Predict:** ") and heading.source == text.source.partition("\n")[0]
    assert code.outputs == [] and len(results) == 2
    assert all(result.outputs and result.metadata["tags"] == ["remove-input"] for result in results)
    assert "reveal" not in code.source and "assert" not in code.source and code.source


@pytest.fixture
def small_site(tmp_path):
    """A site whose lessons have a heading, code that is folded and a hint."""
    (tmp_path / "notebooks").mkdir()
    hint = "<details><summary>Hint</summary>An idea</details>"
    for path in notebooks.lessons():
        text = f'<article class="bd-article"><h1>{path.stem}</h1><details class="hide">x</details>{hint}</article>'
        notebooks.write(tmp_path / "notebooks" / f"{path.stem}.html", text)
    notebooks.write(tmp_path / "index.html", website.PDF_PLACE)
    return tmp_path


def test_what_is_printed_has_every_lesson_in_order_its_hints_and_nothing_folded(small_site, monkeypatch, capsys):
    text = pdf.printable(small_site)
    assert re.findall("<h1>(.*?)</h1>", text)[1:] == [path.stem for path in notebooks.lessons()]
    assert text.count('<details open="">') == len(notebooks.lessons()) and 'class="hide"' not in text
    assert "The authors of the course" in text
    monkeypatch.setattr(pdf, "chromium", lambda: None)
    assert pdf.main(small_site) == 0 and "No Chromium" in capsys.readouterr().out
    assert (small_site / "index.html").read_text(encoding="utf-8") == website.PDF_PLACE, "no link to a file that is not"


@pytest.mark.slow
@pytest.mark.browser
def test_the_course_is_printed_and_the_first_page_leads_to_it(small_site):
    assert pdf.main(small_site) == 0
    assert (small_site / pdf.NAME).read_bytes().startswith(b"%PDF")
    assert website.PDF_LINK in (small_site / "index.html").read_text(encoding="utf-8")
    assert not (small_site / "notebooks" / "course-to-print.html").exists()


def test_printed_solutions_hold_every_exercise_and_its_other_style():
    from gpu_course.catalogue import registry

    text = solutions.page()
    for found in registry():
        assert f"<code>{found.name}</code>" in text and found.alternatives[0].cost[:20] in html.unescape(text)


def test_each_picture_of_a_notebook_gets_words(sources):
    stored = json.loads((sources / "notebooks" / "07_memory.ipynb").read_text(encoding="utf-8"))
    words = [
        cell["metadata"]["mystnb"]["image"]["alt"] for cell in stored["cells"]
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))
    ]  # fmt: skip
    assert words and all(text.endswith("draws") and len(text) > 40 for text in words)


@pytest.mark.parametrize("name", website.EXPLORED)
def test_an_explorer_has_a_picture_for_each_place_of_its_grid(name, monkeypatch):
    small = {key: values[:2] for key, values in website.EXPLORED[name].items()}
    default = website.explorer_of(name).defaults
    small = {
        key: (*values[:1], default[key]) if default[key] not in values else values for key, values in small.items()
    }
    monkeypatch.setitem(website.EXPLORED, name, small)
    monkeypatch.setattr(website.explorer_of(name), "caption", lambda **chosen: "a<b")
    data = website.grid_of(name)
    assert len(data["pictures"]) == 2 ** len(small)
    page = website.explorer_page(name, data)
    stored = re.search(r'<script type="application/json">(.*)</script>', page, re.DOTALL)[1]
    assert json.loads(stored.replace("<\\/", "</")) == data and "a<b" not in page.split("<script")[0]


def test_a_step_beyond_the_last_shows_the_last():
    pictures = website.grid_of("ring")["pictures"]
    assert pictures["0-13-0"] == pictures["0-1-0"] != pictures["0-0-0"]  # two ranks have two steps


def test_places_that_differ_in_their_words_alone_share_a_picture(tmp_path):
    drawn = website.drawn("will_it_fit")
    alone, many = (0, 0, 0, 0, 1, 0), (0, 0, 0, 1, 0, 0)  # ZeRO on one GPU divides nothing, stage 0 on 64 neither
    assert drawn[alone] == drawn[many] == (0, 0, 0, 0, 0, 0) and len(set(drawn.values())) == len(drawn) / 2
    for place in (alone, many):
        website.draw("will_it_fit", place, tmp_path)
    first, other = (tmp_path / website.file_at(place) for place in (alone, many))
    assert first.read_bytes() == other.read_bytes()
    words = website.grid_of("will_it_fit")["pictures"]
    assert words["0-0-0-0-0-0"]["file"] == words["0-0-0-1-0-0"]["file"]
    assert words["0-0-0-0-0-0"]["text"] != words["0-0-0-1-0-0"]["text"]


def test_an_address_is_checked_before_it_is_written(tmp_path):
    shutil.copy(website.ROOT / "pyproject.toml", tmp_path)
    for wrong in ("https://gitlab.com/a/b", "https://github.com/a", "https://github.com/you/course", "a/b", ""):
        with pytest.raises(ValueError, match="address"):
            address.write(wrong, root=tmp_path)
    with pytest.raises(ValueError, match="commit"):
        address.write("https://github.com/a/b", "main", tmp_path)
    address.write("https://github.com/a/b.git/", "0" * 40, tmp_path)
    assert address.read(tmp_path) == ("https://github.com/a/b", "0" * 40)
    text = (tmp_path / "pyproject.toml").read_text(encoding="utf-8")
    assert 'Repository = "https://github.com/a/b"\n' in text and f'commit = "{"0" * 40}"' in text
    first, now = website.ROOT / "pyproject.toml", tmp_path / "pyproject.toml"
    assert environment.fingerprint([now]) == environment.fingerprint([first]), "an address installs nothing anew"
    address.write("none", root=tmp_path)
    assert address.read(tmp_path) == ("", "")


def shell(command: str, folder: Path, **extra: str) -> str:
    """Run a step of the workflow as the runner does; return what it printed."""
    environment = {**os.environ, **extra, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["bash", "-e", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A fork after the workflow's own steps, in a clone of a bare repository under another name; and its commit."""
    if not shutil.which("git") or sys.platform == "win32":
        pytest.skip("the workflow runs on Linux")
    folder = tmp_path_factory.mktemp("fork")
    bare, fork = folder / "somebody.git", folder / "course"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "workbook", "__pycache__", ".*cache*")
    shutil.copytree(notebooks.ROOT, fork, ignore=ignored)
    (fork / ".venv").symlink_to(Path(sys.prefix))
    who = "-c user.name=a -c user.email=a@b"
    shell(f"git init -q -b main && git add -A && git {who} commit -qm all && git init -q -b main --bare {bare}", fork)
    shell(f"git remote add origin {bare} && git push -q origin main", fork)
    commit = shell("git rev-parse HEAD", fork).strip()
    given = {
        "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "somebody/gpu.course", "GITHUB_SHA": commit
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tools.website", "--published"], cwd=fork, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 1 and "No address" in done.stderr
    (write,) = (step for step in STEPS.values() if step.startswith("make address"))
    python = f'{sys.executable} tools/notebooks.py --address "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY" "$GITHUB_SHA"'
    shell(write.replace("make address URL=", "true ") + f"\n{python}", fork, **given)
    assert not shell(f"{sys.executable} -c 'from tools import website; print(*website.unaddressed())'", fork).strip()
    shell("mkdir -p build && " + STEPS["What the address changed"], fork, **given)
    clean = folder / "clean"  # the job that may write has a checkout of its own and the artifact of the other
    shell(f"git clone -q {bare} {clean} && mkdir {clean}/build && cp build/address.patch {clean}/build", fork)
    shell(STEPS["The notebooks that the badges open"], clean, **given)
    return bare, commit


@pytest.mark.slow
def test_a_fork_publishes_itself_and_its_notebooks_install_its_own_commit(published):
    """Slow, since how an address is written is tried above; here the steps of the workflow do it, in a clone."""
    bare, commit = published
    first = shell("git show published:notebooks/00_start_here.ipynb", bare)
    assert "colab.research.google.com/github/somebody/gpu.course/blob/published/notebooks/" in first
    assert f'git+https://github.com/somebody/gpu.course@{commit}\\"' in first
    assert bool(address.REPOSITORY) == ("colab.research" in shell("git show main:notebooks/00_start_here.ipynb", bare))


@pytest.mark.slow
def test_a_lesson_opened_from_a_fork_installs_that_fork_at_that_commit_and_runs(published, tmp_path):
    """As Colab does it: torch is there, the course is not; git finds the fork's address in the bare repository."""
    bare, commit = published
    venv.EnvBuilder(with_pip=True).create(tmp_path / "colab")
    python = tmp_path / "colab" / "bin" / "python"
    purelib = Path(shell(f"{python} -c \"import sysconfig; print(sysconfig.get_path('purelib'))\"", tmp_path).strip())
    for entry in Path(sysconfig.get_path("purelib")).iterdir():  # all that Colab has, and no course
        if "course_utils" not in entry.name and not (purelib / entry.name).exists():
            (purelib / entry.name).symlink_to(entry)
    lesson = tmp_path / "lesson.ipynb"
    lesson.write_text(shell("git show published:notebooks/02_tensors_on_the_device.ipynb", bare), encoding="utf-8")
    kernel = {"argv": [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "python3"}
    (tmp_path / "kernels" / "python3").mkdir(parents=True)
    (tmp_path / "kernels" / "python3" / "kernel.json").write_text(json.dumps(kernel), encoding="utf-8")
    manager = jupyter_client.kernelspec.KernelSpecManager(kernel_dirs=[str(tmp_path / "kernels")])
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{bare.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/somebody/gpu.course",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's way to say: without; hatchling is there, and nothing has to be fetched
    }  # fmt: skip
    found = nbformat.read(lesson, 4)
    found.cells.append(
        nbformat.v4.new_code_cell(
            "import course_utils, importlib.metadata as m; print(course_utils.__file__)\n"
            "print(m.distribution('pytorch-gpu-course').read_text('direct_url.json'))"
        )
    )
    started = jupyter_client.AsyncKernelManager(kernel_name="python3", kernel_spec_manager=manager)
    nbclient.NotebookClient(found, km=started, timeout=300).execute(env=environment, cwd=str(tmp_path))
    said = found.cells[-1].outputs[0].text
    assert str(purelib) in said and commit in said and "somebody/gpu.course" in said


@pytest.fixture(scope="module")
def lesson_page(tmp_path_factory):
    """The page of lesson 05, in a site that has no other lesson."""
    folder = notebooks.ROOT / "build" / "one-page"  # conf.py looks for the root two folders above itself
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(notebooks.ROOT / "docs" / "static", folder / "static")
    shutil.copy(notebooks.ROOT / "docs" / "conf.py", folder)
    name = "05_the_training_loop"
    (folder / "notebooks").mkdir()
    notebooks.write(folder / "index.md", f"# One page\n\nText.\n\n```{{toctree}}\n:hidden:\n\nnotebooks/{name}\n```\n")
    path = notebooks.ROOT / "notebooks" / f"{name}.ipynb"
    notebooks.write(folder / "notebooks" / path.name, website.with_alternatives(path))
    made = tmp_path_factory.mktemp("page")
    sphinx = [sys.executable, "-m", "sphinx", "--quiet", "-b", "html", str(folder), str(made)]
    done = subprocess.run(sphinx, capture_output=True, text=True)
    shutil.rmtree(folder)
    with contextlib.suppress(OSError):  # it holds a site that somebody built
        folder.parent.rmdir()
    assert not done.returncode, done.stderr
    return made / "notebooks" / f"{name}.html"


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_of_a_lesson_can_be_shared_opened_elsewhere_copied_and_is_remembered_as_read(lesson_page):
    from axe_playwright_python.sync_playwright import Axe

    text = lesson_page.read_text(encoding="utf-8")
    assert len(gzip.compress(lesson_page.read_bytes())) < 1_000_000
    for needed in ('<meta name="description"', "favicon.svg", "By The authors of the course"):
        assert needed in text, needed
    for led in ('property="og:image"', "colab.research.google.com/github", "kaggle.com/kernels", "mybinder.org"):
        assert (led in text) == bool(address.REPOSITORY), "without an address no button leads to one"
    wide = "[...document.querySelectorAll('pre')].filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    with browser.browsing() as chromium:
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.goto(lesson_page.as_uri())
        assert page.evaluate(wide) == 0, "code scrolls sideways"
        block = page.locator("div.cell_input div.highlight", has_text="optimizer.zero_grad(set_to_none=True)").first
        block.hover()
        block.locator("button.copy").click()
        assert "optimizer.zero_grad(set_to_none=True)" in page.evaluate("navigator.clipboard.readText()")
        marks = page.locator(".bd-sidebar-primary .kept")
        assert [mark.get_attribute("class") for mark in marks.all()] == ["kept opened"]
        page.locator(".prev-next-footer").scroll_into_view_if_needed()
        page.wait_for_selector(".bd-sidebar-primary .kept.read", state="attached")
        assert marks.count() == 1 and "read to its end" in marks.get_attribute("aria-label")
        found = Axe().run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"][:120]) for one in found] == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_a_narrow_page_columns_and_pictures_scroll_in_their_own_box_and_sentences_wrap(lesson_page, theme):
    too_wide = "boxes => boxes.filter((box) => box.scrollWidth > box.clientWidth + 1).length"
    with browser.browsing() as chromium:
        page = chromium.new_context(color_scheme=theme, viewport={"width": 400, "height": 900}).new_page()
        page.goto(lesson_page.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        columns = page.locator("div.cell_output pre.columns", has_text="whole loop, live on cpu").first
        lines = columns.text_content().rstrip().count("\n") + 1
        height = columns.evaluate("box => parseFloat(getComputedStyle(box).lineHeight)")
        assert columns.evaluate_all(too_wide) == 1 and columns.get_attribute("tabindex") == "0"
        assert columns.bounding_box()["height"] < (lines + 3) * height, "lines of columns wrap"
        assert page.locator("div.cell_output pre:not(.columns)").evaluate_all(too_wide) == 0
        pictures = page.locator("div.cell_output img")
        assert min(pictures.evaluate_all("all => all.map((one) => one.clientWidth)")) >= 500


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site, in a folder."""
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "tools.website", "--to", str(folder)]
    done = subprocess.run(command, cwd=notebooks.ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stdout + done.stderr
    assert max(len(gzip.compress(path.read_bytes())) for path in folder.rglob("*.html")) < 1_000_000
    index = (folder / "slides" / "index.html").read_text(encoding="utf-8")
    assert 'href="../index.html"' in index and all(f"{path.stem}.html" in index for path in notebooks.lessons())
    return folder


def site_pages(site, theme, width):
    """Return the pages to look at: all of them; slides have one look, and listings of code scroll on narrow pages."""
    places = [path.relative_to(site) for path in sorted(site.rglob("*.html"))]
    beside = ["_modules"] * (width < 1280) + ["slides"] * ((theme, width) != ("light", 1280))
    return [path for path in places if not {"_static", *beside} & set(path.parts)]


@pytest.mark.slow
@pytest.mark.browser
def test_the_site_has_no_fault_for_people_who_cannot_see_or_point_and_asks_no_other_host(site):
    from axe_playwright_python.sync_playwright import Axe

    faults, asked, seen = [], [], 0
    with browser.browsing() as chromium:
        for theme, width in (("light", 1280), ("dark", 1280), ("light", 420)):
            page = chromium.new_context(color_scheme=theme, viewport={"width": width, "height": 900}).new_page()
            page.on("request", lambda request: asked.append(request.url))
            page.on("pageerror", lambda error: faults.append(str(error)))
            for path in site_pages(site, theme, width):
                seen += 1
                page.goto((site / path).as_uri())
                name = f"{theme} {width} {path}"
                if page.evaluate("document.documentElement.scrollWidth > innerWidth + 1"):
                    faults.append(f"{name}: wider than the window")
                for found in Axe().run(page).response["violations"]:
                    faults.append(f"{name}: {found['id']}: {found['nodes'][0]['html'][:120]}")
    assert seen > 160 and faults == []
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]


@pytest.mark.slow
@pytest.mark.browser
def test_search_finds_terms_and_explorers_move(site):
    with browser.browsing() as chromium:
        page = chromium.new_page()
        for term in ("GradScaler", "pinned", "roofline", "all-reduce", "checkpoint", "synchronize", "empty_cache",
                     "DistributedSampler", "channels_last", "simulated"):  # fmt: skip
            page.goto(f"{(site / 'search.html').as_uri()}?q={term}")
            page.wait_for_selector("#search-results li a", timeout=60_000)
        for name in website.EXPLORED:
            page.goto((site / "explorers" / f"{name}.html").as_uri())
            words, slider = page.locator(".explorer p"), page.locator(".explorer input[type=range]").first
            before = words.inner_text(), page.locator(".explorer img").get_attribute("src")
            slider.focus()
            page.keyboard.press("Home")
            assert words.inner_text() != before[0] or page.locator(".explorer img").get_attribute("src") != before[1]
            page.wait_for_function("document.querySelector('.explorer img').naturalWidth > 300", timeout=60_000)


@pytest.mark.slow
@pytest.mark.browser
def test_no_slide_is_taller_or_wider_than_the_screen(tmp_path):
    assert slides.main(tmp_path) == 0
    where = """() => {
      const slide = Reveal.getCurrentSlide(), {bottom, right} = slide.getBoundingClientRect();
      const whole = (each) => {
        const box = each.getBoundingClientRect();
        const drawn = (each.tagName !== "IMG" || each.naturalWidth > 10) && each.scrollWidth <= each.clientWidth + 1;
        return drawn && box.top > 0 && box.bottom <= 720 && box.right <= 1280;
      };
      const parts = [...slide.querySelectorAll("img, svg, pre, table")];
      return [bottom, right, parts.every(whole), parts.length || slide.innerText.length];
    }"""
    count, beyond = 0, []
    with browser.browsing() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 720})
        for path in notebooks.lessons():
            page.goto((tmp_path / f"{path.stem}.html").as_uri())
            page.wait_for_function("window.Reveal && Reveal.isReady()")
            page.evaluate("Reveal.configure({transition: 'none'})")
            for number in range(page.evaluate("Reveal.getTotalSlides()")):
                page.evaluate(f"Reveal.slide({number})")
                page.wait_for_timeout(100)
                bottom, right, whole, content = page.evaluate(where)
                count += 1
                good = bottom <= 730 and right <= 1285 and whole and (content < 10 or content > 60)
                beyond += [] if good else [(path.stem, number, bottom, right, whole, content)]
    assert count > 100 and not beyond
