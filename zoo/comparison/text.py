"""A comparison as sentences and text tables: which variant is first, which may be best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import floor, isfinite, log10
from statistics import fmean

from zoo.comparison.hypotheses import format_hypotheses
from zoo.comparison.ranking import (
    Standing,
    Verdict,
    analyze_condition,
    average_baselines,
    collect_values,
    compare_at_equal_compute,
    find_winning_baseline,
    rank_variants,
)
from zoo.comparison.results import Comparison, ComparisonCell, Variant
from zoo.comparison.statistics import Estimate
from zoo.comparison.tuning_text import describe_conventions, format_tuning
from zoo.reporting import numbers
from zoo.reporting.numbers import format_fixed
from zoo.reporting.tables import format_markdown
from zoo.run.conditions import Condition
from zoo.run.machine import format_machine
from zoo.utils import escape_strings

MB = 2**20
MAX_DECIMALS = 6
MAX_SEEDS = 20
# states of cells that will have a value
UNFINISHED = ("running", "stopped", "waiting")
ONE_SEED = "with one seed each, nothing tells a difference from chance"
# columns that are aligned to the left
TEXT_COLUMNS = ("variant", "attention", "verdict", "flags")
VERDICTS: Mapping[Verdict, str] = {"possible": "may be best", "worse": "worse", "unsure": "?"}


# Names and numbers


def format_measure(comparison: Comparison) -> str:
    """Return the metric as people say it: test accuracy."""
    return comparison.measure.replace("/", " ")


def format_question(comparison: Comparison) -> str:
    """Return the question of a comparison: Which encoding, on vit_comrope?"""
    titles = [axis.title for axis in comparison.axes] or ["variant"]
    return f"Which {join_names(titles)}, on {comparison.recipe}?"


def describe_conditions(conditions: Sequence[Condition]) -> str:
    """Name conditions in a sentence: at 16, 24 and 32 pixels and on rotated."""
    variants = [one.describe() for one in conditions if one.data_variant is not None]
    sizes = [one for one in conditions if one.data_variant is None]
    parts = [f"at {_join_sizes(sizes)}"] if sizes else []
    if variants:
        parts.append(f"on {join_names(variants, len(variants))}")
    return join_names(parts)


def _join_sizes(conditions: Sequence[Condition]) -> str:
    """Join sizes; a unit that all of them end with is written once."""
    *others, last = (one.describe() for one in conditions)
    unit = f" {conditions[-1].unit}"
    if all(one.unit and not one.extrapolation for one in conditions):
        others = [name.removesuffix(unit) for name in others]
    return join_names([*others, last], len(conditions))


def name_extreme(comparison: Comparison) -> str:
    """Name what the first variant of a ranking has: highest mean, or lowest mean of a loss."""
    return f"{_extreme(comparison)} {'mean' if len(comparison.seeds) > 1 else 'value'}"


def _extreme(comparison: Comparison) -> str:
    return "highest" if comparison.better == "high" else "lowest"


def join_names(names: Sequence[str], most: int = 5) -> str:
    """Join names as in one, two and three; of more than `most`, say how many others there are."""
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} others"]
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def count_decimals(comparison: Comparison) -> int:
    """Return how many decimals tell the means under each condition apart: three for 0.9125."""
    needed = 0
    for condition in comparison.conditions:
        values = (
            collect_values(variant, condition, comparison.measure).values()
            for variant in comparison.variants
        )
        means = [sum(own) / len(own) for own in values if own]
        largest = max(map(abs, means), default=0.0)
        gap = max(means, default=0.0) - min(means, default=0.0)
        least = 3 if 0.1 <= largest < 10 or largest == 0 else 2 - floor(log10(largest))
        close = -floor(log10(gap / 10)) if gap > 0 else 0
        needed = max(needed, least, min(close, least + 1))
    return min(max(needed, 0), MAX_DECIMALS)


def format_estimate(found: Estimate, decimals: int, *, sign: bool = False) -> str:
    """Format a mean with its interval, if it has one: 0.912 (0.905 to 0.919)."""
    mean = format_fixed(found.mean, decimals, sign=sign)
    if found.low is None:
        return mean
    low, high = (format_fixed(end, decimals, sign=sign) for end in (found.low, found.high))
    return f"{mean} ({low} to {high})"


def format_difference(standing: Standing, decimals: int) -> str:
    """Format the difference to the first with its interval and its corrected p-value."""
    if standing.difference is None:
        return ""
    text = format_estimate(standing.difference, decimals, sign=True)
    if standing.p_value is None:
        return text
    p_value = "p < 0.001" if standing.p_value < 0.001 else f"p = {standing.p_value:.2g}"
    return f"{text}, {p_value}"


def capitalize(sentence: str) -> str:
    """Return a sentence with a capital first letter; other letters stay."""
    return sentence[:1].upper() + sentence[1:]


def join_sentences(parts: Iterable[str]) -> str:
    """Write each part that is not empty as a sentence."""
    return " ".join(f"{capitalize(part)}." for part in parts if part)


# Sentences


def summarize(comparison: Comparison) -> str:
    """Summarize the ranking without numbers, neighbouring conditions with one result together."""
    texts = []
    for condition in comparison.conditions:
        standings = rank_variants(comparison, condition)
        texts.append((condition, _summarize_condition(comparison, standings)))

    parts = []
    for text, group in groupby(texts, key=lambda pair: pair[1]):
        where = describe_conditions([condition for condition, _ in group])
        parts.append(f"{where} {text.replace(f'; {ONE_SEED}', '')}")
    if any(ONE_SEED in text for _, text in texts):
        parts.append(ONE_SEED)
    return join_sentences(parts)


def _summarize_condition(comparison: Comparison, standings: Sequence[Standing]) -> str:
    present = [one for one in standings if one.mean]
    if not present:
        is_pending = any(cell.state in UNFINISHED for cell in comparison.cells)
        return "nothing is measured yet" if is_pending else "nothing is measured"

    best, near = _list_names(present, "best"), _list_names(present, "possible")
    if len(present) == len(best) == 1:
        return f"{best[0]} alone is measured"
    if len(present) == len(best):
        return f"{join_names(best)} are alike, to the last digit of each seed"

    lead = _describe_lead(comparison, best, present)
    if _list_names(present, "unsure"):
        return f"{lead}; {_describe_unsure(present)}"
    if not near:
        return f"{lead}, and all others are worse"
    if 1 < len(near) == len(present) - len(best):
        return f"{lead}, but any other may be best"
    return f"{lead}, but {join_names(near)} may be best too"


def describe_results(comparison: Comparison) -> dict[str, str]:
    """Return {name of a condition: sentences with its numbers}."""
    return {one.name: describe_result(comparison, one) for one in comparison.conditions}


def describe_result(comparison: Comparison, condition: Condition) -> str:
    """Name the first variant under a condition, others that may be best, and those flagged."""
    standings = rank_variants(comparison, condition)
    where = describe_conditions([condition])
    present = [one for one in standings if one.mean]
    if not present:
        return join_sentences([f"{where} nothing is measured", *_describe_missing(standings)])

    assert present[0].mean
    lead = _describe_lead(comparison, _list_names(present, "best"), present)
    value = format_estimate(present[0].mean, count_decimals(comparison))
    reached = f"{format_measure(comparison)} {value}"
    first = f"{where} {lead}: {reached}; {_describe_others(present)}"
    power = describe_power(comparison, condition)
    return join_sentences([first, power, *_describe_missing(standings), *_describe_flags(present)])


def _describe_lead(comparison: Comparison, best: Sequence[str], present: Sequence[Standing]) -> str:
    """Name the first: a has the highest mean; a and b share the highest mean."""
    verb = "has" if len(best) == 1 else "share"
    what = "value" if _has_single_seeds(present) else "mean"
    return f"{join_names(best)} {verb} the {_extreme(comparison)} {what}"


def _describe_others(present: Sequence[Standing]) -> str:
    verdicts: tuple[Verdict, ...] = ("possible", "worse", "unsure")
    near, far, unsure = (_list_names(present, verdict) for verdict in verdicts)
    if len(present) == len(_list_names(present, "best")):
        return "no other is measured there"
    parts = [_describe_near(near, far)] if near or far or not unsure else []
    return "; ".join([*parts, _describe_unsure(present)] if unsure else parts)


def _describe_near(near: Sequence[str], far: Sequence[str]) -> str:
    """Name the others that may be best, and state whether the rest is worse."""
    if not near:
        return f"{far[0]} is worse" if len(far) == 1 else "all others are worse"
    rest = "" if not far else f", {far[0]} is worse" if len(far) == 1 else ", the others are worse"
    return f"{join_names(near)} may be best too{rest}"


def describe_power(comparison: Comparison, condition: Condition) -> str:
    """State which differences the seeds can show, and what the analysis assumes."""
    analysis = analyze_condition(comparison, condition)
    noise, smallest = analysis.noise, analysis.smallest_difference
    if smallest is None:
        return ""
    low, high = comparison.bounds
    seeds = f"with {noise.seeds} seeds"
    if smallest > high - low:
        text = f"{seeds} no difference can be seen"
    elif smallest == 0:
        text = f"{seeds} that never differ, any difference can be seen"
    else:
        shown = numbers.format_number(smallest, 2)
        text = f"{seeds} a difference below {shown} cannot be seen (power 80 %)"
    if noise.warning:
        text += (
            f"; {noise.warning}, so pairs are compared with their own variance; "
            "only large differences are detectable"
        )
    return text


def _describe_unsure(present: Sequence[Standing]) -> str:
    if _has_single_seeds(present):
        return ONE_SEED
    few: list[str] = []
    ahead: list[str] = []
    for one in present:
        if one.verdict == "unsure":
            has_interval = one.difference is not None and one.difference.low is not None
            (ahead if has_interval else few).append(one.variant.name)
    parts = []
    if few:
        text = f"of {join_names(few)} fewer than three seeds can be compared, which cannot tell"
        parts.append(text)
    if ahead:
        verb = "is" if len(ahead) == 1 else "are"
        parts.append(f"on the seeds that both have, {join_names(ahead)} {verb} better")
    return "; ".join(parts)


def _has_single_seeds(present: Sequence[Standing]) -> bool:
    """Return whether no variant has more than one seed."""
    return all(one.mean.count == 1 for one in present if one.mean)


def _list_names(standings: Sequence[Standing], verdict: Verdict) -> list[str]:
    return [one.variant.name for one in standings if one.verdict == verdict]


def _describe_missing(standings: Sequence[Standing]) -> list[str]:
    """Name the variants without any value, by the reason."""
    names: dict[str, list[str]] = {}
    for one in standings:
        if one.verdict == "missing":
            names.setdefault("; ".join(one.missing_reasons), []).append(one.variant.name)
    return [
        f"no value of {join_names(own)}{f' ({reason})' if reason else ''}"
        for reason, own in names.items()
    ]


def _describe_flags(present: Sequence[Standing]) -> list[str]:
    """List the flags of the first and of those that may be best; in full if only one has any."""
    leading = [one.variant for one in present if one.verdict in ("best", "possible")]
    flagged = [variant for variant in leading if variant.flag_kinds]
    if len(flagged) == 1:
        texts = "; ".join(flag.text for flag in flagged[0].flags if not flag.minor)
        return [f"note that {flagged[0].name} is flagged: {texts}"]

    names: dict[str, list[str]] = {}
    for variant in flagged:
        for kind in variant.flag_kinds:
            names.setdefault(kind, []).append(variant.name)
    texts = "; ".join(f"{kind} of {join_names(own)}" for kind, own in names.items())
    return [f"not as in most: {texts}"] if names else []


def describe_winning_baseline(comparison: Comparison) -> str:
    """Warn that a baseline beats every model; empty if none does."""
    name = find_winning_baseline(comparison)
    if name is None:
        return ""
    value = format_fixed(average_baselines(comparison)[name], count_decimals(comparison))
    return (
        f"No conclusion about variants follows: no model beats the baseline {name}, "
        f"{format_measure(comparison)} {value}."
    )


def describe_baselines(comparison: Comparison) -> str:
    """Name the baselines with their values; empty if there are none."""
    found = average_baselines(comparison)
    decimals = count_decimals(comparison)
    texts = [f"{name} {format_fixed(value, decimals)}" for name, value in found.items()]
    return f"Baselines: {join_names(texts)}" if texts else ""


def describe_unfinished(comparison: Comparison) -> str:
    """Count the cells that are not done, by state; empty if none will have a value."""
    states = [cell.state for cell in comparison.cells]
    counts = [f"{states.count(one)} {one}" for one in UNFINISHED if one in states]
    if not counts:
        return ""
    done = f"{states.count('done')} of {len(states)} cells are done"
    return f"Not finished: {done}, {join_names(counts)}."


# Tables


def format_findings(comparison: Comparison) -> str:
    """Format what speaks against the record as Markdown; empty if nothing does."""
    lines = [f"- {one.kind}: {one.text}" for one in comparison.findings]
    return "\n".join(["Against this record:", "", *lines]) if lines else ""


def format_comparison(comparison: Comparison) -> str:
    """Format the results, a table for each condition, costs and flags, as Markdown."""
    comparison = escape_strings(comparison)
    warning = describe_winning_baseline(comparison)
    parts = [
        f"# {format_question(comparison)}",
        f"**{warning}**" if warning else "",
        "\n".join([*describe_results(comparison).values()]),
        describe_unfinished(comparison),
        format_findings(comparison),
        format_hypotheses(comparison),
        *(_format_condition(comparison, one) for one in comparison.conditions),
        format_costs(comparison),
        _format_equal_compute(comparison),
        format_tuning(comparison),
        _format_flags(comparison),
        describe_setup(comparison),
    ]
    return "\n\n".join(part for part in parts if part)


def describe_setup(comparison: Comparison) -> str:
    """State how and on what machine it was measured, and the command that repeats it."""
    seeds = join_names([str(seed) for seed in comparison.seeds], MAX_SEEDS)
    machine = comparison.machine
    where = format_machine(machine) if "processor" in machine else ""
    zoo = f"zoo {comparison.zoo_version}"
    facts = filter(None, (where, comparison.windows, zoo, comparison.created))
    return "\n".join(
        [
            f"{format_measure(comparison)}: means over seeds {seeds} with 95 % intervals "
            "(Student's t); differences to the first are paired by seed and corrected for all "
            "pairs of variants; who may be best includes the best with 95 %.",
            describe_conventions(comparison),
            f"{'; '.join(facts)}.",
            f"{comparison.shared_weights} weights that all variants have began equal; "
            f"repeat it with: {comparison.command}",
        ]
    )


def _format_condition(comparison: Comparison, condition: Condition) -> str:
    standings = [one for one in rank_variants(comparison, condition) if one.mean is not None]
    if not standings:
        return ""
    measure = format_measure(comparison)
    head = ["variant", measure, "to the first", "verdict", "seeds", "flags"]
    rows = [_format_row(comparison, one) for one in standings]
    # columns that say something
    kept = [column for column in range(len(head)) if any(row[column] for row in rows)]
    rows = [[row[column] for column in kept] for row in rows]
    table = format_markdown([head[column] for column in kept], rows, TEXT_COLUMNS)
    baselines = describe_baselines(comparison) if condition == comparison.trained else ""
    below = f"\n\n{baselines}." if baselines else ""
    return f"## {capitalize(describe_conditions([condition]))}\n\n{table}{below}"


def _format_row(comparison: Comparison, one: Standing) -> list[str]:
    assert one.mean is not None
    decimals = count_decimals(comparison)
    return [
        one.variant.name,
        format_estimate(one.mean, decimals),
        format_difference(one, decimals),
        name_extreme(comparison) if one.verdict == "best" else VERDICTS.get(one.verdict, ""),
        str(one.mean.count),
        ", ".join(one.variant.flag_kinds),
    ]


def format_costs(comparison: Comparison) -> str:
    """Format a table of what each variant has and takes; empty if no cell has begun."""
    variants = [one for one in comparison.variants if any(cell.parameters for cell in one.cells)]
    rows = [_format_cost(variant) for variant in variants]
    head = ["variant", "parameters", "attention", "steps", "step ms", "minutes", "peak MiB"]
    # comparisons of before do not have it
    if any(cell.flops for variant in variants for cell in variant.cells):
        head.insert(2, "forward MFLOPs")
        for variant, row in zip(variants, rows, strict=True):
            row.insert(2, format_fixed(_scale(_mean(variant.cells, "flops"), 1e-6), 1))
    table = format_markdown([*head, "cells done"], rows, TEXT_COLUMNS)
    return f"## What it costs\n\n{table}" if rows else ""


def _format_cost(variant: Variant) -> list[str]:
    cells = variant.cells
    started = next(cell for cell in cells if cell.parameters)
    steps = next((cell.steps for cell in cells if cell.steps), None)
    step, memory = _mean(cells, "step_seconds"), _mean(cells, "peak_memory")
    return [
        variant.name,
        f"{started.parameters:,}",
        ", ".join(started.backends),
        "" if steps is None else f"{steps:,}",
        format_fixed(_scale(step, 1e3), 1),
        format_fixed(_mean(cells, "minutes"), 2),
        format_fixed(_scale(memory, 1 / MB), 0),
        f"{sum(cell.state == 'done' for cell in cells)} of {len(cells)}",
    ]


def _format_equal_compute(comparison: Comparison) -> str:
    """Format the validation metric at equal steps, seconds and FLOPs; empty if none differ."""
    if not (found := compare_at_equal_compute(comparison)):
        return ""
    rows = [
        [one.name, *(format_fixed(own.get(one.name), 4) for own in found.values())]
        for one in comparison.variants
    ]
    head = ["variant", *(f"equal {unit}" for unit in found)]
    return f"## Validation metric at equal compute\n\n{format_markdown(head, rows, TEXT_COLUMNS)}"


def _scale(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _mean(cells: Sequence[ComparisonCell], key: str) -> float | None:
    values = [value for cell in cells if (value := getattr(cell, key)) is not None]
    values = [value for value in values if isfinite(value)]
    return fmean(values) if values else None


def _format_flags(comparison: Comparison) -> str:
    lines = []
    for variant in comparison.variants:
        if variant.flags:
            lines.append(f"- {variant.name}: {'; '.join(flag.text for flag in variant.flags)}")
    lines += [f"- {name}: {text}" for name, text in _list_refusals(comparison)]
    return "## Flags\n\n" + "\n".join(lines) if lines else ""


def _list_refusals(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield (variant, conditions that it refuses), each reason once."""
    for variant in comparison.variants:
        conditions: dict[str, list[Condition]] = {}
        for cell in variant.cells[:1]:
            for one in cell.measurements:
                if one.refused:
                    conditions.setdefault(one.refused, []).append(one.condition)
        for reason, refused in conditions.items():
            yield variant.name, f"refused {describe_conditions(refused)}: {reason}"
