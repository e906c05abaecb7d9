"""Training: the loop that turns a config into a run on disk.

One step draws its batch, takes the loss at `=` and updates with AdamW; several seeds may be stacked in a leading
dimension. Every `eval_every` steps a row of metrics is measured and committed together with the state (weights,
AdamW's moments, step), so that a run killed at any moment goes on from its last row and ends with the same bits.
On CUDA a step, data included, is one captured graph.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from mc_lib import model, task
from mc_lib.config import Config, Refusal
from mc_lib.evaluation import NINE
from mc_lib.measures import measure
from mc_lib.model import Weights
from mc_lib.routing import routing
from mc_lib.runs import Run, RunWriter, open_run
from mc_lib.sampler import Sampler
from mc_lib.storage import AnyPath, Stored

EARLY = (0, 100, 200, 300, 400, 500, 700, 1000, 1500)
REGULAR = 2000
MOVED = 0.15
_AHEAD = 10  # steps whose batches are drawn together: fewer, larger tensor operations


def default_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


class Training:
    """Stacked seeds in training: their weights in one flat buffer, block by block [seed, *shape], for AdamW."""

    def __init__(self, cfgs: list[Config], device: str = "cpu", graph: bool = True):
        self.cfg, self.device, self.step = cfgs[0], device, 0
        self.seeds = torch.tensor([cfg.seed for cfg in cfgs], device=device)
        numbers = sum(math.prod(shape) for shape in model.shapes(self.cfg).values())
        self.flat = torch.zeros(len(cfgs) * numbers, device=device)
        self.gradient = self.flat.grad = torch.zeros_like(self.flat)
        self.weights = self._views(self.flat, grads=self.gradient)
        self.optimizer = torch.optim.AdamW(
            [self.flat],
            lr=self.cfg.lr,
            betas=(0.9, 0.999),
            weight_decay=self.cfg.weight_decay,
            fused=True,
            capturable=device == "cuda",
        )
        # MPS lacks some of the integer operations of the draws.
        self.sampler = Sampler(self.cfg, "cpu" if device == "mps" else device)
        self.total_loss = torch.zeros(len(cfgs), device=device)
        self.load([fresh_state(cfg) for cfg in cfgs], 0)
        self._replay = self._captured() if graph and device == "cuda" else None

    def _views(self, flat: Float[Tensor, " numbers"], grads: Tensor | None = None) -> Weights:
        """The flat buffer as named weights; given grads, as leaves whose gradients land in that buffer."""
        shapes = {name: (len(self.seeds), *shape) for name, shape in model.shapes(self.cfg).items()}
        parts = flat.split([math.prod(shape) for shape in shapes.values()])
        views = {n: part.view(shape) for (n, shape), part in zip(shapes.items(), parts, strict=True)}
        if grads is not None:
            for name, grad in self._views(grads).items():
                views[name] = views[name].detach().requires_grad_()
                views[name].grad = grad
        return views

    # --- state -----------------------------------------------------------------------------------------

    def load(self, states: list[dict[str, Tensor]], step: int) -> None:
        """Takes over one state a seed, as `state` returned it."""
        self.step = step
        moments = {name: self._flat(states, name) for name in ("exp_avg", "exp_avg_sq")}
        with torch.no_grad():
            self.flat.copy_(self._flat(states, "weights"))
        counter = torch.tensor(float(step), device=self.device)
        state = self.optimizer.state[self.flat]
        for name, value in {"step": counter, **moments}.items():
            # In place where it exists: a captured graph knows the tensors by their addresses.
            state[name] = state[name].copy_(value) if name in state else value

    def _flat(self, states: list[dict[str, Tensor]], part: str) -> Float[Tensor, " numbers"]:
        blocks = [torch.stack([state[f"{part}/{name}"] for state in states]).flatten() for name in self.weights]
        return torch.cat(blocks).to(self.device)

    def state(self) -> list[dict[str, Tensor]]:
        """One dict of tensors a seed: all that it takes to go on."""
        moments = self.optimizer.state[self.flat]
        parts = {"weights": self.flat, "exp_avg": moments["exp_avg"], "exp_avg_sq": moments["exp_avg_sq"]}
        states: list[dict[str, Tensor]] = [{} for _ in self.seeds]
        for part, flat in parts.items():
            for name, stacked in self._views(flat.detach().cpu()).items():
                for state, tensor in zip(states, stacked, strict=True):
                    state[f"{part}/{name}"] = tensor.clone()
        return states

    def snapshot(self) -> list[Weights]:
        """The weights of each seed, copied to the CPU."""
        return [{n: t.clone() for n, t in w.items()} for w in model.unstack(self._views(self.flat.detach().cpu()))]

    # --- steps -----------------------------------------------------------------------------------------

    def advance(self, until: int) -> list[float]:
        """Trains up to step `until`; the mean loss of each seed over these steps."""
        first = self.step
        self.total_loss.zero_()
        while self.step < until:
            if self._replay:
                self._replay()
                self.step += 1
                continue
            ahead = min(_AHEAD, until - self.step)
            steps = torch.arange(self.step, self.step + ahead, device=self.sampler.mix.pairs.device)
            tokens = self.sampler.batch(self.seeds.to(steps.device), steps).to(self.device)
            right = task.answers(tokens.flatten(0, 2), self.cfg).view(tokens.shape[:3])
            for batch in zip(tokens.unbind(1), right.unbind(1), strict=True):
                self._update(*batch)
            self.step += ahead
        return (self.total_loss / max(1, until - first)).tolist()

    def _update(self, tokens: Int[Tensor, "seed batch pos"], right: Int[Tensor, "seed batch"]) -> None:
        """One optimiser update on given batches and their answers."""
        losses = self.loss(tokens, right)
        self.gradient.zero_()
        losses.sum().backward()
        self.optimizer.step()
        self.total_loss += losses.detach()

    def loss(self, tokens: Int[Tensor, "seed batch pos"], right: Int[Tensor, "seed batch"]) -> Float[Tensor, " seed"]:
        """Cross-entropy at `=`, a mean for each seed."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.cfg.precision == "bfloat16"):
            scores = model.logits(self.weights, tokens)
        losses = torch.nn.functional.cross_entropy(scores.float().flatten(0, 1), right.flatten(), reduction="none")
        return losses.view(len(tokens), -1).mean(1)

    def _captured(self) -> Callable[[], None] | None:
        """One step, data included, as a CUDA graph; None, with a line saying why, where that fails."""
        before = self.state()
        counter = torch.zeros(1, dtype=torch.long, device=self.device)

        def one_step() -> None:
            tokens = self.sampler.batch(self.seeds, counter)[:, 0]
            self._update(tokens, task.answers(tokens.flatten(0, 1), self.cfg).view(tokens.shape[:2]))
            counter.add_(1)

        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    one_step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                one_step()
        except (RuntimeError, AssertionError) as error:
            tqdm.write(f"training without a captured CUDA graph, which is slower: {str(error).splitlines()[0]}")
            self.load(before, self.step)
            return None
        self.load(before, self.step)

        def replay() -> None:
            counter.fill_(self.step)
            graph.replay()

        return replay


