"""Check and run all parts of a suite, one after another; each is a comparison of its own."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zoo
from zoo import config
from zoo.comparison.compare import Outcome, run_comparison
from zoo.comparison.grid import ENCODING, VariedKey, read_varied_keys
from zoo.comparison.plan import PLAN
from zoo.comparison.request import CheckedRequest, check_request
from zoo.comparison.suite import (
    SuiteFile,
    SuitePart,
    choose_parts,
    flatten,
    list_edits_of,
    load_suite,
    refuse_fixed,
    split_overrides,
)
from zoo.config import Change, Edit, Overrides, Recipe
from zoo.config.overrides import list_edits
from zoo.config.tree import collect_issues
from zoo.data.corpus.tokenizer import TokenCount
from zoo.data.spec import DataSpec, TextSpec
from zoo.errors import ARGUMENT, ConfigIssue, DataError, OptionError, RecipeError, Stopped, ZooError
from zoo.options.plain import to_plain
from zoo.run.build import Experiment, build_data
from zoo.run.preflight import build_experiment

log = logging.getLogger("zoo")

FIXED = ("seeds", "studies", "budget", "racing", "measure", "hypotheses", "part")
"""Options of comparisons that the file of a suite decides."""
LEAST_MINUTES = 1e-6
FILES = (
    *("index.html", "suite.md", "results.json", "table.tex", "table.csv", ".gitignore"),
    *("suite.png", "suite.svg", "suite.pdf"),
)
"""The files of the output folder."""
ABSENT = "absent"
"""The path of data that are on another machine: nothing is read there."""


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """Options of `zoo compare suite=NAME`, besides those of comparisons."""

    suite: str = ""
    """A suite by its name (small, paper), or a file; in place of a recipe."""
    parts: tuple[str, ...] = ()
    """Parts of the suite to run; all of them by default."""


@dataclass(frozen=True, kw_only=True)
class SuiteRequest:
    """A suite, its encodings and options, not validated yet.

    Attributes:
        suite: The name of a suite, or a file.
        encodings: Names of encodings, mappings with options, or lists of these.
        overrides: Changes of all recipes, or of those of one part: `language.data.path`.
        parts: The parts to run; all of them if empty.
        given: Options of comparisons by name, not validated yet.
        command: What repeats it.
    """

    suite: str
    encodings: Sequence[Any] | None
    overrides: Overrides = ()
    parts: Sequence[str] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class PartRequest:
    """A part of a suite, and what compares the encodings in it.

    Attributes:
        name: Its name.
        part: What the file declares.
        variants: {encoding: the variant that stands for it here}.
        refused: {encoding: why it is not applicable here}.
        arguments: Arguments of `check_request`.
        stand_in: The facts of samples by which an estimate counts, where the data are not here.
    """

    name: str
    part: SuitePart
    variants: Mapping[str, str]
    refused: Mapping[str, str]
    arguments: Mapping[str, Any]
    stand_in: DataSpec | None = None


@dataclass(frozen=True, kw_only=True)
class SuitePlan:
    """All parts of a suite for some encodings.

    Attributes:
        file: The suite, with the parts that run.
        encodings: The encodings as people write them.
        folder: The output folder; each part has one within it.
        parts: The parts.
        command: What repeats it.
    """

    file: SuiteFile
    encodings: tuple[str, ...]
    folder: Path
    parts: tuple[PartRequest, ...]
    command: str


@dataclass(frozen=True, kw_only=True)
class SuiteOutcome:
    """A suite as far as it has come.

    Attributes:
        plan: The plan.
        outcomes: {part: its outcome}, of those that were begun.
        problem: Why it is not complete; None if it is.
    """

    plan: SuitePlan
    outcomes: Mapping[str, Outcome]
    problem: ZooError | None = None


def plan_suite(request: SuiteRequest, *, needs_data: bool = True) -> SuitePlan:
    """Read a suite, and find out which encodings each of its parts can have.

    Args:
        request: What the caller asks.
        needs_data: Whether a part is refused whose data are on another machine.

    Raises:
        RecipeError: The suite, an argument or an encoding is wrong, or fits no part.
        DataError: Data is missing.
    """
    refuse_fixed(request.given, FIXED)
    whole = load_suite(request.suite)
    file = choose_parts(whole, request.parts)
    overrides = list_edits(request.overrides)
    common, own = split_overrides(whole, overrides)
    (varied,) = read_varied_keys(request.encodings or [], {}, overrides)
    records = request.given.get("records") or find_records(file)
    folder = Path(request.given.get("to") or _name_folder(file, varied, overrides))
    parts = []
    refusals: dict[str, list[tuple[ConfigIssue, ...]]] = {label: [] for label in varied.values}
    for name, part in file.suite.parts.items():
        recipe = file.find_recipe(part)
        edits = [*list_edits_of(file.suite, part), *common, *own[name]]
        chosen = _choose_encodings(part, varied)
        stand_in = None if needs_data else _build_stand_in(part, recipe, edits)
        misfits = _find_misfits(name, recipe, edits, chosen, stand_in)
        for label, issues in misfits.items():
            refusals[label].append(issues)
        fitting = {label: one for label, one in chosen.items() if label not in misfits}
        given = {**request.given, "to": str(folder / name), "records": records}
        arguments = _build_arguments(file, part, given, [value for _, value in fitting.values()])
        parts.append(
            PartRequest(
                name=name,
                part=part,
                variants={label: variant for label, (variant, _) in fitting.items()},
                refused={label: _format_refusal(issues) for label, issues in misfits.items()},
                arguments={**arguments, "recipe": recipe, "overrides": edits},
                stand_in=stand_in,
            )
        )
    _check_folder(folder, file)
    # of some parts only, the others decide whether an encoding is of another kind or misspelt
    lost = [label for label, found in refusals.items() if len(found) == len(parts)]
    for name, part in whole.suite.parts.items():
        if lost and name not in file.suite.parts:
            recipe, edits = whole.find_recipe(part), [*list_edits_of(whole.suite, part), *common]
            chosen = _choose_encodings(part, varied)
            sizes = _build_stand_in(part, recipe, edits)
            others = {label: chosen[label] for label in lost}
            lost = [*_find_misfits(name, recipe, edits, others, sizes)]
    if lost:
        # what fits no part is a mistake rather than an encoding of another kind
        raise RecipeError(*(issue for label in lost for issue in refusals[label][0]))
    return SuitePlan(
        file=file,
        encodings=tuple(varied.values),
        folder=folder,
        parts=tuple(parts),
        command=request.command,
    )


def _check_folder(folder: Path, file: SuiteFile) -> None:
    """Raise RecipeError for a folder that holds something other than a suite and its parts."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    parts = [name for name in names if (folder / name / PLAN).exists()]
    others = [name for name in names if name not in (*parts, *file.suite.parts, *FILES)]
    if others or folder.is_file():
        problem = f"{folder} is a file"
        if others:
            problem = f"{folder} holds other files, {others[0]} among them"
        remedy = "name a folder of its own"
        raise RecipeError(ConfigIssue(ARGUMENT, "to", problem, remedy))


