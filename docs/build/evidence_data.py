"""What docs/claims.yaml declares: comparisons, claims of papers, needs and conventions.

Everything is checked when it is read: an unknown key, paper, comparison or condition is refused by
name. Numbers are not in that file; they come from the comparisons in docs/records.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

import zoo
from zoo.citations import read_citations
from zoo.cli.compare import parse_words
from zoo.comparison.condition_baselines import add_baselines
from zoo.comparison.hypotheses import parse_hypothesis
from zoo.comparison.outputs import read_comparison
from zoo.comparison.plan import PLAN
from zoo.comparison.results import Comparison, find_direction
from zoo.options.validation import read_data

DOCS = Path(__file__).parents[1]
DECLARED = DOCS / "claims.yaml"
RECORDS = DOCS / "records"
PAPERS = Path(zoo.__file__).parent / "encodings" / "references.bib"
SPEEDS = ("lm_small", "vit_s")
COMMAND_WORDS = 3
"""Words of a command before its options: zoo compare RECIPE."""


@dataclass(frozen=True, kw_only=True)
class DeclaredComparison:
    """A comparison in studies, recorded in docs/records or to be recorded there.

    Attributes:
        task: What is learned, in a few words.
        command: The command that starts or continues it, without its folder.
        seen: What was seen while its size was chosen, on seeds that are not used again.
        plan: The commit of its plan and hypotheses; empty if nothing is recorded.
        first_cell: The commit of its first cell.
        replaced_by: The comparison that asks the same in its place; both stay listed.
        why_replaced: Why it was replaced.
    """

    task: str
    command: str
    seen: str = ""
    plan: str = ""
    first_cell: str = ""
    replaced_by: str = ""
    why_replaced: str = ""

    @property
    def hypotheses(self) -> tuple[str, ...]:
        """The hypotheses that the command writes down before the first run."""
        words = shlex.split(self.command)[COMMAND_WORDS:]
        return tuple(parse_words(words).get("hypotheses") or ())


@dataclass(frozen=True, kw_only=True)
class PaperClaim:
    """A claim of a paper, or a hypothesis of our own.

    Attributes:
        claim: The claim in a sentence.
        paper: The key of the paper in zoo/encodings/references.bib; empty if it is our own.
        effect: What the paper reports, or "not quantified".
        comparison: The name of the comparison that judges it.
        hypothesis: The claim as `zoo compare` takes it; its first variant is the better one.
        margin: The paper's effect in units of our metric; 0 if it is left out.
        no_margin: Why the margin is left out; only the sign is judged then.
        seen: True if it was ascribed to the paper after its result was seen.
    """

    claim: str
    paper: str = ""
    effect: str
    comparison: str
    hypothesis: str
    margin: float = 0.0
    no_margin: str = ""
    seen: bool = False


@dataclass(frozen=True, kw_only=True)
class RemovedRow:
    """A hypothesis that was written before the first run and has no row, with the reason."""

    comparison: str
    hypothesis: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class EarlierVerdicts:
    """The verdicts of docs/claims.md at a commit: {comparison: {hypothesis: verdict}}."""

    commit: str
    verdicts: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where an answer of the guide is read.

    Attributes:
        comparison: The name of a comparison.
        condition: The condition of its values; empty for the training size.
    """

    comparison: str
    condition: str = ""


@dataclass(frozen=True, kw_only=True)
class Need:
    """A question of the guide.

    Attributes:
        need: What the reader needs.
        sources: What can answer it, the most telling first: the first of them that is recorded in
            enough studies, and whose models beat the trivial baseline, answers.
        speed: The table of speed, in docs/speed, that tells what its encodings cost.
    """

    need: str
    sources: tuple[Source, ...]
    speed: str


