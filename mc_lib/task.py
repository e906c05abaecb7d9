"""The task: sequences that assign variables and then ask for a sum modulo p.

A sequence is `length` tokens: assignments (a variable, then its number) with PADs between them, then `+`,
the two operands and `=`. An operand is a number or a variable; its number is what it stands for. The kind
says which operands are variables (0 number+number, 1 variable+number, 2 number+variable, 3 two variables).
Number pairs are ordered; held-out pairs and restricted positions are those that training never shows.
Drawing sequences is in `sampler.py`, the sets that measure a model in `evaluation.py`.
"""

import random
import re
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mc_lib.config import Config, Refusal

TRAINING, MIRROR_IN_TRAINING, BOTH_ORDERS_OUT, DIAGONAL_OUT = range(4)
PAD_SIGN = ";"


# --- text to tokens and back ---------------------------------------------------------------------------


def token_names(cfg: Config) -> list[str]:
    """One short label a token id: `0`.., `+`, `=`, `;` for PAD, `a`.."""
    return [str(n) for n in range(cfg.p)] + ["+", "=", PAD_SIGN] + list(cfg.letters)


def parse(text: str, cfg: Config) -> Int[Tensor, " pos"]:
    """Tokens of "c=1, b=17, b+19=?" or of the token form "c 1 b 17 PAD + b 19 ="; raises Refusal."""
    if not text.strip():
        raise Refusal("the sequence is empty: write something like c=1, b=17, b+19=?")
    if text.count("+") != 1:
        cause = "no '+'" if "+" not in text else "more than one '+'"
        raise Refusal(f"{cause} in {_shorten(text)}: end with one sum of two operands, such as b+19=?")
    before, after = text.split("+")
    one_word = len(before.split()) == 1 and before.strip() not in ("PAD", PAD_SIGN)
    if not before.strip() and len(after.replace("=", " ").replace("?", " ").split()) < 2:
        raise Refusal("nothing stands before '+': write a number or a variable there")
    if "=" in before or "," in before or one_word:
        context, lhs = _parse_text(before, cfg)
        rhs = _rhs(after, r"\s*(\S+?)\s*(?:=\s*\??)?\s*", cfg)
    else:
        context, (lhs, rhs) = _parse_tokens(before, after, cfg)
    _check_assignments(context, (lhs, rhs), cfg)
    pads = [cfg.PAD] * (cfg.room - len(context))
    return torch.tensor([*pads, *context, cfg.PLUS, lhs, rhs, cfg.EQUALS])


def _parse_text(before: str, cfg: Config) -> tuple[list[int], int]:
    """Context tokens and first operand of "c=1, b=17, b"."""
    *assignments, lhs = before.split(",")
    context: list[int] = []
    for piece in assignments:
        match = re.fullmatch(r"\s*([^\s=]+)\s*=\s*([^\s=]+)\s*", piece)
        if not match:
            raise Refusal(f"cannot read the assignment {_shorten(piece)}: write it like b=17")
        context += [_variable(match[1], cfg), _number(match[2], cfg)]
    if not lhs.strip():
        raise Refusal("nothing stands before '+': write a number or a variable there")
    if len(lhs.split()) != 1 or "=" in lhs:
        raise Refusal(f"cannot read {_shorten(lhs)} before '+': put a comma between assignments and the sum")
    return context, _operand(lhs.strip(), cfg)


def _parse_tokens(before: str, after: str, cfg: Config) -> tuple[list[int], tuple[int, int]]:
    """Context tokens and operands of "c 1 b 17 PAD + b 19 ="."""
    context: list[int] = []
    expects_number = False
    for word in before.split():
        if expects_number:
            context.append(_number(word, cfg))
            expects_number = False
        elif word in ("PAD", PAD_SIGN):
            context.append(cfg.PAD)
        else:
            context.append(_variable(word, cfg))
            expects_number = True
    if expects_number:
        raise Refusal(f"variable {before.split()[-1]} has no number after it: write it like b 17")
    words = re.sub(r"=\s*\?\s*$", "=", after).replace("=", " = ").split()
    if words[-1:] == ["="]:
        words.pop()
    if len(words) != 2:
        raise Refusal(f"cannot read {_shorten(after)} after '+': two operands and '=' stand there")
    return context, (_operand(words[0], cfg), _operand(words[1], cfg))


