"""Read the request of a comparison, and check the recipe of every variant and trial."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal, cast

import torch

from zoo import config, registry
from zoo.comparison.grid import (
    ENCODINGS,
    VARY,
    Combination,
    VariedKey,
    build_axes,
    list_combinations,
    read_varied_keys,
)
from zoo.comparison.hypotheses import check_hypotheses, check_question
from zoo.comparison.looks import LOOKS
from zoo.comparison.results import Axis, Measure
from zoo.comparison.study_trials import StudyTrial, find_effective_keys, list_study_trials
from zoo.comparison.tuning import EXAMPLE, TUNE, Settings, TuningRequest, read_tuned_keys
from zoo.config import Change, Edit, Overrides, Recipe
from zoo.config.arguments import validate_given
from zoo.config.overrides import list_edits
from zoo.config.schema import SEEDS, Seed
from zoo.config.tree import collect_issues
from zoo.errors import ARGUMENT, ConfigIssue, DataError, Message, OptionError, RecipeError, Setting
from zoo.launch.executor import Executor
from zoo.options import Between, Count
from zoo.options.signature import fields, options
from zoo.run.build import Experiment
from zoo.run.conditions import TRAINED
from zoo.run.load import load_experiment
from zoo.run.preflight import build_experiment, check_data, check_optimizer
from zoo.suggestions import nearest

PART = re.compile(r"(\d{1,4})/(\d{1,4})")
# a trainer that this machine has, for checking a recipe that will run on another one
LOCAL_TRAINER = (Change("trainer.accelerator", "cpu"), Change("trainer.precision", "32-true"))


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `zoo compare`, whatever the executor."""

    seeds: Annotated[int, Between(1, 1000)] | tuple[Seed, ...] = 3
    """Number of seeds, counted from the recipe's seed, or a list of seeds."""
    studies: Annotated[int, Between(1, 1000)] | None = None
    """Studies, in place of `seeds` where keys are tuned: each tunes all variants anew."""
    budget: Annotated[int, Between(1, 1000)] | None = None
    """Trials of each variant in each study; needs at least one tuned key, `tune.KEY=[...]`."""
    racing: bool = False
    """Stop variants that are beaten, and refuted claims, after 3, 5, 8, 12 and 18 studies."""
    measure: Measure | None = None
    """Metric to compare; null takes loss if every token is a target, miou of pixels, else
    accuracy."""
    to: str | None = None
    """Output folder; null takes comparisons/<recipe>-<hash>."""
    intervals: bool = False
    """Whether table.tex has the 95 % intervals; table.csv always has them."""
    target: float | None = None
    """Rank variants by the time to this value of the monitored validation metric; null: by that of
    synthetic tasks to an accuracy of 0.95."""
    question: str | None = None
    """The condition that is asked about, such as trained or 256, judged at the whole 5 %; null
    corrects all conditions together."""
    hypotheses: tuple[str, ...] = ()
    """Claims to judge: [rope > none, rope > none by 0.01 on accuracy at 256]."""
    pilot: str | None = None
    """Folder of a comparison on other seeds: claims that it leaves no room for are not asked."""
    jobs: Count | Literal["auto"] = "auto"
    """Cells that run at the same time; auto takes as many as there are CPU cores or GPUs."""
    minutes: Annotated[float, Between(1e-9)] | None = None
    """Minutes after which no further cell begins; the same command continues."""
    part: str | None = None
    """Share of the blocks to train here: 2/5 takes every fifth, from the second on."""
    keep: Literal["weights"] | None = None
    """`weights` keeps the checkpoints of finished cells; null deletes them."""
    records: tuple[str, ...] = ()
    """Folders of recorded comparisons whose finished cells are taken instead of training anew."""
    engine: str = "local"
    """Executor of the cells: local (this machine) or slurm."""


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """The variants to compare, and how.

    Attributes:
        recipe: A recipe file or a registered name.
        overrides: The changes of the recipe that all variants share.
        axes: What varies.
        options: The options.
        command: What repeats the comparison, for its page.
        tuning: What is tuned, if anything is.
    """

    recipe: str
    overrides: tuple[Edit, ...]
    axes: tuple[Axis, ...]
    options: CompareOptions
    command: str
    tuning: TuningRequest | None = None


