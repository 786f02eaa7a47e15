"""Rows of the guide and of the README: every number with what it was measured on.

Two numbers of one row have the same subject: a row that mixes subjects cannot be built.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from claims_page import NO_EVIDENCE
from evidence_data import Evidence, Need, Source, read_record
from quoted_numbers import locate

from zoo.comparison.claims import count_studies
from zoo.comparison.looks import find_look
from zoo.comparison.number_text import count_decimals, format_estimate, format_mean
from zoo.comparison.ranking import (
    Standing,
    average_baselines,
    find_samples,
    find_winning_baseline,
    rank_variants,
)
from zoo.comparison.results import Comparison
from zoo.comparison.statistics import FEWEST
from zoo.comparison.text import format_measure
from zoo.comparison.training_end import explain_steep
from zoo.config import load
from zoo.reporting.numbers import format_fixed
from zoo.run.build import build_data
from zoo.run.conditions import Condition, list_conditions

UNITS = {
    "accuracy": "share of targets",
    "exact": "share of answers",
    "miou": "intersection over union",
    "loss": "nats per target",
}
"""The unit of each metric that a comparison can be of."""
LOADING = ("batch_size", "global_batch_size", "workers", "prefetch_factor")
"""Options of data that change no test sample."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a number was measured on, and in which unit.

    Attributes:
        dataset: The options of the data that its samples depend on, as text.
        split: The split of the data: test or val.
        samples: The size of the samples, or what else differs from the recipe's test data.
        metric: The metric, such as test/accuracy.
        unit: The unit of the metric.
    """

    dataset: str
    split: str
    samples: str
    metric: str
    unit: str


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A number of a row.

    Attributes:
        name: The encoding or the baseline.
        subject: What it was measured on.
        text: The number as it is shown, with its interval if it has one.
    """

    name: str
    subject: Subject
    text: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """An answer of the guide.

    Attributes:
        need: What the reader needs.
        source: The comparison and the condition that answer.
        measured: What was measured, as text.
        studies: How many studies are recorded and planned, as text.
        subject: What all numbers of the row were measured on; None without a number.
        best: The encodings with the best mean; several if all their values are the same.
        not_excluded: Differences to the best of encodings whose interval holds 0.
        excludes_some: Whether some other encoding is excluded.
        baselines: The trivial baselines.
        problem: Why there is no answer; empty if there is one.

    Raises:
        ValueError: Two numbers have different subjects.
    """

    need: str
    source: Source
    measured: str
    studies: str = "0"
    subject: Subject | None = None
    best: tuple[Reading, ...] = ()
    not_excluded: tuple[Reading, ...] = ()
    excludes_some: bool = False
    baselines: tuple[Reading, ...] = ()
    problem: str = ""

    def __post_init__(self) -> None:
        for one in self.list_readings():
            if one.subject != self.subject:
                raise ValueError(
                    f"{self.need}: {one.name} {one.text} was measured on {one.subject}, and the "
                    f"row is about {self.subject}"
                )

    def list_readings(self) -> tuple[Reading, ...]:
        """Return all numbers of the row."""
        return (*self.best, *self.not_excluded, *self.baselines)

    def format_best(self) -> str:
        """Return the best encodings, or why there is no answer."""
        shown = _join(self.best)
        if not self.problem:
            return shown
        return f"{self.problem}; the best is {shown}" if shown else self.problem

    def format_others(self) -> str:
        """Return the encodings that are not excluded, with their differences to the best."""
        if not self.best or self.problem:
            return ""
        shown = _join(self.not_excluded)
        if self.excludes_some:
            return shown or "none: all others are excluded"
        return f"nothing is excluded: {shown}"

    def format_baselines(self) -> str:
        """Return the trivial baselines."""
        shown = ", ".join(f"{one.name} {one.text}" for one in self.baselines)
        return shown or ("" if self.problem else "none recorded")


def _join(readings: Sequence[Reading]) -> str:
    return ", ".join(f"`{one.name}` {one.text}" for one in readings)


def describe_subject(comparison: Comparison, condition: Condition) -> Subject:
    """Return what the values of a comparison under a condition were measured on."""
    samples = find_samples(comparison, condition).describe()
    return _build_subject(comparison.base, samples, comparison.measure)


def find_subject(origin: str) -> Subject:
    """Return what a recorded number was measured on.

    Args:
        origin: Where the number is looked up, as docs/build/quoted_numbers.py says; or "recipe:
        NAME
            METRIC" for a number of the head of a recipe.
    """
    source, _, query = origin.partition(": ")
    if source == "recipe":
        name, metric = query.split()
        recipe = load(name)
        plain = {"data": recipe.plain()["data"]}
        (trained, *_) = list_conditions(recipe, build_data(recipe).spec)
        return _build_subject(plain, trained.describe(), metric)
    comparison = read_record(locate(source))
    if query.startswith("variants."):
        _, variant, _, cell, _, measurement, _, metric = query.split(".")
        cells = comparison.variants[int(variant)].cells
        measured = cells[int(cell)].measurements[int(measurement)]
        samples = find_samples(comparison, measured.condition).describe()
        return _build_subject(comparison.base, samples, metric)
    _, _, at = query.partition(" at ")
    condition = comparison.find_condition(at) if at else comparison.trained
    return describe_subject(comparison, condition)


