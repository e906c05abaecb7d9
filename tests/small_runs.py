"""Small runs to save, and the one line that bad ones are refused with."""

import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from mc_lib import model
from mc_lib.config import Config, Refusal
from mc_lib.runs import RunWriter, open_run
from mc_lib.storage import Entry, read_manifest

CFG = Config(p=5, variables=4, length=8, d_model=4, heads=2, d_mlp=3, not_second="a", not_first="d")


def weights_of(step: int) -> model.Weights:
    return model.init(CFG.replace(seed=step))


def state_of(step: int) -> dict[str, torch.Tensor]:
    return {f"{part}/{name}": w for part in ("weights", "m") for name, w in weights_of(step).items()}


def row_of(step: int) -> dict[str, float]:
    return {"loss": 1 / (step + 3), "2-var, odd": math.sin(step)}


def work(writer: RunWriter, start: int, end: int = 8) -> None:
    """A stand-in for training: a row every step, weights every second, a state every third."""
    for step in range(start, end + 1):
        writer.commit(step, row_of(step), None if step % 2 else weights_of(step), None if step % 3 else state_of(step))


def train(path: Path, end: int = 8) -> None:
    """Start or go on, then finish."""
    if not (path / "manifest.json").exists():
        writer, state, step = RunWriter.create(path, CFG), {}, 0
    else:
        try:
            writer, _, state, step = RunWriter.resume(path)
        except Refusal:
            assert open_run(path).finished
            return
    with writer:
        if state:
            assert torch.equal(state["m/embed.W_E"], weights_of(step)["embed.W_E"])
        work(writer, step + 1 if state else 0, end)
        writer.finish()


def tree(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def refused(act: Callable[[], object], *words: object) -> str:
    """The one line that `act` is refused with, which holds all the words."""
    with pytest.raises(Refusal) as caught:
        act()
    line = str(caught.value)
    assert "\n" not in line
    assert all(str(word) in line for word in words), line
    return line


def resign(path: Path, name: str, data: bytes) -> None:
    """Replace a file and have the manifest vouch for it, as a forger would."""
    (path / name).write_bytes(data)
    manifest = read_manifest(path)
    files = {**manifest.files, name: Entry.of(data)}
    (path / "manifest.json").write_bytes(replace(manifest, files=files).to_bytes())


def unflushed() -> AbstractContextManager:
    """Without fsync, which takes milliseconds and is of no matter to what a process sees."""
    return mock.patch.object(os, "fsync", return_value=None)


def saved(path: Path, last: int, finish: bool) -> Path:
    """A run saved up to step `last`."""
    with unflushed(), RunWriter.create(path, CFG) as writer:
        work(writer, 0, last)
        if finish:
            writer.finish()
    return path