@dataclass(frozen=True, kw_only=True)
class CheckedRequest:
    """A request with a checked recipe for each variant and trial.

    Attributes:
        request: The request.
        recipes: The recipe of each variant.
        trials: The trials of all studies, each with its recipe; empty if nothing is tuned.
        effective: {variant: the tuned keys that have an effect on it}.
        executor: What runs the cells.
        make_executor: Makes another one for further cells: each runs one list of them.
    """

    request: CompareRequest
    recipes: Mapping[Combination, Recipe]
    executor: Executor
    make_executor: Callable[[], Executor]
    trials: tuple[tuple[StudyTrial, Recipe], ...] = ()
    effective: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def check_request(
    recipe: str,
    overrides: Overrides,
    *,
    encodings: Any = None,
    vary: Mapping[str, Any],
    tune: Mapping[str, Any],
    given: Mapping[str, Any],
    command: str = "",
) -> CheckedRequest:
    """Read a request, and load and check the recipe of each variant and of each trial.

    Args:
        recipe: A recipe file or a registered name.
        overrides: Changes of the recipe.
        encodings: The encodings that vary; None if they do not.
        vary: Other keys that vary: {key: list of values}.
        tune: The keys that are tuned: {key: range or list of choices}.
        given: Options of `CompareOptions` and of the executor, not validated yet.
        command: What repeats the comparison.

    Raises:
        RecipeError: An argument or a recipe is wrong; all issues are reported together.
        DataError: Data is missing.
    """
    issues: list[ConfigIssue] = []
    edits: list[Edit] = []
    keys: list[VariedKey] = []
    tuning: TuningRequest | None = None
    chosen, make_executor = _read_options(given, issues)
    with collect_issues(issues):
        edits = list_edits(overrides)
    with collect_issues(issues):
        keys = read_varied_keys(encodings, vary, edits)
    with collect_issues(issues):
        read_part(chosen.part)
    if chosen.studies is not None:
        if given.get("seeds") is not None:
            message = "each study has a seed of its own"
            issues.append(ConfigIssue(ARGUMENT, "seeds", message, "leave it out"))
        chosen = replace(chosen, seeds=chosen.studies)
    with collect_issues(issues):
        _check_tuning(chosen, is_tuned=bool(tune))
    with collect_issues(issues):
        tuned = read_tuned_keys(tune, keys)
        if tuned and chosen.budget is not None:
            tuning = TuningRequest(keys=tuned, budget=chosen.budget)

    request = CompareRequest(
        recipe=recipe,
        overrides=tuple(edits),
        axes=build_axes(keys),
        options=chosen,
        command=command,
        tuning=tuning,
    )
    recipes: dict[Combination, Recipe] = {}
    executor: Executor | None = None
    with collect_issues(issues):
        executor = make_executor() if make_executor is not None else None
    is_local = executor is None or executor.is_local
    with collect_issues(issues):
        # where nothing varies, which is an issue, those of the recipe are reported with it
        if keys:
            recipes = resolve_recipes(request, is_local=is_local)
        else:
            config.load(recipe, edits)
    with collect_issues(issues):
        if recipes and chosen.hypotheses:
            names = [combination.name for combination in recipes]
            check_hypotheses(chosen.hypotheses, names, next(iter(recipes.values())))
        if chosen.question is not None:
            check_question(chosen.question, next(iter(recipes.values())))
    trials: list[tuple[StudyTrial, Recipe]] = []
    effective: dict[str, tuple[str, ...]] = {}
    with collect_issues(issues):
        if recipes and tuning is not None and chosen.studies is not None:
            load = partial(load_variant, request)
            effective = find_effective_keys(tuning.keys, [*recipes], load)
            trials = resolve_trials(request, recipes, effective, is_local=is_local)
    # all at once: a user who mends one issue does not meet the next one then
    if issues or executor is None or make_executor is None:
        raise RecipeError(*dict.fromkeys(issues))
    return CheckedRequest(
        request=request,
        recipes=recipes,
        executor=executor,
        make_executor=make_executor,
        trials=tuple(trials),
        effective=effective,
    )


