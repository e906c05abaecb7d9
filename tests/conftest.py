"""What holds for every test: shapes and types of mc_lib are checked at each call, and how notebooks are compared.

nbval runs each committed notebook anew and compares what its cells print. Figures and warnings are left out of the
comparison: a figure's last digits differ between processors, and its numbers are printed beside it.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

# As the book's own execution does: one thread a kernel, and no word from the kernel but errors.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONHASHSEED"] = "0"
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"

install_import_hook("mc_lib", "beartype.beartype")

# The same examples at every run, and no clock: a busy machine is no failure.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

NOT_COMPARED = (
    "text/html",
    "application/vnd.plotly.v1+json",
    "application/vnd.jupyter.widget-view+json",
    "stderr",
)


def pytest_collectstart(collector: pytest.Collector) -> None:
    if hasattr(collector, "skip_compare"):  # nbval's notebooks
        collector.skip_compare += NOT_COMPARED
