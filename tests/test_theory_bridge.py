"""The bridge over whole runs: snapshots, the step before binding, and the sentences held against a trained model."""

import pytest
import torch
from built_by_hand import built
from small_runs import unflushed

from mc_lib import model, theory_bridge
from mc_lib.claim import NotHere
from mc_lib.config import Config
from mc_lib.runs import RunWriter, open_run
from mc_lib.theory_bridge import FITS, MISFITS, UNTOLD

P, N, LENGTH = 11, 6, 12
WIDTH = (P + 3 + N) + LENGTH + N + 2 * P


def config(heads=1):
    return Config(p=P, variables=N, length=LENGTH, heads=heads, d_model=WIDTH + -WIDTH % heads,
                  d_mlp=P * (P + 1) // 2, not_second="a", not_first="f", eval_size=20)  # fmt: skip


def save(folder, cfg, weights):
    """A run with these weights, by step."""
    with unflushed(), RunWriter.create(folder, cfg) as writer:
        for step, tensors in weights.items():
            writer.commit(step, None, {name: w.float() for name, w in tensors.items()})
        writer.finish()
    return open_run(folder)


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A run that first knows nothing, then adds without copying variables, then looks them up."""
    cfg = config()
    weights = {0: model.init(cfg), 10: built(cfg, moved=0.0), 20: built(cfg)}
    return save(tmp_path_factory.mktemp("grown") / "run", cfg, weights)


def test_snapshots_see_what_the_weights_were_built_to_do(grown):
    shots = theory_bridge.follow(grown)
    assert [shot.step for shot in shots] == [0, 10, 20]
    unbound, last = shots[1:]
    assert unbound.accuracy[0] == last.accuracy[0] == last.one == 1
    assert unbound.one < 0.5
    assert unbound.stands_out == pytest.approx(0, abs=1e-4)
    assert last.bridge.identity == 1
    assert last.stands_out > 0.1
    assert last.copy > 0.9 or last.copy > 2 * shots[0].copy
    assert theory_bridge.before_binding(shots) == unbound
    assert theory_bridge.growth(shots) == (10, 20)


def verdicts(shots):
    return {one.id: one.verdict for one in theory_bridge.compare(shots)}


def test_sentences_on_a_run_built_by_hand(grown, tmp_path):
    """Its layer 1 attends from the start as in the end; its table has nothing off the diagonal."""
    shots = theory_bridge.follow(grown)
    found = verdicts(shots)
    assert {found[name] for name in ("start.layer1", "order", "memory.match", "memory.off")} == {FITS}
    assert found["self"] == MISFITS
    cfg = grown.config
    broken = {**built(cfg), "blocks.1.attn.W_Q": built(cfg, shift=1)["blocks.1.attn.W_Q"]}
    broken |= {"blocks.1.attn.W_K": built(cfg, shift=1)["blocks.1.attn.W_K"]}
    shifted = shots[-1]._replace(bridge=theory_bridge.bridge(broken))
    assert verdicts([*shots[:-1], shifted])["memory.match"] == MISFITS


def test_a_run_that_never_binds_cannot_tell(grown):
    shots = theory_bridge.follow(grown)
    for some, why in (
        (shots[:2], "does not bind yet"),
        (shots[:1], "adds without binding"),
        (shots[2:], "adds without"),
    ):
        compared = theory_bridge.compare(some)
        assert {one.verdict for one in compared} == {UNTOLD}
        assert all(why in one.here for one in compared)
    with pytest.raises(NotHere, match="fewer than two"):
        theory_bridge.growth(shots[:1])


def test_many_checkpoints_are_thinned_evenly(tmp_path):
    cfg = config()
    weights = model.init(cfg)
    run = save(tmp_path / "run", cfg, {step: weights for step in range(0, 90, 10)})
    assert [shot.step for shot in theory_bridge.follow(run, most=5)] == [0, 20, 40, 60, 80]


def test_heads_are_averaged_before_the_interval(tmp_path):
    run = save(tmp_path / "run", config(heads=4), {3: model.init(config(heads=4))})
    (shot,) = theory_bridge.follow(run)
    assert shot.bridge.block.shape == (4, N, N)
    assert {held.n for held in shot.operands.values()} == {theory_bridge.PER_KIND}
    pattern = torch.rand(9, 4, 12, dtype=torch.float64)
    pattern /= pattern.sum(2, keepdim=True)
    assert theory_bridge.operand_attention(pattern).mass == pytest.approx(pattern[:, :, -3:-1].sum(2).mean().item())
