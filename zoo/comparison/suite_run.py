"""Check and run all parts of a suite, one after another; each is a comparison of its own."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

import zoo
from zoo import config
from zoo.attention.chain import encoding_class
from zoo.attention.layer import SelfAttention
from zoo.comparison.compare import run_comparison
from zoo.comparison.grid import ENCODING, ENCODINGS, VariedKey, read_varied_keys
from zoo.comparison.overall import OverallRanking, rank_tasks
from zoo.comparison.plan import CELLS, PLAN
from zoo.comparison.record_file import read_cells
from zoo.comparison.request import CheckedRequest, CompareOptions, check_request
from zoo.comparison.results import Comparison
from zoo.comparison.suite import (
    Suite,
    SuiteFile,
    SuitePart,
    choose_parts,
    list_edits_of,
    list_tuned,
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
from zoo.run.conditions import Condition, list_conditions
from zoo.run.preflight import build_experiment
from zoo.suggestions import nearest

log = logging.getLogger("zoo")

FIXED = ("seeds", "studies", "budget", "racing", "measure", "hypotheses", "pilot", "part")
"""Options of comparisons that the file of a suite decides."""
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
class ComparedPart:
    """A part of a suite: the request of its comparison, and what that has come to.

    Attributes:
        name: Its name.
        declared: What the file declares.
        variants: {encoding: the variant that stands for it here}.
        refused: {encoding: why it is not applicable here}, by its declared facts.
        checked: The checked request; None if no encoding is applicable, or the data are not here.
        experiments: The variants by which an estimate counts where the data are not here; None
            where they are.
        comparison: The results; None if no encoding is applicable, or it was not begun.
        recorded: Cells that were taken from records.
    """

    name: str
    declared: SuitePart
    variants: Mapping[str, str]
    refused: Mapping[str, str]
    checked: CheckedRequest | None = None
    experiments: tuple[Experiment, ...] | None = None
    comparison: Comparison | None = None
    recorded: int = 0

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that the table of the suite has."""
        if self.comparison is None:
            return ()
        columns, conditions = self.declared.columns, self.comparison.conditions
        return tuple(
            condition for condition in conditions if not columns or condition.name in columns
        )

    @property
    def measure(self) -> str:
        """The metric without its prefix: accuracy."""
        return self.comparison.measure.removeprefix("test/") if self.comparison else ""


@dataclass(frozen=True, kw_only=True)
class SuiteComparison:
    """A suite for some encodings, as far as it has come.

    Attributes:
        file: The suite, with the parts that run.
        encodings: The encodings as people write them.
        folder: The output folder; each part has one within it.
        parts: The parts, each a comparison with a name.
        command: What repeats it.
        ranking: The encodings that all parts have, ranked over them; None if there is none.
        unranked: Why there is none.
    """

    file: SuiteFile
    encodings: tuple[str, ...]
    folder: Path
    parts: tuple[ComparedPart, ...]
    command: str
    ranking: OverallRanking | None = None
    unranked: str = ""

    @property
    def options(self) -> CompareOptions:
        """The options of a part; those of others differ only in what the file decides."""
        return next(part.checked.request.options for part in self.parts if part.checked)


