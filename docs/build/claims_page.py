"""The page of claims (docs/claims.md): what papers claim, and what comparisons in studies show.

`python docs/build/pages.py` writes it from docs/claims.yaml and docs/records. A claim is judged
after 3, 5, 8, 12 and 18 studies, as racing does, so that it may be looked at after every block.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from evidence_data import DOCS, DeclaredComparison, Evidence, PaperClaim, read_papers
from record_figures import locate_figure

from zoo.comparison.claim_report import build_room_table, explain_room
from zoo.comparison.claims import (
    AFTER_RESULT,
    JudgedClaim,
    count_family,
    count_studies,
    judge_claim,
    percent,
)
from zoo.comparison.looks import FIVE_LOOKS, LOOKS, plan_looks
from zoo.comparison.number_text import count_decimals, format_mean
from zoo.comparison.ranking import average_baselines, collect_values, estimate_variant
from zoo.comparison.record_file import CELLS_FILE, read_cells
from zoo.comparison.results import Comparison, Variant
from zoo.comparison.solving import SolvedCount
from zoo.comparison.statistics import FEWEST, LEVEL, POWER
from zoo.comparison.study_text import list_edges
from zoo.comparison.text import capitalize, describe_conditions, format_measure, join_names
from zoo.comparison.training_end import FLAT, describe_steep
from zoo.reporting.numbers import format_fixed
from zoo.reporting.tables import format_markdown

PAGE = DOCS / "claims.md"
NO_EVIDENCE, CANNOT_ASK = "no evidence yet", "our task cannot ask this"
TITLE = "# Claims of papers"
INTRODUCTION = """
What papers claim of their encodings, asked with our models and tasks, which are far smaller than
theirs: a verdict is about the task and size in its row. Each comparison tunes every encoding anew
in each study ([how](comparing.md)). [What the verdicts mean](#how-verdicts-are-reached) is below;
`zoo compare claims DIR` prints the same of a comparison of yours.
"""
UNASKED = "Claims that are not asked yet, or that our tasks cannot ask"
ABOUT = f"""## How verdicts are reached

**Every hypothesis that was written before the first cell has a row**, whatever became of it. A row
states when it was written, the commit of the plan and that of the first cell. Pairs that a paper
names and that were not written down are asked where cells exist: *{AFTER_RESULT}*, which is no
prediction. A hypothesis that was ascribed to its paper only then says so. Comparisons that were
replaced stay listed. A row can be removed only with a reason in `docs/claims.yaml`.

- *held*: the interval of the difference lies on the claimed side of 0, and reaches the paper's
  effect if that is in units of our metric. A claim about another condition than the trained one,
  such as larger images, needs two differences on its side: that under the condition, and that of
  the drops from the trained condition, study by study;
- *reversed*: both lie on the other side;
- *smaller than claimed*: the interval leaves out the paper's effect, and there was room for it;
- *equal within*: two one-sided tests exclude a difference as large as a margin that was written,
  with its reason, before the first cell (`A = B within 0.01 because ...`);
- *undecided*: none of these, or there are fewer than {FEWEST} studies, or studies that do not
  differ at all, and so no interval. The row states the difference that could have been found;
- *our task cannot ask this*: the second encoding leaves less room to the bound of the metric than
  the paper's effect, at the upper end of what the interval of its mean allows;
- *not decidable here*: even {LOOKS[-1]} studies would miss the paper's effect with a probability of
  more than {percent(1 - POWER)}; the row then states their power;
- *not trained to the end*: the validation metric of some encoding of the comparison changed by
  more than {percent(FLAT)} between the last two recorded validations, relative to its largest value
  or to the loss of a baseline, whichever is larger. Such a comparison gives no verdict;
- *{NO_EVIDENCE}*: no study is recorded, or a trivial baseline is beaten by no model, or by neither
  of the two, at the training size or under the condition of the claim. Where an image is larger
  than in training, the baselines include softmax regression on images *resized* to the training
  size.

On tasks that are solved or not, a verdict of absence states the failure rate that so many studies
exclude: of three clean ones {format_fixed(SolvedCount(3, 3).excluded_rate, 2)}, of fourteen
{format_fixed(SolvedCount(14, 14).excluded_rate, 2)}.

Claims are judged after {", ".join(map(str, LOOKS[:-1]))} and {LOOKS[-1]} studies only, as far as
they were planned. The looks share the {percent(1 - LEVEL)} of false alarms of the hypotheses that
were written before the first cell by a rule that the plan states: of three and five studies the
first has {100 * (1 - plan_looks((5,))[3]):.1f} %, the last {100 * (1 - plan_looks((5,))[5]):.1f} %.
Plans of version 0.3.0 state none; each look has {100 * (1 - FIVE_LOOKS[3]):.0f} % there, as it was
planned. A row that was written later is corrected for itself and all others. Intervals rest on the
noise of all encodings of the comparison. A difference is positive if it is on the claimed side.

What an encoding is and what its default coordinates are stand in separate rows: *at their own
coordinates*, and *at equal coordinates*, where both are interpolated into the trained range.

`python docs/build/pages.py` writes this page from `docs/claims.yaml` and the comparisons in
`docs/records`.
"""


def judge(claim: PaperClaim, evidence: Evidence) -> JudgedClaim:
    """Judge a claim by the recorded studies of its comparison."""
    comparison = evidence.read_comparison(claim.comparison)
    return judge_claim(
        claim.hypothesis,
        comparison,
        effect=claim.margin,
        family=1 if comparison is None else count_rows(claim, comparison, evidence),
        note="ascribed to the paper since its result was seen" if claim.seen else "",
    )


def judge_hypothesis(text: str, name: str, evidence: Evidence) -> JudgedClaim:
    """Judge a hypothesis of a comparison as its row does."""
    claim = next(one for one in evidence.claims if (one.comparison, one.hypothesis) == (name, text))
    return judge(claim, evidence)


def count_rows(claim: PaperClaim, comparison: Comparison, evidence: Evidence) -> int:
    """Return how many hypotheses the interval of a claim is corrected for.

    These are all that were written before the first cell, whether they have a row or not, and for a
    row that was written later all rows too.
    """
    predicted = [one.text for one in comparison.hypotheses if not one.runs_ended]
    if claim.hypothesis in predicted:
        return count_family(comparison, claim.hypothesis)
    rows = [one.hypothesis for one in evidence.claims if one.comparison == claim.comparison]
    return len({*rows, *(one.text for one in comparison.hypotheses)})


def write_claims_page(evidence: Evidence) -> str:
    """Return docs/claims.md: one row per claim, then the comparisons that judge them."""
    judged = [judge(claim, evidence) for claim in evidence.claims]
    pairs = zip(evidence.claims, judged, strict=True)
    head = ["claim", "verdict", "difference", "rests on", "paper", "its effect"]
    head += ["our task and size", "written", "command", "cells"]
    rows = {True: list[list[str]](), False: list[list[str]]()}
    for claim, one in pairs:
        is_asked = one.verdict not in (NO_EVIDENCE, CANNOT_ASK)
        rows[is_asked].append(_write_row(claim, one, evidence))
    lines = [TITLE, INTRODUCTION, _count_verdicts(judged), ""]
    lines += [format_markdown(head, rows[True], head), ""]
    lines += ["<details markdown>", f"<summary>{UNASKED}: {len(rows[False])}</summary>", ""]
    lines += [format_markdown(head, rows[False], head), "", "</details>", ""]
    lines += [*_describe_hours(Path(evidence.records)), *_list_changes(judged, evidence)]
    lines += [ABOUT.rstrip("\n"), "", "## Comparisons", ""]
    for name in evidence.comparisons:
        lines += _comparison_section(name, evidence)
    return "\n".join(lines).rstrip("\n") + "\n"


def _list_changes(judged: list[JudgedClaim], evidence: Evidence) -> Iterator[str]:
    """Yield the verdicts that differ from those of an earlier page, and why."""
    if evidence.earlier is None:
        return
    head = ["comparison", "hypothesis", "verdict before", "verdict now", "why"]
    rows = []
    for claim, one in zip(evidence.claims, judged, strict=True):
        before = evidence.earlier.verdicts.get(claim.comparison, {}).get(claim.hypothesis)
        if before is not None and before != one.verdict:
            shown = [f"[{claim.comparison}](#{claim.comparison})", f"`{claim.hypothesis}`"]
            rows.append([*shown, before, one.verdict, one.explanation])
    yield from ("## Verdicts that changed", "")
    yield (
        f"All records were judged anew by the rules above; the verdicts before are those of this "
        f"page at commit `{evidence.earlier.commit}`. No cell was trained for it."
    )
    yield from ("", format_markdown(head, rows, head), "")


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


def _write_row(claim: PaperClaim, one: JudgedClaim, evidence: Evidence) -> list[str]:
    name = claim.comparison
    comparison = evidence.read_comparison(name)
    size = "" if comparison is None else f", {_describe_size(comparison)}"
    recorded = f"[cells](records/{name}/results.html)" if comparison else "none"
    effect = claim.effect
    if claim.paper and claim.no_margin:
        effect = f"{effect}; no margin: {claim.no_margin}"
    return [
        f"{claim.claim} (`{claim.hypothesis}`)",
        one.verdict,
        one.difference or "none",
        one.explanation or "no study",
        read_papers()[claim.paper] if claim.paper else "ours",
        effect,
        f"{evidence.comparisons[name].task}{size}",
        _describe_date(one, evidence.comparisons[name], comparison),
        f"[command](#{name})",
        recorded,
    ]


def _describe_date(
    judged: JudgedClaim, declared: DeclaredComparison, comparison: Comparison | None
) -> str:
    """Return when a hypothesis was written, and what was committed then."""
    if comparison is None:
        return "before any cell"
    first = f"first cell `{declared.first_cell}`" if declared.first_cell else "no cell yet"
    commits = f"plan `{declared.plan}`, {first}"
    if judged.recorded is None or judged.recorded.runs_ended:
        return f"{AFTER_RESULT} ({commits})"
    return f"{judged.recorded.written}, {commits}"


def _describe_size(comparison: Comparison) -> str:
    model = comparison.base["model"]
    layers = _count(model["depth"], "layer", "layers")
    steps = max((cell.steps or 0 for cell in comparison.cells), default=0)
    return f"{layers} of width {model['dim']}" + (f", {steps:,} steps" if steps else "")


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


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
    if declared.replaced_by:
        other = f"[{declared.replaced_by}](#{declared.replaced_by})"
        yield from (f"**Replaced** by {other}: {declared.why_replaced}.", "")
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
    if steep := describe_steep(comparison):
        yield from (f"**{steep}**", "")
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
    claims = [judge(one, evidence) for one in evidence.claims if one.comparison == name]
    if claims:
        table = build_room_table(claims)
        yield from (format_markdown(table.heads, table.rows, table.left), "")
        yield from (explain_room(), "")


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


def _value_table(comparison: Comparison) -> str:
    decimals = count_decimals(comparison)
    titles = [capitalize(one.describe()) for one in comparison.conditions]
    rows = []
    for variant in comparison.variants:
        row = [variant.name]
        for condition in comparison.conditions:
            own = collect_values(variant, condition, comparison.measure)
            row.append(_format_values(own, variant, comparison, decimals))
        rows.append(row)
    baselines = [average_baselines(comparison, one) for one in comparison.conditions]
    for name in dict.fromkeys(name for own in baselines for name in own):
        shown = [format_fixed(own[name], decimals) if name in own else "" for own in baselines]
        rows.append([f"*{name}*", *shown])
    return format_markdown(["encoding", *titles], rows, ["encoding"])


def _format_values(
    own: dict[int, float], variant: Variant, comparison: Comparison, decimals: int
) -> str:
    mean, solved = estimate_variant(comparison, variant, own)
    if mean is None:
        return "none yet"
    if len(own) < FEWEST:
        return ", ".join(format_fixed(value, decimals) for value in own.values())
    return format_mean(mean, solved, decimals)


def write_pages(evidence: Evidence) -> dict[Path, str]:
    """Return {path: text} of the page of claims."""
    return {PAGE: write_claims_page(evidence)}
