"""Foreign checkpoints become runs of ours with every bit kept, or are refused when they are another function."""

import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_runs import CFG, refused, tree, unflushed

from mc_lib import model
from mc_lib.config import Config
from mc_lib.foreign import import_foreign
from mc_lib.runs import list_runs, open_run

IDLE = [
    *(f"blocks.{i}.attn.b_{x}" for i in (0, 1) for x in "QKVO"),
    *(f"blocks.{i}.mlp.b_{x}" for i in (0, 1) for x in ("in", "out")),
    "blocks.0.mlp.W_in",
    "blocks.0.mlp.W_out",
    "unembed.b_U",
]


def released(cfg: Config, seed: int = 0) -> dict[str, torch.Tensor]:
    """A state dict as TransformerLens writes it: our weights and all that is idle in them."""
    d, heads, d_head = cfg.d_model, cfg.heads, cfg.d_head
    full = model.init(cfg.replace(seed=seed))
    for i in (0, 1):
        full |= {f"blocks.{i}.attn.b_{x}": torch.zeros(heads, d_head) for x in "QKV"}
        full |= {f"blocks.{i}.attn.b_O": torch.zeros(d), f"blocks.{i}.attn.IGNORE": torch.tensor(-torch.inf)}
        full[f"blocks.{i}.attn.mask"] = torch.ones(cfg.length, cfg.length).tril().bool()
        full |= {f"blocks.{i}.mlp.b_in": torch.zeros(cfg.d_mlp), f"blocks.{i}.mlp.b_out": torch.zeros(d)}
    full |= {"blocks.0.mlp.W_in": torch.zeros(d, cfg.d_mlp), "blocks.0.mlp.W_out": torch.zeros(cfg.d_mlp, d)}
    return full | {"unembed.b_U": torch.zeros(cfg.p)}


@pytest.fixture(autouse=True)
def quick() -> object:
    with unflushed():
        yield


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint_step_99.pth"


def bring(source: Path, tensors: object, base: Config = CFG) -> model.Weights:
    torch.save(tensors, source)
    return import_foreign(source, source.parent / "run", base).weights()


def refused_without_a_trace(source: Path, *words: str) -> str:
    before = tree(source.parent)
    line = refused(lambda: import_foreign(source, source.parent / "run", CFG), *words)
    assert tree(source.parent) == before
    assert not list_runs(source.parent)
    assert [p for p in source.parent.iterdir() if p.is_dir()] == []
    return line


@pytest.mark.parametrize("cfg", [CFG, CFG.replace(heads=1), Config(d_model=8, d_mlp=5), CFG.replace(p=7, length=10)])
@pytest.mark.parametrize("idle", [True, False])
def test_a_single_file(source: Path, cfg: Config, idle: bool) -> None:
    """Sizes come from the shapes alone: the base config has others wherever it can."""
    weights = model.init(cfg)
    torch.save(released(cfg) if idle else weights, source)
    before = source.read_bytes()
    base = cfg.replace(p=11, length=12, d_model=16, heads=4, d_mlp=9, seed=42)
    run = import_foreign(source, source.parent / "run", base)
    assert run.config == cfg.replace(seed=42, steps=100)
    assert (run.steps, run.finished, len(run.metrics), list(run.metrics)) == ([100], True, 0, ["step"])
    assert source.name in run.note
    assert all(torch.equal(weights[name], w) for name, w in run.weights().items())
    assert source.read_bytes() == before
    assert open_run(run.path).verify().config == run.config


