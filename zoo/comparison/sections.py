"""The sections of the reports of a comparison, in the order that all formats have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from zoo.comparison.claim_text import build_hypotheses_section
from zoo.comparison.race_text import build_race_section
from zoo.comparison.ranking import compare_at_equal_compute, rank_variants
from zoo.comparison.results import Comparison
from zoo.comparison.scaling import build_scaling_section
from zoo.comparison.solving import build_speeds_section
from zoo.comparison.study_text import build_studies_section
from zoo.reporting.numbers import NOTHING, format_fixed
from zoo.reporting.sections import ReportSection, SectionTable

T = TypeVar("T")

COMPUTE_DECIMALS = 4


def build_compute_section(comparison: Comparison) -> ReportSection | None:
    """Return the validation metric at equal steps, seconds and FLOPs; None if none differ."""
    values = compare_at_equal_compute(comparison)
    if not values:
        return None
    names = [standing.variant.name for standing in rank_variants(comparison, comparison.trained)]
    rows = [
        [name, *(format_fixed(metrics.get(name), COMPUTE_DECIMALS) for metrics in values.values())]
        for name in names
    ]
    lead = "The last validation within the least compute that any variant had"
    if any(name not in metrics for name in names for metrics in values.values()):
        lead += f"; {NOTHING}: the variant had none by then"
    return ReportSection(
        key="compute",
        title=f"{comparison.monitor_title.capitalize()} at equal compute",
        lead=f"{lead}.",
        table=SectionTable(
            heads=["variant", *(f"equal {unit}" for unit in values)], rows=rows, left=("variant",)
        ),
    )


# None: each format has the section in a form of its own, or leaves it out
SECTIONS: Mapping[str, Callable[[Comparison], ReportSection | None] | None] = MappingProxyType(
    {
        "hypotheses": build_hypotheses_section,
        "results": None,
        "solving": build_speeds_section,
        "scaling": build_scaling_section,
        "sizes": None,
        "positions": None,
        "training": None,
        "costs": None,
        "compute": build_compute_section,
        "racing": build_race_section,
        "studies": build_studies_section,
        "flags": None,
        "cells": None,
        "made": None,
        "recipe": None,
    }
)


def list_sections(
    comparison: Comparison, show: Callable[[ReportSection], T], others: Mapping[str, Sequence[T]]
) -> list[T]:
    """Return the sections of a report in their order; those that say nothing are left out.

    Args:
        comparison: The comparison.
        show: Writes a section that all formats have.
        others: {key of `SECTIONS`: sections in the form of this format}.
    """
    sections: list[T] = []
    for key, build in SECTIONS.items():
        sections += others.get(key, ())
        if build is not None and (section := build(comparison)) is not None:
            sections.append(show(section))
    return sections