def fresh_state(cfg: Config) -> dict[str, Tensor]:
    """The state at step 0."""
    weights = model.init(cfg)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    parts = {"weights": weights, "exp_avg": zeros, "exp_avg_sq": zeros}
    return {f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}


# --- runs ----------------------------------------------------------------------------------------------


@dataclass
class Job:
    """A run in training: its writer, where it goes on from, and the accuracies at its last saved checkpoint."""

    writer: RunWriter
    state: dict[str, Tensor]
    step: int = 0
    new: bool = True
    last_saved: dict[str, float] | None = None

    @property
    def cfg(self) -> Config:
        return self.writer.config


def metrics_row(weights: Weights, cfg: Config) -> dict[str, float]:
    """All that is measured at an evaluation, to six digits."""
    values = {**measure(weights, cfg), **routing(weights, cfg)}
    return {name: float(f"{value:.6g}") for name, value in values.items()}


def due(step: int, row: dict[str, float], last_saved: dict[str, float] | None, cfg: Config) -> bool:
    """Whether to save a checkpoint: early, regularly, at the end, and when an accuracy has moved since the last."""
    if step in EARLY or step % REGULAR == 0 or step == cfg.steps or last_saved is None:
        return True
    return any(abs(row[name] - last_saved[name]) >= MOVED for name in NINE if name in row)


def train(cfg: Config, path: AnyPath, device: str = "cpu", final_only: bool = False, dtype: Stored = "float32") -> Run:
    """Trains a new run at `path`. final_only saves the last weights alone, dtype says how they are stored."""
    return train_many([(cfg, path)], device, final_only, dtype)[0]


