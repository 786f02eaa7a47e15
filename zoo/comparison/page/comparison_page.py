"""The page of `zoo compare`: one HTML file that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from zoo.comparison.curves import (
    by_cost,
    by_position,
    by_size,
    explain_charts,
    in_training,
    in_training_compute,
)
from zoo.comparison.grid import is_below
from zoo.comparison.page import number_tables, ranking_table
from zoo.comparison.ranking import choose_scale, describe_levels, explain_missing, rank_variants
from zoo.comparison.results import Comparison, Variant
from zoo.comparison.sections import list_sections
from zoo.comparison.statistics import LEVEL
from zoo.comparison.strips import explain_strips
from zoo.comparison.text import (
    capitalize,
    describe_conditions,
    describe_conventions,
    describe_result,
    describe_unfinished,
    format_baselines,
    format_measure,
    format_question,
    list_warnings,
    name_extreme,
    summarize,
)
from zoo.config import dump
from zoo.options.plain import to_plain
from zoo.reporting import numbers
from zoo.reporting.html import Section, break_words, render_page
from zoo.reporting.panel import Panel
from zoo.reporting.render import draw_for_page
from zoo.reporting.sections import ReportSection
from zoo.run.conditions import Condition

FOLDER = "comparison/page"
LEADS = {  # of the sections that only pages have: title and how to read it
    "numbers": (
        "All numbers",
        "Means over seeds with their 95 % intervals, or with the values of fewer than three seeds; "
        "below them the difference to the first variant, with its corrected interval where there "
        "are three. A heading sorts.",
    ),
    "sizes": ("By size", "The same models at sizes other than the training size."),
    "positions": ("By position in the window", "The loss at each position."),
    "training": ("Training", "The monitored metric at each validation."),
    "costs": ("What it costs", "The metric against the cost of each variant."),
    "cost_table": ("Costs in numbers", "Means over seeds; memory is the peak of the process."),
    "cells": ("Cells", "One training run each; its run directory is in the folder of this page."),
    "made": (
        "How it was made",
        "The command repeats the comparison, and continues an unfinished one.",
    ),
    "recipe": (
        "Base recipe",
        "What all cells share; each run directory has the recipe of its own.",
    ),
}
BEGIN, END = "\x01", "\x02"  # around names in sentences: characters that no name keeps


def render(comparison: Comparison) -> str:
    """Return the page as HTML: it opens from a file, and no request goes out from it."""
    marked = _mark_names(comparison)
    panels = list_panels(comparison)
    return render_page(
        f"{FOLDER}/comparison.html",
        styles=(f"{FOLDER}/comparison.css",),
        scripts=(f"{FOLDER}/comparison.js",),
        data={},
        kind="comparison",
        title=format_question(comparison),
        comparison=comparison,
        unfinished=describe_unfinished(comparison),
        warnings=[_emphasize_names(warning) for warning in list_warnings(marked)],
        summary=_emphasize_names(summarize(marked)),
        answers=[
            _emphasize_names(describe_result(marked, condition))
            for condition in comparison.conditions
        ],
        conditions=[describe_conditions([condition]) for condition in comparison.conditions],
        reading=explain_ranking(comparison),
        ranking=ranking_table.build_table(comparison),
        flags=list_flags(comparison),
        sections=build_sections(comparison, panels),
        captions=write_captions(comparison, panels),
    )


def build_sections(comparison: Comparison, panels: Mapping[str, Sequence[Panel]]) -> list[Section]:
    """Return what stands below the first screen, in its order; empty sections are left out."""
    contents: dict[str, Any] = {
        "numbers": number_tables.build_variants_table(comparison),
        **{name: _draw_charts(charts) for name, charts in panels.items()},
        "cost_table": number_tables.build_costs_table(comparison),
        "cells": number_tables.build_cells_table(comparison),
        "made": [(title, fact) for title, fact in _list_facts(comparison) if fact],
        "recipe": dump(to_plain(comparison.base)).splitlines(),
    }
    sections = {
        key: [Section(key, *LEADS[key], content)] for key, content in contents.items() if content
    }
    sections["results"] = sections.pop("numbers")
    sections["costs"] = [*sections.get("costs", ()), *sections.pop("cost_table", ())]
    return list_sections(comparison, _show_section, sections)


def _show_section(section: ReportSection) -> Section:
    """Return a section of all formats as one of a page, whose tables are sorted by a click."""
    return Section(
        section.key,
        section.title,
        section.lead or " ".join(section.sentences),
        number_tables.build_text_table(section.table) if section.table else None,
        section.items,
    )


def list_panels(comparison: Comparison) -> dict[str, list[Panel]]:
    """Return the charts of each section that has charts."""
    return {
        "sizes": [*by_size(comparison)],
        "positions": [*by_position(comparison)],
        "training": [*in_training(comparison), *_list_by_compute(comparison)],
        "costs": [*by_cost(comparison)],
    }


def _list_by_compute(comparison: Comparison) -> Iterator[Panel]:
    for unit in ("seconds", "FLOPs"):
        yield from in_training_compute(comparison, unit)


def write_captions(comparison: Comparison, panels: Mapping[str, Sequence[Panel]]) -> dict[str, str]:
    """Return the sentences under the charts of each section, by what the charts draw."""
    captions = {}
    for name, charts in panels.items():
        sentences = [capitalize(explain_charts(comparison, name, charts))]
        if name == "positions" and comparison.windows:
            sentences.append(f"The texts were cut into {comparison.windows}")
        if name == "training" and any(panel.x == "seconds" for panel in charts):
            sentences.append(
                "Seconds are steps times the median time of a step, measured while other programs "
                "ran"
            )
        if name == "costs":
            sentences.append("Hover a point for its name")
        captions[name] = "".join(f"{sentence}. " for sentence in sentences).strip()
    return captions


def explain_ranking(comparison: Comparison) -> str:
    """Explain how the ranking is read: the marks that it has, and no others."""
    direction = "higher" if comparison.better == "high" else "lower"
    columns = []
    for condition in comparison.conditions:
        standings = rank_variants(comparison, condition)
        columns.append((standings, choose_scale(standings)))
    sentences = [f"{format_measure(comparison)}, {direction} is better."]
    marks = [*explain_strips(columns, name_extreme(comparison))]
    sentences += [f"{'; '.join(marks)}."] if marks else []
    verdicts = {standing.verdict for standings, _ in columns for standing in standings}
    if verdicts & {"possible", "worse"}:
        sentences.append(
            "Worse: the difference to the first, paired by seed and corrected for all pairs of "
            "variants, excludes 0; may be best: it does not."
        )
    if any(variant.flag_kinds for variant in comparison.variants):
        sentences.append("Under a name: how the variant differs from most others.")
    return " ".join(map(capitalize, sentences))


def list_flags(comparison: Comparison) -> dict[str, str]:
    """Return {variant: what is unfair or missing}."""
    descriptions = {
        variant.name: _describe_flags(comparison, variant) for variant in comparison.variants
    }
    return {name: "; ".join(texts) for name, texts in descriptions.items() if texts}


def _describe_flags(comparison: Comparison, variant: Variant) -> list[str]:
    missing: dict[str, list[Condition]] = {}
    for condition in comparison.conditions:
        for why in explain_missing(variant, condition, comparison.measure):
            if "failed" not in why:  # the flags say so already
                missing.setdefault(why, []).append(condition)
    texts = [flag.text for flag in variant.flags]
    for why, conditions in missing.items():
        everywhere = len(conditions) == len(comparison.conditions)
        texts.append(why if everywhere else f"{describe_conditions(conditions)} {why}")
    return texts


def _draw_charts(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    return [{"title": panel.title, "drawing": draw_for_page(panel)} for panel in panels]


def _list_baselines(comparison: Comparison) -> str:
    """Return the baselines under each condition that has some."""
    baselines = {
        condition: format_baselines(comparison, condition) for condition in comparison.conditions
    }
    return "; ".join(
        f"{describe_conditions([condition])}: {values}"
        for condition, values in baselines.items()
        if values
    )


def _list_facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield "recipe", comparison.recipe
    for axis in comparison.axes:
        yield axis.key, ", ".join(axis.values)
    yield "seeds", ", ".join(map(str, comparison.seeds))
    direction = "higher" if comparison.better == "high" else "lower"
    yield "measure", f"{format_measure(comparison)}, {direction} is better"
    yield "conditions", ", ".join(condition.describe() for condition in comparison.conditions)
    yield "windows", comparison.windows
    yield "baselines", _list_baselines(comparison)
    yield from ((key, _join_values(value)) for key, value in comparison.machine.items())
    yield "made", f"{comparison.created}, zoo {comparison.zoo_version}"
    yield "held equal", _describe_controls(comparison)
    yield "conventions", describe_conventions(comparison)
    yield (
        "intervals",
        f"of means Student's, {LEVEL:.0%}, over seeds, for this test set; of differences "
        "simultaneous for all pairs of variants (Tukey, Kramer), over the seeds that both have, "
        f"each pair with its own variance (Games, Howell), {describe_levels(comparison)}",
    )


def _describe_controls(comparison: Comparison) -> str:
    """Return a sentence on what all cells of a seed have in common."""
    controls = "of each seed, the order of samples"
    if not any(is_below(axis.key, "data") for axis in comparison.axes):
        controls += ", the test samples"
    if comparison.shared_weights:
        shared = f"the {comparison.shared_weights} weights that all variants have"
        controls += f" and the initial values of {shared}"
    if any(cell.different_start for variant in comparison.variants for cell in variant.cells):
        controls += ", except where a cell says otherwise"
    return controls


def _join_values(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_join_values(entry)}" for key, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_join_values, value))
    return str(value)


def _mark_names(comparison: Comparison) -> Comparison:
    """Put characters around the names of variants, by which sentences set them off."""
    variants = tuple(
        replace(variant, name=f"{BEGIN}{numbers.UNPRINTABLE.sub('', variant.name)}{END}")
        for variant in comparison.variants
    )
    return replace(comparison, variants=variants)


def _emphasize_names(sentence: str) -> Markup:
    # sentences set names off as code, the page in bold
    parts = re.split(f"`?{BEGIN}(.*?){END}`?", sentence, flags=re.DOTALL)
    bold = Markup("<b>{}</b>")
    texts = [
        bold.format(break_words(part)) if number % 2 else break_words(part)
        for number, part in enumerate(parts)
    ]
    return Markup("").join(texts)
