"""The explorer of seeds: a menu chooses, the figure and the lines follow."""

from pathlib import Path

import pytest
from explored import array, shown
from many_runs import SETTINGS, save_folder, save_seed
from small_runs import saved

from mc_lib import explorer, figures_seeds, many, phases, verdicts
from mc_lib.claims import CLAIMS
from mc_lib.evaluation import NINE
from mc_lib.explorer_seeds import SHOWN, SeedExplorer

JUMPS = [(500, 900), (600, None), (None, None), (400, 400)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_folder(tmp_path_factory.mktemp("explored") / "seeds", JUMPS)


@pytest.fixture
def explored(folder):
    return SeedExplorer(folder / "000")


def test_it_offers_every_seed_and_tells_its_story(explored):
    assert [label for label, _ in explored.seed.options] == [
        "0: both jumps", "1: first jump only", "2: no jump", "3: both jumps"
    ]  # fmt: skip
    for place, (first, second) in enumerate(JUMPS):
        explored.seed.value = place
        for event, at in (("jump 1", first), ("jump 2", second)):
            assert f"{event} {'never' if at is None else f'at {at:,}'}" in explored.story.text
        traces = shown(explored)
        assert set(traces) - {None} == set(NINE)
        curve = phases.curve(explored.seeds[place].run.metrics, "1-var train")
        assert array(traces["1-var train"]["y"]).tolist() == pytest.approx(curve[curve.index > 0].tolist())


def test_it_draws_what_is_chosen(explored):
    explored.shown.value = SHOWN[2]
    assert set(shown(explored)) - {None} == set(phases.restricted_cells(SETTINGS))
    explored.shown.value = SHOWN[1]
    assert not set(shown(explored)) - {None}, "these runs log no progress measures"


def test_it_names_the_claims_that_fail_where_they_are_known(folder, explored):
    assert "python -m mc_lib claims" in explored.failing.text
    runs = [seed.run for seed in many.read(folder)]
    verdicts.write(folder, verdicts.measure(runs, CLAIMS))
    try:
        told = SeedExplorer(folder / "000")
        told.seed.value = 2
        assert "gen.train" in told.failing.text
        (folder / verdicts.CLAIMS_TABLE).write_text("no table")
        line = explorer.seeds(str(folder / "000")).value
        assert "write it anew" in line
    finally:
        (folder / verdicts.CLAIMS_TABLE).unlink()


def test_a_page_without_seeds_gets_a_line(tmp_path, monkeypatch):
    run = saved(tmp_path / "run", 2, True)
    monkeypatch.chdir(tmp_path)
    assert "there is no runs/seeds" in explorer.seeds(str(run)).value


# --- the figures ---------------------------------------------------------------------------------------


def test_the_story_figure_swaps_all_its_lines(folder):
    seeds = many.read(folder)
    fig = figures_seeds.story(seeds)
    (menu,) = fig.layout.updatemenus
    for seed, button in zip(seeds, menu.buttons, strict=True):
        (values,) = button.args
        assert len(values["x"]) == len(values["y"]) == len(fig.data)
        for name, x, y in zip(NINE, values["x"], values["y"], strict=False):
            curve = phases.curve(seed.run.metrics, name)
            assert [curve[step] for step in x] == y
        jumps = values["x"][len(NINE) :]
        assert [x[0] for x in jumps] == [seed.steps["jump 1"], seed.steps["jump 2"]]


def test_spaghetti_shows_one_set_at_a_time(folder):
    seeds = many.read(folder)
    fig = figures_seeds.spaghetti(seeds)
    (menu,) = fig.layout.updatemenus
    assert [button.label for button in menu.buttons] == list(NINE)
    active = menu.buttons[menu.active].args[0]["visible"]
    assert [trace.visible is not False for trace in fig.data] == active
    for button in menu.buttons:
        assert sum(button.args[0]["visible"]) == 3 + len(seeds) + len({seed.fate for seed in seeds})


def test_a_thin_curve_keeps_its_ends_and_is_part_of_the_whole(folder):
    curve = phases.curve(many.read(folder)[0].run.metrics, "1-var train")
    thin = figures_seeds.thinned(curve, 7)
    assert len(thin) <= 7
    assert (thin.index[0], thin.index[-1]) == (100, curve.index[-1])
    assert (curve[thin.index] == thin).all()
    assert figures_seeds.thinned(curve, 1000).equals(curve[curve.index > 0])


def test_the_claims_map_has_a_cell_for_each_verdict(folder):
    seeds = many.read(folder)
    table = verdicts.measure([seed.run for seed in seeds], CLAIMS)
    grid, values = verdicts.grid(table), table.pivot(index="claim", columns="run", values="value")
    fig = figures_seeds.claims_map(grid, values, seeds)
    fates = [next(seed for seed in seeds if str(seed.number) == x).fate for x in fig.data[0].x]
    assert [many.FATES.index(fate) for fate in fates] == sorted(many.FATES.index(seed.fate) for seed in seeds)
    for trace in fig.data:
        for claim, row, told in zip(trace.y, trace.z, trace.customdata, strict=True):
            for seed, cell, text in zip(trace.x, row, told, strict=True):
                assert (cell == 1) == (grid.loc[claim, f"{int(seed):03d}"] == trace.name)
                assert bool(text) == (cell == 1)


def test_seeds_without_restricted_places_are_drawn_too(tmp_path):
    cfg = SETTINGS.replace(not_first="", not_second="")
    save_seed(tmp_path / "seeds", 0, 500, None, cfg=cfg, **{phases.SECOND: float("nan")})
    fig = figures_seeds.spaghetti(many.read(tmp_path / "seeds"))
    (menu,) = fig.layout.updatemenus
    labels = [button.label for button in menu.buttons]
    assert phases.SECOND not in labels
    assert labels[menu.active] == NINE[-1]


def test_figures_are_drawn_of_seeds_that_do_nothing(tmp_path):
    seeds = many.read(save_folder(tmp_path / "seeds", [(None, None)]))
    tables = {event: many.waiting(seeds, event) for event in many.EVENTS}
    for fig in (
        figures_seeds.survival(tables), figures_seeds.jumps(seeds), figures_seeds.spaghetti(seeds),
        figures_seeds.story(seeds), figures_seeds.frequency_map(many.frequencies(seeds)),
    ):  # fmt: skip
        assert fig.data
