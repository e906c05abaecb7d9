"""A run on disk: settings, metrics, weights, and checksums of all of them.

A *run directory* holds `config.json` (the settings), `metrics.csv` (a row for every evaluation),
`checkpoints/step_NNNNNN.safetensors` (the weights after that many updates), while unfinished
`state_NNNNNN.safetensors` (weights and AdamW's moments: what training goes on from), and `manifest.json`,
which names each of these files with its size and sha256.

The manifest is the only *commit point*. What it does not vouch for is ignored by readers and cleared by
`resume`: bytes of metrics.csv past the recorded size, and files that it does not name. Every other file is
written aside, flushed to the disk and renamed, and the manifest comes last; so a process killed at any
moment leaves the run as its last commit made it.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from mc_lib.config import Config, Refusal
from mc_lib.model import Weights, shapes
from mc_lib.storage import (
    CHECKPOINTS,
    CONFIG,
    MANIFEST,
    METRICS,
    RESUME,
    STEP_FILE,
    TEMPORARY,
    AnyPath,
    Entry,
    Lock,
    Manifest,
    Stored,
    append,
    checkpoint_name,
    csv_cell,
    csv_columns,
    csv_line,
    pack,
    put,
    read_checked,
    read_manifest,
    read_table,
    read_tensors,
    refusing,
    spell,
    state_name,
    to_json,
)


# --- reading a run -------------------------------------------------------------------------------------
class Run:
    """A run as its last commit left it. Each file's checksum is verified before its content is believed."""

    def __init__(self, path: AnyPath) -> None:
        self.path = Path(path)
        self.name = self.path.resolve().name
        self.manifest = read_manifest(self.path)
        self.config = self._config()
        self.metrics_bytes = self._bytes(METRICS, prefix=not self.manifest.finished)
        self.metrics = read_table(self.path / METRICS, self.metrics_bytes)

    def _bytes(self, name: str, prefix: bool = False) -> bytes:
        return read_checked(self.path / name, self.manifest.files[name], prefix)

    def _config(self) -> Config:
        data = self._bytes(CONFIG)
        try:
            values = json.loads(data)
            if not isinstance(values, dict):
                raise ValueError("it does not hold settings")
            return Config.from_dict(values)
        except (ValueError, TypeError, RecursionError) as error:
            raise Refusal(f"{self.path / CONFIG} is not a config: {str(error).splitlines()[0]}") from error

    @property
    def steps(self) -> list[int]:
        """The steps whose weights are saved."""
        return self.manifest.steps()

    @property
    def finished(self) -> bool:
        return self.manifest.finished

    @property
    def step(self) -> int:
        """Updates done at the last commit."""
        return self.manifest.step or 0

    @property
    def note(self) -> str:
        """Where an imported run came from; empty for one trained here."""
        return self.manifest.note

    def weights(self, step: int | None = None, nearest: bool = False) -> Weights:
        """The weights (float32) after `step` updates, by default the last saved ones.

        A step that is not saved is refused, unless `nearest` allows the nearest one (of two, the earlier).
        """
        if not self.steps:
            raise Refusal(f"{self.path} has no saved weights yet: let it train on, or choose another run")
        wanted = self.steps[-1] if step is None else step
        if wanted not in self.steps and not nearest:
            raise Refusal(f"{self.path} has no weights of step {step}: it has {spell(self.steps)}")
        name = checkpoint_name(min(self.steps, key=lambda saved: abs(saved - wanted)))
        dtype = getattr(torch, self.manifest.dtype)
        tensors = read_tensors(self.path / name, self.manifest.files[name], self.config, dtype, whole=True)
        return {key: tensors[key].float() for key in shapes(self.config)}

    def state(self) -> dict[str, Tensor]:
        """What training goes on from, as it was handed to `commit`; empty if there is none."""
        if (step := self.manifest.state_step) is None:
            return {}
        name = state_name(step)
        return read_tensors(self.path / name, self.manifest.files[name], self.config, None, whole=False)

    def verify(self) -> "Run":
        """Read every file of the run, so that any damage is refused now."""
        for step in self.steps:
            self.weights(step)
        self.state()
        return self


def open_run(path: AnyPath) -> Run:
    """The run saved in this folder, or one line saying what is wrong with it.

    A relative path is looked for here and, if it is not here, in the folders above: a chapter runs in book/.
    """
    return Run(next((place / path for place in (Path(), *Path.cwd().parents) if (place / path).exists()), path))


