"""The text of a comparison: names, numbers, a sentence of verdict, warnings, comparison.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import isfinite
from statistics import fmean

from zoo.comparison.number_text import count_decimals, format_estimate, format_mean
from zoo.comparison.race_text import name_drop
from zoo.comparison.ranking import (
    Standing,
    Verdict,
    analyze_condition,
    average_baselines,
    find_winning_baseline,
    rank_variants,
)
from zoo.comparison.results import Comparison, ComparisonCell, Variant
from zoo.comparison.sections import list_sections
from zoo.comparison.statistics import FEWEST, MANY, MANY_NEED, excludes_zero
from zoo.comparison.training_end import describe_steep, list_steep
from zoo.config.schema import format_size
from zoo.reporting import numbers
from zoo.reporting.numbers import format_fixed
from zoo.reporting.sections import ReportSection, SectionTable, format_section
from zoo.run.conditions import Condition
from zoo.run.machine import format_machine
from zoo.suggestions import join_words
from zoo.utils import escape_strings

MB = 2**20
NEAR = 0.02
"""A trial is near the best if its value differs by at most this share of the best value."""
MAX_SEEDS = 20
# states of cells that will have a value
UNFINISHED = ("running", "stopped", "waiting")
# columns that are aligned to the left
TEXT_COLUMNS = ("variant", "attention", "verdict", "flags")
VERDICTS: Mapping[Verdict, str] = {"possible": "may be best", "worse": "worse", "unsure": "?"}
CONVENTIONS = (
    "optim.lr",
    "optim.encoding_lr",
    "model.scale_embeddings",
    "model.position_augmentation",
)
"""Keys that are known to reverse rankings: each is said to be held, varied or tuned."""


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
    variants = [
        condition.describe() for condition in conditions if condition.data_variant is not None
    ]
    sizes = [condition for condition in conditions if condition.data_variant is None]
    parts = [f"at {_join_sizes(sizes)}"] if sizes else []
    if variants:
        parts.append(f"on {join_names(variants, len(variants))}")
    return join_names(parts)


def _join_sizes(conditions: Sequence[Condition]) -> str:
    """Join sizes; a unit that all of them end with is written once."""
    *earlier, final = conditions
    sizes = [
        condition.size for condition in conditions if condition.size and not condition.extrapolation
    ]
    names = [condition.describe() for condition in earlier]
    if len(sizes) == len(conditions):
        names = [format_size(size) for size in sizes[:-1]]
    return join_names([*names, final.describe()], len(conditions))


def name_extreme(comparison: Comparison) -> str:
    """Name what the first variant of a ranking has: highest mean, or lowest value of a loss."""
    has_means = any(len(variant.cells) > 1 for variant in comparison.variants)
    extreme = "highest" if comparison.better == "high" else "lowest"
    return f"{extreme} {'mean' if has_means else 'value'}"


def join_names(names: Sequence[str], most: int = 5) -> str:
    """Join names as in one, two and three; of more than `most`, say how many others there are."""
    return join_words(names, most=most)


def format_standing(one: Standing, decimals: int) -> str:
    """Format a mean with its interval, or with the values of two seeds."""
    assert one.mean is not None
    if one.mean.count >= FEWEST:
        return format_mean(one.mean, one.solved, decimals)
    mean = format_fixed(one.mean.mean, decimals)
    values = [format_fixed(value, decimals) for value in one.values.values()]
    return mean if len(values) == 1 else f"{mean} ({join_names(values)})"


def format_difference(standing: Standing, decimals: int) -> str:
    """Format the difference to the first with its interval and its corrected p-value."""
    if standing.difference is None:
        return ""
    formatted = format_estimate(standing.difference, decimals, sign=True)
    if standing.p_value is None:
        return formatted
    return f"{formatted}, {numbers.format_p_value(standing.p_value)}"


def capitalize(sentence: str) -> str:
    """Return a sentence with a capital first letter; other letters stay."""
    return sentence[:1].upper() + sentence[1:]


# The verdict


def describe_verdict(
    comparison: Comparison, condition: Condition, *, with_value: bool = True
) -> str:
    """Return a sentence on who is first under a condition and who else may be best.

    Names of variants are set off as code: `none` is a variant, and not the word.

    Args:
        comparison: The comparison.
        condition: The condition.
        with_value: Whether the value of the first is written.
    """
    present = [standing for standing in rank_variants(comparison, condition) if standing.mean]
    if not present:
        is_pending = any(cell.state in UNFINISHED for cell in comparison.cells)
        return "nothing is measured yet" if is_pending else "nothing is measured"

    best, near, far = (_list_names(present, verdict) for verdict in ("best", "possible", "worse"))
    verb = "has" if len(best) == 1 else "share"
    lead = f"{join_names(best)} {verb} the {name_extreme(comparison)}"
    if with_value:
        value = format_standing(present[0], count_decimals(comparison))
        lead += f": {format_measure(comparison)} {value}"

    if len(present) == len(best):
        return f"{lead}; {'no other is measured' if len(best) == 1 else 'their seeds are equal'}"
    # each of these takes back all verdicts, so they come before the names
    if list_steep(comparison):
        return f"{lead}; no verdict, as not all variants were trained to the end"
    if all(standing.mean.count < FEWEST for standing in present if standing.mean):
        return f"{lead}; fewer than three seeds cannot tell a difference from chance"
    parts = []
    if near and len(near) == len(present) - len(best):
        parts.append("no difference is established")
    elif near:
        parts.append(f"{join_names(near)} may be best too")
    if len(far) > 1 and len(near) + len(far) == len(present) - len(best):
        parts.append("the others are worse")
    elif far:
        parts.append(f"{join_names(far)} {'is' if len(far) == 1 else 'are'} worse")
    return "; ".join([lead, *parts, *_describe_unsure(present)])


def _describe_unsure(present: Sequence[Standing]) -> Iterator[str]:
    """Yield why variants can neither be called worse nor as good as the first."""
    unsure = [standing for standing in present if standing.verdict == "unsure"]
    unknown = [
        standing
        for standing in unsure
        if standing.difference is None or standing.difference.low is None
    ]
    ahead = [standing for standing in unsure if standing not in unknown]
    needed = MANY_NEED if len(present) >= MANY else FEWEST
    few = [
        standing
        for standing in unknown
        if standing.difference is None or standing.difference.count < needed
    ]
    constant = [standing for standing in unknown if standing not in few]
    if few:
        why = f" of {MANY} or more variants, which need {MANY_NEED}" if needed > FEWEST else ""
        yield f"too few seeds to judge {join_names([_quote(standing) for standing in few])}{why}"
    if constant:
        verb = "differs" if len(constant) == 1 else "differ"
        names = join_names([_quote(standing) for standing in constant])
        yield f"{names} {verb} by the same in every seed, so that the noise is unknown"
    if ahead:
        verb = "is" if len(ahead) == 1 else "are"
        names = join_names([_quote(standing) for standing in ahead])
        yield f"on the seeds that both have, {names} {verb} better"


def summarize(comparison: Comparison) -> str:
    """Return the verdicts without values, neighbouring conditions with one verdict together."""
    texts = [
        (condition, describe_verdict(comparison, condition, with_value=False))
        for condition in comparison.conditions
    ]
    sentences = []
    for verdict, group in groupby(texts, key=lambda pair: pair[1]):
        where = describe_conditions([condition for condition, _ in group])
        sentences.append(f"{capitalize(where)} {verdict}.")
    return " ".join(sentences)


def describe_result(comparison: Comparison, condition: Condition) -> str:
    """Return the verdict under a condition, and what to mind about it."""
    standings = rank_variants(comparison, condition)
    verdict = f"{describe_conditions([condition])} {describe_verdict(comparison, condition)}"
    parts = [
        verdict,
        describe_power(comparison, condition),
        describe_permutations(comparison, condition),
        *_describe_missing(standings),
        *_describe_flags(standings),
    ]
    # that of the test data of the recipe is a warning about all conditions
    if condition != comparison.trained:
        parts.append(_describe_winner(comparison, condition))
    return " ".join(f"{capitalize(part)}." for part in parts if part)


def describe_permutations(comparison: Comparison, condition: Condition) -> str:
    """State that permutations of so few values cannot confirm what t finds; empty if they can."""
    differences = analyze_condition(comparison, condition).differences.values()
    tests = [
        difference.permutation for difference in differences if excludes_zero(difference.estimate)
    ]
    smallest = min((test.smallest for test in tests if test and not test.can_decide), default=None)
    if smallest is None:
        return ""
    return (
        "verdicts are by t alone: the smallest p of an exact permutation test of so few seeds is "
        f"{numbers.format_number(smallest, 1)}"
    )


def describe_power(comparison: Comparison, condition: Condition) -> str:
    """State which differences the seeds can show, and what the analysis assumes."""
    analysis = analyze_condition(comparison, condition)
    noise, smallest = analysis.noise, analysis.smallest_difference
    if smallest is None or noise.seeds < FEWEST:
        return ""
    low, high = comparison.bounds
    seeds = f"with {noise.seeds} seeds"
    # no two values differ by more than the range of the metric
    if smallest > high - low:
        sentence = f"{seeds} no difference can be seen"
    elif smallest == 0:
        sentence = f"{seeds} that never differ, any difference can be seen"
    else:
        shown = numbers.format_number(smallest, 2)
        sentence = f"{seeds} a difference below {shown} cannot be seen (power 80 %)"
    if noise.warning:
        sentence += (
            f"; {noise.warning}, so pairs are compared with their own variance; "
            "only large differences are detectable"
        )
    return sentence


def _quote(standing: Standing) -> str:
    return f"`{standing.variant.name}`"


def _list_names(standings: Sequence[Standing], verdict: Verdict) -> list[str]:
    return [_quote(standing) for standing in standings if standing.verdict == verdict]


def _describe_missing(standings: Sequence[Standing]) -> list[str]:
    """Name the variants without any value, by the reason."""
    names: dict[str, list[str]] = {}
    for standing in standings:
        if standing.verdict == "missing":
            names.setdefault("; ".join(standing.missing_reasons), []).append(_quote(standing))
    return [
        f"no value of {join_names(quoted)}{f' ({reason})' if reason else ''}"
        for reason, quoted in names.items()
    ]


def _describe_flags(standings: Sequence[Standing]) -> list[str]:
    """List the flags of the first and of those that may be best; in full if only one has any."""
    leading = [standing for standing in standings if standing.verdict in ("best", "possible")]
    flagged = [standing for standing in leading if standing.variant.flag_kinds]
    if len(flagged) == 1:
        texts = "; ".join(flag.text for flag in flagged[0].variant.flags if not flag.minor)
        return [f"note that {_quote(flagged[0])} is flagged: {texts}"]

    names: dict[str, list[str]] = {}
    for leader in flagged:
        for kind in leader.variant.flag_kinds:
            names.setdefault(kind, []).append(_quote(leader))
    texts = "; ".join(f"{kind} of {join_names(quoted)}" for kind, quoted in names.items())
    return [f"not as in most: {texts}"] if names else []


def list_warnings(comparison: Comparison) -> list[str]:
    """List what a reader has to know first: why nothing follows from the comparison."""
    warnings = (describe_winning_baseline(comparison), describe_steep(comparison))
    return [warning for warning in warnings if warning]


def describe_winning_baseline(comparison: Comparison) -> str:
    """Warn that a baseline beats every model; empty if none does."""
    winner = _describe_winner(comparison, comparison.trained)
    return f"Inconclusive: {winner}." if winner else ""


def _describe_winner(comparison: Comparison, condition: Condition) -> str:
    """Name the baseline that beats every model under a condition; empty if none does."""
    name = find_winning_baseline(comparison, condition)
    if name is None:
        return ""
    value = average_baselines(comparison, condition)[name]
    shown = format_fixed(value, count_decimals(comparison))
    return f"no model beats the baseline {name}, {format_measure(comparison)} {shown}"


def format_baselines(comparison: Comparison, condition: Condition) -> str:
    """Format the baselines under a condition with their values; empty if there are none."""
    baselines = average_baselines(comparison, condition)
    decimals = count_decimals(comparison)
    texts = [f"{name} {format_fixed(value, decimals)}" for name, value in baselines.items()]
    return join_names(texts) if texts else ""


def describe_unfinished(comparison: Comparison) -> str:
    """Count the cells that are not done, by state; empty if none will have a value."""
    states = [cell.state for cell in comparison.cells]
    counts = [f"{states.count(state)} {state}" for state in UNFINISHED if state in states]
    if not counts:
        return ""
    done = f"{states.count('done')} of {len(states)} cells are done"
    return f"Not finished: {done}, {join_names(counts)}."


# The page


def format_comparison(comparison: Comparison) -> str:
    """Format the results, a table for each condition, costs and flags, as Markdown."""
    comparison = escape_strings(comparison)
    findings = [f"- {finding.kind}: {finding.text}" for finding in comparison.findings]
    blocks = [
        f"# {format_question(comparison)}",
        *(f"**{warning}**" for warning in list_warnings(comparison)),
        "\n".join(describe_result(comparison, condition) for condition in comparison.conditions),
        describe_unfinished(comparison),
        "\n\n".join(["Against this record:", "\n".join(findings)]) if findings else "",
        *list_sections(
            comparison,
            format_section,
            {
                "results": [*_list_results(comparison)],
                "costs": [*_list_costs(comparison)],
                "flags": [*_list_flags(comparison)],
            },
        ),
        "\n".join(_describe_setup(comparison)),
    ]
    return "\n\n".join(filter(None, blocks))


def _describe_setup(comparison: Comparison) -> Iterator[str]:
    """Yield what the numbers are, what was held equal, where it ran and what repeats it."""
    measure = format_measure(comparison)
    seeds = join_names([str(seed) for seed in comparison.seeds], MAX_SEEDS)
    if len(comparison.seeds) >= FEWEST:
        yield (
            f"{measure}: means over seeds {seeds} with 95 % intervals (Student's t); differences "
            "to the first are paired by seed and corrected for all pairs of variants; who may be "
            "best includes the best with 95 %."
        )
    else:
        yield f"{measure}: values of seeds {seeds}; fewer than three seeds have no interval."
    yield describe_conventions(comparison)
    machine = comparison.machine
    where = format_machine(machine) if "processor" in machine else ""
    zoo = f"zoo {comparison.zoo_version}"
    facts = filter(None, (where, comparison.windows, zoo, comparison.created))
    yield f"{'; '.join(facts)}."
    yield (
        f"{comparison.shared_weights} weights that all variants have began equal; repeat it with: "
        f"{comparison.command}"
    )


def describe_conventions(comparison: Comparison) -> str:
    """Return what was held equal, varied or tuned, of the keys that reverse rankings first."""
    varied = [axis.key for axis in comparison.axes]
    tuned = [key.key for key in comparison.studies.keys] if comparison.studies else []
    named = [*varied, *tuned]
    held = [
        key
        for key in CONVENTIONS
        if not any(named_key == key or named_key.endswith(f".{key}") for named_key in named)
    ]
    parts = [f"Held equal: {join_names([*held, 'all other keys'])}", f"varied: {', '.join(varied)}"]
    if tuned:
        parts.append(f"tuned for each variant: {', '.join(tuned)}")
    if not any(named_key.endswith(".coordinates") for named_key in named):
        parts.append("coordinates: each encoding's own")
    if comparison.extrapolation_methods:
        methods = ", ".join(comparison.extrapolation_methods)
        parts.append(f"the same trained models are evaluated unchanged and by {methods}")
    return f"{'; '.join(parts)}. An encoding's own options are part of its entry."


def _list_results(comparison: Comparison) -> Iterator[str]:
    """Yield the ranking under each condition."""
    for condition in comparison.conditions:
        table = _build_ranking(comparison, condition)
        if table is None:
            continue
        baselines = format_baselines(comparison, condition)
        yield format_section(
            ReportSection(
                key=condition.name,
                title=capitalize(describe_conditions([condition])),
                table=table,
                sentences=[f"Baselines: {baselines}."] if baselines else [],
            )
        )


def _list_costs(comparison: Comparison) -> Iterator[str]:
    if table := _build_cost_table(comparison):
        yield format_section(ReportSection(key="costs", title="What it costs", table=table))


def _list_flags(comparison: Comparison) -> Iterator[str]:
    """Yield what variants have that others do not, or refuse."""
    flags = [
        f"{variant.name}: {'; '.join(flag.text for flag in variant.flags)}"
        for variant in comparison.variants
        if variant.flags
    ]
    if items := [*flags, *_list_refusals(comparison)]:
        yield format_section(ReportSection(key="flags", title="Flags", items=items))


def _build_ranking(comparison: Comparison, condition: Condition) -> SectionTable | None:
    """Return the ranking under a condition; None if nothing is measured."""
    standings = [
        standing for standing in rank_variants(comparison, condition) if standing.mean is not None
    ]
    head = ["variant", format_measure(comparison), "to the first", "verdict", "seeds", "flags"]
    decimals = count_decimals(comparison)
    best = name_extreme(comparison)
    rows = [
        [
            standing.variant.name,
            format_standing(standing, decimals),
            format_difference(standing, decimals),
            _name_verdict(standing, best),
            str(len(standing.values)),
            ", ".join(standing.variant.flag_kinds),
        ]
        for standing in standings
    ]
    # columns that say something
    filled = [column for column in range(len(head)) if any(row[column] for row in rows)]
    rows = [[row[column] for column in filled] for row in rows]
    heads = [head[column] for column in filled]
    return SectionTable(heads=heads, rows=rows, left=TEXT_COLUMNS) if rows else None


def _name_verdict(standing: Standing, best: str) -> str:
    if standing.dropped is not None:
        return name_drop(standing.dropped)
    return best if standing.verdict == "best" else VERDICTS.get(standing.verdict, "")


def _build_cost_table(comparison: Comparison) -> SectionTable | None:
    """Return what each variant has and takes; None if no cell has begun."""
    variants = [
        candidate
        for candidate in comparison.variants
        if any(cell.parameters for cell in candidate.cells)
    ]
    rows = [_format_cost(variant) for variant in variants]
    head = ["variant", "parameters", "attention", "steps", "step ms", "minutes", "peak MiB"]
    # comparisons of before do not have it
    if any(cell.flops for variant in variants for cell in variant.cells):
        head.insert(2, "forward MFLOPs")
        for variant, row in zip(variants, rows, strict=True):
            row.insert(2, format_fixed(_scale(_mean(variant.cells, "flops"), 1e-6), 1))
    return SectionTable(heads=[*head, "cells done"], rows=rows, left=TEXT_COLUMNS) if rows else None


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


def _scale(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _mean(cells: Sequence[ComparisonCell], key: str) -> float | None:
    values = [value for cell in cells if (value := getattr(cell, key)) is not None]
    values = [value for value in values if isfinite(value)]
    return fmean(values) if values else None


def _list_refusals(comparison: Comparison) -> Iterator[str]:
    """Yield the conditions that a variant refuses, each reason once."""
    for variant in comparison.variants:
        conditions: dict[str, list[Condition]] = {}
        for cell in variant.cells[:1]:
            for measurement in cell.measurements:
                if measurement.refused:
                    conditions.setdefault(measurement.refused, []).append(measurement.condition)
        for reason, refused in conditions.items():
            yield f"{variant.name}: refused {describe_conditions(refused)}: {reason}"
