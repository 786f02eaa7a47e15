"""The page of claims (docs/claims.md): what papers claim, and what comparisons in studies show.

`python docs/build/pages.py` writes it from docs/claims.yaml and docs/records. A claim is judged
after 3, 5, 8, 12 and 18 studies, as racing does, so that it may be looked at after every block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, sqrt
from pathlib import Path
from statistics import fmean, median

from evidence_data import DOCS, Evidence, PaperClaim, read_papers
from record_figures import locate_figure
from scipy import stats

from zoo.comparison.hypotheses import Hypothesis, judge_hypotheses, parse_hypothesis
from zoo.comparison.racing import LOOK_LEVEL, Claim, judge_claims
from zoo.comparison.ranking import average_baselines, collect_values, find_winning_baseline
from zoo.comparison.record_file import CELLS_FILE, read_cells
from zoo.comparison.results import LOOKS, Comparison, ComparisonCell
from zoo.comparison.statistics import (
    FEWEST,
    LEVEL,
    POWER,
    Pair,
    PairedMean,
    compare_pair,
    estimate_mean,
    measure_noise,
)
from zoo.comparison.study_text import list_edges
from zoo.comparison.text import (
    capitalize,
    count_decimals,
    describe_conditions,
    format_estimate,
    format_measure,
    join_names,
)
from zoo.reporting.numbers import format_fixed
from zoo.reporting.tables import format_markdown
from zoo.run.conditions import Condition


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


PAGE = DOCS / "claims.md"
NO_EVIDENCE = "no evidence yet"
NOT_DECIDABLE = "not decidable here"
PAGE_VERDICTS = {"held": "held", "reversed": "not held", "undecided": "undecided"}
"""{verdict: what the page of a comparison calls it}"""
FLAT = 0.02
TITLE = "# Claims of papers"
ABOUT = f"""
Written by `python docs/build/pages.py` from `docs/claims.yaml` and the comparisons in
`docs/records`. Each comparison tunes every encoding anew in each study ([how](comparing.md));
nothing here comes from one setting for all encodings. Our models and tasks are far smaller than
those of the papers: a verdict is about the task and size in its row.

- *held*: the interval of the difference lies on the claimed side of 0, and reaches the paper's
  effect if that is in units of our metric;
- *smaller than the paper's*: the interval leaves out the paper's effect;
- *reversed*: the interval lies on the other side of 0;
- *undecided*: the interval holds 0, or there are fewer than {FEWEST} studies, or studies that do
  not differ at all, and so no interval;
- *{NOT_DECIDABLE}*: our task cannot show the paper's effect. Either the second encoding is so close
  to the bound of the metric that there is no room for it (a *ceiling*), or even {LOOKS[-1]} studies
  would miss it with a probability of more than {_percent(1 - POWER)}; the row then states their
  power, by the noise of the two variants or of the median pair, whichever is larger;
- *{NO_EVIDENCE}*: no study is recorded, or no model beats a trivial baseline, at the training size
  or under the condition of the claim. Where an image is larger than in training, the baselines
  include softmax regression on images *resized* to the training size.

Claims are judged after {", ".join(map(str, LOOKS[:-1]))} and {LOOKS[-1]} studies only. Intervals
hold with {_percent(LOOK_LEVEL)} at each of these looks, for all hypotheses of a comparison
together, so that all verdicts hold with {_percent(LEVEL)}. The page of a comparison ("every study")
has another rule: its intervals rest on the noise of all its variants, and hold with
{_percent(LEVEL)} where no further study is planned, so that they may be narrower. Where it comes to
another verdict, the table of hypotheses says so; what is said of papers rests on the verdicts here.
A difference is positive if it is on the claimed side.

All hypotheses of a comparison stand in its section below, whatever became of them. Some became
claims of papers only after a result was seen; their row says so.

