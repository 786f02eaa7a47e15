"""The guide "Which encoding should I take?" (docs/choose.md), and the results of the README.

`python docs/pages.py` writes both from docs/claims.yaml, docs/records, docs/speed and the table of
equipped models. Only comparisons in studies answer a question.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import equip_page
from claims_page import NO_EVIDENCE, count_studies
from evidence_data import DOCS, Convention, Evidence, Need, Source
from quoted_numbers import update_numbers
from recipe_heads import read_head

from zoo.benchmark.result import BenchResult
from zoo.comparison.ranking import average_baselines, find_winning_baseline, rank_variants
from zoo.comparison.results import Comparison
from zoo.comparison.statistics import FEWEST
from zoo.comparison.text import count_decimals, format_estimate, format_measure
from zoo.config import recipe_files
from zoo.reporting.numbers import format_fixed
from zoo.reporting.tables import format_markdown

PAGE = DOCS / "choose.md"
README = DOCS.parent / "README.md"
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->\n"
MOST_TAKEN = 3
MOST_ROWS = 8
NOT_MEASURED = "not measured"
CONVENTION_KEYS = ("coordinates", "model.scale_embeddings", "optim.encoding_lr")
ABOUT = """# Which encoding should I take?

Written by `python docs/pages.py` from comparisons that tune every encoding in each study (the
files in `docs/records`), and from the recorded [speed](speed.md) and [equipped models](equip.md).
Where fewer than three studies are recorded, or no model beats the trivial baseline, there is no
answer yet.

"""
TAKE = """An encoding is named if it has the best mean, or if the interval of its difference to the
best holds 0: at most three, with 95 % intervals. [The claims of papers](claims.md) have the set-up
and all values.

## What it costs, and where it works

Training steps and memory are relative to `rope`, steps of images relative to `none`; decoding is
one token after 4,096 others with a cache. *Existing models* counts the kinds of models in
[the table](equip.md) that the encoding fits.

"""
RESULTS = """From tuned studies, with 95 % intervals:
[which encoding should I take?](docs/choose.md), [claims of papers](docs/claims.md).

"""
DEFAULTS = """
## What you measured was a default

Before you compare encodings, know what their conventions are worth. Each row changes one
convention of one encoding, and nothing else but what it says. A comparison at one default may rank
defaults, not encodings. Single runs have no interval.