def resolve_trials(
    request: CompareRequest,
    recipes: Mapping[Combination, Recipe],
    effective: Mapping[str, Sequence[str]],
    *,
    is_local: bool,
) -> list[tuple[StudyTrial, Recipe]]:
    """Return the trials of all studies with their recipes, checked.

    Raises:
        RecipeError: Some recipes are wrong.
    """
    tuning, studies = request.tuning, request.options.studies
    assert tuning is not None
    assert studies is not None
    seed = next(iter(recipes.values())).seed
    trials = list_study_trials(tuning.keys, effective, studies, tuning.budget, seed)
    variants = {combination.name: combination for combination in recipes}
    combinations = []
    for trial in trials:
        name = f"{trial.variant} study {trial.study} trial {trial.trial}"
        changed = apply_settings(variants[trial.variant], trial.settings)
        # a name of its own, as a key of the recipes; messages name the variant
        combinations.append(replace(changed, name=name, trial_of=trial.variant))
    resolved = resolve_recipes(request, is_local=is_local, combinations=combinations)
    return [
        (study_trial, resolved[combination])
        for study_trial, combination in zip(trials, combinations, strict=True)
    ]


def _read_options(
    requested: Mapping[str, Any], issues: list[ConfigIssue]
) -> tuple[CompareOptions, Callable[[], Executor] | None]:
    """Return the options, and what makes an executor; defaults and None if they have issues."""
    before = len(issues)
    cls: Any = None
    with collect_issues(issues):
        cls = _find_executor(requested.get("engine", CompareOptions.engine))

    common = fields(CompareOptions)
    special = options(cls) if cls else {}
    allowed = {**common, **special}
    # without an engine, nobody knows which of the other options it has
    requested = {key: value for key, value in requested.items() if cls or key in allowed}
    with collect_issues(issues):
        typed = validate_given(requested, allowed, (ENCODINGS, VARY, TUNE))
    if len(issues) > before:
        return CompareOptions(), None
    chosen = CompareOptions(**{key: typed[key] for key in common})
    make = partial(_build_executor, cls, {key: typed[key] for key in special})
    return chosen, make


def _find_executor(name: Any) -> Any:
    engines = registry.names("executors")
    if name not in engines:
        hint = nearest(str(name), engines)
        raise RecipeError(ConfigIssue(ARGUMENT, "engine", f"there is no engine {name!r}", hint))
    return registry.find("executors", name)


def _build_executor(cls: Any, special: dict[str, Any]) -> Executor:
    try:
        return cast(Executor, cls(**special))
    except OptionError as error:
        raise RecipeError(ConfigIssue(ARGUMENT, error.key, error.message)) from None


def read_part(text: str | None) -> tuple[int, int]:
    """Return which of how many parts of the blocks is trained. Raises RecipeError if it is none."""
    match = PART.fullmatch(text or "1/1")
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        hint = Message("write ", Setting("part", "2/5"), " for the second of five")
        raise RecipeError(ConfigIssue(ARGUMENT, "part", f"{text!r} is no part", hint))
    return number, count


def _check_tuning(chosen: CompareOptions, *, is_tuned: bool) -> None:
    """Raise RecipeError unless tuned keys, studies and a budget are given together."""
    issues: list[ConfigIssue] = []
    meanings = {
        "studies": (5, ", each of which tunes all variants anew"),
        "budget": (4, ", the number of trials of each variant in each study"),
    }
    for key, (example, meaning) in meanings.items():
        is_given = getattr(chosen, key) is not None
        if is_tuned and not is_given:
            hint = Message("write ", Setting(key, example), meaning)
            issues.append(ConfigIssue(ARGUMENT, key, f"tuning needs {key}", hint))
        elif is_given and not is_tuned:
            hint = Message("write ", EXAMPLE, ", or leave it out")
            issues.append(ConfigIssue(ARGUMENT, key, "nothing is tuned", hint))
    if chosen.racing:
        issues += _find_racing_issues(chosen)
    if issues:
        raise RecipeError(*issues)


