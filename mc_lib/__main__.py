"""The command line: python -m mc_lib train | resume | sweep | claims | measure | predict | import | bench.

Every command answers bad input with one line and exit code 2.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mc_lib.config import Config, Refusal

Device = Literal["auto", "cpu", "cuda", "mps"]
MAIN_RUN = "runs/main"
RUNNERS_UP = 3


@dataclass
class Train:
    """Train a new run: its folder then holds the settings, the metrics and the checkpoints."""

    out: Annotated[Path, tyro.conf.Positional]
    """A new folder for the run."""
    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)
    """The run's settings."""
    device: Device = "auto"
    """Where to train; auto takes CUDA or MPS where there is one."""
    seeds: int = 1
    """Train this many seeds stacked, from config's seed on, into OUT/00, OUT/01, ... (made for a GPU)."""

    def run(self) -> None:
        from mc_lib.train import train_many

        if self.seeds < 1:
            raise Refusal(f"seeds = {self.seeds} is out of range: train at least one")
        first = self.config.seed
        many = [(self.config.replace(seed=s), self.out / f"{s:02d}") for s in range(first, first + self.seeds)]
        for run in train_many(many if self.seeds > 1 else [(self.config, self.out)], _device(self.device)):
            print(f"finished at step {run.step}: {run.path}")


@dataclass
class Resume:
    """Go on with unfinished runs; they end with the same bits as if they had never stopped."""

    runs: Annotated[list[Path], tyro.conf.Positional]
    """Folders of runs."""
    device: Device = "auto"

    def run(self) -> None:
        from mc_lib.train import resume_many

        if not self.runs:
            raise Refusal("no run is named: python -m mc_lib resume FOLDER")
        for run in resume_many(list(self.runs), _device(self.device)):
            print(f"finished at step {run.step}: {run.path}")


@dataclass
class Sweep:
    """Train many runs into a folder and tabulate them; called again, it goes on with what is unfinished."""

    out: Annotated[Path, tyro.conf.Positional]
    """The folder of the runs and of table.csv."""
    over: Literal["seeds", "fig3a", "fig3b"] = "seeds"
    """What varies: the seed alone, the share of number pairs in training, or the share of 2-variable sequences."""
    count: int = 1
    """Seeds, from config's seed on; with fig3a and fig3b for each of the 20 values."""
    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)
    """What all runs share."""
    device: Device = "auto"
    """On a GPU, seeds train stacked; on the CPU, one process a core."""
    scheduler: str | None = None
    """Address of a Dask scheduler, tcp://HOST:PORT, whose workers see the same files (needs mc_lib[cluster])."""

    def run(self) -> None:
        from mc_lib import sweep

        if self.count < 1:
            raise Refusal(f"count = {self.count} is out of range: train at least one seed")
        jobs = getattr(sweep, self.over)(self.config, self.count)
        device = "cpu" if self.scheduler else _device(self.device)
        if device == "cpu":
            with _cluster(self.scheduler) as executor:
                print(sweep.sweep(jobs, self.out.absolute(), executor))
        else:
            print(sweep.stacked(jobs, self.out, device))


@contextmanager
def _cluster(address: str | None) -> Iterator[Executor | None]:
    """An executor on a Dask cluster, or None without an address."""
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise Refusal("--scheduler needs the package distributed: pip install 'mc_lib[cluster]'") from error
    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        raise Refusal(f"no Dask scheduler answers at {address}: start one with `dask scheduler`") from error
    with client:
        yield client.get_executor()


@dataclass
class Claims:
    """Measure every claim on every run of a folder, and write the verdicts to claims.csv in it."""

    folder: Annotated[Path, tyro.conf.Positional]
    """A folder of finished runs, as `sweep` leaves it."""

    def run(self) -> None:
        from mc_lib import verdicts
        from mc_lib.claims import CLAIMS
        from mc_lib.many import read

        runs = [seed.run for seed in read(self.folder)]
        print(verdicts.write(self.folder, verdicts.measure(runs, CLAIMS)))


