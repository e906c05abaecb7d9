"""What holds for every test: shapes and types of mc_lib are checked at each call, and examples are always the same."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

install_import_hook("mc_lib", "beartype.beartype")

# The same examples at every run, and no clock: a busy machine is no failure.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


@pytest.fixture(scope="session")
def main_study():
    """The saved main run, with what its claims share measured once."""
    from mc_lib.claim import Study
    from mc_lib.runs import open_run

    return Study(open_run(Path(__file__).resolve().parent.parent / "runs" / "main"))