def _name_folder(file: SuiteFile, varied: VariedKey, overrides: Sequence[Edit]) -> str:
    """Return the default output folder, which the same request finds again."""
    wanted = [to_plain(file.suite), {**varied.values}, list(map(repr, overrides))]
    digest = hashlib.sha256(json.dumps(wanted, sort_keys=True, default=str).encode()).hexdigest()
    return f"comparisons/suite_{file.name}-{digest[:8]}"


def find_records(file: SuiteFile) -> list[str]:
    """Return the folders of records of a suite that are there, here or in zoo's repository."""
    # a checkout has its records next to the package; a wheel ships none
    places = (Path(), Path(zoo.__file__).parent.parent)
    found = []
    for name in file.suite.records:
        there = [place / name for place in places if (place / name).is_dir()]
        if there:
            found.append(str(there[0]))
        else:
            log.info("no record %s here, so all cells are trained", name)
    return found


def _choose_encodings(part: SuitePart, varied: VariedKey) -> dict[str, tuple[str, Any]]:
    """Return {encoding: (name, value) of the variant that stands for it in a part}."""
    found = {}
    for label, value in varied.values.items():
        other = part.instead.get(label)
        if other is None:
            found[label] = (label, value)
        else:
            (read,) = read_varied_keys([to_plain(other)], {})
            found[label] = next(iter(read.values.items()))
    return found


def _build_stand_in(part: SuitePart, recipe: str, edits: Sequence[Edit]) -> DataSpec | None:
    """Return facts of samples in place of data without a path; None where there is one."""
    sizes, loaded = part.stand_in, config.load(recipe, edits)
    if sizes is None or loaded.data.options.get("path") is not None:
        return None
    if sizes.vocabulary is None:
        return build_data(loaded, path=ABSENT).spec
    # the tokenizer may be on another machine too
    spec = build_data(loaded, path=ABSENT, tokenizer=None).spec
    return TextSpec(spec.length, TokenCount(sizes.vocabulary))  # type: ignore[union-attr]


def load_part(part: PartRequest, encoding: Any) -> Recipe:
    """Return the recipe of a part with an encoding, not checked."""
    edits = [*part.arguments["overrides"], Change(ENCODING, encoding)]
    return config.load(part.arguments["recipe"], edits)


