"""The chapters of one run into a site that needs no network.

Everything happens in a build folder, outside `book/`: `source/` holds the executed notebooks with each figure's JSON
put beside its box, the pages in markdown, our assets, and plotly.js and MathJax copied out of their installed
packages; `html/` is what jupyter-book makes of it.

    python -m tools.render [--run runs/mine] [--build _build]
"""

import argparse
import base64
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from mc_lib.config import Refusal
from mc_lib.figures import PLOTLY_MIME
from mc_lib.runs import open_run
from tools.execute import BOOK, ROOT, ChapterFailed, chapters, execute_all

DEFAULT_RUN = "runs/main"


def embed_figures(notebook: NotebookNode) -> NotebookNode:
    """Turns each figure and the caption after it into one HTML figure that holds its JSON, in place."""
    for cell in notebook.cells:
        outputs: list[NotebookNode] = []
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if PLOTLY_MIME in data:
                script = json.dumps(data.pop(PLOTLY_MIME), separators=(",", ":")).replace("<", "\\u003c")
                box = f'{data["text/html"]}<script type="application/json">{script}</script>'
                data["text/html"] = f'<figure class="mc-plot">{box}</figure>'
            elif 'class="mc-caption"' in data.get("text/html", "") and outputs:
                caption = re.sub(r"^<p (.*)</p>$", r"<figcaption \1</figcaption>", data["text/html"], flags=re.S)
                figure = outputs[-1]["data"]
                figure["text/html"] = figure["text/html"].replace("</figure>", f"{caption}</figure>")
                continue
            outputs.append(output)
        if "outputs" in cell:
            cell.outputs = outputs
    return notebook


def package_folder(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise Refusal(f"the package {name} is missing: run `make env`")
    return Path(spec.origin).parent


def copy_assets(assets: Path) -> None:
    """Our own style and script, and the two libraries that pages load."""
    shutil.copytree(BOOK / "assets", assets)
    shutil.copy(package_folder("plotly") / "package_data" / "plotly.min.js", assets)
    shutil.copytree(package_folder("jupyter_server_mathjax") / "static", assets / "mathjax")


def prepare(build: Path) -> Path:
    """A fresh source folder with everything but the notebooks."""
    source = build / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    for page in [*BOOK.glob("*.md"), *BOOK.glob("*.bib"), ROOT / "_config.yml", ROOT / "_toc.yml"]:
        shutil.copy(page, source)
    copy_assets(source / "assets")
    return source


def make_site(source: Path, build: Path) -> Path:
    """Renders `source`, warnings being errors, and returns the first page."""
    for path in source.glob("*.ipynb"):
        nbformat.write(embed_figures(nbformat.read(path, as_version=4)), path)
    command = [
        str(Path(sys.executable).with_name("jupyter-book")),
        "build",
        str(source),
        "--path-output",
        str(build),
    ]
    command += ["-W", "--keep-going", "--all"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=build)
    output = result.stdout + result.stderr
    (build / "jupyter-book.log").write_text(output)
    if result.returncode:
        said = [line for line in output.splitlines() if "WARNING" in line or "ERROR" in line]
        raise ChapterFailed("\n".join([*(said or output.splitlines()[-20:]), "jupyter-book refused the pages above"]))
    shutil.rmtree(build / "html", ignore_errors=True)
    shutil.move(build / "_build" / "html", build / "html")
    settle(build / "html")
    return build / "html" / "index.html"


FOREIGN = re.compile(  # what the theme puts on every page for services that we do not use
    r"<link rel=\"preload\" as=\"font\"[^>]*>|"
    r"<script( async=\"async\")?( src=\"_static/sphinx-thebe.js[^>]*| type=\"text/x-thebe-config\")?>"
    r"(?(2)[^<]*|(const THEBE_JS_URL|kernelName)[^<]*)</script>|"
    r"<link [^>]*sphinx-thebe.css[^>]*>"
)


def settle(site: Path) -> None:
    """Makes every page whole by itself: from file://, browsers load no font files, so the icons go into their style."""
    for page in site.rglob("*.html"):
        page.write_text(FOREIGN.sub("", page.read_text("utf-8")), "utf-8")
    for style in site.glob("_static/vendor/fontawesome/*/css/all.min.css"):
        text = style.read_text("utf-8")
        for font in sorted((style.parent.parent / "webfonts").glob("*.woff2")):
            data = base64.b64encode(font.read_bytes()).decode()
            text = text.replace(f"url(../webfonts/{font.name})", f"url(data:font/woff2;base64,{data})", 1)
        style.write_text(text, "utf-8")


def checked_run(run: str) -> str:
    """The run as chapters name it, relative to the repository's root if it lies there; Refusal where it is none."""
    folder = next((place for place in (Path.cwd() / run, ROOT / run) if place.exists()), Path(run))
    try:
        open_run(folder).weights()
    except Refusal as refusal:
        raise Refusal(f"RUN = {run} will not do: {refusal}") from None
    folder = folder.resolve()
    return folder.relative_to(ROOT).as_posix() if folder.is_relative_to(ROOT) else str(folder)


def render(run: str = DEFAULT_RUN, build: Path = ROOT / "_build") -> Path:
    """Executes every chapter for `run` and renders them; returns the first page."""
    run, build = checked_run(run), build.resolve()
    source = prepare(build)
    execute_all(chapters(), source, {} if run == DEFAULT_RUN else {"RUN": run})
    return make_site(source, build)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Execute every chapter for a run and render the book.")
    parser.add_argument("--run", default=DEFAULT_RUN, help="the saved run that the chapters show")
    parser.add_argument("--build", type=Path, default=ROOT / "_build", help="where everything is written")
    options = parser.parse_args(arguments)
    try:
        page = render(options.run, options.build)
    except (Refusal, ChapterFailed) as failure:
        sys.exit(str(failure))
    print(f"The book of {options.run} opens at {page.as_uri()}")


if __name__ == "__main__":
    main()
