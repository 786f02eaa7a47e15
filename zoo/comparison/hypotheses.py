"""Hypotheses of a comparison: what they state, and when they were written.

They are kept in a file of the output folder, with the time at which each was written and the
number of runs that had ended by then. A hypothesis that comes later, or is left out later, is
marked as late or withdrawn in every report. zoo/comparison/claims.py judges them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from zoo.comparison.digests import EDITED, is_unchanged, seal
from zoo.comparison.results import Comparison, Measure, RecordedHypothesis, find_direction
from zoo.config import Recipe
from zoo.config.schema import format_size
from zoo.errors import ARGUMENT, ConfigIssue, DataError, Message, OptionError, RecipeError, Setting
from zoo.options.stored import read_stored
from zoo.run.build import build_data
from zoo.run.conditions import TRAINED, Condition, list_conditions
from zoo.suggestions import nearest
from zoo.utils import format_now, write_json

log = logging.getLogger("zoo")

HYPOTHESES = "hypotheses.json"
FORM = re.compile(
    r"(?P<one>.+?)\s+(?P<sign>[<>=])\s+(?P<other>.+?)"
    r"(?:\s+(?P<word>by|within)\s+(?P<margin>\d[\d.]*))?"
    r"(?:\s+on\s+(?:test/)?(?P<metric>\w+))?(?:\s+at\s+(?P<condition>.+?))?"
    r"(?:\s+because\s+(?P<reason>.+))?"
)
EXAMPLE = Message(
    "write ",
    Setting(
        "hypotheses",
        [
            "rope > none",
            "rope > none by 0.01 on accuracy at 256",
            "rope = alibi within 0.01 because four samples of 360 are 0.01",
        ],
    ),
)


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A claim: a variant is above or below another by a margin or more, or equal within it."""

    text: str
    one: str
    sign: Literal["<", ">", "="]
    other: str
    margin: float
    metric: str
    """Empty for the compared one."""
    condition: str
    """Empty for the training size."""
    reason: str = ""
    """Why the margin is what it is."""


@dataclass(frozen=True, kw_only=True)
class HypothesesFile:
    """The content of hypotheses.json.

    Attributes:
        hypotheses: The hypotheses.
        sha256: The SHA-256 of the others; empty in files of zoo 0.3.
    """

    hypotheses: tuple[RecordedHypothesis, ...]
    sha256: str = ""


def parse_hypothesis(text: str) -> Hypothesis:
    """Return a hypothesis. Raises RecipeError if the text is none."""
    match = FORM.fullmatch(text.strip())
    try:
        margin = float((match and match["margin"]) or 0)
    except ValueError:
        match = None
    if match is None:
        raise _refuse(f"{text!r} is no hypothesis", EXAMPLE)
    is_equality = match["sign"] == "="
    if is_equality and not (match["word"] == "within" and margin and match["reason"]):
        # a margin without a reason could be chosen to suit the result
        message = f"{text!r}: equality needs a margin above 0 and its reason"
        raise _refuse(message, EXAMPLE)
    if not is_equality and match["word"] == "within":
        raise _refuse(f"{text!r}: `within` is for equality, `by` for a difference", EXAMPLE)
    return Hypothesis(
        text=" ".join(text.split()),
        one=match["one"],
        sign="=" if is_equality else ">" if match["sign"] == ">" else "<",
        other=match["other"],
        margin=margin,
        metric=match["metric"] or "",
        condition=match["condition"] or "",
        reason=match["reason"] or "",
    )


def check_hypotheses(texts: Sequence[str], names: Sequence[str], recipe: Recipe) -> None:
    """Raise RecipeError for all hypotheses about unknown variants, metrics or conditions."""
    issues: list[ConfigIssue] = []
    conditions = list_planned_conditions(recipe)
    for statement in texts:
        try:
            hypothesis = parse_hypothesis(statement)
        except RecipeError as error:
            issues += error.issues
            continue
        references = {
            "variant": ((hypothesis.one, hypothesis.other), names),
            "metric": ((hypothesis.metric,), get_args(Measure)),
            "condition": ((hypothesis.condition,), conditions),
        }
        for kind, (mentioned, allowed) in references.items():
            for word in mentioned:
                if word and word not in allowed:
                    message = f"{statement!r}: there is no {kind} {word!r} here"
                    issues.append(
                        ConfigIssue(ARGUMENT, "hypotheses", message, nearest(word, allowed))
                    )
        if hypothesis.one == hypothesis.other:
            message = f"{statement!r}: compares a variant with itself"
            issues.append(ConfigIssue(ARGUMENT, "hypotheses", message, EXAMPLE))
    if len({" ".join(statement.split()) for statement in texts}) < len(texts):
        issues.append(ConfigIssue(ARGUMENT, "hypotheses", "one is listed twice", "list it once"))
    if issues:
        raise RecipeError(*issues)


def check_question(question: str, recipe: Recipe) -> None:
    """Raise RecipeError if a recipe has no condition of the name that is asked about."""
    conditions = [TRAINED, *list_planned_conditions(recipe)]
    if question not in conditions:
        message = f"there is no condition {question!r} here"
        raise RecipeError(ConfigIssue(ARGUMENT, "question", message, nearest(question, conditions)))


