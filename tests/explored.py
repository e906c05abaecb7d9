"""Runs to explore, and what an explorer shows as the browser gets it."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from built_by_hand import built
from small_runs import unflushed

from mc_lib import figures, model
from mc_lib.config import Config
from mc_lib.explorer_parts import Explorer
from mc_lib.runs import RunWriter

P, N, LENGTH = 11, 6, 12
STEPS = (0, 3, 7)


def config(heads: int = 1, p: int = P) -> Config:
    width = (p + 3 + N) + LENGTH + N + 2 * p
    width += -width % heads
    return Config(p=p, variables=N, length=LENGTH, heads=heads, d_model=width, d_mlp=p * (p + 1) // 2,
                  not_second="a", not_first="f", eval_size=20)  # fmt: skip


def save(folder: Path, cfg: Config, *, by_hand: bool = False, steps: Sequence[int] = STEPS) -> str:
    """A run of other random weights at each step; the last ones, if asked for, a model that never errs."""
    with unflushed(), RunWriter.create(folder, cfg) as writer:
        for step in steps:
            weights = model.init(cfg.replace(seed=step, init_scale=3.0))
            if by_hand and step == steps[-1]:
                weights = {name: w.float() for name, w in built(cfg).items()}
            writer.commit(step, {"loss": 1.0}, weights)
        writer.finish()
    return str(folder)


def shown(explorer: Explorer) -> dict:
    """The traces as they reach the browser, by name."""
    (output,) = explorer.picture.widget.outputs
    json.dumps(output)
    assert output["data"]["text/plain"].startswith("[figure] ")
    spec = output["data"][figures.PLOTLY_MIME]
    return {trace.get("name"): trace for trace in spec["data"]}


def array(value) -> np.ndarray:
    """A column of plotly's JSON, packed or not."""
    if not isinstance(value, dict):
        return np.array(value, dtype=float)
    values = np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
    return values.reshape([int(n) for n in value["shape"].split(",")]) if "shape" in value else values
