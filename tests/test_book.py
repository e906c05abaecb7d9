"""The book: its pairs, its execution, and its pages as a browser shows them."""

import functools
import http.server
import re
import shutil
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import chromium
import nbformat
import pytest

from mc_lib.config import Refusal
from mc_lib.figures import PLOTLY_MIME
from tools import render
from tools.execute import BOOK, ROOT, ChapterFailed, chapters, execute, read_chapter

CHAPTERS = [pytest.param(path, id=path.stem) for path in chapters()]

PAGE = """
# %% [markdown]
# # A page

# %% tags=["parameters"]
RUN = "runs/main"

# %%
import sys, time, ipywidgets, plotly.graph_objects as go
from IPython.display import display
from mc_lib import figures
print("one", end=" ", flush=True); print("loading", file=sys.stderr); time.sleep(0.05); print("line of", RUN)
display(ipywidgets.IntSlider())
figures.show(go.Figure(go.Scatter(y=[1, 2, 3])), "A caption.", "Three points.")
"""


def write_page(folder: Path, code: str) -> Path:
    path = folder / "page.py"
    path.write_text(code)
    return path


# --- the committed pairs -------------------------------------------------------------------------------


@pytest.mark.parametrize("source", CHAPTERS)
def test_pair_holds_the_same_cells_executed(source):
    """The notebook is the chapter, cell by cell, with every code cell run to its end."""
    done, plain = nbformat.read(source.with_suffix(".ipynb"), as_version=4), read_chapter(source)
    assert done.metadata == plain.metadata
    for cell, expected in zip(done.cells, plain.cells, strict=True):
        for part in ("id", "cell_type", "source"):
            assert cell[part] == expected[part]
        assert cell.metadata.get("tags") == expected.metadata.get("tags")
        if cell.cell_type == "code":
            assert cell.execution_count is not None
            assert not [out for out in cell.outputs if out.output_type == "error" or out.get("name") == "stderr"]


@pytest.mark.parametrize("source", CHAPTERS)
def test_chapter_keeps_the_rules(source):
    """One parameters cell; 15 lines a cell; each figure has its caption, and is followed by its numbers."""
    cells = nbformat.read(source.with_suffix(".ipynb"), as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    parameters = [cell.source for cell in code if "parameters" in cell.metadata.get("tags", [])]
    assert parameters == [f'RUN = "{render.DEFAULT_RUN}"']
    assert not [cell.source for cell in code if len(cell.source.splitlines()) > 15]
    for cell, after in zip(code, [*code[1:], None], strict=True):
        outputs = [output.get("data", {}) for output in cell.outputs]
        for output, caption in pairwise([*outputs, {}]):
            if PLOTLY_MIME in output:
                assert 'class="mc-caption"' in caption.get("text/html", ""), cell.source
                printed = [out for near in (cell, after) if near for out in near.outputs if out.get("name") == "stdout"]
                assert printed, f"no numbers after the figure of: {cell.source}"


@pytest.mark.parametrize("source", CHAPTERS)
def test_notebook_is_light_and_names_no_machine(source):
    path = source.with_suffix(".ipynb")
    assert path.stat().st_size < 1_000_000
    assert str(ROOT) not in path.read_text()
    assert str(Path.home()) + "/" not in path.read_text()


# --- execution -----------------------------------------------------------------------------------------


def test_two_executions_are_byte_identical(tmp_path):
    source = write_page(tmp_path, PAGE)
    for name in ("first", "second"):
        execute(source, tmp_path / f"{name}.ipynb")
    first = (tmp_path / "first.ipynb").read_bytes()
    assert first == (tmp_path / "second.ipynb").read_bytes()
    outputs = nbformat.reads(first.decode(), as_version=4).cells[-1].outputs
    assert [out.get("text") or sorted(out.data) for out in outputs] == [
        "one line of runs/main\n",
        [PLOTLY_MIME, "text/html", "text/plain"],
        ["text/html", "text/plain"],
    ]
    assert "<script" not in outputs[1].data["text/html"]


def test_parameters_reach_the_page(tmp_path):
    source = write_page(tmp_path, '# %% tags=["parameters"]\nRUN = "runs/main"\n\n# %%\nprint(RUN)\n')
    execute(source, tmp_path / "page.ipynb", {"RUN": "runs/mine"})
    assert "runs/mine" in nbformat.read(tmp_path / "page.ipynb", as_version=4).cells[-1].outputs[0].text


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("first = 1\n1 / 0", "ZeroDivisionError: division by zero"),
        ("first = 1\nimport time\ntime.sleep(600)", "the cell did not end within 2 s"),
        ("first = 1\nimport os\nos._exit(1)", "DeadKernelError"),
    ],
    ids=["raises", "hangs", "dies"],
)
def test_failure_names_chapter_cell_and_error(tmp_path, code, error):
    source = write_page(tmp_path, f"# %%\nfine = True\n\n# %%\n{code}\n\n# %%\nnever = True\n")
    target = tmp_path / "page.ipynb"
    target.write_text("as it was")
    with pytest.raises(ChapterFailed) as failure:
        execute(source, target, timeout=2)
    last = str(failure.value).splitlines()
    assert last[0] == "chapter page failed"
    assert last[1] == "  in cell 2 of 3: first = 1"
    assert error in last[2]
    assert len(last) == 3
    assert target.read_text() == "as it was"