def _rhs(after: str, pattern: str, cfg: Config) -> int:
    if not after.replace("=", "").replace("?", "").strip():
        raise Refusal("nothing stands after '+': write a number or a variable there")
    if "," in after:
        raise Refusal(f"cannot read {_shorten(after)} after '+': assignments come before the sum")
    match = re.fullmatch(pattern, after)
    if match and "=" in match[1]:
        raise Refusal(f"cannot read {_shorten(after)} after '+': nothing follows the second operand but '=?'")
    if not match:
        raise Refusal(f"cannot read {_shorten(after)} after '+': one operand stands there, such as 19=?")
    return _operand(match[1], cfg)


def _number(word: str, cfg: Config) -> int:
    if not re.fullmatch(r"-?[0-9]+", word):
        raise Refusal(f"{_shorten(word)} is not a number: the numbers are 0..{cfg.p - 1}")
    digits = word.lstrip("-0") or "0"  # int() itself refuses thousands of digits
    if (word.startswith("-") and digits != "0") or len(digits) > 9 or int(digits) >= cfg.p:
        raise Refusal(f"number {_shorten(word, '')} is out of range: the numbers are 0..{cfg.p - 1}")
    return int(digits)


def _variable(word: str, cfg: Config) -> int:
    if len(word) != 1 or word not in cfg.letters:
        kind = "unknown variable" if re.fullmatch(r"[A-Za-z]\w*", word) else "cannot read"
        raise Refusal(f"{kind} {_shorten(word)}: the variables are {cfg.letters[0]}..{cfg.letters[-1]}")
    return cfg.FIRST_VARIABLE + cfg.letters.index(word)


def _operand(word: str, cfg: Config) -> int:
    if re.fullmatch(r"-?[0-9]+", word):
        return _number(word, cfg)
    return _variable(word, cfg)


def _shorten(text: str, quote: str = "'") -> str:
    text = " ".join(text.split())
    return f"{quote}{text if len(text) <= 40 else text[:37] + '...'}{quote}"


def _check_assignments(context: list[int], operand_tokens: tuple[int, int], cfg: Config) -> None:
    assigned = [t for t in context if t >= cfg.FIRST_VARIABLE]
    for token in assigned:
        if assigned.count(token) > 1:
            raise Refusal(f"variable {_letter(token, cfg)} is assigned twice: keep one assignment of it")
    if len(assigned) > cfg.max_assignments:
        raise Refusal(f"{len(assigned)} assignments are too many: there is room for {cfg.max_assignments}")
    if len(context) > cfg.room:
        raise Refusal(f"{len(context)} tokens stand before '+', but there is room for {cfg.room}: drop PADs")
    for token in operand_tokens:
        if token >= cfg.FIRST_VARIABLE and token not in assigned:
            letter = _letter(token, cfg)
            raise Refusal(f"variable {letter} is used but not assigned: add an assignment such as {letter}=1")


def _letter(token: int, cfg: Config) -> str:
    return cfg.letters[token - cfg.FIRST_VARIABLE]


def format(tokens: Int[Tensor, " pos"], cfg: Config, form: str = "text") -> str:
    """The sequence as text, "c=1, b=17, b+19=?" (drops the PADs), or in the token form (keeps them)."""
    names = token_names(cfg)
    words = [names[t] for t in tokens.tolist()]
    if form == "tokens":
        return " ".join("PAD" if word == PAD_SIGN else word for word in words)
    context = [word for word in words[: cfg.room] if word != PAD_SIGN]
    pairs = [f"{variable}={value}, " for variable, value in zip(context[::2], context[1::2], strict=True)]
    return "".join(pairs) + f"{words[-3]}+{words[-2]}=?"


