"""Guess what an unknown word means: the nearest by spelling, or another word for it.

Recipes, the command line and Python share the words of other libraries and of papers in
`synonyms.toml`, so that `learning_rate` is answered with `lr` wherever it is written.
"""

from __future__ import annotations

import difflib
import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

MAX_LENGTH = 100
"""Longer words are no slip of the finger, and comparing them takes time."""
CUTOFFS = ((2, 0.5), (7, 0.6), (MAX_LENGTH, 0.7))
"""Up to so many letters, how similar two words must be: one of two letters may be wrong."""
TYPO = 0.78
"""From here on two words are the same but for a slip of the finger."""
SAME, SYNONYM = 1.0, 0.99
LEAST_SLIP = 4
"""In words of fewer letters, another letter is another word."""
ALTERNATIVES = 3
WIDTH = 110
SYNONYMS = Path(__file__).with_name("synonyms.toml")
"""The words of other libraries for each of zoo's."""

NOTES: Mapping[str, tuple[re.Pattern[str], str]] = MappingProxyType(
    {
        "warmup_ratio": (re.compile("step|iter|epoch"), "a fraction of all steps"),
        "min_lr_ratio": (re.compile("^(?!min_lr_ratio)"), "a fraction of lr"),
        "mlp_ratio": (re.compile("dim|size|^d_ff|feed"), "a multiple of dim"),
        "rotary_fraction": (re.compile("dim"), "a fraction of the width of a head"),
        "early_stopping": (re.compile("patience"), "a mapping {patience: ...}"),
        "val_every_n_steps": (re.compile("epoch"), "epochs end with a validation anyway"),
        "rope": (re.compile("yarn|ntk|longrope|scaling"), "with its option scaling"),
        "base": (re.compile("max_period"), "the base of the wavelengths"),
    }
)
"""What to say of a key that an other word means with another unit, by a pattern of that word."""


def list_synonyms(word: str) -> frozenset[str]:
    """Return the words that other libraries have for one of zoo's."""
    return _read_synonyms().get(word, frozenset())


@cache
def _read_synonyms() -> Mapping[str, frozenset[str]]:
    """Read the words of other libraries, of papers and of the field for each of zoo's words."""
    words = tomllib.loads(SYNONYMS.read_text(encoding="utf-8"))
    return MappingProxyType({word: frozenset(others) for word, others in words.items()})


def _normalise(word: str) -> str:
    """Write a word in lower case with underscores; `LearningRate` and `learning-rate` are one."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word.strip())
    return re.sub(r"[-\s]+", "_", snake.lstrip("-")).lower()


def measure(word: str, known: str) -> float:
    """Return how likely a word means a known one: 1 for the same, 0 for nothing in common."""
    if "." in known and "." not in word:
        # a key without its section
        return measure(word, known.rpartition(".")[2])
    if "." in known and "." in word:
        (section, _, tail), (other, _, known_tail) = word.rpartition("."), known.rpartition(".")
        if section == other:
            return measure(tail, known_tail)
    written, target = _normalise(word), _normalise(known)
    if written == target or written.replace("_", "") == target.replace("_", ""):
        return SAME
    others = list_synonyms(known)
    if written in others:
        return SYNONYM
    score = _compare_spelling(written, target)
    # a misspelt synonym must be close, since there are many of them
    slips = [near for other in others if (near := _compare_spelling(written, other)) >= 0.9]
    return max([score, *(0.98 * near for near in slips if len(written) > 5)])


def _compare_spelling(word: str, other: str) -> float:
    """Return the similarity of two words, a transposition of two letters counted as one slip."""
    score = difflib.SequenceMatcher(None, word, other).ratio()
    if len(word) == len(other) and sorted(word) == sorted(other):
        different = [
            i for i, pair in enumerate(zip(word, other, strict=True)) if pair[0] != pair[1]
        ]
        if len(different) == 2 and different[1] == different[0] + 1:
            return max(score, 1 - 0.5 / len(word))
    return min(score, 0.97)


def is_slip(word: str, known: str) -> bool:
    """Return whether words differ by one letter, or by two neighbours that changed places."""
    written, other = _normalise(word.rpartition(".")[2]), _normalise(known.rpartition(".")[2])
    if min(len(written), len(other)) < LEAST_SLIP or abs(len(written) - len(other)) > 1:
        return False
    if len(written) == len(other):
        places = [at for at in range(len(written)) if written[at] != other[at]]
        is_swap = len(places) == 2 and written[places[0]] + written[places[1]] == (
            other[places[1]] + other[places[0]]
        )
        return len(places) == 1 or (is_swap and places[1] == places[0] + 1)
    short, long = sorted((written, other), key=len)
    return any(long[:at] + long[at + 1 :] == short for at in range(len(long)))


def find_meant(word: str, known: Iterable[str], least: float | None = None) -> list[str]:
    """Return the known words that a word is likeliest to mean; several if they mean the same.

    A slip of one letter is likelier than another word for the same.

    Args:
        word: The word.
        known: The words that could stand in its place, those that are preferred first.
        least: How likely the words must be, as of `measure`.
    """
    if not 0 < len(word) <= MAX_LENGTH:
        return []
    if least is None:
        least = next(cutoff for length, cutoff in CUTOFFS if len(word) <= length)
    scores = {candidate: measure(word, candidate) for candidate in known if candidate != word}
    best = max(scores.values(), default=0.0)
    slips = {
        candidate: score
        for candidate, score in scores.items()
        if score >= TYPO and is_slip(word, candidate)
    }
    # device is a slip of devices, and another word for accelerator and devices
    if slips and max(slips.values()) < best < SAME:
        scores, best = slips, max(slips.values())
    if best < least:
        return []
    nearest_words = [candidate for candidate, score in scores.items() if score == best]
    # words that look alike by chance are no choice to offer
    return nearest_words[:ALTERNATIVES] if best >= SYNONYM else nearest_words[:1]


def offer(word: str, meant: Sequence[str], parent: str = "") -> str:
    """Return the question whether one of some words was meant, as keys below `parent`."""
    full = [f"{parent}.{candidate}" if parent else candidate for candidate in meant]
    question = f"did you mean {join_words(full, 'or')}"
    tail = meant[0].rpartition(".")[2]
    if len(meant) == 1 and tail in NOTES and NOTES[tail][0].search(_normalise(word)):
        question = f"{question} ({NOTES[tail][1]})"
    return f"{question}?"


def nearest(word: str, known: Iterable[str], parent: str = "") -> str:
    """Return a remedy: the nearest known word as a key below `parent`, or the known words."""
    others = [name for name in known if name != word]
    if meant := find_meant(word, others):
        return offer(word, meant, parent)
    return list_known(others)


def list_known(names: Iterable[str]) -> str:
    """Return a remedy: the values that are allowed, or the words that are known."""
    listed = list_words(names)
    return f"known are {listed}" if listed else "none is known here"


def list_words(names: Iterable[str]) -> str:
    """Write words as a list that is cut off where it would be too long."""
    return textwrap.shorten(", ".join(names), WIDTH, placeholder=" ...")


def join_words(
    names: Iterable[object], last: Literal["and", "or"] = "and", most: int | None = None
) -> str:
    """Write names as a sentence does: a, b and c.

    Args:
        names: The names, or other things to write.
        last: What joins the last one.
        most: Write those beyond so many as their number: a, b and 3 others.
    """
    texts = [*map(str, names)]
    if most is not None and len(texts) > most:
        texts = [*texts[: most - 1], f"{len(texts) - most + 1} others"]
    return f" {last} ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))
