"""The chapters on runs that are not the main one: what cannot be measured there says so and fails no page."""

from concurrent.futures import ThreadPoolExecutor

import nbformat
import pytest
import torch

from mc_lib import sweep
from mc_lib.config import Config
from mc_lib.foreign import import_foreign
from mc_lib.runs import open_run
from mc_lib.train import metrics_row, train
from tools.execute import chapters, execute_all

OTHER = Config(
    p=13, variables=6, not_first="f", not_second="", length=14, d_model=32, heads=4, d_mlp=40, batch=64,
    steps=60, eval_every=20, eval_size=60, held_out=0.2,
)  # fmt: skip


@pytest.mark.parametrize("sort", ["trained", "imported"])
def test_every_chapter_executes_on_another_run(sort, tmp_path):
    """Another modulus, other variables and restrictions, 4 heads, few checkpoints or one."""
    path = tmp_path / "run"
    run = train(OTHER, tmp_path / "trained")
    if sort == "imported":
        torch.save(run.weights(), tmp_path / "checkpoint_step_59.pth")
        import_foreign(tmp_path / "checkpoint_step_59.pth", path, OTHER, measure=metrics_row)
    else:
        path = run.path
    assert len(open_run(path).steps) <= (1 if sort == "imported" else 4)
    (tmp_path / "pages").mkdir()
    execute_all(chapters(), tmp_path / "pages", {"RUN": str(path)})


def test_the_page_on_seeds_is_about_the_seeds_that_a_run_is_one_of(tmp_path):
    """Two seeds that have learned nothing yet, of other settings, without a table of claims."""
    sweep.sweep(sweep.seeds(OTHER, 2), tmp_path / "mine", ThreadPoolExecutor(1))
    (tmp_path / "pages").mkdir()
    source = next(path for path in chapters() if path.stem == "many_seeds")
    execute_all([source], tmp_path / "pages", {"RUN": str(tmp_path / "mine" / "001")})
    cells = nbformat.read(tmp_path / "pages" / "many_seeds.ipynb", as_version=4).cells
    printed = [out.text for cell in cells for out in cell.get("outputs", []) if out.get("name") == "stdout"]
    assert printed[0] == "mine: 2 seeds, 0 to 1, 60 steps each\n"
    assert any("no jump: 2" in text for text in printed)