def check_suite(
    suite: str,
    overrides: Overrides = (),
    *,
    encodings: Any = None,
    parts: Sequence[str] = (),
    given: Mapping[str, Any],
    command: str = "",
    needs_data: bool = True,
) -> SuiteComparison:
    """Read a suite, find out which encodings each part can have, and check all their cells.

    Args:
        suite: The name of a suite, or a file.
        overrides: Changes of all recipes, or of those of one part: `language.data.path`.
        encodings: Names of encodings, mappings with options, or lists of these.
        parts: The parts to run; all of them if empty.
        given: Options of comparisons and of the executor, not validated yet.
        command: What repeats the suite.
        needs_data: Whether a part is refused whose data are on another machine.

    Raises:
        RecipeError: The suite, an argument or an encoding is wrong, or fits no part; all issues of
            all parts are reported together.
        DataError: Data of some parts are missing; all of them are named.
    """
    refuse_fixed(given, FIXED)
    whole = load_suite(suite)
    file = choose_parts(whole, parts)
    edits = list_edits(overrides)
    common, by_part = split_overrides(whole, edits)
    (varied,) = read_varied_keys(encodings or [], {}, edits)
    folder = Path(given.get("to") or _name_folder(file, varied, edits))
    _check_folder(folder, file)
    given = {key: value for key, value in given.items() if value is not None}
    given["records"] = given.get("records") or find_records(file)
    # all parts before the first is run, which may take hours
    issues: list[ConfigIssue] = []
    missing: list[str] = []
    checked: list[ComparedPart] = []
    for name in file.suite.parts:
        part_edits = [*common, *by_part[name]]
        try:
            with collect_issues(issues), _name_issues(file, name, part_edits):
                checked.append(
                    _check_part(
                        file,
                        name,
                        part_edits,
                        varied,
                        requested={**given, "to": str(folder / name)},
                        command=command,
                        needs_data=needs_data,
                    )
                )
        except DataError as error:
            missing.append(f"{name}: {error}")
    if issues:
        raise RecipeError(*dict.fromkeys(issues))
    if missing:
        raise DataError("\n".join(missing))
    if not any(part.variants for part in checked):
        reasons = dict.fromkeys(reason for part in checked for reason in part.refused.values())
        message = f"no encoding is applicable to any part: {'; '.join(reasons)}"
        raise RecipeError(ConfigIssue(ARGUMENT, ENCODINGS, message))
    return SuiteComparison(
        file=file,
        encodings=tuple(varied.values),
        folder=folder,
        parts=tuple(checked),
        command=command,
    )


@contextmanager
def _name_issues(file: SuiteFile, name: str, edits: Sequence[Edit]) -> Iterator[None]:
    """Add the name of a part, and the lines of the suite's file, to the issues of an error."""
    try:
        yield
    except RecipeError as error:
        issues = []
        for issue in error.issues:
            located = file.locate(issue, name, edits)
            subject = f"{name}, {located.subject}" if located.subject else name
            issues.append(replace(located, subject=subject))
        raise RecipeError(*issues) from None


def _check_part(
    file: SuiteFile,
    name: str,
    edits: Sequence[Edit],
    varied: VariedKey,
    *,
    requested: Mapping[str, Any],
    command: str,
    needs_data: bool,
) -> ComparedPart:
    """Check all cells of a part, or only its models where declared sizes stand in for its data.

    Raises:
        RecipeError: Something is wrong.
        DataError: Data is missing.
    """
    part = file.suite.parts[name]
    recipe, all_edits = file.find_recipe(part), [*list_edits_of(file.suite, part), *edits]
    base = config.load(recipe, all_edits)
    spec = None if needs_data else _build_stand_in(part, base)
    # the recipe's own encoding is applicable, so its model tells what others meet
    model = _check_recipe(base, spec).meta_model
    _check_columns(file, name, spec)
    chosen = _choose_encodings(part, varied)
    recipes = _load_variants(
        recipe, all_edits, {label: value for label, (_, value) in chosen.items()}
    )
    refused = _find_inapplicable(model, recipes)
    fitting = {label: pair for label, pair in chosen.items() if label not in refused}
    # two encodings may have the same stand-in
    distinct = {variant: label for label, (variant, _) in fitting.items()}
    compared = ComparedPart(
        name=name,
        declared=part,
        variants={label: variant for label, (variant, _) in fitting.items()},
        refused=refused,
    )
    if spec is not None:
        experiments = _check_models([recipes[label] for label in distinct.values()], spec)
        return replace(compared, experiments=experiments)
    if not fitting:
        return compared
    checked = check_request(
        recipe,
        all_edits,
        encodings=[to_plain(fitting[label][1]) for label in distinct.values()],
        vary={},
        tune={key: to_plain(value) for key, value in list_tuned(file.suite, part).items()},
        given={**requested, **_list_decided(file.suite, part)},
        command=command,
    )
    return replace(compared, checked=checked)


