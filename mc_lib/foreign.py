"""Runs trained elsewhere, made into runs of ours.

A *foreign checkpoint* is a plain TransformerLens state dict, a `.pth` of named tensors; a foreign run is a
folder of `checkpoint_step_N.pth`. Sizes are read off the tensors' shapes. Beside the weights of our model
it may hold causal masks, `IGNORE`, and biases and a layer-1 MLP that are all zero; anything more would be
another function, and is refused. Such files are pickles: only tensors are taken out of them, and no code in
them is run.

The number N in a foreign name counts from 0: `checkpoint_step_N.pth` was saved when N + 1 updates were
done, and becomes our step N + 1.
"""

import pickle
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from mc_lib.config import Config, Refusal
from mc_lib.model import Weights, shapes
from mc_lib.runs import Run, RunWriter
from mc_lib.storage import AnyPath, Stored, check_tensors, refusing

NUMBERED = re.compile(r"checkpoint_step_([0-9]{1,8})\.pth")
PREFIXES = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every name
NORMS = re.compile(r"(.*\.)?ln[^.]*\.(w|b|weight|bias)")
NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int64)
Measure = Callable[[Weights, Config], Mapping[str, float]]


def import_foreign(
    source: AnyPath,
    destination: AnyPath,
    base: Config | None = None,
    step: int | None = None,
    dtype: Stored = "float32",
    measure: Measure | None = None,
) -> Run:
    """Make a finished run at `destination` of a `.pth` file or a folder of them; the source is only read.

    What shapes cannot tell (seed, split, learning rate, ...) comes from `base`, by default the paper's settings.
    `step` is the step of a single file whose name has no number. `measure` gives a row of metrics for each
    checkpoint; without it the metrics stay empty.
    """
    source, destination = Path(source), Path(destination)
    files = _files(source, step)
    if destination.exists() or destination.is_symlink():
        raise Refusal(f"{destination} exists already: name a new folder for the imported run")
    if source.resolve() in destination.resolve().parents:
        raise Refusal(f"{destination} lies within the source: choose a folder elsewhere")
    first = _load(next(iter(files.values())))
    try:
        cfg = infer(first, base or Config(), max(files))
    except Refusal as error:
        raise Refusal(f"{source}: {error}") from error
    with refusing(destination, "written"):
        destination.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
        try:
            _fill(aside, cfg, files, dtype, measure, f"imported from {source.name}")
            aside.chmod(0o755)
            aside.rename(destination)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return Run(destination)


def _fill(folder: Path, cfg: Config, files: dict[int, Path], dtype: Stored, measure: Measure | None, note: str) -> None:
    with RunWriter.create(folder, cfg, dtype, note) as writer:
        for step, path in tqdm(files.items(), desc="import", unit="checkpoint", disable=len(files) < 2):
            weights = strip(path, _load(path), cfg)
            writer.commit(step, measure(weights, cfg) if measure else None, weights)
        writer.finish()


def _files(source: Path, step: int | None) -> dict[int, Path]:
    """The checkpoints by step, in order."""
    with refusing(source, "read"):
        if source.is_file():
            if step is None and (match := NUMBERED.fullmatch(source.name)):
                step = int(match[1]) + 1
            if step is None:
                raise Refusal(f"{source.name} does not say its step: name it checkpoint_step_N.pth")
            return {step: source}
        if not source.is_dir():
            raise Refusal(f"{source} does not exist: name a .pth file or a folder of checkpoint_step_N.pth")
        found: dict[int, Path] = {}
        for path in sorted(source.iterdir()):
            if match := NUMBERED.fullmatch(path.name):
                if (number := int(match[1]) + 1) in found:
                    raise Refusal(f"{source}: {path.name} and {found[number].name} are one step: keep one")
                found[number] = path
    if not found:
        raise Refusal(f"{source} holds no checkpoint_step_N.pth: name the folder that does")
    return dict(sorted(found.items()))


