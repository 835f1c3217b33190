"""How does a notebook look and behave in a real JupyterLab? Headless Chromium, driven by Playwright.

    python -m tests.notebooks.browser notebooks/00_start_here.ipynb folder    # runs it, writes folder/00.png, 01.png, …

Chromium comes from the system (`chromium` or `google-chrome` on the PATH).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import until
from tools import workbook
from tools.pdf import FLAGS, chromium

__all__ = ["Lab", "browsing", "chromium", "lab", "static_page"]

TOKEN = "course"
# Neither explorers nor lessons need these, and they cost seconds: an animation, a search for Node.js, other panels.
WITHOUT = [
    f"@jupyterlab/{name}"
    for name in (
        "apputils-extension:splash", "apputils-extension:announcements", "debugger-extension", "terminal-extension",
        "extensionmanager-extension", "lsp-extension", "fileeditor-extension:language-server",
        "notebook-extension:language-server", "help-extension",
    )
]  # fmt: skip
SERVED = {"jupyterlab": True, "jupyter_lsp": False, "jupyter_server_terminals": False, "notebook": False}
READY = """async () => {
    const app = window.jupyterapp;
    await app.restored;
    const widget = app.shell.currentWidget;
    await widget.context.ready;
    await widget.revealed;
    await widget.sessionContext.ready;
    await widget.sessionContext.session.kernel.info;
}"""


class Lab:
    """A page of JupyterLab with one notebook open."""

    def __init__(self, page, address: str, root: Path) -> None:
        self.page, self.address, self.root = page, address, root
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)

    def open(self, name: str) -> None:
        """Open the notebook `name`, relative to the folder that is served, and wait for its kernel."""
        self.page.goto(f"{self.address}/doc/tree/{name}?token={TOKEN}&reset", wait_until="domcontentloaded")
        self.page.wait_for_function("() => window.jupyterapp && window.jupyterapp.shell.currentWidget", polling=200)
        self.page.evaluate(READY)

    def run_all(self, timeout_s: float = 600) -> None:
        """Run all cells and wait until the last one has ended. Raises AssertionError with the first error shown."""
        done = "() => window.jupyterapp.commands.execute('notebook:run-all-cells')"
        self.page.set_default_timeout(timeout_s * 1000)
        self.page.evaluate(done)
        failed = self.page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr'] .ansi-red-fg")
        assert failed.count() == 0, failed.first.inner_text()

    def screenshots(self, folder: Path) -> list[Path]:
        """Scroll through the notebook and write one PNG for each screen; return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        box, paths = self.page.locator(".jp-WindowedPanel-outer").first, []
        box.evaluate("panel => panel.scrollTo(0, 0)")
        while True:
            self.page.wait_for_timeout(300)
            path = folder / f"{len(paths):02d}.png"
            self.page.screenshot(path=path)
            paths.append(path)
            if not self._scroll(box):
                return paths

    def _scroll(self, box) -> bool:
        """Scroll down by nearly a screen; False at the end, which moves while cells are drawn for the first time."""
        before, step = box.evaluate("panel => [panel.scrollTop, panel.clientHeight - 60]")
        for _ in range(10):
            box.evaluate("(panel, there) => panel.scrollTo(0, there)", before + step)
            self.page.wait_for_timeout(200)
            now = box.evaluate("panel => panel.scrollTop")
            if now >= before + step - 1:
                return True
        return now > before + 1


def _settings(private: Path) -> dict[str, str]:
    """Return an environment in which JupyterLab reads and writes nothing of the user's."""
    (private / "config" / "labconfig").mkdir(parents=True)
    (private / "config" / "labconfig" / "page_config.json").write_text(
        json.dumps({"disabledExtensions": dict.fromkeys(WITHOUT, True)}), encoding="utf-8"
    )
    names = {"CONFIG": "config", "DATA": "data", "RUNTIME": "runtime"}
    return {
        **{f"JUPYTER_{name}_DIR": str(private / folder) for name, folder in names.items()},
        "JUPYTERLAB_SETTINGS_DIR": str(private / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(private / "workspaces"),
        "COURSE_PROGRESS": str(private / "progress.json"),
    }


@contextlib.contextmanager
def lab(root: Path, *, width: int = 1280, height: int = 900, settings: Path = workbook.SETTINGS) -> Iterator[Lab]:
    """Serve the folder `root` with JupyterLab and its `settings` on a free port and yield a page of it."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as private, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = [
            sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.port={port}",
            "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={root}",
            f"--ServerApp.jpserver_extensions={SERVED}", "--LabApp.expose_app_in_browser=True",
            f"--LabApp.app_settings_dir={settings}",
        ]  # fmt: skip
        environment = {**os.environ, **_settings(Path(private))}
        server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(f"{address}/api?token={TOKEN}", server)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
                page = browser.new_page(viewport={"width": width, "height": height})
                page.set_default_timeout(60_000)
                yield Lab(page, address, root)
                browser.close()
        finally:
            server.terminate()
            server.wait(60)


def _wait(address: str, server: subprocess.Popen) -> None:
    def answers() -> bool:
        assert server.poll() is None, "JupyterLab ended"
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=60):
            return True
        return False

    until(answers)


@contextlib.contextmanager
def browsing() -> Iterator:
    """Yield Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def static_page(html: str) -> Iterator:
    """Yield a page of Chromium that shows `html`, with no kernel and no network."""
    with browsing() as browser:
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.context.set_offline(True)
        page.set_content(html, wait_until="load")
        yield page


if __name__ == "__main__":
    notebook, target = Path(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as copies:  # JupyterLab saves what is open
        shutil.copy(notebook, copies)
        with lab(Path(copies)) as opened:
            opened.open(notebook.name)
            opened.run_all()
            print(*opened.screenshots(target), sep="\n")
