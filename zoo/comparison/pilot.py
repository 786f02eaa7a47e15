"""Ask a pilot, before any cell is trained, which hypotheses a task can test."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zoo.comparison.claims import explain_missing_room, find_power, find_room, percent
from zoo.comparison.hypotheses import Hypothesis, find_condition, find_metric, parse_hypothesis
from zoo.comparison.number_text import count_decimals
from zoo.comparison.outputs import read_comparison
from zoo.comparison.plan import ComparisonPlan
from zoo.comparison.ranking import collect_values
from zoo.comparison.results import Comparison, find_direction
from zoo.comparison.statistics import Pair, PairedMean, compare_pair, measure_noise
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.packages import require
from zoo.reporting.numbers import format_fixed, pluralize

log = logging.getLogger("zoo")


@dataclass(frozen=True, kw_only=True)
class PilotRoom:
    """The room that a pilot leaves for a hypothesis.

    Attributes:
        text: The hypothesis.
        missing: Why the task cannot ask it; empty if it can, or if the pilot does not tell.
        sentence: The level of the second variant, the room it leaves, and the power.
    """

    text: str
    missing: str
    sentence: str


def ask_pilot(folder: str | None, texts: Sequence[str], plan: ComparisonPlan) -> list[PilotRoom]:
    """Return what a pilot says of each hypothesis, and log it.

    Args:
        folder: The output folder of a comparison on other seeds; None if there was no pilot.
        texts: The hypotheses.
        plan: The plan of the comparison to come.

    Raises:
        RecipeError: The pilot has seeds or another recipe than the comparison, or leaves no room
            for any hypothesis.
        DataError: The folder holds no comparison.
    """
    if folder is None:
        return []
    require("scipy")
    pilot = read_comparison(Path(folder))
    issues = []
    if not texts:
        message = "there is no hypothesis that a pilot could leave room for"
        issues.append(ConfigIssue(ARGUMENT, "pilot", message, "write hypotheses, or leave it out"))
    if shared := {*pilot.seeds} & {*plan.seeds}:
        message = f"{folder} has the seed {min(shared)} of this comparison too"
        hint = "a pilot needs seeds that are never used again: change seed"
        issues.append(ConfigIssue(ARGUMENT, "pilot", message, hint))
    if pilot.recipe != plan.recipe:
        message = f"{folder} is a comparison of {pilot.recipe}, not of {plan.recipe}"
        issues.append(ConfigIssue(ARGUMENT, "pilot", message, "name a pilot of the same recipe"))
    if issues:
        raise RecipeError(*issues)
    rooms = [
        _find_room(pilot, parse_hypothesis(statement), len(texts), plan) for statement in texts
    ]
    for room in rooms:
        log.info("pilot: %s: %s", room.text, room.sentence)
    if all(room.missing for room in rooms):
        message = "the pilot leaves no room for any hypothesis; nothing was started: "
        message += "; ".join(f"{room.text}: {room.missing}" for room in rooms)
        hint = "make the task harder, or easier where nothing beats the baseline"
        raise RecipeError(ConfigIssue(ARGUMENT, "hypotheses", message, hint))
    return rooms


def _find_room(
    pilot: Comparison, hypothesis: Hypothesis, family: int, plan: ComparisonPlan
) -> PilotRoom:
    """Return what a pilot says of one hypothesis."""
    metric = find_metric(pilot, hypothesis)
    compared = replace(pilot, measure=metric, better=find_direction(metric.removeprefix("test/")))
    condition = find_condition(compared, hypothesis)
    values = {}
    if condition is not None:
        all_values = {
            variant.name: collect_values(variant, condition, metric)
            for variant in compared.variants
        }
        values = {name: by_seed for name, by_seed in all_values.items() if by_seed}
    if condition is None or hypothesis.other not in values:
        where = f" at {hypothesis.condition}" if hypothesis.condition else ""
        sentence = f"the pilot has no `{hypothesis.other}`{where}, so that its room is unknown"
        return PilotRoom(text=hypothesis.text, missing="", sentence=sentence)

    room = find_room(compared, hypothesis, condition, {*pilot.seeds})
    decimals = count_decimals(compared)
    missing = explain_missing_room(compared, hypothesis, condition, room, hypothesis.margin)
    level, left = (
        format_fixed(value, decimals) for value in (room.levels[hypothesis.other], room.headroom)
    )
    seeds = pluralize(len(values[hypothesis.other]), "seed")
    sentence = missing or f"`{hypothesis.other}` has {level} ({seeds}), which leaves {left}"
    if not hypothesis.margin or hypothesis.one not in values:
        return PilotRoom(text=hypothesis.text, missing=missing, sentence=sentence)

    mean = compare_pair(values, Pair(hypothesis.one, hypothesis.other), measure_noise(values))
    if isinstance(mean, PairedMean):
        # of one seed, as the comparison has another number of them than its pilot
        deviation = mean.error * mean.count**0.5
        planned = len(plan.seeds)
        power = find_power(planned, hypothesis.margin, deviation, family)
        unit = "seeds" if plan.design is None else "studies"
        sentence += (
            f"; {planned} {unit} find {hypothesis.margin:g} with a power of {percent(power)}"
        )
    return PilotRoom(text=hypothesis.text, missing=missing, sentence=sentence)