def train_many(
    runs: Sequence[tuple[Config, AnyPath]], device: str = "cpu", final_only: bool = False, dtype: Stored = "float32"
) -> list[Run]:
    """Trains new runs stacked: their configs may differ in the seed alone."""
    jobs = []
    try:
        for cfg, path in runs:
            if cfg.replace(seed=runs[0][0].seed) != runs[0][0]:
                raise Refusal("stacked runs may differ in their seed alone: train the others on their own")
            jobs.append(Job(RunWriter.create(path, cfg, dtype), fresh_state(cfg)))
        return _run(jobs, device, final_only)
    finally:
        for job in jobs:
            job.writer.close()


def resume(path: AnyPath, device: str = "cpu", final_only: bool = False) -> Run:
    """Goes on with an unfinished run and ends with the bits it would have had without the break."""
    return resume_many([path], device, final_only)[0]


def resume_many(paths: Sequence[AnyPath], device: str = "cpu", final_only: bool = False) -> list[Run]:
    """Goes on with unfinished runs, stacked where they stand at the same step."""
    jobs = []
    try:
        for path in paths:
            writer, cfg, state, step = RunWriter.resume(path)
            run = open_run(path)
            table = run.metrics[run.metrics["step"].isin(run.steps)]
            last_saved = table.iloc[-1].to_dict() if len(table) else None
            jobs.append(Job(writer, state or fresh_state(cfg), step, not state, last_saved))
        return _run(jobs, device, final_only)
    finally:
        for job in jobs:
            job.writer.close()


def _run(jobs: list[Job], device: str, final_only: bool) -> list[Run]:
    """Trains jobs to their end; those that lag behind (killed between two commits) first catch up."""
    finished: dict[int, Run] = {}
    for step in sorted({job.step for job in jobs}):
        group = [job for job in jobs if job.step <= step]
        later = [job.step for job in jobs if job.step > step]
        _advance(group, min(later, default=group[0].cfg.steps), device, final_only)
    for job in jobs:
        finished[id(job)] = job.writer.finish()
    return [finished[id(job)] for job in jobs]


def _advance(jobs: list[Job], until: int, device: str, final_only: bool) -> None:
    """Trains stacked jobs from their common step to `until`, with a row of metrics every eval_every steps."""
    cfg, start = jobs[0].cfg, jobs[0].step
    with _machine_settings(device), tqdm(total=cfg.steps, initial=start, unit="step", smoothing=0.05) as bar:
        training = Training([job.cfg for job in jobs], device)
        training.load([job.state for job in jobs], start)
        if start == 0:
            _commit(jobs, training, final_only)
        while training.step < until:
            losses = training.advance(min(until, training.step + cfg.eval_every))
            rows = _commit(jobs, training, final_only, losses)
            bar.set_postfix_str(_summary(rows[0]))
            bar.update(training.step - bar.n)
        for job, state in zip(jobs, training.state(), strict=True):
            job.state, job.step = state, training.step


def _commit(
    jobs: list[Job], training: Training, final_only: bool, losses: list[float] | None = None
) -> list[dict[str, float]]:
    """Measures and commits every job; returns their rows. Before the first step no loss has been taken."""
    rows = []
    losses = losses or [math.nan] * len(jobs)
    for job, weights, state, loss in zip(jobs, training.snapshot(), training.state(), losses, strict=True):
        if training.step == 0 and not job.new:
            continue
        row = {"loss": float(f"{loss:.6g}"), **metrics_row(weights, job.cfg)}
        last_step = training.step == job.cfg.steps
        save = last_step if final_only else due(training.step, row, job.last_saved, job.cfg)
        job.writer.commit(training.step, row, weights if save else None, state)
        job.last_saved = row if save else job.last_saved
        rows.append(row)
    return rows


def _summary(row: dict[str, float]) -> str:
    """The progress bar's text: the loss and the nine accuracies in per cent, in the order of NINE."""
    return f"loss {row['loss']:.3f}, accuracies " + " ".join(f"{100 * row[name]:.0f}" for name in NINE if name in row)


@contextmanager
def _machine_settings(device: str) -> Iterator[None]:
    """One thread on the CPU (as fast for this model, and the same bits wherever it is resumed), no denormals."""
    threads = torch.get_num_threads()
    torch.set_flush_denormal(True)
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