def list_planned_conditions(recipe: Recipe) -> list[str]:
    """Return the names of the conditions that a recipe asks for, as results will have them."""
    try:
        conditions = list_conditions(recipe, build_data(recipe).spec)
    except OptionError:
        # reported with the other issues of the recipe
        return [*(recipe.evaluate.data_variants or {})]
    return [condition.name for condition in conditions if condition.kind != "trained"]


def _refuse(message: str, hint: str | Message) -> RecipeError:
    return RecipeError(ConfigIssue(ARGUMENT, "hypotheses", message, hint))


def record_hypotheses(
    texts: Sequence[str],
    folder: Path,
    runs_ended: int,
    measure: str,
    cannot_ask: Mapping[str, str] | None = None,
) -> None:
    """Write the hypotheses into the output folder; log what they mean, and what changed.

    Args:
        texts: The hypotheses of this command.
        folder: The output folder.
        runs_ended: How many trials and cells have ended.
        measure: The compared metric, such as test/loss.
        cannot_ask: {hypothesis: why the task cannot ask it}, by a pilot. Not recorded once a run
            has ended, with a warning: what is known then is no forecast.
    """
    # spaces make no other hypothesis, whose digest would differ
    texts = [" ".join(statement.split()) for statement in texts]
    recorded = {entry.text: entry for entry in read_hypotheses(folder)}
    if not texts and not recorded:
        return
    now = format_now()
    for statement in texts:
        if statement not in recorded:
            recorded[statement] = RecordedHypothesis(
                text=statement, written=now, runs_ended=runs_ended
            )
            if runs_ended:
                log.info("hypothesis added after %d runs had ended: %s", runs_ended, statement)
        # listed again: the time at which it was first written stays
        elif recorded[statement].withdrawn:
            recorded[statement] = replace(recorded[statement], withdrawn="")
    if not runs_ended:
        for statement, reason in (cannot_ask or {}).items():
            recorded[statement] = replace(recorded[statement], cannot_ask=reason)
    elif any(recorded[key].cannot_ask != reason for key, reason in (cannot_ask or {}).items()):
        log.warning("the pilot changes no verdict: %d runs had ended before it", runs_ended)
    for statement, hypothesis in recorded.items():
        if statement not in texts and not hypothesis.withdrawn:
            recorded[statement] = replace(hypothesis, withdrawn=now)
            log.info("hypothesis withdrawn: %s", statement)

    write_hypotheses(recorded.values(), folder)
    for statement in texts:
        log.info("hypothesis %s", explain_claim(parse_hypothesis(statement), measure))
    log.info(
        "%d hypotheses in %s, SHA-256 of their texts: %s",
        len(recorded),
        folder / HYPOTHESES,
        hash_hypotheses(recorded.values()),
    )


def explain_claim(claim: Hypothesis, measure: str) -> str:
    """Explain which variant a claim calls better: of a loss, the one that is below."""
    metric = claim.metric or measure.removeprefix("test/")
    if claim.sign == "=":
        return (
            f"{claim.text}: {metric} of {claim.one} and {claim.other} differ by less than "
            f"{claim.margin:g}"
        )
    is_above = claim.sign == ">"
    is_better = is_above == (find_direction(metric) == "high")
    return (
        f"{claim.text}: {metric} of {claim.one} is {'above' if is_above else 'below'} that of "
        f"{claim.other}, so {claim.one} is {'better' if is_better else 'worse'}"
    )


def read_hypotheses(folder: Path) -> tuple[RecordedHypothesis, ...]:
    """Return the hypotheses of an output folder; none if it has no file of them.

    Raises:
        DataError: The file holds something else, or was changed by hand.
    """
    path = folder / HYPOTHESES
    if not os.path.lexists(path):
        return ()
    content = read_stored(HypothesesFile, path, "holds no hypotheses")
    if content.sha256 and not is_unchanged(
        {"hypotheses": _list_entries(content.hypotheses), "sha256": content.sha256}
    ):
        raise DataError(f"{EDITED}; restore it", place=path)
    return content.hypotheses


def write_hypotheses(hypotheses: Iterable[RecordedHypothesis], folder: Path) -> None:
    """Write the hypotheses of an output folder, with their SHA-256."""
    write_json(seal({"hypotheses": _list_entries(hypotheses)}), folder / HYPOTHESES)


def _list_entries(hypotheses: Iterable[RecordedHypothesis]) -> list[dict[str, Any]]:
    """Return hypotheses as plain data; one without a pilot as before there were pilots."""
    entries = [asdict(hypothesis) for hypothesis in hypotheses]
    return [
        {key: value for key, value in entry.items() if value or key != "cannot_ask"}
        for entry in entries
    ]


def hash_hypotheses(hypotheses: Iterable[RecordedHypothesis]) -> str:
    """Return the SHA-256 of the texts, to be published before a run."""
    return hashlib.sha256(
        "\n".join(hypothesis.text for hypothesis in hypotheses).encode()
    ).hexdigest()


def find_metric(comparison: Comparison, claim: Hypothesis) -> str:
    """Return the metric that a claim is about."""
    return f"test/{claim.metric}" if claim.metric else comparison.measure


def find_condition(comparison: Comparison, claim: Hypothesis) -> Condition | None:
    """Return the condition of a claim, None if nothing was measured under it.

    The training size may be named by its number.
    """
    size = comparison.trained.size
    if not claim.condition or (size is not None and claim.condition == format_size(size)):
        return comparison.trained
    conditions = {condition.name: condition for condition in comparison.conditions}
    return conditions.get(claim.condition)