def _check_folder(folder: Path, file: SuiteFile) -> None:
    """Raise RecipeError for a folder that holds something other than a suite and its parts."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    parts = [name for name in names if (folder / name / PLAN).exists()]
    other_names = [name for name in names if name not in (*parts, *file.suite.parts, *FILES)]
    if other_names or folder.is_file():
        message = f"{folder} is a file"
        if other_names:
            message = f"{folder} holds other files, {other_names[0]} among them"
        hint = "name a folder of its own"
        raise RecipeError(ConfigIssue(ARGUMENT, "to", message, hint))


def _name_folder(file: SuiteFile, varied: VariedKey, overrides: Sequence[Edit]) -> str:
    """Return the default output folder, which the same request finds again."""
    wanted = [to_plain(file.suite), {**varied.values}, list(map(repr, overrides))]
    digest = hashlib.sha256(json.dumps(wanted, sort_keys=True, default=str).encode()).hexdigest()
    return f"comparisons/suite_{file.name}-{digest[:8]}"


def find_records(file: SuiteFile) -> list[str]:
    """Return the folders of records of a suite that are there, here or in zoo's repository."""
    # a checkout has its records next to the package; a wheel ships none
    places = (Path(), Path(zoo.__file__).parent.parent)
    records = []
    for name in file.suite.records:
        folders = [place / name for place in places if (place / name).is_dir()]
        if folders:
            records.append(str(folders[0]))
        else:
            log.info("no record %s here, so all cells are trained", name)
    return records


def _choose_encodings(part: SuitePart, varied: VariedKey) -> dict[str, tuple[str, Any]]:
    """Return {encoding: (name, value) of the variant that stands for it in a part}."""
    chosen = {}
    for label, value in varied.values.items():
        replacement = part.instead.get(label)
        if replacement is None:
            chosen[label] = (label, value)
        else:
            (read,) = read_varied_keys([to_plain(replacement)], {})
            chosen[label] = next(iter(read.values.items()))
    return chosen


def _build_stand_in(part: SuitePart, recipe: Recipe) -> DataSpec | None:
    """Return facts of samples in place of data without a path; None where there is one."""
    sizes = part.stand_in
    if sizes is None or recipe.data.options.get("path") is not None:
        return None
    if sizes.vocabulary is None:
        return build_data(recipe, path=ABSENT).spec
    # the tokenizer may be on another machine too
    spec = build_data(recipe, path=ABSENT, tokenizer=None).spec
    return TextSpec(spec.size[0], TokenCount(sizes.vocabulary))


def _load_variants(
    recipe: str, edits: Sequence[Edit], encodings: Mapping[str, Any]
) -> dict[str, Recipe]:
    """Return {encoding: the recipe with it}, not checked.

    Raises:
        RecipeError: A name or an option of some encodings is wrong, wherever they are applicable.
    """
    issues: list[ConfigIssue] = []
    recipes = {}
    for label, value in encodings.items():
        with collect_issues(issues):
            recipes[label] = config.load(recipe, [*edits, Change(ENCODING, value)])
    if issues:
        raise RecipeError(*dict.fromkeys(issues))
    return recipes


def _find_inapplicable(model: nn.Module, recipes: Mapping[str, Recipe]) -> dict[str, str]:
    """Return {encoding: why no options make it applicable}, by the facts that encodings declare."""
    # sizes of layers do not depend on the encoding, so one model answers for all
    layers = [module for module in model.modules() if isinstance(module, SelfAttention)]
    refused = {}
    for label, recipe in recipes.items():
        reasons = (
            encoding_class(choice.name).explain_misfit(layer.dims, causal=layer.causal)
            for choice in recipe.model.options["encoding"]
            for layer in layers
        )
        if reason := next(filter(None, reasons), ""):
            refused[label] = reason
    return refused


def _check_columns(file: SuiteFile, name: str, spec: DataSpec | None) -> None:
    """Raise RecipeError for columns that the file declares and its recipe does not evaluate."""
    part = file.suite.parts[name]
    recipe = config.load(file.find_recipe(part), list_edits_of(file.suite, part))
    conditions = list_conditions(recipe, spec or build_data(recipe).spec)
    names = [condition.name for condition in conditions]
    key = f"parts.{name}.columns"
    issues = [
        ConfigIssue(
            locate(file.locations, f"{key}.{number}"),
            f"{key}.{number}",
            f"the recipe has no condition {column!r}",
            nearest(column, names) or f"its conditions are {', '.join(names)}",
        )
        for number, column in enumerate(part.columns)
        if column not in names
    ]
    if issues:
        raise RecipeError(*issues)