def test_a_folder_with_metrics(tmp_path: Path) -> None:
    folder = tmp_path / "released"
    folder.mkdir()
    for number in (1099, 0, 99):
        torch.save(released(CFG, number), folder / f"checkpoint_step_{number}.pth")
    (folder / "notes.pth").write_text("left alone")
    before = tree(folder)

    def measure(weights: model.Weights, cfg: Config) -> dict[str, float]:
        assert cfg == CFG.replace(steps=1100)
        return {"first": float(weights["embed.W_E"][0, 0])}

    run = import_foreign(folder, tmp_path / "a" / "run", CFG, measure=measure)
    assert run.steps == [1, 100, 1100]
    assert list(run.metrics["step"]) == run.steps
    for step, first in zip(run.steps, run.metrics["first"], strict=True):
        expected = model.init(CFG.replace(seed=step - 1))
        assert float(expected["embed.W_E"][0, 0]) == first
        assert all(torch.equal(expected[name], w) for name, w in run.weights(step).items())
    assert tree(folder) == before
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["run"]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_prefixes_of_wrappers_are_taken_off(source: Path, prefix: str) -> None:
    weights = bring(source, {prefix + name: w for name, w in released(CFG).items()})
    assert torch.equal(weights["unembed.W_U"], model.init(CFG)["unembed.W_U"])


def test_other_precisions_and_parameters(source: Path) -> None:
    weights = model.init(CFG)
    brought = bring(source, {name: torch.nn.Parameter(w.bfloat16()) for name, w in weights.items()})
    assert all(torch.equal(w, weights[name].bfloat16().float()) for name, w in brought.items())


@pytest.mark.parametrize("name", IDLE)
def test_what_is_not_zero_is_another_function(source: Path, name: str) -> None:
    tensors = released(CFG)
    tensors[name].view(-1)[-1] = 1e-30
    torch.save(tensors, source)
    refused_without_a_trace(source, source.name, name, "not zero")
    tensors[name] = torch.zeros(3, 1, 2)
    torch.save(tensors, source)
    refused_without_a_trace(source, source.name, name, "(3, 1, 2)")


@pytest.mark.parametrize("name", list(model.shapes(CFG)))
def test_each_weight_has_to_be_there_and_to_fit(source: Path, name: str) -> None:
    tensors = released(CFG)
    for bad, words in (
        (tensors[name].unsqueeze(-1), ()),
        (tensors[name][:1, :1], ()),
        (tensors[name] * torch.nan, ("NaN",)),
        (tensors[name].long(), ("int64",)),
        (tensors[name].to_sparse(), ("sparse",)),
        (tensors[name].to("meta"), ("ordinary",)),
        (torch.zeros(1).double().expand(10**6, 10**6, 1), ()),  # 8 bytes in the file, 4 TB once copied
    ):
        torch.save(tensors | {name: bad}, source)
        line = refused_without_a_trace(source, source.name, *words)
        assert name in line or not words
    del tensors[name]
    torch.save(tensors, source)
    refused_without_a_trace(source, source.name, "lacks", name)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"blocks.0.ln1.w": torch.ones(4)}, ("blocks.0.ln1.w", "LayerNorm")),
        ({"ln_final.b": torch.zeros(4)}, ("ln_final.b", "LayerNorm")),
        ({"blocks.2.attn.W_Q": torch.ones(1)}, ("blocks.2.attn.W_Q", "unknown")),
        ({"blocks.1.mlp.W_gate": torch.zeros(4, 3)}, ("blocks.1.mlp.W_gate", "unknown")),
        ({"odd\nname": torch.zeros(1)}, ("unknown",)),
        ({"blocks.0.attn.mask": torch.ones(8, 8).bool()}, ("blocks.0.attn.mask", "causal")),
        ({"blocks.1.attn.mask": torch.ones(9, 9).tril()}, ("blocks.1.attn.mask", "causal")),
        ({"blocks.1.attn.IGNORE": torch.tensor(0.0)}, ("blocks.1.attn.IGNORE", "causal")),
        ({"module.embed.W_E": torch.zeros(12, 4)}, ("embed.W_E", "twice")),
        ({"steps": 5}, ("steps", "no named tensor")),
        ({7: torch.zeros(1)}, ("7", "no named tensor")),
        ({"unembed.W_U": torch.zeros(4, 12)}, ("12 tokens", "12 outputs")),
        ({"unembed.W_U": torch.zeros(4, 1), "embed.W_E": torch.zeros(8, 4)}, ("p = 1 is out of range",)),
    ],
)
def test_what_is_not_this_model_is_refused(source: Path, extra: dict, words: tuple[str, ...]) -> None:
    torch.save(released(CFG) | extra, source)
    refused_without_a_trace(source, source.name, *words)


