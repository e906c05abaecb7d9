"""The claims about the induction head: on weights built by hand, whole and broken, and on the committed run."""

import re
from pathlib import Path

import pytest
import torch
from built_by_hand import built, factored
from test_measures import SMALL

from mc_lib import induction_patching, model
from mc_lib.claim import NotHere, Study, table
from mc_lib.claims_induction import CLAIMS
from mc_lib.runs import open_run

MAIN = Path(__file__).parent.parent / "runs" / "main"
FAR = SMALL.replace(length=12, d_model=40, d_mlp=15)
BY_ID = {claim.id: claim for claim in CLAIMS}


class Bare(Study):
    """A study of weights that no run holds."""

    def __init__(self, weights, cfg):
        self.config, self.weights, self._shared = cfg, weights, {}


def preferring(change=None):
    """`built` with the preferences in layer 1's scores that the paper reads off its Figure 6, then a change of them."""
    v, n = FAR.vocabulary, FAR.length
    table = torch.zeros(FAR.d_model, FAR.d_model, dtype=torch.float64)
    table[v : v + n, v : v + n] = torch.arange(n) / n
    table[FAR.EQUALS, [v + n - 3, v + n - 2]] = 1
    table[: FAR.p, FAR.FIRST_VARIABLE : v] = 1
    table[v : v + FAR.room, FAR.FIRST_VARIABLE : v] = 1
    for query, key, value in change or []:
        table[query, key] = value
    names = [f"blocks.0.attn.W_{part}" for part in "QK"]
    return built(FAR) | dict(zip(names, factored(table, FAR), strict=True))


PLACE = FAR.vocabulary
PLACES = slice(PLACE, PLACE + FAR.length)
LEFTWARD = preferring([(PLACES, PLACES, -10 * torch.arange(FAR.length) / FAR.length)])
CASES = {
    "attn.operands": (built(FAR), built(FAR, watched=(-3, -4))),
    "attn.previous": (built(FAR), built(FAR, back=2)),
    "attn.values": (built(FAR), built(FAR, shift=1)),
    "attn.unseen": (built(FAR), built(FAR, watched=(-3, -4))),
    "qk1.equal": (preferring(), preferring([(FAR.EQUALS, PLACE + FAR.length - 2, 0.5), (FAR.EQUALS, PLACE + 1, 0.7)])),
    "qk1.variables": (preferring(), preferring([(slice(FAR.p), FAR.PAD, 2.0)])),
    "qk1.previous": (built(FAR), preferring([(PLACE + 5, PLACE + 1, 2.0)])),
    "qk1.right": (preferring(), LEFTWARD),
    "ov1.moved": (built(FAR), LEFTWARD),
    "qk2.match": (built(FAR), built(FAR, shift=1)),
    "cause.cut": (None, built(FAR, shift=1)),
    "cause.swap": (built(FAR), built(FAR, shift=1)),
}


def test_every_claim_has_its_cases():
    assert list(CASES) == list(BY_ID)
    assert all(claim.chapter == "induction_head" for claim in CLAIMS)


@pytest.mark.parametrize("name", CASES)
def test_claim_holds_on_what_it_describes_and_fails_where_that_is_broken(name):
    whole, broken = CASES[name]
    if whole is not None:
        assert BY_ID[name].on(Bare(whole, FAR)).holds is True
    assert BY_ID[name].on(Bare(broken, FAR)).holds is False


@pytest.mark.parametrize(
    ("halves", "rest", "holds"), [(0.2, 0.97, True), (0.6, 0.97, False), (0.2, 0.9, False)], ids=str
)
def test_cut_claim_asks_for_both(halves, rest, holds):
    """The rule by itself, on a table of which each part is given; a single bad entry fails it."""
    study = Bare(built(FAR), FAR)
    cuts = study.shared(induction_patching.cuts)
    cuts["share"] = 0.1
    cuts.loc[cuts["cut"] == "all but these three", "share"] = 1.0
    cuts.loc[(cuts["cut"] == "numbers to variables") & (cuts["kind"] == "2-var"), "share"] = halves
    cuts.loc[(cuts["cut"] == "all but these three") & (cuts["kind"] == "1-var"), "share"] = rest
    assert BY_ID["cause.cut"].on(study).holds is holds


def test_what_a_task_lacks_is_said():
    """Without restricted variables there is nothing unseen, and without another variable nothing to swap."""
    free = FAR.replace(not_first="", not_second="")
    finding = BY_ID["attn.unseen"].on(Bare(built(free), free))
    assert finding.holds is None
    assert "no sequence" in finding.note
    with pytest.raises(NotHere, match="not asked for"):
        induction_patching.swaps_of(FAR, "0-var train")


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("change", [{}, {"p": 2}, {"length": 8}, {"variables": 4, "not_first": "d"}], ids=str)
def test_every_claim_has_a_verdict_on_other_tasks(heads, change):
    cfg = FAR.replace(**{"p": 7, "d_model": 16, "d_mlp": 8, "heads": heads, **change})
    found = table(CLAIMS, Bare(model.init(cfg), cfg))
    assert len(found) == len(CLAIMS)
    assert (found["here"].str.len() > 3).all()


# --- the committed run ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def main():
    return Study(open_run(MAIN))


MEASURED = {  # the numbers in the finding, in order
    "attn.operands": [1.0, 0.999, 1.0, 6000, 0.61, 0.63, 0.67],
    "attn.previous": [1.0, 1.0, 1.0, 21894, 0.98, 0.98, 0.98],
    "attn.values": [1.0, 0.999, 1.0, 6000, 0.74, 0.67, 0.58],
    "attn.unseen": [1.0, 0.999, 1.0, 6000, 0.66, 0.58, 0.62],
    "qk1.equal": [0.88, 0.88, 0.05],
    "qk1.variables": [1.03, 1.79, 0.11, 0.17],
    "qk1.previous": [9, 9, 11, 11],
    "qk1.right": [0.77, 0.50, 10],
    "ov1.moved": [1.0, 0.999, 1.0, 3466, 0.89, 1, 1.0, 0.996, 1.0, 1000, 0.68, 2, 1.0, 0.996, 1.0, 1000, 0.96],
    "qk2.match": [12, 12, 72, 60],
    "cause.cut": [0.21, 0.23, 0.05, 0.26, 0.998, 1, 2, 400],
    "cause.swap": [0.998, 0.991, 0.999, 800, 0.998, 0.991, 0.999, 800, 0.999, 0.993, 1.0, 800],
}


@pytest.mark.parametrize("name", CASES)
def test_claim_holds_on_the_main_run(main, name):
    finding = BY_ID[name].on(main)
    numbers = [float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*(?:\.\d+)?(?<!,)", finding.value)]
    assert finding.holds is True
    assert numbers == pytest.approx(MEASURED[name], abs=0.011, rel=0.02), finding.value
