"""A folder of seeds whose metrics are made by hand, so that what is counted over them is known."""

from pathlib import Path

from small_runs import CFG, unflushed

from mc_lib import model, phases
from mc_lib.config import Config
from mc_lib.evaluation import NINE
from mc_lib.runs import RunWriter
from mc_lib.sweep import TABLE

EVERY, LAST = 100, 2000
SETTINGS = CFG.replace(steps=LAST, eval_every=EVERY)
ONE = ("1-var train", "1-var add-restricted", "2-var train", "2-var add-restricted")


def save_seed(
    folder: Path, number: int, first: int | None, second: int | None, late: dict[str, int] | None = None,
    cfg: Config = SETTINGS, **further: float,
) -> Path:  # fmt: skip
    """A run that adds from step 300 on, jumps at these steps, and solves each late cell at its own."""
    cells = dict.fromkeys(phases.cell_names(cfg), first) | dict.fromkeys(phases.restricted_cells(cfg), second)
    cells |= late or {}
    path = folder / f"{number:03d}"
    with unflushed(), RunWriter.create(path, cfg.replace(seed=number), "float16") as writer:
        for step in range(0, LAST + 1, EVERY):
            at = dict.fromkeys(NINE, second) | dict.fromkeys(ONE, first) | dict.fromkeys(NINE[:2], 300) | cells
            row = {name: float(when is not None and step >= when) for name, when in at.items()}
            writer.commit(step, {"loss": 1.0, **row, **further}, model.init(cfg) if step == LAST else None)
        writer.finish()
    return path


def save_folder(folder: Path, jumps: list[tuple[int | None, int | None]]) -> Path:
    """A sweep over seeds with these jumps, its table included."""
    for number, (first, second) in enumerate(jumps):
        save_seed(folder, number, first, second, noise=float(number * 7 % 5))
    rows = (f"{number:03d},{number}\n" for number in range(len(jumps)))
    (folder / TABLE).write_text("run,seed\n" + "".join(rows))
    return folder