@pytest.mark.parametrize("content", [[], {}, torch.zeros(3), {"model": released(CFG)}, 5, None, "text"])
def test_what_is_no_state_dict_is_refused(source: Path, content: object) -> None:
    torch.save(content, source)
    refused_without_a_trace(source, source.name, "save model.state_dict()")


class Malice:
    """Unpickled by the ordinary way, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("save", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
def test_code_in_a_pickle_is_not_run(source: Path, tmp_path_factory: pytest.TempPathFactory, save: Callable) -> None:
    harm = tmp_path_factory.mktemp("harm") / "done"
    save(released(CFG) | {"embed.W_E": Malice(harm)}, source)
    refused_without_a_trace(source, source.name, "nothing in it was run")
    assert not harm.exists()
    save({"x": Malice(harm)}, source)
    if save is torch.save:  # the file does what it is feared for
        torch.load(source, weights_only=False)
    else:
        pickle.loads(source.read_bytes())
    assert harm.exists()


def test_damaged_files_are_refused_or_whole(source: Path) -> None:
    torch.save(model.init(CFG), source)
    whole, rng = source.read_bytes(), random.Random(0)
    for _ in range(40):
        source.write_bytes(whole[: rng.randrange(len(whole))])
        refused_without_a_trace(source, source.name)
    for junk in (b"", b"PK", b"\x80\x02.", bytes(100), rng.randbytes(1000)):
        source.write_bytes(junk)
        refused_without_a_trace(source, source.name)


def test_a_bad_file_among_many_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "released"
    folder.mkdir()
    for number in (0, 1, 2):
        tensors = released(CFG if number < 2 else CFG.replace(d_mlp=7))
        torch.save(tensors, folder / f"checkpoint_step_{number}.pth")
    refused(lambda: import_foreign(folder, tmp_path / "run", CFG), "checkpoint_step_2.pth", "does not fit")
    assert [p.name for p in tmp_path.iterdir()] == ["released"]
    torch.save(released(CFG), folder / "checkpoint_step_02.pth")
    refused(lambda: import_foreign(folder, tmp_path / "run", CFG), "checkpoint_step_02.pth", "one step")


def test_sources_and_destinations(tmp_path: Path, source: Path) -> None:
    weights = model.init(CFG)
    torch.save(weights, source)
    torch.save(weights, tmp_path / "mine.pth")
    (tmp_path / "empty").mkdir()
    refused(lambda: import_foreign(tmp_path / "none", tmp_path / "run", CFG), "none", "does not exist")
    refused(lambda: import_foreign(tmp_path / "empty", tmp_path / "run", CFG), "empty", "checkpoint_step_N.pth")
    refused(lambda: import_foreign(source, tmp_path / "empty", CFG), "empty", "exists already")
    refused(lambda: import_foreign(tmp_path, tmp_path / "x" / "run", CFG), "within the source")
    refused(lambda: import_foreign(source, source / "run", CFG), "within the source")
    refused(lambda: import_foreign(source, tmp_path / "mine.pth" / "run", CFG), "mine.pth", "cannot be written")
    refused(lambda: import_foreign(tmp_path / "mine.pth", tmp_path / "run", CFG), "mine.pth", "step")
    assert import_foreign(tmp_path / "mine.pth", tmp_path / "run", CFG, step=7).steps == [7]
    assert sorted(p.name for p in tmp_path.iterdir()) == [source.name, "empty", "mine.pth", "run"]
