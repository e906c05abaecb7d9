"""How sure a share is: a share is `hits` of `n`, and its interval is Wilson's, which holds near 0 and 1 as well."""

import math


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """The interval that would catch the true share in 95% of samples like this one (for z = 1.96)."""
    if not 0 <= hits <= n or n < 1:
        raise ValueError(f"{hits} of {n} is no share")
    share, z2 = hits / n, z * z
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)
