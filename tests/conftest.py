"""What holds for every test: shapes and types of mc_lib are checked at each call, and examples are always the same."""

from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

install_import_hook("mc_lib", "beartype.beartype")

# The same examples at every run, and no clock: a busy machine is no failure.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
