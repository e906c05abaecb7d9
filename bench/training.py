"""Time one training step, data included: the usual way of computing it against ours, in one run, at one thread.

(a)  every position, a layer-1 MLP that is zero and frozen but computed, autograd, AdamW: as the paper's release
(a') the same without that dead MLP
(b)  mc_lib.train in float32            (b') mc_lib.train with bfloat16 autocast

The variants take turns, so that a noisy machine disturbs them alike; each keeps its best round. The arithmetic
floor is the matrix operations of a step of (b) over the rate at which this machine multiplies large matrices.
Writes bench/results/NAME.json; `make bench` puts its table into README.md.
"""

import argparse
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import Parameter
from torch.utils.flop_counter import FlopCounterMode

from mc_lib import model, task
from mc_lib.config import Config
from mc_lib.measures import measure
from mc_lib.routing import routing
from mc_lib.sampler import Sampler
from mc_lib.train import Training, train

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
NAMES = ("a", "a_no_dead_mlp", "b", "b_bfloat16")


class Usual:
    """The model written the usual way: every position through every layer."""

    def __init__(self, cfg: Config, dead_mlp: bool):
        self.cfg, self.sampler, self.step = cfg, Sampler(cfg), 0
        self.weights = {name: Parameter(tensor) for name, tensor in model.init(cfg).items()}
        self.dead = (torch.zeros(cfg.d_model, cfg.d_mlp), torch.zeros(cfg.d_mlp, cfg.d_model)) if dead_mlp else None
        self.optimizer = torch.optim.AdamW(
            self.weights.values(), lr=cfg.lr, betas=(0.9, 0.999), weight_decay=cfg.weight_decay
        )
        self.mask = torch.ones(cfg.length, cfg.length, dtype=torch.bool).triu(1)

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        w = self.weights
        x = w["embed.W_E"][tokens] + w["pos_embed.W_pos"]
        for layer in (0, 1):
            q, k, v = (torch.einsum("bpd,hde->bhpe", x, w[f"blocks.{layer}.attn.W_{name}"]) for name in ("Q", "K", "V"))
            scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(self.mask, -torch.inf)
            x = x + torch.einsum("bhpe,hed->bpd", scores.softmax(-1) @ v, w[f"blocks.{layer}.attn.W_O"])
            if layer == 1:
                x = x + (x @ w["blocks.1.mlp.W_in"]).relu() @ w["blocks.1.mlp.W_out"]
            elif self.dead:
                x = x + (x @ self.dead[0]).relu() @ self.dead[1]
        return x @ w["unembed.W_U"]

    def advance(self, steps: int) -> None:
        for step in range(self.step, self.step + steps):
            tokens = self.sampler.batch(torch.tensor([self.cfg.seed]), torch.tensor([step]))[0, 0]
            loss = torch.nn.functional.cross_entropy(self.logits(tokens)[:, -1], task.answers(tokens, self.cfg))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.step += steps


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """CPU seconds and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    action()
    return time.process_time() - cpu, time.perf_counter() - wall


def time_steps(steps: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds a step of every variant, the best of the rounds that they take in turns."""
    ours = {"b": Training([Config()]), "b_bfloat16": Training([Config(precision="bfloat16")])}
    usual = {"a": Usual(Config(), True), "a_no_dead_mlp": Usual(Config(), False)}
    actions: dict[str, Callable[[int], object]] = {name: u.advance for name, u in usual.items()}
    for name, t in ours.items():
        actions[name] = lambda n, t=t: t.advance(t.step + n)
    best: dict[str, list[float]] = {name: [math.inf, math.inf] for name in NAMES}
    for turn in range(rounds + 1):
        for name in NAMES:
            count = max(2, steps // 6) if name in usual else steps
            pair = timed(lambda name=name, count=count: actions[name](count))
            if turn:  # the first round only warms up
                best[name] = [min(old, new / count) for old, new in zip(best[name], pair, strict=True)]
    return {name: {"cpu_ms": 1e3 * cpu, "wall_ms": 1e3 * wall} for name, (cpu, wall) in best.items()}


def matrix_rate() -> float:
    """Float32 operations a second of a large matrix product, one thread, by CPU time."""
    a = torch.randn(1536, 1536)
    seconds = min(timed(lambda: a @ a)[0] for _ in range(8))
    return 2 * 1536**3 / seconds


def operations() -> int:
    """Matrix operations of one step of (b), forward and backward, as torch counts them."""
    training = Training([Config()])
    with FlopCounterMode(display=False) as counter:
        training.advance(1)
    return counter.get_total_flops()


def evaluation_ms() -> float:
    weights, cfg = model.init(Config()), Config()
    return 1e3 * min(timed(lambda: (measure(weights, cfg), routing(weights, cfg)))[0] for _ in range(4))


def batch_ms() -> float:
    """One batch and its answers, drawn by itself."""
    sampler, cfg = Sampler(Config()), Config()
    one = [torch.tensor([0]), torch.tensor([0])]
    return 1e3 * min(timed(lambda: task.answers(sampler.batch(*one)[0, 0], cfg))[0] for _ in range(50))


def peak_memory_mb() -> float:
    """Peak resident memory of a process that trains 200 steps, evaluations and commits included."""
    pid = os.fork()
    if pid == 0:
        with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as quiet:
            os.dup2(quiet.fileno(), 2)
            train(Config(steps=200), Path(folder) / "run")
        os._exit(0)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError("the training process for the memory measurement failed")
    return usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    return f"{cpu}, {os.cpu_count()} cores, torch {torch.__version__.split('+')[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30, help="steps a round of the fast variants")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--name", default="cpu", help="name of the file in bench/results")
    arguments = parser.parse_args()
    if min(arguments.steps, arguments.rounds) < 1:
        sys.exit("steps and rounds must be at least 1")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    memory = peak_memory_mb()
    rate = matrix_rate()
    result = {
        "machine": machine(),
        "threads": 1,
        "steps": time_steps(arguments.steps, arguments.rounds),
        "operations": operations(),
        "matrix_rate": max(rate, matrix_rate()),
        "batch_ms": batch_ms(),
        "evaluation_ms": evaluation_ms(),
        "peak_memory_mb": memory,
    }
    result["floor_ms"] = 1e3 * result["operations"] / result["matrix_rate"]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{arguments.name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
