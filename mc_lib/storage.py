"""The files of a run directory: how each is written whole, and checked when it is read.

The *manifest* names every file that counts, with its size and sha256 (an *Entry*), and carries a checksum
of itself. To *put* a file is to write it aside, flush it to the disk and rename it: it is there whole or
not at all. Every reader here returns what was saved, or raises a Refusal naming the file and the cause.
Tensors are kept as safetensors, so reading a run executes nothing.
"""

import contextlib
import csv
import errno
import hashlib
import io
import json
import math
import os
import re
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from torch import Tensor

from mc_lib.config import Config, Refusal
from mc_lib.model import Weights, shapes

try:
    import fcntl
except ImportError:  # Windows: two writers of one run are not kept apart there
    fcntl = None  # type: ignore[assignment]

AnyPath = str | os.PathLike[str]
Stored = Literal["float32", "float16"]
FORMAT = 1
MANIFEST, CONFIG, METRICS, CHECKPOINTS = "manifest.json", "config.json", "metrics.csv", "checkpoints"
STEP_FILE = re.compile(r"(checkpoints/step|state)_([0-9]{6,8})\.safetensors")
TEMPORARY = re.compile(r"((config|manifest)\.json|metrics\.csv|(step|state)_[0-9]{6,8}\.safetensors)\.tmp")
TRAIN, RESUME = "python -m mc_lib train", "python -m mc_lib resume"


def checkpoint_name(step: int) -> str:
    return f"{CHECKPOINTS}/step_{step:06d}.safetensors"


def state_name(step: int) -> str:
    return f"state_{step:06d}.safetensors"


def spell(steps: list[int]) -> str:
    """Steps in a line, four or more at equal distances shortened: "0, 10, 100 to 900 by 100"."""
    said, i = [], 0
    while i < len(steps):
        j = i + 1
        while j + 1 < len(steps) and steps[j + 1] - steps[j] == steps[i + 1] - steps[i]:
            j += 1
        if j - i >= 3 and j < len(steps):
            said.append(f"{steps[i]} to {steps[j]} by {steps[i + 1] - steps[i]}")
            i = j + 1
        else:
            said.append(str(steps[i]))
            i += 1
    return ", ".join(said)


# --- the manifest --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Entry:
    """What the manifest knows of a file: its size (of metrics.csv, the size that counts) and checksum."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> "Entry":
        return cls(len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class Manifest:
    """The last commit. `step` is None before the first; `files` has an Entry for each name within the run."""

    dtype: Stored
    step: int | None
    finished: bool
    note: str
    files: dict[str, Entry]

    def to_bytes(self) -> bytes:
        """Canonical JSON with a checksum of its own, so that any change of any byte shows."""
        content = {"format": FORMAT, **asdict(self)}
        return to_json({**content, "checksum": hashlib.sha256(to_json(content)).hexdigest()})

    def steps(self, prefix: str = f"{CHECKPOINTS}/") -> list[int]:
        names = (STEP_FILE.fullmatch(name) for name in self.files if name.startswith(prefix))
        return sorted(int(match[2]) for match in names if match)

    @property
    def state_step(self) -> int | None:
        return next(iter(self.steps("state_")), None)


def to_json(content: object) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode("ascii")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a run directory, checked down to the last byte."""
    path = folder / MANIFEST
    with refusing(path, "read"):
        if not folder.is_dir():
            raise Refusal(f"{folder} is not a run: there is no such folder")
        if not path.is_file():
            raise Refusal(f"{folder} is not a run: it has no {MANIFEST}; see {TRAIN} --help")
        raw = path.read_bytes()
    try:
        content = json.loads(raw)
        if content["format"] != FORMAT:
            raise Refusal(f"{path} has format {content['format']!r}, not {FORMAT}: update mc_lib")
        manifest = _manifest(content)
        if manifest.to_bytes() != raw:
            raise ValueError("it does not fit its own checksum")
    except Refusal:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        cause = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise Refusal(f"{path} is damaged ({cause}): restore it from a copy") from error
    return manifest


def _manifest(content: dict[str, Any]) -> Manifest:
    """From JSON, every field's type checked: a checksum shows accidents, not intent."""

    def need(good: bool, what: object) -> None:
        if not good:
            raise ValueError(f"{what!r} is not what belongs there")

    dtype, step, finished, note, files = (content[k] for k in ("dtype", "step", "finished", "note", "files"))
    need(dtype in get_args(Stored), dtype)
    need(step is None or (type(step) is int and step >= 0), step)
    need(type(finished) is bool, finished)
    need(type(note) is str, note)
    need(type(files) is dict and {CONFIG, METRICS} <= set(files), "files")
    for name, entry in files.items():
        match = STEP_FILE.fullmatch(name)  # so no name can lead out of the folder
        usual = match and name == f"{match[1]}_{int(match[2]):06d}.safetensors"
        need(name in (CONFIG, METRICS) or bool(usual), name)
        need(type(entry) is dict and type(entry.get("bytes")) is int and entry["bytes"] >= 0, entry)
        need(type(entry.get("sha256")) is str, entry)
    manifest = Manifest(dtype, step, finished, note, {name: Entry(**entry) for name, entry in files.items()})
    need(len(manifest.steps("state_")) <= 1, "two states")
    return manifest


# --- reading and writing files -------------------------------------------------------------------------
@contextlib.contextmanager
def refusing(path: Path, verb: str) -> Iterator[None]:
    """The operating system's errors as one line."""
    try:
        yield
    except OSError as error:
        cause = os.strerror(error.errno).lower() if error.errno else str(error)
        remedy = "choose a folder that you may write to" if verb == "written" else "see that it may be read"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            remedy = f"free some space, then go on with {RESUME}; all that was saved before is kept"
        raise Refusal(f"{path} cannot be {verb} ({cause}): {remedy}") from error


