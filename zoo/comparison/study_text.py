"""The settings that the studies of a comparison chose, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zoo.comparison.results import Comparison, StudiesResult, VariantStudies
from zoo.comparison.tuning import is_finite_number
from zoo.options.plain import format_label
from zoo.reporting.sections import ReportSection, SectionTable


def build_studies_section(comparison: Comparison) -> ReportSection | None:
    """Return the chosen settings of each variant; None without studies."""
    found = comparison.studies
    if found is None:
        return None
    keys = [one.key for one in found.keys]
    rows = [
        [name, *(_format_choices(own, key) for key in keys), f"{len(own.studies)}"]
        for name, own in found.variants.items()
    ]
    return ReportSection(
        key="studies",
        title="Studies",
        table=SectionTable(heads=["variant", *keys, "studies"], rows=rows, left=("variant",)),
        sentences=[_describe_studies(found)],
        items=[*list_edges(comparison)],
    )


def _describe_studies(found: StudiesResult) -> str:
    """Describe how variants were tuned and tested."""
    searched = ", ".join(f"{one.key} over {one.searched}" for one in found.keys)
    return (
        f"Each study tunes every variant anew by {found.budget} trials of its seed: {searched}. "
        f"The trial with the best {found.criterion or 'validation value'} is tested, no other. "
        "Settings are listed by study; a key without effect on a variant is not tuned for it."
    )


def list_edges(comparison: Comparison) -> Iterator[str]:
    """Yield the ranges at whose ends most studies chose their setting."""
    found = comparison.studies
    searched = {one.key: one.searched for one in found.keys} if found else {}
    for name, own in found.variants.items() if found else ():
        for edge in own.edges:
            yield (
                f"{name}: most studies chose {edge.key} at the {edge.side} edge of "
                f"{searched[edge.key]}; widen it"
            )


def _format_choices(own: VariantStudies, key: str) -> str:
    if key not in own.keys:
        return "no effect"
    return ", ".join(
        "none" if one.best is None else _format(one.trials[one.best].settings.get(key))
        for one in own.studies
    )


def _format(value: Any) -> str:
    return f"{value:g}" if is_finite_number(value) else format_label(value)