def _find_racing_issues(chosen: CompareOptions) -> Iterator[ConfigIssue]:
    """Yield why a comparison cannot be raced."""
    first_look, last_look = LOOKS[0], LOOKS[-1]
    studies = chosen.studies or 0
    hint = Message("write ", Setting("studies", last_look), " with tuned keys, or leave it out")
    if not first_look <= studies <= last_look:
        message = (
            f"a race has {first_look} to {last_look} studies, with looks after {_list_looks()}"
        )
        yield ConfigIssue(ARGUMENT, "racing", message, hint)
    if chosen.question not in (None, TRAINED):
        message = f"a race asks about the condition {TRAINED}"
        yield ConfigIssue(ARGUMENT, "question", message, "leave it out, or do not race")
    if chosen.part is not None:
        message = "a look needs all studies before it, and a part has only some"
        part_hint = Message(
            "leave it out; ", Setting("minutes"), " stops, and any machine continues"
        )
        yield ConfigIssue(ARGUMENT, "part", message, part_hint)


def _list_looks() -> str:
    *earlier, final = map(str, LOOKS)
    return f"{', '.join(earlier)} and {final}"


def apply_settings(variant: Combination, settings: Settings) -> Combination:
    """Return a variant with the settings of a trial."""
    edits = (Change(key, value) for key, value in settings.items())
    return replace(variant, edits=(*variant.edits, *edits))


def resolve_recipes(
    request: CompareRequest, *, is_local: bool, combinations: Sequence[Combination] = ()
) -> dict[Combination, Recipe]:
    """Load and check the recipe of each combination.

    Args:
        request: What varies.
        is_local: Whether the recipes are to run on this machine.
        combinations: Those that are loaded; by default all variants.

    Raises:
        RecipeError: Some recipes are wrong. Each issue names its variants, or none if all have it.
        DataError: Data are missing; all of them are named.
    """
    combinations = combinations or [*list_combinations(request.axes)]
    recipes: dict[Combination, Recipe] = {}
    issues: dict[ConfigIssue, list[str]] = {}
    missing: list[str] = []
    checked: dict[str, Experiment] = {}
    # trials of several studies may have the same settings
    loaded: dict[str, Recipe] = {}
    for combination in combinations:
        recipe_issues: list[ConfigIssue] = []
        edits = repr(combination.edits)
        try:
            with collect_issues(recipe_issues):
                if edits not in loaded:
                    loaded[edits] = _load_recipe(request, combination, is_local, checked)
                recipes[combination] = loaded[edits]
        except DataError as error:
            missing.append(str(error))
        for issue in recipe_issues:
            issues.setdefault(issue, []).append(combination.trial_of or combination.name)

    if issues:
        reported = []
        count = len({variant.trial_of or variant.name for variant in combinations})
        for issue, owners in issues.items():
            names = dict.fromkeys(owners)
            is_common = len(names) == count > 1
            subject = "" if is_common else ", ".join(names)
            reported.append(replace(issue, subject=subject))
        raise RecipeError(*reported)
    if missing:
        raise DataError("\n".join(dict.fromkeys(missing)))
    return recipes


def load_variant(request: CompareRequest, combination: Combination) -> Recipe:
    """Return the recipe of a combination, resolved but not checked."""
    return config.load(request.recipe, [*request.overrides, *combination.edits])


