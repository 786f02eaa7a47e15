"""The page of claims (docs/claims.md): what papers claim, and what comparisons in studies show.

`python docs/build/pages.py` writes it from docs/claims.yaml and docs/records. A claim is judged
after 3, 5, 8, 12 and 18 studies, as racing does, so that it may be looked at after every block.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from evidence_data import DOCS, Evidence, PaperClaim, read_papers
from record_figures import locate_figure

from zoo.comparison.claims import FLAT, JudgedClaim, count_studies, judge_claim, list_steep, percent
from zoo.comparison.hypotheses import judge_hypotheses
from zoo.comparison.looks import FIVE_LOOKS, LOOKS, plan_looks
from zoo.comparison.ranking import average_baselines, collect_values
from zoo.comparison.record_file import CELLS_FILE, read_cells
from zoo.comparison.results import Comparison
from zoo.comparison.statistics import FEWEST, LEVEL, POWER, estimate_mean
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

PAGE = DOCS / "claims.md"
NO_EVIDENCE = "no evidence yet"
PAGE_VERDICTS = {"held": "held", "reversed": "not held", "undecided": "undecided"}
"""{verdict: what the page of a comparison calls it}"""
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
- *not decidable here*: our task cannot show the paper's effect. Either the second encoding is so
  close to the bound of the metric that there is no room for it (a *ceiling*), or even {LOOKS[-1]}
  studies would miss it with a probability of more than {percent(1 - POWER)}; the row then states
  their power, by the noise of the two variants or of the median pair, whichever is larger;
- *{NO_EVIDENCE}*: no study is recorded, or no model beats a trivial baseline, at the training size
  or under the condition of the claim. Where an image is larger than in training, the baselines
  include softmax regression on images *resized* to the training size.

Claims are judged after {", ".join(map(str, LOOKS[:-1]))} and {LOOKS[-1]} studies only, as far as
they were planned. The looks share the {percent(1 - LEVEL)} of false alarms of all hypotheses of a
comparison by a rule that its plan states: of three and five studies the first has
{100 * (1 - plan_looks((5,))[3]):.1f} %, the last {100 * (1 - plan_looks((5,))[5]):.1f} %. Plans of
version 0.3.0 state none; each look has {100 * (1 - FIVE_LOOKS[3]):.0f} % there, as it was planned.
The page of a comparison ("every study") has another rule: its intervals rest on the noise of all
its variants, and hold with {percent(LEVEL)} where no further study is planned, so that they may be
narrower. Where it comes to
another verdict, the table of hypotheses says so; what is said of papers rests on the verdicts here.
A difference is positive if it is on the claimed side.

All hypotheses of a comparison stand in its section below, whatever became of them. Some became
claims of papers only after a result was seen; their row says so.

"""


def judge(claim: PaperClaim, evidence: Evidence) -> JudgedClaim:
    """Judge a claim of a paper by the recorded studies of its comparison."""
    return judge_claim(
        claim.hypothesis,
        evidence.read_comparison(claim.comparison),
        margin=claim.margin,
        family=count_family(claim, evidence),
        note=", a claim since its result was seen" if claim.seen else "",
    )


def judge_hypothesis(text: str, name: str, evidence: Evidence) -> JudgedClaim:
    """Judge a hypothesis of a comparison as claims are judged, without the effect of a paper."""
    claim = PaperClaim(claim=text, paper="", effect="", comparison=name, hypothesis=text)
    return judge(claim, evidence)


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


def write_claims_page(evidence: Evidence) -> str:
    """Return docs/claims.md: one row per claim, then the comparisons that judge them."""
    judged = [judge(claim, evidence) for claim in evidence.claims]
    pairs = zip(evidence.claims, judged, strict=True)
    head = ["claim", "paper", "its effect", "our task and size", "verdict", "difference"]
    head += ["rests on", "command", "cells"]
    rows = [_write_row(claim, one, evidence) for claim, one in pairs]
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


def _write_row(claim: PaperClaim, one: JudgedClaim, evidence: Evidence) -> list[str]:
    name = claim.comparison
    comparison = evidence.read_comparison(name)
    size = "" if comparison is None else f", {_describe_size(comparison)}"
    recorded = f"[cells](records/{name}/results.html)" if comparison else "none"
    return [
        f"{claim.claim} (`{claim.hypothesis}`)",
        read_papers()[claim.paper],
        claim.effect,
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
            f"{percent(FLAT)} between the last two recorded validations, relative to its largest "
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