def _load(path: Path) -> dict[str, Tensor]:
    """The named tensors of a `.pth` file, prefixes of wrappers taken off."""
    try:
        with refusing(path, "read"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old formats; what is loaded is checked below
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Refusal:
        raise
    except pickle.UnpicklingError as error:
        raise Refusal(f"{path} is damaged or no plain dict of tensors; nothing in it was run") from error
    except Exception as error:  # a damaged pickle can fail in any way there is
        raise Refusal(f"{path} is damaged, or no file of torch.save ({type(error).__name__})") from error
    return _plain(path, content)


def _plain(path: Path, content: Any) -> dict[str, Tensor]:
    if not isinstance(content, Mapping) or not content:
        raise Refusal(f"{path} holds no dict of tensors: save model.state_dict()")
    plain: dict[str, Tensor] = {}
    for key, tensor in content.items():
        if not isinstance(key, str) or not isinstance(tensor, Tensor):
            raise Refusal(f"{path}: {str(key)!r} is no named tensor: save model.state_dict() alone")
        if tensor.layout != torch.strided or tensor.dtype not in NUMBERS or tensor.device.type != "cpu":
            raise Refusal(f"{path}: {key!r} is no ordinary tensor but {tensor.layout}, {tensor.dtype}")
        name = key
        while prefix := next((p for p in PREFIXES if name.startswith(p)), None):
            name = name.removeprefix(prefix)
        if name in plain:
            raise Refusal(f"{path} names {name!r} twice: save model.state_dict() alone")
        plain[name] = tensor
    return plain


def infer(tensors: Mapping[str, Tensor], base: Config, steps: int) -> Config:
    """The sizes that the shapes tell, the other settings from `base`."""

    def sizes(name: str, dims: int) -> tuple[int, ...]:
        if name not in tensors:
            raise Refusal(f"the state dict lacks {name!r}: it is not of this model")
        shape = tuple(tensors[name].shape)
        if len(shape) != dims:
            raise Refusal(f"{name} has shape {shape}, not {dims} dimensions: it is not of this model")
        return shape

    (vocabulary, d_model), (_, p) = sizes("embed.W_E", 2), sizes("unembed.W_U", 2)
    if vocabulary - p - 3 < 1:
        raise Refusal(
            f"embed.W_E has {vocabulary} tokens and unembed.W_U {p} outputs: tokens must be the {p} numbers, "
            "`+`, `=`, PAD and the variables"
        )
    return base.replace(
        p=p,
        variables=vocabulary - p - 3,
        length=sizes("pos_embed.W_pos", 2)[0],
        d_model=d_model,
        heads=sizes("blocks.0.attn.W_Q", 3)[0],
        d_mlp=sizes("blocks.1.mlp.W_in", 2)[1],
        steps=steps,
    )


def idle_shapes(cfg: Config) -> dict[str, tuple[int, ...]]:
    """Tensors that a foreign checkpoint may hold if they are zero throughout."""
    d, heads, d_head, d_mlp = cfg.d_model, cfg.heads, cfg.d_head, cfg.d_mlp
    attention = {"b_Q": (heads, d_head), "b_K": (heads, d_head), "b_V": (heads, d_head), "b_O": (d,)}
    mlp = {"b_in": (d_mlp,), "b_out": (d,)}
    return {
        **{f"blocks.{i}.attn.{name}": shape for i in (0, 1) for name, shape in attention.items()},
        **{f"blocks.{i}.mlp.{name}": shape for i in (0, 1) for name, shape in mlp.items()},
        "blocks.0.mlp.W_in": (d, d_mlp),
        "blocks.0.mlp.W_out": (d_mlp, d),
        "unembed.b_U": (cfg.p,),
    }


def strip(path: Path, tensors: Mapping[str, Tensor], cfg: Config) -> Weights:
    """The weights alone, once everything beside them is seen to be without effect."""
    wanted, idle = shapes(cfg), idle_shapes(cfg)
    for name, tensor in tensors.items():
        if name in wanted:
            continue
        expected = idle.get(name)
        if expected is not None:
            _need_shape(path, name, tensor, expected)
            if tensor.count_nonzero():
                raise Refusal(f"{path}: {name} is not zero: this is another function than the model's")
        elif re.fullmatch(r"blocks\.[01]\.attn\.(mask|IGNORE)", name):
            _need_causal(path, name, tensor, cfg)
        elif NORMS.fullmatch(name):
            raise Refusal(f"{path}: {name!r} belongs to a LayerNorm, and this model has none")
        else:
            raise Refusal(f"{path}: {name!r} is unknown: this model has two layers, and no such tensor")
    for name, shape in wanted.items():
        if name not in tensors:
            raise Refusal(f"{path} lacks {name!r}: it is not of this model")
        _need_shape(path, name, tensors[name], shape)
        if not tensors[name].is_floating_point():
            raise Refusal(f"{path}: {name} is {tensors[name].dtype}, not floating point")
    weights = {name: tensors[name].detach().to(torch.float32) for name in wanted}
    check_tensors(path, weights, cfg, None)
    return weights


def _need_shape(path: Path, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise Refusal(f"{path} does not fit the other tensors: {name} is {tuple(tensor.shape)}, not {shape}")


def _need_causal(path: Path, name: str, tensor: Tensor, cfg: Config) -> None:
    """The mask lets a position see itself and those before; IGNORE is minus infinity, or as good as that."""
    if name.endswith("IGNORE"):
        good = tensor.numel() == 1 and bool((tensor <= -1e4).all())
    else:
        causal = torch.ones(cfg.length, cfg.length, dtype=torch.bool).tril()
        good = tensor.shape == causal.shape and bool((tensor.bool() == causal).all())
    if not good:
        raise Refusal(f"{path}: {name} is not that of causal attention: this is another function")