@dataclass(frozen=True, kw_only=True)
class Convention:
    """What a convention changes for one encoding, all else equal.

    Attributes:
        convention: The convention.
        what: The measured number, and of what.
        one: The convention before.
        other: The convention after.
        before: Where the number before is looked up, as docs/build/quoted_numbers.py says.
        after: The number after.
    """

    convention: str
    what: str
    one: str
    other: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The content of docs/claims.yaml."""

    comparisons: Mapping[str, DeclaredComparison]
    claims: tuple[PaperClaim, ...]
    needs: tuple[Need, ...]
    removed: tuple[RemovedRow, ...] = ()
    earlier: EarlierVerdicts | None = None
    conventions: tuple[Convention, ...] = ()
    records: str = str(RECORDS)

    def read_comparison(self, name: str) -> Comparison | None:
        """Return a recorded comparison; None if nothing is recorded under its name.

        Raises:
            ValueError: The comparison was not tuned in studies.
        """
        folder = Path(self.records) / name
        if not (folder / PLAN).exists():
            return None
        comparison = read_record(folder)
        if comparison.studies is None:
            raise ValueError(f"{folder}: not tuned in studies, so no evidence")
        return comparison


def read_record(folder: Path) -> Comparison:
    """Return a recorded comparison, with the baselines of its conditions."""
    return add_baselines(_compute_results(folder), folder)


@cache
def _compute_results(folder: Path) -> Comparison:
    return read_comparison(folder)


def read_evidence(path: Path = DECLARED, records: Path = RECORDS) -> Evidence:
    """Read and check a file such as docs/claims.yaml.

    Args:
        path: The file.
        records: The folder of the recorded comparisons.

    Raises:
        ValueError: An entry is of another form, or names what does not exist. All are named.
    """
    plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    try:
        found = read_data(Evidence, {**plain, "records": str(records)})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if problems := [*_list_problems(found)]:
        raise ValueError(f"{path}: " + "; ".join(problems))
    return found


def _list_problems(found: Evidence) -> Iterator[str]:
    papers = read_papers()
    yield from _list_rowless(found)
    for claim in found.claims:
        if claim.paper and claim.paper not in papers:
            yield f"{claim.claim}: there is no paper {claim.paper!r} in {PAPERS.name}"
        if claim.margin < 0:
            yield f"{claim.claim}: a margin is not below 0"
        if bool(claim.margin) == bool(claim.no_margin):
            yield f"{claim.claim}: write either its margin or, in no_margin, why it is left out"
        if claim.comparison not in found.comparisons:
            yield f"{claim.claim}: there is no comparison {claim.comparison!r}"
            continue
        yield from _check_hypothesis(claim, found)
    for need in found.needs:
        if not need.sources:
            yield f"{need.need}: no comparison answers it; write sources: [{{comparison: NAME}}]"
        for source in need.sources:
            if source.comparison not in found.comparisons:
                yield f"{need.need}: there is no comparison {source.comparison!r}"
            elif not _has_condition(found.read_comparison(source.comparison), source.condition):
                yield f"{need.need}: {source.comparison} is not measured at {source.condition}"
        if need.speed not in SPEEDS:
            yield f"{need.need}: there is no table of speed {need.speed!r}"


def _list_rowless(found: Evidence) -> Iterator[str]:
    """Yield the hypotheses of recorded comparisons that have no row and no reason for that."""
    listed = {(one.comparison, one.hypothesis) for one in (*found.claims, *found.removed)}
    if len(listed) < len(found.claims) + len(found.removed):
        yield "two rows are about one hypothesis of a comparison, or a removed one has a row"
    for removed in found.removed:
        if not removed.reason.strip():
            yield f"{removed.comparison}: {removed.hypothesis!r} was removed without a reason"
    for name in found.comparisons:
        comparison = found.read_comparison(name)
        for one in () if comparison is None else comparison.hypotheses:
            if not one.runs_ended and (name, one.text) not in listed:
                yield f"{name}: {one.text!r} has no row; add it, or list it under removed"


def _check_hypothesis(claim: PaperClaim, found: Evidence) -> Iterator[str]:
    """Yield why the hypothesis of a claim cannot be judged by its comparison."""
    hypothesis = parse_hypothesis(claim.hypothesis)
    # without its own metric the sign tells the metric: only a loss is better below
    better = find_direction(hypothesis.metric) if hypothesis.metric else None
    recorded = found.read_comparison(claim.comparison)
    if recorded and not hypothesis.metric:
        better = recorded.better
    if better and (better == "high") != (hypothesis.sign == ">"):
        yield f"{claim.hypothesis}: says that {hypothesis.one} is worse"
    if recorded is None:
        return
    names = [one.name for one in recorded.variants]
    for name in (hypothesis.one, hypothesis.other):
        if name not in names:
            yield f"{claim.hypothesis}: {claim.comparison} has no variant {name}"
    if not _has_condition(recorded, hypothesis.condition):
        yield f"{claim.hypothesis}: {claim.comparison} is not measured at {hypothesis.condition}"


def _has_condition(comparison: Comparison | None, name: str) -> bool:
    """Return whether something was, or may still be, measured under a condition."""
    # conditions are those of tested cells, so a comparison that has none yet lists no other
    if comparison is None or not any(cell.measurements for cell in comparison.cells):
        return True
    return not name or name in [one.name for one in comparison.conditions]


@cache
def read_papers() -> dict[str, str]:
    """Return {key: link to the paper, with its first author and year} of references.bib."""
    found = {}
    for number, entry in read_citations(PAPERS).items():
        fields = dict(re.findall(r"^  (author|year) = \{(.*)\},?$", entry, re.MULTILINE))
        author, _, others = fields["author"].partition(" and ")
        name = author.partition(",")[0] + (" et al." if others else "")
        key = entry.partition("{")[2].partition(",")[0]
        found[key] = f"[{name} {fields['year']}](https://arxiv.org/abs/{number})"
    return found
