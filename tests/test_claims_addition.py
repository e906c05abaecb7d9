"""The claims on addition, each on the main run, and what a claim says of runs that differ from it."""

import re
from pathlib import Path

import pytest
import torch

from mc_lib import addition, fourier, model, probes
from mc_lib.claim import Study, table
from mc_lib.claims_addition import CHAPTER, CLAIMS
from mc_lib.config import Config
from mc_lib.runs import RunWriter, open_run
from tests.built_by_hand import built

MAIN = Path(__file__).parent.parent / "runs" / "main"
BY_ID = {claim.id: claim for claim in CLAIMS}
HAND = Config(p=5, variables=4, length=12, d_model=38, d_mlp=15, not_second="a", not_first="d")


@pytest.fixture(scope="module")
def main():
    return Study(open_run(MAIN))


def saved(path, cfg, weights):
    with RunWriter.create(path, cfg) as writer:
        writer.commit(0, weights={name: w.float() for name, w in weights.items()})
        return Study(writer.finish())


def numbers(text):
    return [float(x) for x in re.findall(r"\d*\.?\d+", text)]


def test_every_claim_of_the_chapter_is_here_once():
    assert list(BY_ID) == [f"ov.{name}" for name in "sum same probe circuit needed fourier frequencies".split()]
    assert {claim.chapter for claim in CLAIMS} == {CHAPTER}


def test_sum(main):
    assert BY_ID["ov.sum"].on(main).holds is True
    found = main.shared(addition.sum_cosines)
    cosines = {name: values.mean().item() for name, values in found["attention's output"].items()}
    assert cosines[addition.SAME] == pytest.approx(0.98, abs=0.01)
    assert cosines[addition.SECOND] == pytest.approx(0.54, abs=0.02)
    assert abs(cosines[addition.BOTH]) < 0.1
    assert abs(cosines[addition.ANSWER]) < 0.1
    assert found["whole residual"][addition.SAME].mean().item() == pytest.approx(0.975, abs=0.01)


def test_same(main):
    assert BY_ID["ov.same"].on(main).holds is True
    for found in (
        main.shared(addition.template_cosines),
        *(main.shared(addition.context_cosines, k) for k in (1, 2, 3)),
    ):
        assert found[addition.SAME].mean().item() == pytest.approx(0.96, abs=0.025)
        assert found[addition.BOTH].mean().item() == pytest.approx(0.12, abs=0.03)


def test_probe(main):
    assert BY_ID["ov.probe"].on(main).holds is True
    found = {(row.place, row.target, row.split): row.accuracy for row in main.shared(probes.probes)}
    assert found[probes.BEFORE, probes.ANSWER, probes.DISJOINT] < 0.017
    assert 0.017 < found[probes.BEFORE, probes.ANSWER, probes.SHARED] < 0.08
    assert found[probes.AFTER, probes.ANSWER, probes.DISJOINT] > 0.99
    assert found[probes.BEFORE, probes.NUMBERS, probes.DISJOINT] > 0.99


def test_circuit(main):
    finding = BY_ID["ov.circuit"].on(main)
    assert finding.holds is True
    wrong = main.shared(addition.isolated_errors)
    assert len(wrong) == pytest.approx(3, abs=2)
    assert all(n == m for n, m, _ in wrong)
    assert finding.value.startswith(f"{59**2 - len(wrong)} of 3481 right")


def test_needed(main):
    assert BY_ID["ov.needed"].on(main).holds is True
    hits = {name: right / n for name, (right, n) in main.shared(addition.path_hits).items()}
    assert hits[addition.NO_MLP] == pytest.approx(0.045, abs=0.01)
    assert hits[addition.ONLY_PATH] > 0.995
    for donor, host in ((0, 3), (3, 0)):
        got = main.shared(addition.swap, donor, host)
        assert got.donor / got.n > 0.98


def test_fourier(main):
    assert BY_ID["ov.fourier"].on(main).holds is True
    found, strength = main.shared(fourier.waves), main.shared(fourier.strength)
    best = found.best[found.live]
    assert best.max().item() == pytest.approx(0.956, abs=0.01)
    assert best.median().item() == pytest.approx(0.70, abs=0.02)
    assert found.additive[found.live].median().item() > 0.95
    unlike = found.best < 0.5
    assert strength[unlike].sum().item() < 0.06
    assert addition.isolated_errors(addition.without_neurons(main.weights, unlike), main.config) == []
    read, written = (x[best >= 0.5] for x in main.shared(fourier.phases))
    assert fourier.Phases(read, written).agreement > 0.95


def test_frequencies(main):
    assert BY_ID["ov.frequencies"].on(main).holds is True
    carried = {name: sorted(fourier.carriers(share)) for name, share in main.shared(fourier.spectra).items()}
    assert len(carried["E"]) == pytest.approx(8, abs=1)
    assert carried["E OV2 W_in"] == carried["W_out W_U"]


# --- other runs ----------------------------------------------------------------------------------------


def test_an_untrained_run_fails_what_it_should(tmp_path):
    cfg = Config(p=23, d_model=32, heads=4, d_mlp=64)
    found = table(CLAIMS, saved(tmp_path, cfg, model.init(cfg))).set_index("claim")
    assert set(found.verdict[["ov.same", "ov.probe", "ov.circuit", "ov.needed"]]) == {"does not hold"}
    assert found.here.str.len().min() > 10


def test_a_model_built_by_hand_adds_without_waves(tmp_path):
    study = saved(tmp_path, HAND, built(HAND))
    verdicts = {claim.id: claim.on(study).holds for claim in CLAIMS}
    assert verdicts["ov.circuit"] is verdicts["ov.sum"] is True
    assert verdicts["ov.frequencies"] is None  # modulo 5 there are only two
    assert verdicts["ov.fourier"] is False
    assert numbers(BY_ID["ov.circuit"].on(study).value)[:2] == [25, 25]


def test_errors_are_named(tmp_path):
    weights = built(HAND)
    weights["unembed.W_U"] = weights["unembed.W_U"].clone()
    weights["unembed.W_U"][:, 1] = 0
    value = BY_ID["ov.circuit"].on(saved(tmp_path, HAND, weights)).value
    assert value == "20 of 25 right; wrong: (0, 1), (1, 0), (2, 4), (3, 3), (4, 2)"


def test_a_run_without_live_neurons_says_so(tmp_path):
    weights = built(HAND)
    weights["blocks.1.mlp.W_in"] = torch.zeros_like(weights["blocks.1.mlp.W_in"])
    finding = BY_ID["ov.fourier"].on(saved(tmp_path, HAND, weights))
    assert finding.holds is None
    assert "no neuron" in finding.note


def test_same_asks_for_the_template_and_for_every_kind(tmp_path, monkeypatch):
    study = saved(tmp_path, HAND, built(HAND))
    good = {addition.SAME: torch.ones(9), addition.BOTH: torch.zeros(9)}
    near = {addition.SAME: torch.ones(9), addition.BOTH: torch.full((9,), 0.6)}
    for template, kinds in ((good, [good] * 3), (near, [good] * 3), (good, [near, good, good])):
        monkeypatch.setattr(addition, "template_cosines", lambda w, cfg, found=template: found)
        monkeypatch.setattr(addition, "context_cosines", lambda w, cfg, kind, found=kinds: found[kind - 1])
        study._shared.clear()
        assert BY_ID["ov.same"].on(study).holds is (template is good and kinds[0] is good)
