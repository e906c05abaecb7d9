"""Claims by seeds: the table holds what each claim gives on each run, and shows when it is of other runs."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from many_runs import save_folder, save_seed
from small_runs import refused

from mc_lib import claims_seeds, many, verdicts
from mc_lib.__main__ import main
from mc_lib.claim import VERDICTS, Claim, Finding, NotHere, Study
from mc_lib.claims import CLAIMS
from mc_lib.claims_dynamics import CLAIMS as DYNAMICS
from mc_lib.intervals import exact
from mc_lib.runs import open_run

ROOT = Path(__file__).resolve().parent.parent
SEEDS = ROOT / "runs" / "seeds"
JUMPS = [(500, 900), (600, None), (None, None), (400, 400), (700, 1900)]


def odd(study: Study) -> Finding:
    if study.config.seed == 3:
        raise NotHere('not on seed 3, "really"')
    return Finding(f"seed {study.config.seed}; odd, or not", study.config.seed % 2 == 1)


MADE = (
    Claim("made.odd", "page", "ours", "Seeds are odd.", "-", "-", "it is odd", odd),
    *DYNAMICS[:2],
    Claim("made.many", "page", "ours", "Many.", "-", "-", "never", odd, many=True),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_folder(tmp_path_factory.mktemp("verdicts") / "seeds", JUMPS)


@pytest.fixture(scope="module")
def runs(folder):
    return [seed.run for seed in many.read(folder)]


def test_a_row_is_what_the_claim_gives(runs):
    table = verdicts.measure(runs, MADE)
    asked = [claim for claim in MADE if not claim.many]
    assert len(table) == len(runs) * len(asked)
    for run in runs:
        for claim in asked:
            row = table[(table.run == run.name) & (table.claim == claim.id)].iloc[0]
            finding = claim.on(Study(run))
            assert row.verdict == finding.verdict
            assert row["value"] == (finding.note if finding.holds is None else finding.value)
    assert verdicts.grid(table).loc["made.odd"].tolist() == [
        VERDICTS[holds] for holds in (False, True, False, None, False)
    ]


def test_it_reads_back_as_it_was_written(runs, folder, tmp_path):
    table = verdicts.measure(runs, MADE)
    verdicts.write(tmp_path, table)
    assert verdicts.read(tmp_path).equals(table)
    assert verdicts.current(verdicts.read(tmp_path), runs, MADE)
    assert verdicts.read(folder) is None


def test_a_table_of_other_runs_or_claims_is_not_current(runs, folder, tmp_path):
    table = verdicts.measure(runs, MADE)
    assert not verdicts.current(None, runs, MADE)
    assert not verdicts.current(table, runs[:-1], MADE)
    assert not verdicts.current(table, runs, MADE[:-2])
    shutil.copytree(folder, tmp_path / "seeds")
    shutil.rmtree(tmp_path / "seeds" / "004")
    save_seed(tmp_path / "seeds", 4, 700, 1800)
    other = [seed.run for seed in many.read(tmp_path / "seeds")]
    assert not verdicts.current(table, other, MADE)
    verdicts.write(tmp_path / "seeds", table)
    assert verdicts.of_runs(tmp_path / "seeds", other, MADE).equals(verdicts.measure(other, MADE))


def test_a_saved_table_that_is_current_is_taken_as_it_is(runs, tmp_path):
    table = verdicts.measure(runs, MADE)
    table.loc[0, "value"] = "not measured again"
    verdicts.write(tmp_path, table)
    assert verdicts.of_runs(tmp_path, runs, MADE).equals(table)


@pytest.mark.parametrize("text", ["", "run,claim\n", "run,checksum,claim,verdict,value\n000,1,a,perhaps,x\n", '"'])
def test_what_is_no_table_is_refused(tmp_path, text):
    (tmp_path / verdicts.CLAIMS_TABLE).write_text(text)
    refused(lambda: verdicts.read(tmp_path), "write it anew", "python -m mc_lib claims")


def test_shares_count_what_can_be_asked(runs):
    shares = verdicts.shares(verdicts.grid(verdicts.measure(runs, MADE)))
    row = shares.loc["made.odd"]
    assert (row.holds, row.asked, row.share) == (1, 4, 0.25)
    assert (row.low, row.high) == exact(1, 4)
    none = verdicts.shares(pd.DataFrame({"000": {"a": VERDICTS[None]}}))
    assert none.loc["a", "asked"] == 0
    assert none.loc["a", ["share", "low", "high"]].isna().all()


# --- the claim about seeds -----------------------------------------------------------------------------

ABOUT_SEEDS = claims_seeds.CLAIMS[0]


def with_verdicts(folder: Path, holds: list[bool | None], name: str = "dyn.order") -> Finding:
    """The finding on a seed of the folder if one claim has these verdicts and all others hold."""
    runs = [seed.run for seed in many.read(folder)]
    rows = []
    for run, verdict in zip(runs, holds, strict=True):
        for claim in CLAIMS:
            if not claim.many:
                told = VERDICTS[verdict if claim.id == name else True]
                rows.append((run.name, verdicts.checksum(run), claim.id, told, ""))
    verdicts.write(folder, pd.DataFrame(rows, columns=list(verdicts.COLUMNS)))
    return ABOUT_SEEDS.on(Study(open_run(runs[0].path)))


def test_the_findings_hold_on_nine_seeds_of_ten_or_they_do_not(tmp_path):
    ten = save_folder(tmp_path / "ten", [(500, 900)] * 9 + [(600, None)])
    assert with_verdicts(ten, [True] * 10).holds is True
    one_fails = with_verdicts(ten, [True] * 8 + [False, True])
    assert one_fails.holds is False, "of the nine that generalise, eight"
    assert "dyn.order 8 of 9" in one_fails.value
    assert "9 of 10 seeds generalise" in one_fails.value
    assert with_verdicts(ten, [True] * 9 + [False]).holds is True, "the one that fails does not generalise"
    assert with_verdicts(ten, [True] * 7 + [None] * 3).holds is True, "what cannot be asked does not count"
    assert with_verdicts(ten, [False] * 10, "gen.diagonal").holds is True, "not a claim of the paper's"
    assert with_verdicts(ten, [False] * 10, "gen.pairs").holds is False


def test_seeds_that_do_not_generalise_are_a_finding(tmp_path):
    few = save_folder(tmp_path / "few", [(500, 900)] * 3 + [(600, None)])
    assert with_verdicts(few, [True] * 4).holds is False


def test_without_a_current_table_nothing_is_claimed(tmp_path, folder):
    assert "claims.csv" in ABOUT_SEEDS.on(Study(open_run(folder / "000"))).note
    none = save_folder(tmp_path / "none", [(600, None)] * 2)
    assert "none of 2 seeds generalises" in with_verdicts(none, [True] * 2).note
    shutil.rmtree(none / "001")
    assert "001, listed in table.csv, is gone" in ABOUT_SEEDS.on(Study(open_run(none / "000"))).note
    save_seed(none, 1, 500, None)
    assert "of other runs" in ABOUT_SEEDS.on(Study(open_run(none / "000"))).note


# --- the command, and the saved seeds ------------------------------------------------------------------


def test_the_command_writes_the_table(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "seeds")
    assert main(["claims", str(tmp_path / "seeds")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "seeds" / "claims.csv")
    runs = [seed.run for seed in many.read(tmp_path / "seeds")]
    assert verdicts.current(verdicts.read(tmp_path / "seeds"), runs, CLAIMS)
    assert main(["claims", str(tmp_path / "nowhere")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_on_the_saved_seeds():
    finding = ABOUT_SEEDS.on(Study(open_run(ROOT / "runs" / "main")))
    assert finding.holds is False, finding
    assert "11 of 16 seeds generalise" in finding.value


@pytest.mark.parametrize("name", [f"{seed:03d}" for seed in range(16)])
def test_the_saved_verdicts_are_those_of_the_saved_seeds(name):
    saved = verdicts.read(SEEDS)
    mine = saved[saved.run == name].reset_index(drop=True)
    fresh = verdicts.measure([open_run(SEEDS / name)], CLAIMS)
    assert mine[["run", "checksum", "claim", "verdict"]].equals(fresh[["run", "checksum", "claim", "verdict"]]), (
        "run `python -m mc_lib claims runs/seeds`"
    )
