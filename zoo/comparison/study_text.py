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
    studies = comparison.studies
    if studies is None:
        return None
    keys = [key.key for key in studies.keys]
    rows = [
        [name, *(_format_choices(variant, key) for key in keys), f"{len(variant.studies)}"]
        for name, variant in studies.variants.items()
    ]
    return ReportSection(
        key="studies",
        title="Studies",
        table=SectionTable(heads=["variant", *keys, "studies"], rows=rows, left=("variant",)),
        sentences=[_describe_studies(studies)],
        items=[*list_edges(comparison)],
    )


def _describe_studies(studies: StudiesResult) -> str:
    """Describe how variants were tuned and tested."""
    searched = ", ".join(f"{key.key} over {key.searched}" for key in studies.keys)
    return (
        f"Each study tunes every variant anew by {studies.budget} trials of its seed: {searched}. "
        f"The trial with the best {studies.criterion or 'validation value'} is tested, no other. "
        "Settings are listed by study; a key without effect on a variant is not tuned for it."
    )


def list_edges(comparison: Comparison) -> Iterator[str]:
    """Yield the ranges at whose ends most studies chose their setting."""
    studies = comparison.studies
    searched = {key.key: key.searched for key in studies.keys} if studies else {}
    for name, variant in studies.variants.items() if studies else ():
        for edge in variant.edges:
            yield (
                f"{name}: most studies chose {edge.key} at the {edge.side} edge of "
                f"{searched[edge.key]}; widen it"
            )


def _format_choices(variant: VariantStudies, key: str) -> str:
    if key not in variant.keys:
        return "no effect"
    return ", ".join(
        "none" if study.best is None else _format(study.trials[study.best].settings.get(key))
        for study in variant.studies
    )


def _format(value: Any) -> str:
    return f"{value:g}" if is_finite_number(value) else format_label(value)
