"""Whatever is damaged or forged in a saved run is refused, in one line that names the file."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from small_runs import CFG, refused, resign, saved, tree, weights_of

from mc_lib import model, storage
from mc_lib.runs import RunWriter, open_run


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return saved(tmp_path / "finished", 8, finish=True)


@pytest.fixture
def half(tmp_path: Path) -> Path:
    return saved(tmp_path / "half", 6, finish=False)


LAST = "checkpoints/step_000008.safetensors"


@pytest.mark.parametrize("name", ["config.json", "metrics.csv", LAST, "manifest.json"])
@pytest.mark.parametrize("harm", ["truncate", "empty", "flip", "lengthen", "remove", "folder"])
def test_damaged_files_are_refused_by_name(finished: Path, name: str, harm: str) -> None:
    file = finished / name
    data = file.read_bytes()
    middle = len(data) // 2
    file.unlink()
    if harm == "folder":
        file.mkdir()
    elif harm != "remove":
        file.write_bytes(
            {
                "truncate": data[:-1],
                "empty": b"",
                "flip": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
                "lengthen": data + b"\n",
            }[harm]
        )
    cause = {"truncate": "truncated", "empty": "truncated", "flip": "damaged", "lengthen": "longer"}
    words = (name, cause.get(harm, "missing")) if name != "manifest.json" else ("manifest.json",)
    refused(lambda: open_run(finished).weights(), finished, *words)


def test_200_random_corruptions_never_load_silently(half: Path) -> None:
    whole, rng = tree(half), random.Random(0)
    assert {Path(name).suffix for name in whole} == {".json", ".csv", ".safetensors"}
    assert any(name.startswith("state_") for name in whole)
    for _ in range(200):
        name = rng.choice(sorted(whole))
        data = bytearray(whole[name])
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        else:
            for _ in range(rng.choice((1, 1, 1, 5, 50))):
                data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        if bytes(data) == whole[name]:
            continue
        (half / name).write_bytes(data)
        refused(lambda: open_run(half).verify(), Path(name).name)
        if name.endswith((".json", ".csv")) or name.startswith("state_"):
            refused(lambda: RunWriter.resume(half), Path(name).name)
        (half / name).write_bytes(whole[name])
    assert tree(half) == whole, "neither reading nor a refused resume writes anything"
    open_run(half).verify()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w | {"embed.W_E": w["embed.W_E"][:-1].clone()}, ("embed.W_E", "(11, 4)", "(12, 4)")),
        (lambda w: w | {"unembed.W_U": w["unembed.W_U"] * math.nan}, ("unembed.W_U", "NaN")),
        (lambda w: w | {"unembed.W_U": w["unembed.W_U"] / 0}, ("unembed.W_U", "infinite")),
        (lambda w: {k: v for k, v in w.items() if k != "pos_embed.W_pos"}, ("lacks", "pos_embed.W_pos")),
        (lambda w: w | {"blocks.0.ln1.w": torch.ones(4)}, ("unknown", "blocks.0.ln1.w")),
        (lambda w: {k: v.double() for k, v in w.items()}, ("float64",)),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(finished: Path, change: Callable, words: tuple[str, ...]) -> None:
    resign(finished, LAST, safetensors.torch.save(change(weights_of(8))))
    refused(lambda: open_run(finished).weights(), LAST, *words)
    open_run(finished).weights(6)


def test_files_of_another_kind_are_refused(finished: Path) -> None:
    resign(finished, LAST, b"\x80\x04 no tensors here")
    refused(lambda: open_run(finished).weights(), LAST, "not a safetensors file")
    for table in (b"step,a\n1,x\n", b"step,a\n2,1.0\n1,1.0\n", b"a\n1\n", b"step,a\n1,inf\n", b"\xff", b"step\n1e99\n"):
        resign(finished, "metrics.csv", table)
        refused(lambda: open_run(finished), "metrics.csv")


@pytest.mark.parametrize("text", ["[]", "{", '{"p": "many"}', '{"p": 5, "colour": 1}', '{"p": NaN}', "[" * 100_000])
def test_configs_that_are_none_are_refused(finished: Path, text: str) -> None:
    resign(finished, "config.json", text.encode())
    refused(lambda: open_run(finished), "config.json")


def test_a_config_that_is_not_the_weights_is_refused(finished: Path) -> None:
    resign(finished, "config.json", storage.to_json(CFG.replace(d_mlp=7).to_dict()))
    refused(lambda: open_run(finished).weights(), LAST, "does not fit the config", "mlp")
    state = {f"m/{name}": w for name, w in model.init(CFG.replace(d_mlp=7)).items()}
    with RunWriter.create(finished.parent / "new", CFG) as writer:
        refused(lambda: writer.commit(1, state=state), "state of step 1", "m/blocks.1.mlp.W_in")


def signed(content: dict) -> bytes:
    content.pop("checksum", None)
    checksum = storage.hashlib.sha256(storage.to_json(content)).hexdigest()
    return storage.to_json({**content, "checksum": checksum})


ENTRY = {"bytes": 0, "sha256": storage.hashlib.sha256(b"").hexdigest()}


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["files"].update({"../secret.safetensors": ENTRY}),
        lambda m: m["files"].update({"/etc/hostname": ENTRY}),
        lambda m: m["files"].update({"checkpoints/../../step_000001.safetensors": ENTRY}),
        lambda m: m["files"].update({"checkpoints/step_0000001.safetensors": ENTRY}),
        lambda m: m["files"].update({"checkpoints/step_٠٠٠٠٠١.safetensors": ENTRY}),
        lambda m: m["files"].update({"state_000001.safetensors": ENTRY, "state_000002.safetensors": ENTRY}),
        lambda m: m["files"].pop("config.json"),
        lambda m: m["files"].update({"metrics.csv": {"bytes": -1, "sha256": ""}}),
        lambda m: m["files"].update({"metrics.csv": {"bytes": True, "sha256": ""}}),
        lambda m: m["files"].update({"metrics.csv": {**ENTRY, "more": 1}}),
        lambda m: m["files"].update({"metrics.csv": None}),
        lambda m: m.update(files=[]),
        lambda m: m.update(step="8"),
        lambda m: m.update(step=True),
        lambda m: m.update(finished=1),
        lambda m: m.update(note=None),
        lambda m: m.update(dtype="float128"),
        lambda m: m.update(dtype=[]),
        lambda m: m.update(format=2),
        lambda m: m.update(more=1),
        lambda m: m.clear(),
    ],
)
def test_forged_manifests_are_refused(finished: Path, change: Callable) -> None:
    content = json.loads((finished / "manifest.json").read_bytes())
    (finished / "manifest.json").write_bytes(signed(content))
    open_run(finished)  # the forger's hand is good
    change(content)
    (finished / "manifest.json").write_bytes(signed(content))
    refused(lambda: open_run(finished), "manifest.json")


@pytest.mark.parametrize("junk", [b"", b"null", b"[1]", b"\xff\xfe", b"{}", b"[" * 100_000, b'{"format": 1}'])
def test_junk_is_no_manifest(finished: Path, junk: bytes) -> None:
    (finished / "manifest.json").write_bytes(junk)
    refused(lambda: open_run(finished), "manifest.json")


def test_what_is_no_run(tmp_path: Path) -> None:
    refused(lambda: open_run(tmp_path / "none"), "none", "no such folder")
    refused(lambda: open_run(tmp_path), tmp_path, "not a run")
    (tmp_path / "file").write_text("")
    refused(lambda: open_run(tmp_path / "file"), "file", "not a run")
    refused(lambda: RunWriter.resume(tmp_path), "not a run")
    with RunWriter.create(tmp_path / "new", CFG):
        refused(lambda: open_run(tmp_path / "new").weights(), "no saved weights yet")


def test_a_tail_that_no_commit_vouches_for(half: Path, finished: Path) -> None:
    """Ignored while a run is being written, refused once it is finished; other people's files are left alone."""
    before = open_run(half).metrics
    for name in ("metrics.csv", "checkpoints/step_000099.safetensors", "state_000099.safetensors", "config.json.tmp"):
        with open(half / name, "ab") as file:
            file.write(b"99,0.5")
    (half / "README.md").write_text("kept")
    assert open_run(half).verify().metrics.equals(before)
    RunWriter.resume(half)[0].close()
    assert open_run(half).metrics.equals(before)
    assert "99" not in (half / "metrics.csv").read_text()
    assert sorted(name for name in tree(half) if "99" in name or ".tmp" in name) == []
    assert (half / "README.md").read_text() == "kept"
    with open(finished / "metrics.csv", "ab") as file:
        file.write(b"99,0.5")
    refused(lambda: open_run(finished), "metrics.csv", "longer")
