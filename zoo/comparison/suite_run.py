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

from torch import nn

import zoo
from zoo import config
from zoo.attention.chain import encoding_class
from zoo.attention.layer import SelfAttention
from zoo.comparison.compare import Outcome, run_comparison
from zoo.comparison.grid import ENCODING, ENCODINGS, VariedKey, read_varied_keys
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
from zoo.options.plain import locate, to_plain
from zoo.run.build import Experiment, build_data
from zoo.run.conditions import list_conditions
from zoo.run.preflight import build_experiment
from zoo.suggestions import nearest

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
        refused: {encoding: why it is not applicable here}, by its declared facts.
        arguments: Arguments of `check_request`.
        file: The suite that declares it.
        edits: The changes that the user made in addition to the file.
        stand_in: The facts of samples by which an estimate counts, where the data are not here.
    """

    name: str
    part: SuitePart
    variants: Mapping[str, str]
    refused: Mapping[str, str]
    arguments: Mapping[str, Any]
    file: SuiteFile
    edits: tuple[Edit, ...]
    stand_in: DataSpec | None = None

    def name_issues(self, error: RecipeError) -> RecipeError:
        """Return an error whose issues name this part, and the lines of the suite's file."""
        located = [self.file.locate(issue, self.name, self.edits) for issue in error.issues]
        return RecipeError(*(_name_part(self.name, issue) for issue in located))


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
    _check_folder(folder, file)
    issues: list[ConfigIssue] = []
    parts = []
    for name, part in file.suite.parts.items():
        recipe = file.find_recipe(part)
        own_edits = [*common, *own[name]]
        edits = [*list_edits_of(file.suite, part), *own_edits]
        chosen = _choose_encodings(part, varied)
        planned = PartRequest(
            name=name,
            part=part,
            variants={},
            refused={},
            arguments={"recipe": recipe, "overrides": edits},
            file=file,
            edits=tuple(own_edits),
        )
        with collect_issues(issues):
            if not needs_data:
                planned = replace(planned, stand_in=_build_stand_in(planned))
            values = {label: value for label, (_, value) in chosen.items()}
            refused = _find_inapplicable(planned, values)
            fitting = {label: pair for label, pair in chosen.items() if label not in refused}
            given = {**request.given, "to": str(folder / name), "records": records}
            values = {label: value for label, (_, value) in fitting.items()}
            arguments = _build_arguments(file, part, given, [*values.values()])
            planned = replace(
                planned,
                variants={label: variant for label, (variant, _) in fitting.items()},
                refused=refused,
                arguments={**planned.arguments, **arguments},
            )
            _check_variants(planned, [*values.values()])
            parts.append(planned)
    if issues:
        raise RecipeError(*dict.fromkeys(issues))
    if not any(part.variants for part in parts):
        reasons = dict.fromkeys(reason for part in parts for reason in part.refused.values())
        problem = f"no encoding is applicable to any part: {'; '.join(reasons)}"
        raise RecipeError(ConfigIssue(ARGUMENT, ENCODINGS, problem))
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


def _build_stand_in(part: PartRequest) -> DataSpec | None:
    """Return facts of samples in place of data without a path; None where there is one."""
    sizes, loaded = part.part.stand_in, _load_recipe(part)
    if sizes is None or loaded.data.options.get("path") is not None:
        return None
    if sizes.vocabulary is None:
        return build_data(loaded, path=ABSENT).spec
    # the tokenizer may be on another machine too
    spec = build_data(loaded, path=ABSENT, tokenizer=None).spec
    return TextSpec(spec.size[0], TokenCount(sizes.vocabulary))


def load_part(part: PartRequest, encoding: Any) -> Recipe:
    """Return the recipe of a part with an encoding, not checked.

    Raises:
        RecipeError: The recipe is wrong; the issues name the part.
    """
    return _load_recipe(part, Change(ENCODING, encoding))


def _load_recipe(part: PartRequest, *edits: Edit) -> Recipe:
    try:
        return config.load(part.arguments["recipe"], [*part.arguments["overrides"], *edits])
    except RecipeError as error:
        raise part.name_issues(error) from None


def _find_inapplicable(part: PartRequest, encodings: Mapping[str, Any]) -> dict[str, str]:
    """Return {encoding: why no options make it applicable}, by the facts that encodings declare.

    Raises:
        RecipeError: The recipe is wrong whatever its encoding.
        DataError: Data is missing.
    """
    # the recipe's own encoding is applicable, so its model tells what others meet
    model = _check_recipe(part, _load_recipe(part))
    _check_columns(part)
    layers = [module for module in model.modules() if isinstance(module, SelfAttention)]
    refused = {}
    issues: list[ConfigIssue] = []
    for label, value in encodings.items():
        # a name or an option that is wrong is a mistake, wherever the encoding is applicable
        with collect_issues(issues):
            choices = load_part(part, value).model.options["encoding"]
            reasons = (
                encoding_class(choice.name).explain_misfit(layer.dims, causal=layer.causal)
                for choice in choices
                for layer in layers
            )
            if reason := next(filter(None, reasons), ""):
                refused[label] = reason
    if issues:
        raise RecipeError(*dict.fromkeys(issues))
    return refused


def _check_columns(part: PartRequest) -> None:
    """Raise RecipeError for columns that the file declares and its recipe does not evaluate."""
    declared = list_edits_of(part.file.suite, part.part)
    recipe = config.load(part.arguments["recipe"], declared)
    spec = part.stand_in or build_data(recipe).spec
    names = [condition.name for condition in list_conditions(recipe, spec)]
    key = f"parts.{part.name}.columns"
    issues = [
        ConfigIssue(
            locate(part.file.locations, f"{key}.{number}"),
            f"{key}.{number}",
            f"the recipe has no condition {column!r}",
            nearest(column, names) or f"its conditions are {', '.join(names)}",
        )
        for number, column in enumerate(part.part.columns)
        if column not in names
    ]
    if issues:
        raise RecipeError(*issues)


def _check_variants(part: PartRequest, encodings: Sequence[Any]) -> None:
    """Raise RecipeError with the issues of all variants that are applicable but cannot run."""
    issues: list[ConfigIssue] = []
    for value in encodings:
        with collect_issues(issues):
            _check_recipe(part, load_part(part, value))
    if issues:
        raise RecipeError(*dict.fromkeys(issues))


def _check_recipe(part: PartRequest, recipe: Recipe) -> nn.Module:
    """Return the model of a recipe that can run, on the meta device.

    Raises:
        RecipeError: The recipe cannot run; the issues name the part. Where sizes stand in for its
            data, only the model is checked.
        DataError: Data is missing.
    """
    try:
        if part.stand_in is None:
            return build_experiment(recipe).meta_model
        try:
            return Experiment(recipe, part.stand_in).meta_model
        except OptionError as error:
            issue = recipe.make_issue(f"model.{error.key}", str(error))
            raise RecipeError(issue) from None
    except RecipeError as error:
        raise part.name_issues(error) from None


def _name_part(name: str, issue: ConfigIssue) -> ConfigIssue:
    subject = f"{name}, {issue.subject}" if issue.subject else name
    return ConfigIssue(issue.origin, issue.key, issue.problem, issue.remedy, subject)


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
    distinct: list[Any] = []
    for value in map(to_plain, encodings):
        if value not in distinct:
            distinct.append(value)
    return {
        "encodings": distinct,
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
        raise part.name_issues(error) from None


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
