"""How sure a share is: a share is `hits` of `n`, and its interval holds near 0 and 1 as well.

Wilson's is for the many items of a test set; the exact one (Clopper and Pearson's), which never promises too much, is
for the few runs of a sweep.
"""

import math
from collections.abc import Callable


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """The interval that would catch the true share in 95% of samples like this one (for z = 1.96)."""
    _check(hits, n)
    share, z2 = hits / n, z * z
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def exact(hits: int, n: int, sure: float = 0.95) -> tuple[float, float]:
    """The shares under which neither so many hits nor so few would be rarer than (1 - sure) / 2."""
    _check(hits, n)
    tail = (1 - sure) / 2
    low = _share_where(lambda share: at_least(hits, n, share) >= tail) if hits else 0.0
    high = _share_where(lambda share: 1 - at_least(hits + 1, n, share) <= tail) if hits < n else 1.0
    return low, high


def at_least(hits: int, n: int, share: float) -> float:
    """How likely `hits` or more of n are, each coming with this probability."""
    if share in (0.0, 1.0):
        return float(hits == 0 or share == 1.0)
    log, log_not, all_ways = math.log(share), math.log1p(-share), math.lgamma(n + 1)
    ways = (
        all_ways - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * log + (n - k) * log_not for k in range(hits, n + 1)
    )
    return math.fsum(map(math.exp, ways))


def _share_where(reached: Callable[[float], bool], steps: int = 60) -> float:
    """The share from which on `reached` is true, by halving."""
    low, high = 0.0, 1.0
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _check(hits: int, n: int) -> None:
    if not 0 <= hits <= n or n < 1:
        raise ValueError(f"{hits} of {n} is no share")