@pytest.mark.parametrize("run", ["runs/no-such-run", "tests", "Makefile"])
def test_wrong_run_is_one_clear_line(run, tmp_path):
    with pytest.raises(Refusal) as refusal:
        render.render(run, tmp_path)
    assert run in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


# --- the site ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The book of the committed notebooks; a warning while building it is an error."""
    build = tmp_path_factory.mktemp("site")
    source = render.prepare(build)
    for chapter in chapters():
        shutil.copy(chapter.with_suffix(".ipynb"), source)
    return render.make_site(source, build).parent


def pages(site: Path) -> list[Path]:
    return [site / "index.html", *(site / f"{path.stem}.html" for path in chapters())]


def test_every_chapter_is_a_light_page(site):
    for page in pages(site):
        assert page.stat().st_size < 1_500_000, page.name


def test_pages_point_to_no_other_host(site):
    """Whatever a page loads by itself lies beside it; links that a reader may follow are another matter."""
    for page in site.glob("*.html"):
        loads = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"([^\"]*)\"", page.read_text())
        assert loads
        assert not [url for url in loads if re.match(r"(\w+:)?//", url)], page.name


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Chromium]:
    if chromium.find() is None:
        pytest.skip(chromium.HOW)
    with chromium.Chromium() as started:
        yield started


SHOWN = """[...document.querySelectorAll(".mc-plot")].map(plot => {
    const box = plot.querySelector(".mc-figure"), svg = box.querySelector("svg.main-svg");
    const size = svg ? svg.getBoundingClientRect() : { width: 0, height: 0 };
    return { alt: box.getAttribute("aria-label"), caption: (plot.querySelector("figcaption") || {}).textContent,
             drawn: size.width > 100 && size.height > 100, inside: size.width <= box.clientWidth + 1 };
})"""
DRAWN = '[...document.querySelectorAll(".mc-figure")].every(box => box.querySelector("svg.main-svg"))'


def look(browser: chromium.Chromium, url: str, figures: int) -> None:
    """Opens a page and checks all that a reader would miss: figures, formulas, captions, texts, and errors."""
    browser.open(url)
    browser.wait(DRAWN)
    browser.wait('window.MathJax.isReady && ![...document.querySelectorAll("span.math, div.math")]'
                 '.some(box => !box.querySelector("math"))')  # fmt: skip
    shown = browser.run(SHOWN)
    assert len(shown) == figures
    for figure in shown:
        assert figure["drawn"], figure
        assert figure["inside"], figure
        assert figure["alt"].strip(), figure
        assert figure["caption"].strip(), figure
    assert browser.run('document.querySelectorAll("img:not([alt])").length') == 0
    assert browser.errors == []


def count_figures(page: Path) -> int:
    return page.read_text().count('<figure class="mc-plot">')


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_from_a_file(site, browser, width, dark):
    browser.look(width, 900, dark)
    for page in pages(site):
        look(browser, page.as_uri(), count_figures(page))
        assert not [url for url in browser.requests if not url.startswith(("file:", "data:", "blob:"))]
        assert browser.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        assert browser.run("document.documentElement.scrollWidth") <= width
        ink = browser.run('(e => e ? getComputedStyle(e).fill : "")(document.querySelector(".mc-figure .xtick text"))')
        if ink:
            assert (int(re.findall(r"\d+", ink)[0]) > 128) == dark


@pytest.mark.browser
def test_pages_from_a_server(site, browser):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *ignored):
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}/"
        browser.look(1280, 900, False)
        for page in pages(site):
            look(browser, here + page.name, count_figures(page))
            assert not [url for url in browser.requests if not url.startswith((here, "data:", "blob:"))]
        server.shutdown()


def test_every_page_is_in_the_table_of_contents():
    listed = re.findall(r"(?:root|file): (\w+)", (ROOT / "_toc.yml").read_text())
    assert sorted(listed) == sorted({path.stem for path in [*chapters(), *BOOK.glob("*.md")]})