def _load_recipe(
    request: CompareRequest,
    combination: Combination,
    is_local: bool,
    checked: dict[str, Experiment],
) -> Recipe:
    """Load and check the recipe of a combination.

    Args:
        request: What varies.
        combination: Its values.
        is_local: Whether the recipe is to run on this machine.
        checked: The experiments that were checked, by their recipes without seed and optimizer,
            which trials of a variant share. It gets this one.
    """
    recipe = load_variant(request, combination)
    plain = recipe.plain() | {"seed": None, "optim": None}
    shared = json.dumps(plain, sort_keys=True)
    # activation checkpointing has wrapped the modules of a checked model
    if shared in checked and not recipe.trainer.activation_checkpointing:
        check_optimizer(recipe, checked[shared])
        return recipe
    _check_single_process(recipe)
    experiment = _check_recipe(request, recipe, combination, is_local)
    # variants of a model have the same data, whose classes take seconds to count
    if not any(_has_same_data(recipe, earlier.recipe) for earlier in checked.values()):
        check_data(experiment, ("train",))
    checked[shared] = experiment
    return recipe


def _check_recipe(
    request: CompareRequest, recipe: Recipe, combination: Combination, is_local: bool
) -> Experiment:
    """Check a recipe with its data, and return its experiment."""
    if is_local:
        experiment = build_experiment(recipe)
    else:
        changes = [*request.overrides, *combination.edits, *LOCAL_TRAINER]
        experiment = load_experiment(request.recipe, changes)

    data = experiment.data
    has_answers = data.spec.has_answers
    if request.options.measure == "exact" and not has_answers:
        message = f"data {recipe.data.name} has no single answer in each window, so none is exact"
        hint = Message("write ", Setting("measure", "accuracy"))
        raise RecipeError(ConfigIssue(ARGUMENT, "measure", message, hint))
    is_dense = data.spec.target_unit == "pixel"
    if request.options.measure == "miou" and not is_dense:
        message = f"data {recipe.data.name} has no masks, so no pixel has a class"
        hint = Message("write ", Setting("measure", "accuracy"))
        raise RecipeError(ConfigIssue(ARGUMENT, "measure", message, hint))
    return experiment


def _has_same_data(recipe: Recipe, other_recipe: Recipe) -> bool:
    """Return whether two recipes read the same samples, and their tasks ignore the same class."""
    ignored = [side.task.options.get("ignore_index") for side in (recipe, other_recipe)]
    return (
        recipe.data == other_recipe.data
        and recipe.seed == other_recipe.seed
        and ignored[0] == ignored[1]
    )


def _check_single_process(recipe: Recipe) -> None:
    """Raise RecipeError if a cell would be several processes; only the first has its lock."""
    issues = []
    for key, allowed in (("devices", ("auto", 1)), ("num_nodes", (1,))):
        if getattr(recipe.trainer, key) not in allowed:
            hint = "leave it out; several cells run at the same time"
            issues.append(recipe.make_issue(f"trainer.{key}", "a cell is one process", hint))
    if issues:
        raise RecipeError(*issues)


def count_gpus(recipe: Recipe, *, is_local: bool) -> int:
    """Return how many GPUs a cell asks for: 1 or 0."""
    accelerator = recipe.trainer.accelerator
    if accelerator == "auto":
        return int(is_local and torch.cuda.is_available())
    return int(accelerator in ("gpu", "cuda"))


def list_seeds(seeds: int | tuple[int, ...], recipe: Recipe) -> tuple[int, ...]:
    """Return the seeds: the listed ones, or so many from the recipe's own on.

    Raises:
        RecipeError: The list is empty or has a seed twice, or the last seed is too large.
    """
    if isinstance(seeds, int):
        count = seeds
        seeds = tuple(range(recipe.seed, recipe.seed + count))
        if seeds[-1] > SEEDS.high:
            message = f"{count} seeds from {recipe.seed} on end past {SEEDS.high}"
            raise RecipeError(ConfigIssue(ARGUMENT, "seeds", message, "start at a smaller seed"))
    if not seeds or len(set(seeds)) < len(seeds):
        message = "the list names a seed twice" if seeds else "the list is empty"
        hint = Message("write ", Setting("seeds", 3), " or ", Setting("seeds", [0, 7]))
        raise RecipeError(ConfigIssue(ARGUMENT, "seeds", message, hint))
    return seeds
