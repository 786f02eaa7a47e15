"""Choose the encodings of a benchmark: those that are named, as far as its sizes allow."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from zoo.bench.models import build_all_contenders, build_contender
from zoo.bench.protocol import Contender, Setting, find_refusal
from zoo.config.command_line import parse_encodings
from zoo.config.tree import COMMAND_LINE
from zoo.errors import ConfigIssue, RecipeError
from zoo.registry import Choice

log = logging.getLogger("zoo")


def list_contenders(words: Sequence[str], key: str | None = None) -> list[Contender]:
    """A contender for each word, as `parse_encodings` reads it; all of them for none."""
    found = [build_contender(choices) for choices in parse_encodings(words, key)]
    return list({one.name: one for one in found}.values()) if words else build_all_contenders()


def choose_contenders(
    words: Sequence[str], against: str | None, setting: Setting, lengths: Sequence[int]
) -> tuple[list[Contender], dict[str, str]]:
    """The reference, then those of `words` that the sizes allow, and why others are left out, which is said of named ones.

    Raises RecipeError if there is none.
    """
    settings = [setting.with_length(length) for length in lengths]
    if why := find_refusal(build_contender([Choice("none")]), settings):
        raise RecipeError(ConfigIssue(COMMAND_LINE, "--lengths", why))
    (reference,) = list_contenders([against or setting.shape.default_reference], "against")
    if why := find_refusal(reference, settings):
        raise RecipeError(
            ConfigIssue(COMMAND_LINE, "against", why, f"name an encoding for {setting.shape.kind}s")
        )
    others = [one for one in list_contenders(words) if one.name != reference.name]
    left_out = {one.name: why for one in others if (why := find_refusal(one, settings))}
    able = [one for one in others if one.name not in left_out]
    if left_out and not able:
        raise RecipeError(*(ConfigIssue(COMMAND_LINE, name, why) for name, why in left_out.items()))
    for name, why in left_out.items() if words else ():
        log.info("%s is left out: %s", name, why)
    return [reference, *able], left_out
