"""Chapters into executed notebooks, the same bytes every time.

A chapter is `book/NAME.py` in jupytext's percent format; its pair is the executed `book/NAME.ipynb`. Executing means:
jupytext reads the chapter, papermill runs it, and all that differs between two runs of the same code (ids, times,
widget ids, stderr) is taken out.

    python -m tools.execute [NAME ...]      execute the committed pairs, all or those named
"""

import argparse
import hashlib
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import papermill
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"
TIMEOUT = 240  # seconds a cell may run
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
PAPERMILL_NOTE = "papermill-error-cell-tag"  # on the cells that papermill adds to a notebook that failed
KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
# One thread a kernel: chapters run side by side, and sums do not depend on the machine's cores.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


class ChapterFailed(Exception):
    """A chapter that raised, hung or died; its text names the chapter, the cell and the error."""


def chapters() -> list[Path]:
    return sorted(BOOK.glob("*.py"))


def read_chapter(source: Path) -> NotebookNode:
    """The chapter as a notebook without outputs, its cell ids derived from what the cells say."""
    notebook = jupytext.read(source)
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return set_ids(notebook)


def set_ids(notebook: NotebookNode) -> NotebookNode:
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        count = seen[cell.source] = seen.get(cell.source, 0) + 1
        cell["id"] = hashlib.sha256(f"{cell.cell_type}/{count}/{cell.source}".encode()).hexdigest()[:12]
    return notebook


def strip(notebook: NotebookNode) -> NotebookNode:
    """Takes out, in place, what two executions of the same code do not share."""
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {})
        if cell.cell_type == "code":
            cell.outputs = _merged([output for output in cell.outputs if _kept(output)])
    return set_ids(notebook)


def _kept(output: NotebookNode) -> bool:
    if output.output_type == "stream":
        return output.name != "stderr"  # progress bars and their times
    return WIDGET_MIME not in output.get("data", {})


def _merged(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Joins neighbouring printed pieces: where they were cut depends on timing."""
    joined: list[NotebookNode] = []
    for output in outputs:
        if joined and output.output_type == joined[-1].output_type == "stream":
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def execute(source: Path, target: Path, parameters: dict[str, Any] | None = None, timeout: int = TIMEOUT) -> None:
    """Runs the chapter `source` and writes its notebook to `target`, whole or not at all."""
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as folder:
        plain, done = Path(folder, "plain.ipynb"), Path(folder, "done.ipynb")
        nbformat.write(read_chapter(source), plain)
        for attempt in ("first", "last"):
            try:
                _run(plain, done, parameters or {}, timeout, cwd=source.parent)
                break
            except papermill.PapermillExecutionError as error:  # the cell raised: it would again
                raise ChapterFailed(_where(source, done, f"{error.ename}: {error.evalue}")) from None
            except Exception as error:  # a hang, or a kernel that died: the machine may have been busy
                if attempt == "last":
                    raise ChapterFailed(_where(source, done, _brief(error, timeout))) from None
        fresh = target.with_name(target.name + ".new")
        nbformat.write(strip(nbformat.read(done, as_version=4)), fresh)
        os.replace(fresh, target)


def _run(plain: Path, done: Path, parameters: dict[str, Any], timeout: int, cwd: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # papermill's own: deprecated calls, and notebooks without parameters
        papermill.execute_notebook(
            plain,
            done,
            parameters,
            kernel_name=KERNEL["name"],
            cwd=str(cwd),
            progress_bar=False,
            start_timeout=120,
            execution_timeout=timeout,
            extra_arguments=["--log-level=40"],  # the kernel says nothing but errors
        )


def _brief(error: Exception, timeout: int) -> str:
    if "timed out" in str(error):
        return f"the cell did not end within {timeout} s"
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'the kernel stopped'}"


def _where(source: Path, done: Path, error: str) -> str:
    """Three lines: the chapter, the last cell that was begun with its first line, and the error."""
    cells = nbformat.read(done, as_version=4).cells if done.exists() else []
    cells = [cell for cell in cells if PAPERMILL_NOTE not in cell.metadata.get("tags", [])]
    begun = [
        number
        for number, cell in enumerate(cells, start=1)
        if cell.cell_type == "code" and cell.metadata.get("papermill", {}).get("start_time")
    ]
    if not begun:
        return f"chapter {source.stem} failed\n  before its first cell\n  {error}"
    first = (cells[begun[-1] - 1].source.strip().splitlines() or [""])[0]
    return f"chapter {source.stem} failed\n  in cell {begun[-1]} of {len(cells)}: {first}\n  {error}"


def _task(job: tuple[Path, Path, dict[str, Any], int]) -> str:
    try:
        execute(*job)
    except ChapterFailed as failure:
        return str(failure)
    return ""


def execute_all(
    sources: Sequence[Path], folder: Path, parameters: dict[str, Any] | None = None, timeout: int = TIMEOUT
) -> None:
    """Executes chapters into `folder`, one a core, and raises ChapterFailed at the end if any failed."""
    jobs = [(source, folder / f"{source.stem}.ipynb", parameters or {}, timeout) for source in sources]
    failures = []
    with ProcessPoolExecutor(min(len(jobs), os.cpu_count() or 1) or 1, mp_context=get_context("spawn")) as pool:
        for source, failure in zip(sources, pool.map(_task, jobs), strict=True):
            print(f"{'FAILED  ' if failure else 'executed'} {source.stem}", flush=True)
            failures += [failure] if failure else []
    if failures:
        raise ChapterFailed("\n".join(failures))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Execute the chapters' committed notebooks anew.")
    parser.add_argument("names", nargs="*", help="chapters, without .py; all when none is named")
    parser.add_argument("--timeout", type=int, default=TIMEOUT, help="seconds a cell may run")
    options = parser.parse_args(arguments)
    known = {source.stem: source for source in chapters()}
    if unknown := [name for name in options.names if name not in known]:
        sys.exit(f"there is no chapter {unknown[0]!r}: the chapters are {', '.join(known)}")
    try:
        execute_all([known[name] for name in options.names or known], BOOK, timeout=options.timeout)
    except ChapterFailed as failure:
        sys.exit(str(failure))


if __name__ == "__main__":
    main()
