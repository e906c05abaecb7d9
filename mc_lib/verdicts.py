"""Claims by seeds: what every claim gives on every run of a folder, kept in a table beside the runs.

A row holds a run's name and checksum, a claim, its verdict and what was measured. The checksum ties the row to the
bytes it was measured on. `python -m mc_lib claims FOLDER` writes the table; a page that finds none, or one of other
runs, measures anew.
"""

import csv
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from tqdm.auto import tqdm

from mc_lib.claim import VERDICTS, Claim, Study
from mc_lib.config import Refusal
from mc_lib.intervals import exact
from mc_lib.runs import Run
from mc_lib.storage import put

CLAIMS_TABLE = "claims.csv"
COLUMNS = ("run", "checksum", "claim", "verdict", "value")


def checksum(run: Run) -> str:
    """Of all that a run holds."""
    return hashlib.sha256(run.manifest.to_bytes()).hexdigest()[:16]


def measure(runs: Sequence[Run], claims: Sequence[Claim]) -> pd.DataFrame:
    """A row for each run and each claim that a single run can decide."""
    rows = []
    for run in tqdm(runs, desc="measuring claims", unit="run"):
        study = Study(run)
        for claim in claims:
            if not claim.many:
                found = claim.on(study)
                shown = found.value if found.holds is not None else found.note
                rows.append((run.name, checksum(run), claim.id, found.verdict, shown))
    return pd.DataFrame(rows, columns=list(COLUMNS), dtype=str)


def write(folder: Path, table: pd.DataFrame) -> Path:
    """Saves the table beside its runs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(table.itertuples(index=False))
    put(folder / CLAIMS_TABLE, text.getvalue().encode())
    return folder / CLAIMS_TABLE


def read(folder: Path) -> pd.DataFrame | None:
    """The saved table, or None where there is none."""
    path = folder / CLAIMS_TABLE
    if not path.is_file():
        return None
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise Refusal(f"{path} is not a table: write it anew with python -m mc_lib claims {folder}") from error
    if tuple(table.columns) != COLUMNS or not table["verdict"].isin(VERDICTS.values()).all():
        raise Refusal(f"{path} is not a table of verdicts: write it anew with python -m mc_lib claims {folder}")
    return table


def current(table: pd.DataFrame | None, runs: Sequence[Run], claims: Sequence[Claim]) -> bool:
    """Whether a table holds just these runs, as they are, and just these claims."""
    if table is None:
        return False
    wanted = [(run.name, checksum(run), claim.id) for run in runs for claim in claims if not claim.many]
    return list(table[["run", "checksum", "claim"]].itertuples(index=False, name=None)) == wanted


def of_runs(folder: Path, runs: Sequence[Run], claims: Sequence[Claim]) -> pd.DataFrame:
    """The verdicts of a folder's runs: the saved ones if they are of these runs, else measured now."""
    table = read(folder)
    if table is None or not current(table, runs, claims):
        return measure(runs, claims)
    return table


def grid(table: pd.DataFrame) -> pd.DataFrame:
    """Verdicts with a row a claim and a column a run, both in the table's order."""
    wide = table.pivot(index="claim", columns="run", values="verdict")
    return wide.loc[list(dict.fromkeys(table["claim"])), list(dict.fromkeys(table["run"]))]


def shares(verdicts: pd.DataFrame) -> pd.DataFrame:
    """A row a claim: on how many of the runs that can be asked it holds, as a share with its exact 95% interval."""
    rows = []
    for claim, row in verdicts.iterrows():
        holds, fails = int((row == VERDICTS[True]).sum()), int((row == VERDICTS[False]).sum())
        asked = holds + fails
        low, high = exact(holds, asked) if asked else (float("nan"), float("nan"))
        rows.append((claim, holds, asked, holds / asked if asked else float("nan"), low, high))
    return pd.DataFrame(rows, columns=["claim", "holds", "asked", "share", "low", "high"]).set_index("claim")
