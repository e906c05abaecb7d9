"""How nbval compares the book's notebooks; it stands here because it concerns `book/` as well as `tests/`.

nbval runs each committed notebook anew and compares what its cells print. Figures, tables and warnings are left out of
the comparison: a figure's last digits differ between processors, and its numbers are printed beside it.
"""

import os

import pytest

# As the book's own execution does: one thread a kernel, and no word from the kernel but errors.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONHASHSEED"] = "0"
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"

NOT_COMPARED = (
    "text/html",
    "application/vnd.plotly.v1+json",
    "application/vnd.jupyter.widget-view+json",
    "stderr",
)


def pytest_collectstart(collector: pytest.Collector) -> None:
    if hasattr(collector, "skip_compare"):  # nbval's notebooks
        collector.skip_compare += NOT_COMPARED
