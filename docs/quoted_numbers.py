"""Numbers in prose that are looked up in recorded files: `python docs/pages.py` writes them anew.

A number is followed by a comment that names a file below docs/ and what to look up in it:

    t5 takes 1.12<!-- speed/lm_small: ratio t5 --> times as long as rope

It keeps the decimals that it is written with. What can be looked up:

    mean VARIANT [at CONDITION]     of a comparison, over seeds; spaces in names are written as _
    interval VARIANT [at CONDITION] likewise, the mean with its interval
    ratio NAME                      of a benchmark: its first ratio to the reference
    least NAME..., most NAME...     the lowest and the highest of these ratios
    share NAME over OTHER           how many more parameters it has, in percent
    key.path, key.path / key.path   any number of the file, or a quotient
    highest key.*.path, lowest ...  of all that a path with * finds, in percent
    baseline NAME [at CONDITION]    of a comparison, over seeds, on the samples of the condition
    verdict HYPOTHESIS              of a comparison: held, not held or undecided, and the difference
                                    with its interval; it stands in place of a number
    claim HYPOTHESIS                likewise, as docs/claims.md judges it
    count encodings                 with `zoo` in place of a file: registered members of a kind
    packages                        likewise: those that zoo is installed with

A test checks that the hand-written prose of the README and the question pages has no other number,
in figures or in words, than these and the facts that the test lists. `python
docs/quoted_numbers.py` counts the quoted numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from claims_page import judge_hypothesis
from evidence_data import Evidence, read_evidence
from record_baselines import add_baselines

from zoo import packages, registry
from zoo.benchmark.result import BenchResult
from zoo.comparison.hypotheses import judge_hypotheses
from zoo.comparison.ranking import average_baselines, collect_values, rank_variants
from zoo.comparison.results import Comparison
from zoo.comparison.text import count_decimals, format_estimate
from zoo.reporting.numbers import format_fixed

DOCS = Path(__file__).parent
MARK = "## Recorded\n"
WORDS = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty-\w+|twenty|thirty"
    r"|forty|fifty|sixty|seventy|eighty|ninety|hundreds?|thousands?|millions?|dozens?|twice|thrice"
    r"|half|halves|thirds?|quarters?|double[ds]?|triple[ds]?)\b",
    re.IGNORECASE,
)
"""Numbers written as words; `one` is none, as it is a pronoun too."""
NAMES = re.compile(r"[A-Za-z][\w+-]*\d[\w+-]*")
FIGURES = re.compile(r"\d[\d,]*(?:\.\d+)?")
QUOTED = re.compile(
    r"(?P<text>\d[\d,]*(?:\.\d+)?(?: \([^()<|]*\))?|(?:not held|held|undecided)(?:, [^<|]*)?)"
    r"(?P<mark><!-- (?P<source>[\w/+-]+): (?P<query>.+?) -->)"
)


def update_numbers(text: str) -> str:
    """Return a text with every quoted number as its file has it."""
    return QUOTED.sub(lambda found: look_up(found) + found["mark"], text)


def look_up(found: re.Match[str]) -> str:
    """Return a quoted number or verdict as its file has it. Raises ValueError if there is none."""
    decimals = len(found["text"].partition(".")[2])
    word, _, rest = found["query"].partition(" ")
    try:
        if word == "verdict":
            return _find_verdict(locate(found["source"]), rest)
        if word == "claim":
            return _find_claim(locate(found["source"]), rest)
        if word == "interval":
            return _find_interval(locate(found["source"]), *rest.split(maxsplit=2))
        value = _evaluate(found["source"], found["query"])
    except (KeyError, IndexError, TypeError, StopIteration) as error:
        raise ValueError(f"{found['mark']}: nothing is found: {error!r}") from None
    return f"{value:,.{decimals}f}"


def _evaluate(source: str, query: str) -> float:
    word, *rest = query.split()
    if source == "zoo":
        return len(packages.REQUIRED if word == "packages" else registry.names(rest[0]))
    path = locate(source)
    if word in ("ratio", "least", "most"):
        picks: dict[str, Callable[[list[float]], float]] = {"least": min, "most": max}
        ratios = [_find_ratio(_read_bench(path), name) for name in rest]
        return picks.get(word, min)(ratios)
    if word == "share":
        own, other = (_find_parameters(_read_json(path), name) for name in (rest[0], rest[2]))
        return 100 * (own / other - 1)
    if word == "baseline":
        name, _, condition = query.removeprefix("baseline ").partition(" at ")
        comparison = read_comparison(path)
        found = comparison.find_condition(condition or "trained")
        return average_baselines(comparison, found)[name.replace("_", " ")]
    if word == "mean":
        return _find_mean(read_comparison(path), rest[0], " ".join(rest[2:]))
    plain = _read_json(path)
    if word in ("highest", "lowest"):
        extreme = max if word == "highest" else min
        return 100 * extreme(_walk_all(plain, rest[0].split(".")))
    value, *divisors = (_walk(plain, part) for part in query.split(" / "))
    return value / divisors[0] if divisors else value


def locate(source: str) -> Path:
    """Return the path of a recorded file by its name in a mark."""
    folder = DOCS if source.startswith(("speed/", "equip/", "records/")) else DOCS / "questions"
    return folder / f"{source}.json"


@cache
def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def read_comparison(path: Path) -> Comparison:
    """Return a recorded comparison, with the baselines of its conditions."""
    return add_baselines(Comparison.read(path), path.parent.name, path.parent.parent)


@cache
def _read_bench(path: Path) -> BenchResult:
    return BenchResult.read(path)


def _find_ratio(result: BenchResult, name: str) -> float:
    if name == result.reference:
        return 1.0
    found = next(row.ratio for row in result.rows if row.name.replace(" ", "_") == name)
    if found is None:
        raise KeyError(name)
    return found


def _find_parameters(plain: Any, name: str) -> float:
    if "rows" in plain:
        return next(row["parameters"] for row in plain["rows"] if row["name"] == name)
    cells = next(one["cells"] for one in plain["variants"] if one["name"] == name)
    return cells[0]["parameters"]


def _find_mean(comparison: Comparison, name: str, condition: str) -> float:
    variant = next(one for one in comparison.variants if one.name.replace(" ", "_") == name)
    found = comparison.find_condition(condition or "trained")
    return fmean(collect_values(variant, found, comparison.measure).values())


def _find_interval(path: Path, name: str, at: str = "", condition: str = "trained") -> str:
    comparison = read_comparison(path)
    standings = rank_variants(comparison, comparison.find_condition(condition))
    found = next(one for one in standings if one.variant.name.replace(" ", "_") == name)
    if found.mean is None:
        raise KeyError(condition)
    return format_estimate(found.mean, count_decimals(comparison))


def _find_verdict(path: Path, hypothesis: str) -> str:
    judgements = judge_hypotheses(read_comparison(path))
    found = next(one for one in judgements if one.hypothesis.text == hypothesis)
    if found.difference is None:
        return found.verdict
    ends = (found.difference.mean, found.difference.low, found.difference.high)
    mean, low, high = (format_fixed(end, 3, sign=True) for end in ends)
    return f"{found.verdict}, {mean} ({low} to {high})"


@cache
def _read_evidence() -> Evidence:
    return read_evidence()


def _find_claim(path: Path, hypothesis: str) -> str:
    judged = judge_hypothesis(hypothesis, path.parent.name, _read_evidence())
    return f"{judged.verdict}, {judged.difference}" if judged.difference else judged.verdict


def _walk(plain: Any, path: str) -> float:
    for part in path.strip().split("."):
        plain = plain[int(part)] if isinstance(plain, list) else plain[part]
    return plain


def _walk_all(plain: Any, keys: Sequence[str]) -> Iterator[float]:
    """Yield all numbers that a path finds; * stands for every entry of a list."""
    if not keys:
        yield plain
        return
    first, *rest = keys
    entries = plain if first == "*" else [plain[int(first) if first.isdecimal() else first]]
    for one in entries:
        yield from _walk_all(one, rest)


def list_unquoted(text: str, facts: tuple[str, ...] = ()) -> list[str]:
    """Return the lines of prose that have a number without a mark, in figures or in words.

    Args:
        text: Markdown. Code, link targets and pictures are no prose.
        facts: Texts with numbers that need none, as they are held by other tests.
    """
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", "", text)
    for fact in facts:
        text = re.sub(re.escape(fact).replace(r"\ ", r"\s+"), "", text)
    lines = NAMES.sub("", QUOTED.sub("", text)).splitlines()
    return [line for line in lines if re.search(r"\d", line) or WORDS.search(line)]


def count_numbers(texts: Iterable[str]) -> tuple[int, int]:
    """Return how many numbers of pages are quoted, and how many stand in their made parts."""
    quoted = made = 0
    for text in texts:
        own, _, recorded = text.partition(MARK)
        quoted += len(QUOTED.findall(own))
        rows = [line for line in own.splitlines() if line.startswith("| ") and "<!--" not in line]
        made += len(FIGURES.findall(NAMES.sub("", "\n".join([*rows, recorded]))))
    return quoted, made


if __name__ == "__main__":
    pages = [DOCS.parent / "README.md", *DOCS.glob("questions/*.md")]
    quoted, made = count_numbers(page.read_text(encoding="utf-8") for page in pages)
    print(f"{len(pages)} pages: {quoted} numbers in prose looked up, {made} in what is made")