"""


@dataclass(frozen=True)
class JudgedClaim:
    """The verdict on a claim, and what it rests on."""

    claim: PaperClaim
    verdict: str
    difference: str
    """With its interval, if it has one; empty without a study."""
    reason: str
    studies: int


def judge(claim: PaperClaim, evidence: Evidence) -> JudgedClaim:
    """Judge a claim by the recorded studies of its comparison."""
    comparison = evidence.read_comparison(claim.comparison)
    hypothesis = parse_hypothesis(claim.hypothesis)
    seen_late = ", a claim since its result was seen" if claim.seen else ""
    values = {} if comparison is None else collect_pair(comparison, hypothesis)
    shared = set.intersection(*(set(own) for own in values.values())) if values else set()
    if comparison is None or not shared:
        power = _describe_power(claim, evidence, None)
        verdict = NOT_DECIDABLE if power and power.is_hopeless else NO_EVIDENCE
        return JudgedClaim(claim, verdict, "", power.text if power else "", 0)
    if reason := _explain_winner(comparison, hypothesis):
        return JudgedClaim(claim, NO_EVIDENCE, "", reason + seen_late, len(shared))

    decimals = count_decimals(comparison)
    late = "" if is_predicted(comparison, hypothesis) else ", no prediction: written after a run"
    late += seen_late
    if len(shared) < FEWEST:
        sign = 1 if hypothesis.sign == ">" else -1
        one, other = (values[name] for name in (hypothesis.one, hypothesis.other))
        shown = [
            format_fixed(sign * (one[seed] - other[seed]), decimals, sign=True)
            for seed in sorted(shared)
        ]
        reason = f"{_count(len(shared), 'study', 'studies')}, no interval{late}"
        return JudgedClaim(claim, "undecided", ", ".join(shown), reason, len(shared))

    # later studies wait for the next look: each look has its own share of the false alarms
    look = max(one for one in LOOKS if one <= len(shared))
    kept = sorted(shared)[:look]
    seen = {name: {seed: own[seed] for seed in kept} for name, own in values.items()}
    pooled = ""
    if len({values[hypothesis.one][seed] - values[hypothesis.other][seed] for seed in kept}) == 1:
        # both at the bound of the metric, say: without a spread the interval would have no width
        seen |= _collect_others(comparison, hypothesis, kept)
        pooled = ", which do not differ: the interval is by the noise of all variants"
    has_metric = not hypothesis.metric or hypothesis.metric == comparison.measure.split("/")[-1]
    (decision,) = judge_claims(
        seen,
        [Claim(hypothesis.one, hypothesis.other, claim.margin)],
        better="high" if hypothesis.sign == ">" else "low",
        bounds=comparison.bounds if has_metric else (-inf, inf),
        family=count_family(claim, evidence),
        level=LOOK_LEVEL,
    )
    verdict, reason = str(decision.verdict), f"after {look} studies{pooled}{late}"
    estimate = decision.estimate
    if estimate is not None and estimate.low == estimate.high:
        shown = format_fixed(estimate.mean, decimals, sign=True)
        reason = f"{look} studies, which do not differ, so that their noise is unknown{late}"
        return JudgedClaim(claim, "undecided", shown, reason, look)
    ceiling = _explain_ceiling(claim, comparison, seen[hypothesis.other].values())
    if ceiling and verdict in ("undecided", "smaller than the paper's"):
        verdict, reason = NOT_DECIDABLE, f"{ceiling}; {reason}"
    elif verdict == "undecided":
        power = _describe_power(claim, evidence, comparison)
        if power and power.is_hopeless:
            verdict, reason = NOT_DECIDABLE, power.text + late
    shown_difference = "" if estimate is None else format_estimate(estimate, decimals, sign=True)
    return JudgedClaim(claim, verdict, shown_difference, reason, look)


def judge_hypothesis(text: str, name: str, evidence: Evidence) -> JudgedClaim:
    """Judge a hypothesis of a comparison as claims are judged, without the effect of a paper."""
    claim = PaperClaim(claim=text, paper="", effect="", comparison=name, hypothesis=text)
    return judge(claim, evidence)


def _explain_winner(comparison: Comparison, found: Hypothesis) -> str:
    """Return which baseline no model beats where a hypothesis is judged; empty without one."""
    condition, metric = find_subject(comparison, found)
    if name := find_winning_baseline(comparison):
        return f"no model beats the baseline: {name}"
    if metric != comparison.measure:
        return ""
    name = find_winning_baseline(comparison, condition)
    return f"no model beats the baseline at {condition.name}: {name}" if name else ""


def _explain_ceiling(claim: PaperClaim, comparison: Comparison, values: Iterable[float]) -> str:
    """Return why the metric has no room for the paper's effect; empty if it has.

    Args:
        claim: The claim; its hypothesis is about the compared metric, if it has a margin.
        comparison: Its comparison.
        values: The values of the variant that the claim calls worse.
    """
    hypothesis = parse_hypothesis(claim.hypothesis)
    low, high = comparison.bounds
    mean = fmean(values)
    room = high - mean if hypothesis.sign == ">" else mean - low
    if not claim.margin or room >= claim.margin:
        return ""
    decimals = count_decimals(comparison)
    return (
        f"ceiling: `{hypothesis.other}` has {format_fixed(mean, decimals)}, which leaves "
        f"{format_fixed(room, decimals)} of the paper's {claim.margin:g}"
    )


def is_predicted(comparison: Comparison, found: Hypothesis) -> bool:
    """Return whether a hypothesis was written before the first run of its comparison."""
    return any(
        one.text == found.text and not one.runs_ended and not one.withdrawn
        for one in comparison.hypotheses
    )


def count_family(claim: PaperClaim, evidence: Evidence) -> int:
    """Return how many hypotheses the intervals of a claim are corrected for.

    These are all hypotheses that were written for its comparison, whether they became claims or
    not: those of the record, or of the command if nothing is recorded.
    """
    comparison = evidence.read_comparison(claim.comparison)
    if comparison is None:
        written = evidence.comparisons[claim.comparison].hypotheses
    else:
        written = tuple(one.text for one in comparison.hypotheses)
    claimed = [one.hypothesis for one in evidence.claims if one.comparison == claim.comparison]
    return len({*written, *claimed, claim.hypothesis})


def collect_pair(comparison: Comparison, found: Hypothesis) -> dict[str, dict[int, float]]:
    """Return {variant: {seed: value}} of the two variants of a hypothesis; empty without values."""
    names = {one.name: one for one in comparison.variants}
    condition, metric = find_subject(comparison, found)
    values = {
        name: collect_values(names[name], condition, metric) for name in (found.one, found.other)
    }
    return values if all(values.values()) else {}


def _collect_others(
    comparison: Comparison, found: Hypothesis, seeds: Sequence[int]
) -> dict[str, dict[int, float]]:
    """Return {variant: {seed: value}} of the variants that a hypothesis does not name."""
    condition, metric = find_subject(comparison, found)
    others = {
        one.name: collect_values(one, condition, metric)
        for one in comparison.variants
        if one.name not in (found.one, found.other)
    }
    return {
        name: {seed: own[seed] for seed in seeds if seed in own} for name, own in others.items()
    }


def find_subject(comparison: Comparison, found: Hypothesis) -> tuple[Condition, str]:
    """Return the condition and the metric that a hypothesis is about."""
    metric = f"test/{found.metric}" if found.metric else comparison.measure
    if not found.condition:
        return comparison.trained, metric
    # nothing is measured under a condition that no cell has been tested under
    known = {one.name: one for one in comparison.conditions}
    return known.get(found.condition, Condition(found.condition, "size")), metric


@dataclass(frozen=True)
class PowerOfStudies:
    """Whether the studies up to the last look can find an effect."""

    needed: int | None
    """Studies that find it with a probability of 80 %; None if a thousand do not."""
    at_last: float
    """The probability that the last look finds it."""

    @property
    def is_hopeless(self) -> bool:
        """True if the last look would miss it too often."""
        return self.needed is None or self.needed > LOOKS[-1]

    @property
    def text(self) -> str:
        """The power in a sentence."""
        needed = "more than 1,000" if self.needed is None else f"{self.needed}"
        if self.is_hopeless:
            return (
                f"power of {LOOKS[-1]} studies {_percent(self.at_last)}; {_percent(POWER)} need "
                f"{needed}, by the noise of its studies"
            )
        return f"{needed} studies have a power of {_percent(POWER)}, by the noise of its studies"


def _describe_power(
    claim: PaperClaim, evidence: Evidence, comparison: Comparison | None
) -> PowerOfStudies | None:
    """Return the power for the margin of a claim; None without a margin or anything to go by."""
    if comparison is None or not claim.margin:
        return None
    deviation = _find_deviation(comparison, parse_hypothesis(claim.hypothesis))
    if deviation is None:
        return None

    family = count_family(claim, evidence)
    powers = (find_power(number, claim.margin, deviation, family) for number in range(FEWEST, 1001))
    needed = next((n for n, power in enumerate(powers, start=FEWEST) if power >= POWER), None)
    return PowerOfStudies(needed, find_power(LOOKS[-1], claim.margin, deviation, family))


def _find_deviation(comparison: Comparison, found: Hypothesis) -> float | None:
    """Return the standard deviation of differences of a pair over studies; None if unknown.

    Few studies estimate that of one pair badly, so it is at least that of the median pair.
    """
    condition, metric = find_subject(comparison, found)
    every = {one.name: collect_values(one, condition, metric) for one in comparison.variants}
    values = {name: own for name, own in every.items() if len(own) >= FEWEST}
    if not {found.one, found.other} <= {*values}:
        return None
    noise = measure_noise(values)
    deviations = {}
    for pair in combinations(values, 2):
        mean = compare_pair(values, Pair(*pair), noise)
        if isinstance(mean, PairedMean):
            deviations[frozenset(pair)] = mean.error * sqrt(mean.count)
    own = deviations.get(frozenset((found.one, found.other)))
    return None if own is None else max(own, median(deviations.values()))


def find_power(studies: int, effect: float, deviation: float, family: int) -> float:
    """Return the probability that a look finds an effect.

    Args:
        studies: The number of studies.
        effect: The true difference.
        deviation: The standard deviation of differences over studies.
        family: The number of hypotheses that intervals are corrected for.
    """
    if deviation == 0:
        return 1.0
    critical = stats.t.ppf(1 - (1 - LOOK_LEVEL) / (2 * family), studies - 1)
    shift = effect * sqrt(studies) / deviation
    return float(stats.nct.sf(critical, studies - 1, shift))


def write_claims_page(evidence: Evidence) -> str:
    """Return docs/claims.md: one row per claim, then the comparisons that judge them."""
    judged = [judge(claim, evidence) for claim in evidence.claims]
    head = ["claim", "paper", "its effect", "our task and size", "verdict", "difference"]
    head += ["rests on", "command", "cells"]
    rows = [_write_row(one, evidence) for one in judged]
    lines = [TITLE, ABOUT.rstrip("\n"), "", _count_verdicts(judged), ""]
    lines += [*_describe_hours(Path(evidence.records))]
    lines += [format_markdown(head, rows, head), "", "## Comparisons", ""]
    for name in evidence.comparisons:
        lines += _comparison_section(name, evidence)
    return "\n".join(lines).rstrip("\n") + "\n"


def _count_verdicts(judged: list[JudgedClaim]) -> str:
    counts: dict[str, int] = {}
    for one in judged:
        counts[one.verdict] = counts.get(one.verdict, 0) + 1
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"**{len(judged)} claims: {listed}.**"


def _describe_hours(records: Path) -> Iterator[str]:
    """Say how many cells are recorded, and how long they trained without waiting."""
    cells, hours = count_hours(records)
    if cells:
        yield (
            f"{cells} cells are recorded, {hours:.1f} core hours of training. A cell counts with "
            "the time in which a core worked for it, and an older one, whose file states only "
            "minutes, as the median of its variant, because a cell that runs beside other work "
            "also waits."
        )
        yield ""


def count_hours(records: Path) -> tuple[int, float]:
    """Return how many recorded cells have trained, and for how many core hours.

    A cell counts with the time in which cores worked for it. Where it does not state that, it
    counts as the median of such cells of its variant in its comparison.

    Args:
        records: The folder of the recorded comparisons.
    """
    worked: list[float] = []
    waited: dict[tuple[Path, str], list[float]] = {}
    cells = (
        (path.parent, cell)
        for path in sorted(records.rglob(CELLS_FILE))
        for cell in read_cells(path.parent).values()
    )
    for folder, cell in cells:
        if cell.processor_minutes is not None:
            worked.append(cell.processor_minutes)
        elif cell.minutes is not None:
            waited.setdefault((folder, cell.variant), []).append(cell.minutes)
    groups = waited.values()
    counted = sum(worked) + sum(len(group) * median(group) for group in groups)
    return len(worked) + sum(map(len, groups)), counted / 60


def _write_row(one: JudgedClaim, evidence: Evidence) -> list[str]:
    name = one.claim.comparison
    comparison = evidence.read_comparison(name)
    size = "" if comparison is None else f", {_describe_size(comparison)}"
    recorded = f"[cells](records/{name}/results.html)" if comparison else "none"
    return [
        f"{one.claim.claim} (`{one.claim.hypothesis}`)",
        read_papers()[one.claim.paper],
        one.claim.effect,
        f"{evidence.comparisons[name].task}{size}",
        one.verdict,
        one.difference or "none",
        one.reason or "no study",
        f"[command](#{name})",
        recorded,
    ]


def _describe_size(comparison: Comparison) -> str:
    model = comparison.base["model"]
    layers = _count(model["depth"], "layer", "layers")
    steps = max((cell.steps or 0 for cell in comparison.cells), default=0)
    return f"{layers} of width {model['dim']}" + (f", {steps:,} steps" if steps else "")


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def count_studies(comparison: Comparison) -> int:
    """Return how many studies have a tested trial of each variant that a race has not stopped."""
    race = comparison.race
    running = [
        one for one in comparison.variants if race is None or race.find_stopped(one.name) is None
    ]
    return min(len(collect_values(one, comparison.trained, comparison.measure)) for one in running)


def _tell_stopped(comparison: Comparison) -> str:
    """Say which variants a race stopped, and after how many studies."""
    race = comparison.race
    stopped = () if race is None else race.stopped
    told = [f"`{one.variant}` after {_count(one.look, 'study', 'studies')}" for one in stopped]
    return f" The race stopped {join_names(told, len(told))}." if told else ""


def _comparison_section(name: str, evidence: Evidence) -> Iterator[str]:
    """Yield set-up, command and values of a comparison, in the order of its command."""
    declared, comparison = evidence.comparisons[name], evidence.read_comparison(name)
    # the heading is what rows link to
    yield from (f"### {name}", "", f"{capitalize(declared.task)}.", "")
    yield from ("```sh", f"{declared.command} to=docs/records/{name}", "```", "")
    if declared.seen:
        yield from (f"Seen while the size was chosen: {declared.seen}.", "")
    if comparison is None:
        yield from ("No study is recorded.", "")
        return
    done = count_studies(comparison)
    planned = len(comparison.seeds)
    if not any(cell.measurements for cell in comparison.cells):
        yield from (f"Planned: {planned} studies. None has ended.", "")
        return
    recorded = f"Recorded: {done} of {planned} studies.{_tell_stopped(comparison)}"
    yield from (f"{describe_training(comparison)} {recorded}", "")
    for flaw in comparison.findings:
        yield from (f"**{capitalize(flaw.kind)}**: {flaw.text}.", "")
    for edge in list_edges(comparison):
        yield from (f"**At the edge of a range**: {edge}.", "")
    if steep := list_steep(comparison):
        names = join_names([f"`{name}`" for name in steep], len(steep))
        yield from (
            f"**Not trained to the end**: the validation metric of {names} changed by more than "
            f"{_percent(FLAT)} between the last two recorded validations, relative to its largest "
            "value or to the loss of a baseline, whichever is larger.",
            "",
        )
    figure = locate_figure(name).relative_to(DOCS).as_posix()
    yield from (f"![{capitalize(declared.task)}]({figure})", "")
    yield from (_value_table(comparison), "")
    interval = "means with 95 % intervals" if done >= FEWEST else "values without an interval"
    yield (
        f"{capitalize(format_measure(comparison))}: {interval}, in the order of the command, then "
        f"trivial baselines on the same samples. [Every study](records/{name}/results.html); its "
        f"cells are in `docs/records/{name}/cells.jsonl`."
    )
    yield ""
    if comparison.hypotheses:
        yield from (_hypothesis_table(name, comparison, evidence), "")


def describe_training(comparison: Comparison) -> str:
    """Say what was trained, for how long, and what it was evaluated under."""
    model, trainer = comparison.base["model"], comparison.base["trainer"]
    layers = "1 layer" if model["depth"] == 1 else f"{model['depth']} layers"
    sizes = f"{layers} of width {model['dim']} with {model['heads']} heads"
    cells = [cell for cell in comparison.cells if cell.minutes is not None]
    steps = sorted({cell.steps for cell in cells if cell.steps})
    lengths = " to ".join(f"{one:,}" for one in dict.fromkeys((steps[0], steps[-1])))
    batch = comparison.base["data"]["batch_size"] * trainer["accumulate_grad_batches"]
    minutes = median(cell.minutes or 0 for cell in cells)
    others = comparison.conditions[1:]
    evaluated = f"; evaluated also {describe_conditions(others)}" if others else ""
    return (
        f"Recipe `{comparison.recipe}`: {sizes}, {lengths} steps of {batch} samples, trained "
        f"{describe_conditions([comparison.trained])}{evaluated}. {len(comparison.variants)} "
        f"variants, {len(comparison.seeds)} seeds: {len(cells)} runs with a median of "
        f"{minutes:.1f} minutes, {comparison.machine['jobs']} at a time on "
        f"{comparison.machine['cores']} cores."
    )


def list_steep(comparison: Comparison) -> list[str]:
    """Return the variants whose curves are not flat at the end in most studies."""
    found = []
    for variant in comparison.variants:
        tested = [cell for cell in variant.cells if len(cell.curve) > 1 and cell.measurements]
        steep = [cell for cell in tested if not _is_flat(cell)]
        if 2 * len(steep) > len(tested):
            found.append(variant.name)
    return found


def _is_flat(cell: ComparisonCell) -> bool:
    """Return whether the last two validations that are kept hardly differ."""
    values = [value for _, value in cell.curve]
    finite = [value for value in values if value is not None]
    if len(finite) < len(values):
        return False
    sizes = [*map(abs, finite)]
    if finite[0] > finite[-1]:
        # a loss, which may begin below that of a guess
        sizes += cell.baselines.get("test/loss", {}).values()
    return abs(finite[-1] - finite[-2]) <= FLAT * max(sizes)


def _value_table(comparison: Comparison) -> str:
    decimals = count_decimals(comparison)
    titles = [capitalize(one.describe()) for one in comparison.conditions]
    rows = []
    for variant in comparison.variants:
        row = [variant.name]
        for condition in comparison.conditions:
            own = collect_values(variant, condition, comparison.measure)
            row.append(_format_values(own, comparison, decimals))
        rows.append(row)
    baselines = [average_baselines(comparison, one) for one in comparison.conditions]
    for name in dict.fromkeys(name for own in baselines for name in own):
        shown = [format_fixed(own[name], decimals) if name in own else "" for own in baselines]
        rows.append([f"*{name}*", *shown])
    return format_markdown(["encoding", *titles], rows, ["encoding"])


def _hypothesis_table(name: str, comparison: Comparison, evidence: Evidence) -> str:
    """Return the verdict on every hypothesis of a comparison, whether it became a claim or not."""
    claims = {one.hypothesis: one for one in evidence.claims if one.comparison == name}
    on_page = {one.hypothesis.text: one.verdict for one in judge_hypotheses(comparison)}
    rows = []
    for one in comparison.hypotheses:
        judged = judge_hypothesis(one.text, name, evidence)
        reason, other = judged.reason, on_page[one.text]
        if other != PAGE_VERDICTS.get(judged.verdict, other):
            reason = f"{reason}; *{other}* by the rule of [its page](records/{name}/results.html)"
        paper = read_papers()[claims[one.text].paper] if one.text in claims else "none"
        rows.append([f"`{one.text}`", judged.verdict, judged.difference or "none", reason, paper])
    head = ["hypothesis", "verdict", "difference", "rests on", "claim of"]
    return format_markdown(head, rows, head)


def _format_values(own: dict[int, float], comparison: Comparison, decimals: int) -> str:
    if not own:
        return "none yet"
    if len(own) < FEWEST:
        return ", ".join(format_fixed(value, decimals) for value in own.values())
    found = estimate_mean(tuple(own.values()), comparison.bounds)
    return format_estimate(found, decimals)


def write_pages(evidence: Evidence) -> dict[Path, str]:
    """Return {path: text} of the page of claims."""
    return {PAGE: write_claims_page(evidence)}