def _find_misfits(
    name: str,
    recipe: str,
    edits: Sequence[Edit],
    chosen: Mapping[str, tuple[str, Any]],
    stand_in: DataSpec | None,
) -> dict[str, tuple[ConfigIssue, ...]]:
    """Return {encoding: why the recipe of a part cannot have it}.

    Raises:
        RecipeError: The recipe is wrong whatever its encoding.
    """
    issues: list[ConfigIssue] = []
    # the encoding of the recipe itself fits, so that issues here are the part's own
    with collect_issues(issues):
        _check_recipe(config.load(recipe, edits), stand_in)
    if issues:
        raise RecipeError(*(_name_part(name, one) for one in issues))
    found = {}
    for label, (_, value) in chosen.items():
        own: list[ConfigIssue] = []
        with collect_issues(own):
            _check_recipe(config.load(recipe, [*edits, Change(ENCODING, value)]), stand_in)
        if own:
            found[label] = tuple(own)
    return found


def _check_recipe(recipe: Recipe, stand_in: DataSpec | None) -> None:
    """Raise RecipeError for a recipe that cannot run; of other data, whose model cannot be."""
    if stand_in is None:
        build_experiment(recipe)
        return
    try:
        _ = Experiment(recipe, stand_in).meta_model
    except OptionError as error:
        raise RecipeError(recipe.make_issue(f"model.{error.key}", str(error))) from None


def _name_part(name: str, issue: ConfigIssue) -> ConfigIssue:
    subject = f"{name}, {issue.subject}" if issue.subject else name
    return ConfigIssue(issue.origin, issue.key, issue.problem, issue.remedy, subject)


def _format_refusal(issues: Sequence[ConfigIssue]) -> str:
    return "; ".join(str(one.problem) for one in issues)


def _build_arguments(
    file: SuiteFile, part: SuitePart, given: Mapping[str, Any], encodings: Sequence[Any]
) -> dict[str, Any]:
    """Return what varies in a part and how, as `check_request` takes it."""
    suite = file.suite
    tune = flatten(suite.tune if part.tune is None else part.tune)
    wanted: dict[str, Any] = {**given, "measure": part.measure}
    if suite.studies is None:
        wanted["seeds"] = suite.seeds
    else:
        wanted |= {"studies": suite.studies, "budget": suite.budget}
    # two encodings may have the same stand-in
    labels = dict.fromkeys(json.dumps(to_plain(one)) for one in encodings)
    return {
        "encodings": [json.loads(one) for one in labels],
        "vary": {},
        "tune": {key: to_plain(value) for key, value in tune.items()},
        "given": {key: value for key, value in wanted.items() if value is not None},
    }


def check_part(part: PartRequest, command: str = "") -> CheckedRequest | None:
    """Check all cells of a part; None if it has none.

    Raises:
        RecipeError: Something is wrong; each issue names the part.
    """
    if not part.variants:
        return None
    try:
        return check_request(**part.arguments, command=command)
    except RecipeError as error:
        raise RecipeError(*(_name_part(part.name, one) for one in error.issues)) from None


def check_parts(plan: SuitePlan) -> dict[str, CheckedRequest]:
    """Check all parts before the first one is run.

    Raises:
        RecipeError: Some parts are wrong; all issues are reported together.
        DataError: Data of some parts is missing; all of it is named.
    """
    issues: list[ConfigIssue] = []
    missing: list[str] = []
    found = {}
    for part in plan.parts:
        try:
            with collect_issues(issues):
                checked = check_part(part, plan.command)
                if checked is not None:
                    found[part.name] = checked
        except DataError as error:
            missing.append(f"{part.name}: {error}")
    if issues:
        raise RecipeError(*dict.fromkeys(issues))
    if missing:
        raise DataError("\n".join(missing))
    return found


def run_suite(plan: SuitePlan) -> SuiteOutcome:
    """Run all parts of a suite; what is done already is not done again.

    Raises:
        RecipeError: A part is wrong, or its output folder cannot be used; nothing was started.
        DataError: Data is missing.
    """
    checked = check_parts(plan)
    minutes = plan.parts[0].arguments["given"].get("minutes")
    until = None if minutes is None else time.monotonic() + 60 * minutes
    outcomes: dict[str, Outcome] = {}
    problems: list[str] = []
    for number, (name, one) in enumerate(checked.items()):
        log.info("part %d of %d: %s", number + 1, len(checked), name)
        # failed cells of a part leave the other parts to run; an interrupt does not
        outcome = run_comparison(_limit_minutes(one, until))
        outcomes[name] = outcome
        if isinstance(outcome.problem, Stopped):
            return SuiteOutcome(plan=plan, outcomes=outcomes, problem=outcome.problem)
        if outcome.problem is not None:
            problems.append(f"{name}: {outcome.problem}")
    problem = ZooError("\n".join(problems)) if problems else None
    return SuiteOutcome(plan=plan, outcomes=outcomes, problem=problem)


def _limit_minutes(checked: CheckedRequest, until: float | None) -> CheckedRequest:
    """Return the request of a part with the minutes that are left of those of the suite."""
    if until is None:
        return checked
    # once it is over, nothing of later parts begins, but their plans and tables are written
    left = max((until - time.monotonic()) / 60, LEAST_MINUTES)
    options = replace(checked.request.options, minutes=left)
    return replace(checked, request=replace(checked.request, options=options))