@dataclass
class Measure:
    """Measure a saved checkpoint: the nine accuracies, the progress measures, and what `=` looks at."""

    path: Annotated[Path, tyro.conf.Positional] = Path(MAIN_RUN)
    """Folder of a run."""
    step: int | None = None
    """A saved step; by default the last."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        from mc_lib.runs import open_run
        from mc_lib.train import metrics_row

        run = open_run(self.path)
        weights = run.weights(self.step)
        row = metrics_row(weights, run.config)
        if self.json:
            print(json.dumps({"step": run.steps[-1] if self.step is None else self.step, **row}, indent=1))
            return
        for name, value in row.items():
            print(f"{name:40} {value:10.4f}")


@dataclass
class Predict:
    """Let a saved run answer a sequence, and show what `=` attends to."""

    sequence: Annotated[str, tyro.conf.Positional]
    """Such as "c=1,b=17,a=42,b+19"."""
    path: Annotated[Path, tyro.conf.arg(name="run")] = Path(MAIN_RUN)
    """Folder of a run."""
    step: int | None = None
    """A saved step; by default the last."""

    def run(self) -> None:
        from mc_lib import model, task
        from mc_lib.runs import open_run

        run = open_run(self.path)
        tokens = task.parse(self.sequence, run.config)
        trace = model.trace(run.weights(self.step), tokens[None])
        probability, number = trace.logits[0].softmax(-1).topk(min(1 + RUNNERS_UP, run.config.p))
        right = int(task.answers(tokens[None], run.config)[0])
        print(task.format(tokens, run.config))
        print(f"answer      {int(number[0])}  (probability {probability[0]:.4f}; right is {right})")
        others = zip(number[1:].tolist(), probability[1:].tolist(), strict=True)
        print("runners-up  " + ", ".join(f"{n} ({share:.4f})" for n, share in others))
        names = [task.token_names(run.config)[t].replace(task.PAD_SIGN, "PAD") for t in tokens.tolist()]
        for layer, pattern in enumerate((trace.pattern1[0, :, -1], trace.pattern2[0]), 1):
            for head, weights in enumerate(pattern.tolist(), 1):
                which = f"layer {layer}" + (f" head {head}" if len(pattern) > 1 else "")
                shown = " ".join(f"{name}:{w:.2f}" for name, w in zip(names, weights, strict=True) if w >= 0.005)
                print(f"`=` attends to, {which}:  {shown}")


@dataclass
class Import:
    """Make a run of a TransformerLens state dict (.pth) or of a folder of checkpoint_step_N.pth."""

    source: Annotated[Path, tyro.conf.Positional]
    destination: Annotated[Path, tyro.conf.Positional]
    step: int | None = None
    """Step of a single file whose name has no number."""
    held_out: float = Config.held_out
    """Share of the ordered number pairs that its training never saw."""
    split_seed: int = Config.split_seed
    """Seed of its split into training and held-out pairs."""
    not_second: str = Config.not_second
    """Variables that its training never showed as the second operand; "" for none."""
    not_first: str = Config.not_first
    """Variables that its training never showed as the first operand; "" for none."""

    def run(self) -> None:
        from mc_lib.foreign import import_foreign
        from mc_lib.train import metrics_row

        told = {name: getattr(self, name) for name in ("held_out", "split_seed", "not_second", "not_first")}
        base = Config(variables=26, **told)
        run = import_foreign(self.source, self.destination, base, self.step, measure=metrics_row)
        print(f"imported {len(run.steps)} checkpoint(s), measured each: {run.path}")


@dataclass
class Bench:
    """Time training against the usual way of computing it; writes bench/results (a few minutes)."""

    steps: int = 30
    """Steps timed for each variant."""

    def run(self) -> None:
        script = Path(__file__).parent.parent / "bench" / "training.py"
        if not script.exists():
            raise Refusal("bench/training.py is not there: run this command in a clone of the project")
        raise SystemExit(subprocess.run([sys.executable, str(script), "--steps", str(self.steps)]).returncode)


Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Resume, tyro.conf.subcommand("resume")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Claims, tyro.conf.subcommand("claims")]
    | Annotated[Measure, tyro.conf.subcommand("measure")]
    | Annotated[Predict, tyro.conf.subcommand("predict")]
    | Annotated[Import, tyro.conf.subcommand("import")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
)


def _device(name: Device) -> str:
    import torch

    from mc_lib.train import default_device

    there = {"auto": True, "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there[name]:
        raise Refusal(f"this machine has no {name} device: use --device cpu")
    return default_device() if name == "auto" else name


def _how_to_go_on(command: Any) -> str:
    """What to do after Ctrl-C."""
    if isinstance(command, Sweep):
        return "stopped; the same command goes on with the runs that are unfinished"
    if isinstance(command, Claims):
        return "stopped; nothing was written: give the command again"
    folders = getattr(command, "runs", None) or [getattr(command, "out", "FOLDER")]
    shown = " ".join(shlex.quote(str(folder)) for folder in folders)
    return f"stopped; an unfinished run goes on with: python -m mc_lib resume {shown}"


def main(arguments: list[str] | None = None) -> int:
    command = None
    try:
        command = tyro.cli(Command, args=arguments, prog="python -m mc_lib", config=(tyro.conf.OmitArgPrefixes,))
        command.run()
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(_how_to_go_on(command), file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