def _check_models(recipes: Sequence[Recipe], spec: DataSpec) -> tuple[Experiment, ...]:
    """Return experiments whose models can be built. Raises RecipeError with the issues of all."""
    issues: list[ConfigIssue] = []
    experiments = []
    for recipe in recipes:
        with collect_issues(issues):
            experiments.append(_check_recipe(recipe, spec))
    if issues:
        raise RecipeError(*dict.fromkeys(issues))
    return tuple(experiments)


def _check_recipe(recipe: Recipe, spec: DataSpec | None) -> Experiment:
    """Return the experiment of a recipe that can run.

    Raises:
        RecipeError: The recipe cannot run. Where sizes stand in for its data, only the model is
            checked.
        DataError: Data is missing.
    """
    if spec is None:
        return build_experiment(recipe)
    experiment = Experiment(recipe, spec)
    try:
        # built at its first use, on the meta device
        _ = experiment.meta_model
    except OptionError as error:
        raise RecipeError(recipe.make_issue(f"model.{error.key}", str(error))) from None
    return experiment


def _list_decided(suite: Suite, part: SuitePart) -> dict[str, Any]:
    """Return the options of comparisons that the file of a suite decides."""
    decided: dict[str, Any] = {"seeds": suite.seeds}
    if suite.studies is not None:
        decided = {"studies": suite.studies, "budget": suite.budget}
    return decided if part.measure is None else {**decided, "measure": part.measure}


def run_suite(suite: SuiteComparison) -> tuple[SuiteComparison, ZooError | None]:
    """Run all parts of a suite; what is done already is not done again.

    Returns:
        The suite as far as it has come, and why it is not complete; None if it is.

    Raises:
        RecipeError: An output folder cannot be used.
    """
    minutes = suite.options.minutes
    until = None if minutes is None else time.time() + 60 * minutes
    begun: dict[str, ComparedPart] = {}
    problems: list[str] = []
    stopped: Stopped | None = None
    waiting = [(part, part.checked) for part in suite.parts if part.checked is not None]
    for number, (part, checked) in enumerate(waiting):
        log.info("part %d of %d: %s", number + 1, len(waiting), part.name)
        # failed cells of a part leave the other parts to run; an interrupt does not
        outcome = run_comparison(checked, until)
        begun[part.name] = replace(
            part,
            comparison=outcome.comparison,
            recorded=_count_recorded(outcome.comparison, outcome.folder),
        )
        if isinstance(outcome.problem, Stopped):
            stopped = outcome.problem
            break
        if outcome.problem is not None:
            problems.append(f"{part.name}: {outcome.problem}")
    error = stopped or (ZooError("\n".join(problems)) if problems else None)
    parts = tuple(begun.get(part.name, part) for part in suite.parts)
    return _rank_parts(replace(suite, parts=parts)), error


def _count_recorded(comparison: Comparison, folder: Path) -> int:
    """Return how many cells were taken from records."""
    names = {Path(cell.run_dir).name for cell in comparison.cells}
    # a cell that was trained here has a run directory
    return sum(
        name in names and not (folder / CELLS / name).exists() for name in read_cells(folder)
    )


def _rank_parts(suite: SuiteComparison) -> SuiteComparison:
    """Return a suite with the ranking over its parts, or why there is none."""
    named = {}
    for part in suite.parts:
        if part.comparison is not None:
            # variants get the names of the encodings that they stand for
            by_name = {variant.name: variant for variant in part.comparison.variants}
            variants = (
                replace(by_name[name], name=encoding) for encoding, name in part.variants.items()
            )
            named[part.declared.title] = replace(part.comparison, variants=tuple(variants))
    # too few seeds, tasks or common encodings are no error of a suite: the page says so
    try:
        return replace(suite, ranking=rank_tasks(named, suite.command))
    except DataError as error:
        return replace(suite, unranked=str(error))
