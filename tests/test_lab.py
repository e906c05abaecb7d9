"""A chapter in a real JupyterLab, in a real browser: every cell runs, and an explorer answers to typing.

JupyterLab gets folders of its own for settings, workspaces and the like, is told not to look for news, and exposes
its application object, by which the test gives the command that the menu "Run All Cells" gives.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import chromium
import nbformat
import pytest

from mc_lib.explorer_views import PLACES
from tools.execute import BOOK, ROOT, read_chapter

START = 120  # seconds; a busy machine takes its time
OPTIONS = (
    "--no-browser --IdentityProvider.token= --ServerApp.password= --ServerApp.allow_root=True "
    "--LabApp.expose_app_in_browser=True --LabApp.news_url= "
    "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate"
).split()
SETTINGS = {
    # All cells in the page at once: a cell far below would otherwise not be drawn until it is scrolled to.
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
OWN_FOLDERS = (
    "JUPYTER_CONFIG_DIR JUPYTER_RUNTIME_DIR JUPYTER_DATA_DIR JUPYTERLAB_SETTINGS_DIR JUPYTERLAB_WORKSPACES_DIR"
)


def chapter_with_an_explorer(folder: Path) -> Path:
    """The lightest chapter with one cell more, in a folder from which runs/main is found."""
    notebook = read_chapter(BOOK / "task.py")
    notebook.cells.append(nbformat.v4.new_code_cell("from mc_lib import explorer\n\nexplorer.sequence(RUN)", id="last"))
    (folder / "book").mkdir()
    nbformat.write(notebook, folder / "book" / "page.ipynb")
    (folder / "runs").symlink_to(ROOT / "runs")
    return folder / "book" / "page.ipynb"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """The address of a JupyterLab that has the chapter."""
    if chromium.find() is None:
        pytest.skip(chromium.HOW)
    chapter_with_an_explorer(tmp_path)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    environment |= {name: str(tmp_path / "lab" / name) for name in OWN_FOLDERS.split()}
    for name, values in SETTINGS.items():
        path = tmp_path / "lab" / "JUPYTERLAB_SETTINGS_DIR" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(values))
    port, log = free_port(), tmp_path / "lab.log"
    command = [sys.executable, "-m", "jupyterlab", *OPTIONS, f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    with open(log, "w") as told:
        server = subprocess.Popen(
            [*command, f"--ServerApp.root_dir={tmp_path}"], cwd=tmp_path, env=environment, stdout=told, stderr=told
        )
    try:
        wait_for(server, f"http://127.0.0.1:{port}/api/status", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()  # its kernels end with it
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_for(server: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    deadline = time.monotonic() + START
    while True:
        try:
            with urllib.request.urlopen(address, timeout=10):
                return
        except OSError:
            assert server.poll() is None, f"JupyterLab ended: {log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"JupyterLab did not start: {log.read_text()[-2000:]}"
            time.sleep(0.2)


NOTEBOOK = "[...(window.jupyterapp?.shell.widgets('main') ?? [])].find(widget => widget.sessionContext)"
EXPLORER = '[...document.querySelectorAll(".jp-CodeCell")].at(-1)'
TEXT = f"""{EXPLORER}.querySelector('input[type=text][placeholder]:not([list])')"""
PLOT = f'({EXPLORER}.querySelector(".js-plotly-plot") || {{}})'


def type_text(page: chromium.Chromium, text: str) -> None:
    """As a user does: click into the box, select what is there, type."""
    page.run(f"{TEXT}.focus(); {TEXT}.select()")
    page.call("Input.insertText", text=text)


def run_all(page: chromium.Chromium) -> None:
    page.wait(f"!!{NOTEBOOK}?.sessionContext.session?.kernel", START)
    page.run(f"jupyterapp.shell.activateById({NOTEBOOK}.id)")
    page.wait("!!jupyterapp.shell.currentWidget")
    page.run("jupyterapp.commands.execute('notebook:run-all-cells').then(() => 0)")


@pytest.mark.browser
def test_chapter_runs_in_jupyterlab_and_its_explorer_answers(lab, tmp_path):
    with chromium.Chromium(1280, 1500) as page:
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        page.open(f"{lab}/lab/tree/book/page.ipynb")
        run_all(page)
        page.wait(f"!!({TEXT} && {PLOT}.data && {PLOT}.querySelector('svg.main-svg'))", START)
        assert page.run('document.querySelectorAll(".jp-OutputArea-output[data-mime-type*=error]").length') == 0
        assert page.run(
            '[...document.querySelectorAll(".jp-CodeCell .jp-InputPrompt")].every(p => /\\d/.test(p.innerText))'
        )
        assert page.run(f"{PLOT}.data.map(trace => trace.name)") == [*PLACES]

        before = page.run(f"{PLOT}.data[1].text")
        type_text(page, "d=5, d+31=?")
        page.wait(f"{PLOT}.data?.[1].text.slice(-6).join(' ') == 'd 5 + d 31 ='", 30)
        assert page.run(f"{PLOT}.data[1].text") != before
        assert page.run(f"{PLOT}.data[2].text[0]") == "36"

        type_text(page, "d=5, e+31=?")
        said = f"({EXPLORER}.querySelector('[role=status]')?.innerText ?? '')"
        page.wait(f"{said}.includes('variable e is used but not assigned')", 30)
        assert page.run(f"{PLOT}.data[1].text.slice(-6).join(' ')") == "d 5 + d 31 ="
        page.picture(tmp_path / "lab.png")
        assert (tmp_path / "lab.png").stat().st_size > 20_000
        assert not [
            url for url in page.requests if not url.startswith((lab, lab.replace("http", "ws"), "data:", "blob:"))
        ]