# --- what a sequence asks ------------------------------------------------------------------------------


class Operands(NamedTuple):
    """What is to be added, and where it stands."""

    numbers: Int[Tensor, "batch 2"]
    positions: Int[Tensor, "batch 2"]
    kind: Int[Tensor, " batch"]


def operands(tokens: Int[Tensor, "batch pos"], cfg: Config) -> Operands:
    """The operands' numbers, the positions of those numbers (an assignment's value, or 13 and 14), the kind."""
    shown = tokens[:, -3:-1]
    is_variable = shown >= cfg.FIRST_VARIABLE
    matches = tokens[:, None, : cfg.room] == shown[:, :, None]
    value_at = matches.int().argmax(-1) + 1
    own = torch.arange(cfg.length - 3, cfg.length - 1, device=tokens.device).expand_as(shown)
    positions = torch.where(is_variable, value_at, own)
    kind = is_variable[:, 0].long() + 2 * is_variable[:, 1].long()
    return Operands(tokens.gather(1, positions), positions, kind)


def answers(tokens: Int[Tensor, "batch pos"], cfg: Config) -> Int[Tensor, " batch"]:
    """The right answer of each sequence."""
    return operands(tokens, cfg).numbers.sum(-1) % cfg.p


# --- what training leaves out --------------------------------------------------------------------------


def held_out_mask(cfg: Config) -> Bool[Tensor, "first second"]:
    """True where training never sees the ordered number pair."""
    row_major = range(cfg.p**2)
    kept = random.Random(cfg.split_seed).sample(row_major, cfg.kept_pairs)
    mask = torch.ones(cfg.p**2, dtype=torch.bool)
    mask[kept] = False
    return mask.view(cfg.p, cfg.p)


def training_pairs(cfg: Config) -> Int[Tensor, "pairs 2"]:
    return (~held_out_mask(cfg)).nonzero()


def held_out_pairs(cfg: Config) -> Int[Tensor, "pairs 2"]:
    return held_out_mask(cfg).nonzero()


def pair_classes(cfg: Config) -> Int[Tensor, "first second"]:
    """TRAINING, MIRROR_IN_TRAINING, BOTH_ORDERS_OUT or DIAGONAL_OUT for every ordered number pair."""
    out = held_out_mask(cfg)
    classes = torch.where(out & out.T, BOTH_ORDERS_OUT, out * MIRROR_IN_TRAINING)
    diagonal = torch.arange(cfg.p)
    classes[diagonal, diagonal] = torch.where(out.diagonal(), DIAGONAL_OUT, TRAINING)
    return classes


def illegal_count(cfg: Config, first: int, second: int) -> int:
    """How many of the two variables (indices 0 .. variables - 1) stand where training never shows them."""
    return (cfg.letters[first] in cfg.not_first) + (cfg.letters[second] in cfg.not_second)


def variable_pairs(cfg: Config, illegal: int) -> Int[Tensor, "pairs 2"]:
    """Ordered pairs of different variables with this many restricted positions."""
    every = [(v, w) for v in range(cfg.variables) for w in range(cfg.variables) if v != w]
    chosen = [pair for pair in every if illegal_count(cfg, *pair) == illegal]
    return torch.tensor(chosen, dtype=torch.long).view(-1, 2)


def variables_for(cfg: Config, side: int, legal: bool) -> Int[Tensor, " variables"]:
    """Variables that training shows (legal) or never shows on this side: 0 first, 1 second."""
    restricted = cfg.not_first if side == 0 else cfg.not_second
    return torch.tensor([i for i, v in enumerate(cfg.letters) if (v not in restricted) == legal], dtype=torch.long)