def put(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    aside = path.with_name(path.name + ".tmp")
    with refusing(path, "written"):
        try:
            with open(aside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise
    with contextlib.suppress(OSError):  # the rename has happened; some systems cannot flush a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def append(path: Path, size: int, line: bytes) -> None:
    """Write behind the first `size` bytes, which no failure touches; what stood behind them is dropped."""
    with refusing(path, "written"), open(path, "r+b") as file:
        file.truncate(size)
        file.seek(size)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read_checked(path: Path, entry: Entry, prefix: bool = False) -> bytes:
    """The file's bytes, if they are those of the manifest; with `prefix`, more may follow."""
    with refusing(path, "read"):
        if not path.is_file():
            raise Refusal(f"{path} is missing: restore it from a copy")
        size = path.stat().st_size
        if size < entry.bytes:
            raise Refusal(f"{path} is truncated ({size} bytes of {entry.bytes}): restore it from a copy")
        if size > entry.bytes and not prefix:
            raise Refusal(f"{path} is longer than when saved ({size} bytes, not {entry.bytes}): restore it")
        with open(path, "rb") as file:
            data = file.read(entry.bytes)
    if Entry.of(data) != entry:
        raise Refusal(f"{path} is damaged (its sha256 is not the manifest's): restore it from a copy")
    return data


def check_tensors(
    where: object, tensors: Mapping[str, Tensor], cfg: Config, dtype: torch.dtype | None, whole: bool = True
) -> None:
    """Names (with `whole`, all of them), shapes, dtype and finiteness. A state's names are `part/weight`."""
    expected = shapes(cfg)
    if whole and (odd := sorted(set(tensors) ^ set(expected))):
        cause = "lacks" if odd[0] in expected else "has an unknown tensor"
        raise Refusal(f"{where} does not fit the config: it {cause} {odd[0]!r}")
    for name, tensor in tensors.items():
        shape = expected.get(name.rpartition("/")[2])
        if shape is not None and tuple(tensor.shape) != shape:
            raise Refusal(f"{where} does not fit the config: {name} is {tuple(tensor.shape)}, not {shape}")
        if dtype is not None and tensor.dtype != dtype:
            raise Refusal(f"{where}: {name} is {tensor.dtype}, but this run stores {dtype}")
        if not bool(torch.isfinite(tensor).all()):
            raise Refusal(f"{where}: {name} holds NaN or infinite values; such weights compute nothing")


def read_tensors(path: Path, entry: Entry, cfg: Config, dtype: torch.dtype | None, whole: bool) -> Weights:
    data = read_checked(path, entry)
    try:
        tensors = safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise Refusal(f"{path} is not a safetensors file: restore it from a copy") from error
    check_tensors(path, tensors, cfg, dtype, whole)
    return tensors


def pack(what: str, tensors: Mapping[str, Tensor], cfg: Config, stored: Stored | None) -> bytes:
    """The bytes of a safetensors file; nothing goes in that a reader would refuse."""
    dtype = None if stored is None else getattr(torch, stored)
    # cloned: earlier versions of safetensors take no two tensors that share memory
    own = {name: tensor.detach().to("cpu", dtype).contiguous().clone() for name, tensor in tensors.items()}
    check_tensors(what, own, cfg, dtype, whole=stored is not None)
    return safetensors.torch.save(own)


class Lock:
    """A folder that one writer has; the system lets it go when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self.release = lambda: None
        if fcntl is None:
            return
        with refusing(folder, "read"):
            descriptor = os.open(folder, os.O_RDONLY)
        self.release = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise Refusal(f"{folder} is being written by another process: let that one end first") from error
        except OSError:
            pass  # a file system without locks


# --- metrics.csv ---------------------------------------------------------------------------------------
def csv_line(cells: list[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def csv_cell(where: str, name: str, value: float) -> str:
    """repr, which reads back to the same bits; an empty cell is NaN: not defined in this config."""
    if math.isinf(value := float(value)):
        raise Refusal(f"{where}: {name} is infinite: the run diverged; choose a smaller lr")
    return "" if math.isnan(value) else repr(value)


def csv_columns(data: bytes) -> list[str]:
    return next(csv.reader(io.StringIO(data.decode())), ["step"])


def read_table(path: Path, data: bytes) -> pd.DataFrame:
    """The rows as a table: whole numbers under `step`, float64 elsewhere. (Python's float() is exact.)"""
    try:
        columns, *rows = list(csv.reader(io.StringIO(data.decode()))) if data else [["step"]]
        if columns[0] != "step" or len(set(columns)) < len(columns):
            raise ValueError("no column of steps, or one column twice")
        cells = list(zip(*rows, strict=True)) or [()] * len(columns)
        steps = np.array([int(cell) for cell in cells[0]], dtype=np.int64)
        if len(cells) != len(columns) or (np.diff(steps) <= 0).any():
            raise ValueError("a row too long or out of order")
        values = [np.array([float(cell or "nan") for cell in column]) for column in cells[1:]]
    except (ValueError, IndexError, OverflowError, csv.Error) as error:
        raise Refusal(f"{path} is not a table of numbers: restore it from a copy") from error
    if any(np.isinf(column).any() for column in values):
        raise Refusal(f"{path} holds infinite values: restore it from a copy")
    return pd.DataFrame(dict(zip(columns, [steps, *values], strict=True)))