def list_runs(folder: AnyPath) -> list[Path]:
    """The run directories at or below a folder, in order of their paths; hidden folders are passed over."""
    if not Path(folder).is_dir():
        raise Refusal(f"{folder} is not a folder: name one that holds runs")
    found = []
    for place, folders, files in os.walk(folder):
        if MANIFEST in files:
            found.append(Path(place))
            folders.clear()
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found)


# --- writing a run -------------------------------------------------------------------------------------
class RunWriter:
    """The one that writes a run: a commit at a time, each of which is there whole or not at all.

    Used in a `with` block, or closed at the end: while it is open no other writer can have the run.
    """

    def __init__(self, path: Path, cfg: Config, lock: "Lock") -> None:
        self.path, self.config, self._lock = path, cfg, lock
        self._sync()

    def _sync(self) -> None:
        """Take the last commit from the disk."""
        self.manifest = read_manifest(self.path)
        data = read_checked(self.path / METRICS, self.manifest.files[METRICS], prefix=True)
        self._digest = hashlib.sha256(data)
        self._columns = csv_columns(data) if data else []
        self._last_row = max(read_table(self.path / METRICS, data)["step"], default=-1)
        self._torn = False

    @classmethod
    def create(cls, path: AnyPath, cfg: Config, dtype: Stored = "float32", note: str = "") -> "RunWriter":
        """A new run directory. `dtype` is that of the stored weights; the state is stored as it is."""
        folder = Path(path)
        with refusing(folder, "written"):
            folder.mkdir(parents=True, exist_ok=True)
            lock = Lock(folder)
            try:
                _refuse_occupied(folder, cfg)
                put(folder / CONFIG, cfg_bytes := to_json(cfg.to_dict()))
                (folder / CHECKPOINTS).mkdir(exist_ok=True)
                put(folder / METRICS, b"")
                files = {CONFIG: Entry.of(cfg_bytes), METRICS: Entry.of(b"")}
                put(folder / MANIFEST, Manifest(dtype, None, False, note, files).to_bytes())
                return cls(folder, cfg, lock)
            except BaseException:
                lock.release()
                raise

    @classmethod
    def resume(cls, path: AnyPath) -> tuple["RunWriter", Config, dict[str, Tensor], int]:
        """(writer, config, state, step) of an unfinished run, rolled back to its last saved state.

        Without one the state is empty and the step 0: start from the initial weights.
        """
        folder = Path(path)
        read_manifest(folder)
        lock = Lock(folder)
        try:
            run = Run(folder)
            if run.finished:
                _tidy(folder, run.manifest)  # if it was killed right after its last commit
                raise Refusal(f"{folder} is finished at step {run.step}: there is nothing to resume")
            state = run.state()
            kept = _rolled_back(run)
            if kept != run.manifest:
                put(folder / MANIFEST, kept.to_bytes())
            _tidy(folder, kept)
            return cls(folder, run.config, lock), run.config, state, kept.step or 0
        except BaseException:
            lock.release()
            raise

    def commit(
        self,
        step: int,
        row: Mapping[str, float] | None = None,
        weights: Mapping[str, Tensor] | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Save what is given of step `step`: a row of metrics, a checkpoint, the state to resume from."""
        if self._torn:  # an earlier commit was interrupted, before or after it took hold
            self._sync()
        if step < (self.manifest.step or 0):
            raise Refusal(f"step {step} comes too late: {self.path} is at step {self.manifest.step}")
        line, columns = self._row(step, row) if row else (b"", self._columns)
        packed = self._packed(step, weights, state)
        self._torn = True
        files = self.manifest.files | {name: self._put(name, data) for name, data in packed.items()}
        outdated = {state_name(old) for old in self.manifest.steps("state_") if state is not None and old != step}
        files = {name: entry for name, entry in files.items() if name not in outdated}
        digest, size = self._digest.copy(), files[METRICS].bytes
        if line:
            append(self.path / METRICS, size, line)
            digest.update(line)
            files[METRICS] = Entry(size + len(line), digest.hexdigest())
        manifest = replace(self.manifest, step=step, files=files)
        put(self.path / MANIFEST, manifest.to_bytes())
        self.manifest, self._digest, self._columns = manifest, digest, columns
        self._last_row = step if line else self._last_row
        self._torn = False
        for name in outdated:
            with contextlib.suppress(OSError):  # what stays is cleared by `resume`
                (self.path / name).unlink()

    def _packed(
        self, step: int, weights: Mapping[str, Tensor] | None, state: Mapping[str, Tensor] | None
    ) -> dict[str, bytes]:
        packed = {}
        if weights is not None:
            what = f"weights of step {step}"
            packed[checkpoint_name(step)] = pack(what, weights, self.config, self.manifest.dtype)
        if state is not None:
            packed[state_name(step)] = pack(f"state of step {step}", state, self.config, None)
        return packed

    def _put(self, name: str, data: bytes) -> Entry:
        entry, known = Entry.of(data), self.manifest.files.get(name)
        if known is None:
            put(self.path / name, data)
        elif known != entry:  # never write over what a commit vouches for
            raise Refusal(f"{self.path / name} is saved already, with other content: it stays as it is")
        return entry

    def _row(self, step: int, row: Mapping[str, float]) -> tuple[bytes, list[str]]:
        where = f"metrics of step {step}"
        columns = self._columns or ["step", *row]
        if set(columns) != {"step", *row} or len(columns) != len(row) + 1:
            raise Refusal(f"{where}: columns {', '.join(row)} are not this run's {', '.join(columns[1:])}")
        if step <= self._last_row:
            raise Refusal(f"{where}: the run already has a row of step {self._last_row}")
        cells = [str(step), *(csv_cell(where, name, row[name]) for name in columns[1:])]
        return (b"" if self._columns else csv_line(columns)) + csv_line(cells), columns

    def finish(self, keep_state: bool = False) -> Run:
        """Declare the run complete, drop its state (it takes three times the weights) and close it."""
        if self._torn:
            self._sync()
        self._torn = True
        manifest = replace(self.manifest, finished=True)
        if not keep_state:
            kept = {name: entry for name, entry in manifest.files.items() if not name.startswith("state_")}
            manifest = replace(manifest, files=kept)
        append(self.path / METRICS, manifest.files[METRICS].bytes, b"")
        put(self.path / MANIFEST, manifest.to_bytes())
        _tidy(self.path, manifest)
        self.close()
        return Run(self.path)

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refuse_occupied(folder: Path, cfg: Config) -> None:
    """Refuse a folder that holds anything, but for what a run killed while it was being created leaves."""
    if (folder / MANIFEST).exists():
        run = Run(folder)
        old, new = run.config.to_dict(), cfg.to_dict()
        if odd := [f"{name} = {old[name]!r}, not {new[name]!r}" for name in new if old[name] != new[name]]:
            raise Refusal(f"{folder} holds a run with another config ({'; '.join(odd)}): choose a new folder")
        if run.finished:
            raise Refusal(f"{folder} holds this very run, finished at step {run.step}: choose a new folder")
        raise Refusal(f"{folder} holds this run, unfinished at step {run.step}: use {RESUME} {folder}")
    harmless = {CONFIG: to_json(cfg.to_dict()), METRICS: b""}
    for path in sorted(folder.iterdir()):
        empty = path.name == CHECKPOINTS and path.is_dir() and not any(path.iterdir())
        same = path.name in harmless and path.is_file() and path.read_bytes() == harmless[path.name]
        if not (empty or same or (path.is_file() and TEMPORARY.fullmatch(path.name))):
            raise Refusal(f"{folder} already holds {path.name}: choose a new or empty folder")


def _rolled_back(run: Run) -> Manifest:
    """The run's manifest as it was when its state was saved: what came later is computed again."""
    manifest, last = run.manifest, run.manifest.state_step
    gone = {checkpoint_name(step) for step in run.steps if last is None or step > last}
    files = {name: entry for name, entry in manifest.files.items() if name not in gone}
    rows = int((run.metrics["step"] <= (-1 if last is None else last)).sum())
    lines = run.metrics_bytes.splitlines(keepends=True)
    files[METRICS] = Entry.of(b"".join(lines[: rows + 1]) if rows else b"")
    return replace(manifest, step=last, files=files)


def _tidy(folder: Path, manifest: Manifest) -> None:
    """Remove what the manifest does not vouch for: bytes past the metrics, files of a commit cut short."""
    append(folder / METRICS, manifest.files[METRICS].bytes, b"")
    with refusing(folder, "written"):
        (folder / CHECKPOINTS).mkdir(exist_ok=True)
        for path in [*folder.iterdir(), *(folder / CHECKPOINTS).iterdir()]:
            name = path.relative_to(folder).as_posix()
            if name not in manifest.files and (STEP_FILE.fullmatch(name) or TEMPORARY.fullmatch(path.name)):
                path.unlink()