"""


def write_guide(evidence: Evidence) -> str:
    """Return docs/choose.md."""
    rows = []
    for need in evidence.needs:
        source = choose_source(need, evidence)
        details = f"[set-up](claims.md#{source.comparison})"
        rows.append([need.need, *_answer(source, evidence), details])
    head = ["what you need", "take", "studies", "measured by", "details"]
    lines = [ABOUT + format_markdown(head, rows, head), "", TAKE + _cost_table(evidence)]
    lines += [DEFAULTS + _convention_table(evidence.conventions), "", _judge_axes(evidence)]
    return "\n".join(lines) + "\n"


def choose_source(need: Need, evidence: Evidence) -> Source:
    """Return the first source of an answer that has one; the very first if none has."""
    for source in need.sources:
        comparison = evidence.read_comparison(source.comparison)
        if comparison is None or count_studies(comparison) < FEWEST:
            continue
        if not find_winning_baseline(comparison):
            return source
    return need.sources[0]


def _answer(source: Source, evidence: Evidence) -> list[str]:
    """Return what to take, how many studies say so, and by which number."""
    comparison = evidence.read_comparison(source.comparison)
    task = evidence.comparisons[source.comparison].task
    if comparison is None:
        return [NO_EVIDENCE, "0", task]
    done = count_studies(comparison)
    where = f", {source.condition}" if source.condition else ""
    measured = f"{task}: {format_measure(comparison)}{where}"
    studies = f"{done} of {len(comparison.seeds)}"
    if done < FEWEST:
        return [NO_EVIDENCE, studies, measured]
    if baseline := find_winning_baseline(comparison):
        return [f"{NO_EVIDENCE}: no model beats {baseline}", studies, measured]
    return [", ".join(list_taken(comparison, source.condition)), studies, measured]


def list_taken(comparison: Comparison, condition: str) -> list[str]:
    """Return the encodings that are or may be the best, with their means and intervals."""
    found = comparison.find_condition(condition) if condition else comparison.trained
    decimals = count_decimals(comparison)
    return [
        f"`{one.variant.name}` {format_estimate(one.mean, decimals)}"
        for one in rank_variants(comparison, found)
        if one.verdict in ("best", "possible") and one.mean is not None
    ][:MOST_TAKEN]


def _cost_table(evidence: Evidence) -> str:
    """Return what each encoding costs that some speed table has, and where it works."""
    text, images = (_read_ratios(name) for name in ("lm_small", "vit_s"))
    memory, decoding = (_read_ratios(f"lm_small_{name}") for name in ("memory", "decode"))
    page = equip_page.PAGE.read_text(encoding="utf-8")
    families = equip_page.read_answers(equip_page.read_table(page))
    rows = []
    for name in sorted({*text, *images}):
        answers = [column.get(name) for column in families.values()]
        # a chain such as kerple+dape has no row of its own there
        fits = sum(answer in ("yes", "index") for answer in answers)
        known = any(answer is not None for answer in answers)
        row = [found.get(name, NOT_MEASURED) for found in (text, images, memory, decoding)]
        rows.append([f"`{name}`", *row, f"{fits} of {len(answers)}" if known else "see its parts"])
    head = ["encoding", "step, text", "step, images", "memory", "decoding", "existing models"]
    return format_markdown(head, rows, head[:1])


def _read_ratios(name: str) -> dict[str, str]:
    """Return {encoding: ratio to the reference} of a table of speed, without other libraries."""
    result = BenchResult.read(DOCS / "speed" / f"{name}.json")
    return {
        row.name: f"{row.ratio:.2f}"
        for row in result.rows
        if row.ratio is not None and not row.library
    }


def _convention_table(conventions: tuple[Convention, ...]) -> str:
    rows = [
        [one.convention, one.what, one.one, _quote(one.before), one.other, _quote(one.after)]
        for one in conventions
    ]
    head = ["convention", "measured", "before", "value before", "after", "value after"]
    return format_markdown(head, rows, head)


def _quote(mark: str) -> str:
    """Return a recorded number, with the mark that looks it up; a recipe's own has none."""
    source, _, query = mark.partition(": ")
    if source == "recipe":
        name, _, metric = query.partition(" ")
        number = read_head(recipe_files()[name])["number"]
        return number.partition(f"{metric} ")[2].partition(",")[0]
    return update_numbers(f"0.0000<!-- {mark} -->")


def _judge_axes(evidence: Evidence) -> str:
    """Name the recorded comparisons that vary a convention along with the encodings."""
    found = []
    for name in evidence.comparisons:
        comparison = evidence.read_comparison(name)
        keys = [] if comparison is None else [axis.key for axis in comparison.axes]
        if any(key.endswith(CONVENTION_KEYS) for key in keys):
            found.append(f"[{name}](claims.md#{name})")
    if not found:
        return f"Conventions as an axis of tuned studies, of several encodings: {NO_EVIDENCE}."
    return f"Conventions are an axis of these comparisons in studies: {', '.join(found)}."


def write_results(evidence: Evidence) -> str:
    """Return the results table of the README: one row per need."""
    assert len(evidence.needs) <= MOST_ROWS, "the README has eight rows at most"
    rows = []
    for need in evidence.needs:
        source = choose_source(need, evidence)
        comparison = evidence.read_comparison(source.comparison)
        found, studies, measured = _answer(source, evidence)
        rows.append([need.need, measured, found, _list_baselines(comparison), studies])
    head = ["what you need", "measured by", "best encodings", "trivial baseline", "studies"]
    return RESULTS + format_markdown(head, rows, head) + "\n"


def _list_baselines(comparison: Comparison | None) -> str:
    """Return the baselines at the training size, of the metric that is compared."""
    if comparison is None:
        return NO_EVIDENCE
    decimals = count_decimals(comparison)
    found: Mapping[str, float] = average_baselines(comparison)
    texts = [f"{name} {format_fixed(value, decimals)}" for name, value in found.items()]
    return ", ".join(texts) or NO_EVIDENCE


def replace_results(readme: str, evidence: Evidence) -> str:
    """Return the README with its results as the records have them."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md: no {BEGIN.strip()} ... {END.strip()}")
    return f"{before}{begin}\n{write_results(evidence)}\n{end}{after}"


def write_pages(evidence: Evidence) -> dict[Path, str]:
    """Return {path: text} of the guide."""
    return {PAGE: write_guide(evidence)}