def _build_subject(base: Mapping[str, Any], samples: str, measure: str) -> Subject:
    """Return a subject.

    Args:
        base: A recipe as plain data.
        samples: The size of the samples, or what else differs from the recipe's test data.
        measure: The metric, such as test/accuracy.
    """
    options = {key: value for key, value in base["data"].items() if key not in LOADING}
    split, metric = measure.split("/")
    return Subject(
        dataset=json.dumps(options, sort_keys=True),
        split=split,
        samples=samples,
        metric=measure,
        unit=UNITS[metric],
    )


def read_baselines(comparison: Comparison, condition: Condition) -> tuple[Reading, ...]:
    """Return the trivial baselines under a condition."""
    subject = describe_subject(comparison, condition)
    decimals = count_decimals(comparison)
    return tuple(
        Reading(name=name, subject=subject, text=format_fixed(value, decimals))
        for name, value in average_baselines(comparison, condition).items()
    )


def read_means(
    comparison: Comparison, condition: Condition, standings: Sequence[Standing]
) -> tuple[Reading, ...]:
    """Return the means of variants under a condition, with their intervals."""
    subject = describe_subject(comparison, condition)
    decimals = count_decimals(comparison)
    return tuple(
        Reading(
            name=one.variant.name, subject=subject, text=format_mean(one.mean, one.solved, decimals)
        )
        for one in standings
        if one.mean is not None
    )


def read_differences(
    comparison: Comparison, condition: Condition, standings: Sequence[Standing]
) -> tuple[Reading, ...]:
    """Return the differences of variants to the best one, with their intervals."""
    subject = describe_subject(comparison, condition)
    decimals = count_decimals(comparison)
    return tuple(
        Reading(
            name=one.variant.name,
            subject=subject,
            text=format_estimate(one.difference, decimals, sign=True)
            if one.difference
            else "without an interval",
        )
        for one in standings
    )


def build_rows(evidence: Evidence) -> tuple[Row, ...]:
    """Return a row for each need, with an answer or the reason why there is none."""
    return tuple(build_row(need, evidence) for need in evidence.needs)


def build_row(need: Need, evidence: Evidence) -> Row:
    """Return the row of a need."""
    source = choose_source(need, evidence)
    comparison = evidence.read_comparison(source.comparison)
    task = evidence.comparisons[source.comparison].task
    row = Row(need=need.need, source=source, measured=task)
    if comparison is None:
        return replace(row, problem=NO_EVIDENCE)
    done = count_studies(comparison)
    row = replace(row, studies=f"{done} of {len(comparison.seeds)}")
    due = find_look(comparison.look_levels, done)
    if due is None:
        return replace(row, problem=NO_EVIDENCE)
    condition = find_condition(comparison, source)
    standings = rank_variants(comparison, condition, due[1])
    by_verdict = {
        verdict: [one for one in standings if one.verdict == verdict and one.mean is not None]
        for verdict in ("best", "possible", "unsure", "worse")
    }
    others = [*by_verdict["possible"], *by_verdict["unsure"]]
    row = replace(
        row,
        measured=f"{task}: {format_measure(comparison)}, {condition.describe()}",
        subject=describe_subject(comparison, condition),
        best=read_means(comparison, condition, by_verdict["best"]),
        baselines=read_baselines(comparison, condition),
    )
    if problem := _explain_problem(comparison, condition):
        return replace(row, problem=problem)
    return replace(
        row,
        not_excluded=read_differences(comparison, condition, others),
        excludes_some=bool(by_verdict["worse"]),
    )


def _explain_problem(comparison: Comparison, condition: Condition) -> str:
    """Return why a comparison answers nothing under a condition; empty if it does."""
    if name := find_winning_baseline(comparison, condition):
        return f"no answer: no encoding beats {name}"
    if name := find_winning_baseline(comparison):
        return f"no answer: at the training size no encoding beats {name}"
    clause = explain_steep(comparison)
    return f"no answer: {clause}" if clause else ""


def find_condition(comparison: Comparison, source: Source) -> Condition:
    """Return the condition that a source names."""
    return comparison.find_condition(source.condition) if source.condition else comparison.trained


def choose_source(need: Need, evidence: Evidence) -> Source:
    """Return the first source that answers; else the first that is recorded, else the first."""
    recorded = [*_list_recorded(need, evidence)]
    for source, comparison in recorded:
        if not _explain_problem(comparison, find_condition(comparison, source)):
            return source
    return recorded[0][0] if recorded else need.sources[0]


def _list_recorded(need: Need, evidence: Evidence) -> Iterator[tuple[Source, Comparison]]:
    """Yield the sources of a need with enough studies, and their comparisons."""
    for source in need.sources:
        comparison = evidence.read_comparison(source.comparison)
        if comparison is not None and count_studies(comparison) >= FEWEST:
            yield source, comparison
