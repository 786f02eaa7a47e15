"""Read the command line of `zoo compare`, and load and check the recipe of every variant."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, cast

import torch

from zoo import config, registry
from zoo.comparison.grid import (
    ENCODINGS,
    Combination,
    VariedKey,
    check_budget,
    check_lengths,
    find_setting,
    list_combinations,
    parse_tuned_keys,
    parse_varied_keys,
    split_grid_words,
    split_tuning_words,
)
from zoo.comparison.hypotheses import check_hypotheses
from zoo.comparison.tuning import SMALLEST_BUDGET, Trial, TunedKey, TuningRequest, shorten_training
from zoo.config import Recipe
from zoo.config.command_line import parse_options, parse_overrides, split_words
from zoo.config.schema import SEEDS, Seed
from zoo.config.tree import collect_issues
from zoo.data.spec import TextSpec
from zoo.errors import ARGUMENT, ConfigIssue, DataError, OptionError, RecipeError, nearest
from zoo.launch.executor import Executor
from zoo.options import Between, Count
from zoo.packages import require
from zoo.run.build import build_data
from zoo.run.load import load_recipe
from zoo.run.preflight import build_experiment

Measure = Literal["accuracy", "exact", "loss"]
# more than there can be seeds counted from the recipe's own
TUNING_SEED_OFFSET = 1000
LENGTHS = ("trainer.max_steps", "trainer.max_epochs")
# a trainer that this machine has, for checking a recipe that will run on another one
LOCAL_TRAINER = ("trainer.accelerator=cpu", "trainer.precision=32-true")


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `zoo compare`, whatever the executor."""

    seeds: Annotated[int, Between(1, 1000)] | tuple[Seed, ...] = 3
    """How many seeds, from the recipe's own on, or a list of them."""
    budget: Annotated[int, Between(1, 1000)] | None = None
    """Trials of each variant with what `tune.KEY=[...]` lists; needs at least one of these."""
    tuning_seed: Seed | None = None
    """Seed of all trials, not among `seeds`; null takes the recipe's own plus 1000."""
    sampler: Literal["design", "tpe"] | None = None
    """Method that chooses the settings of trials: design gives every variant the same settings, tpe
    lets Optuna's TPE choose the second half from the variant's own results; null takes design."""
    halving: Annotated[int, Between(2, 10)] | None = None
    """Successive halving: 2 trains all trials briefly, the better half twice as long, and so on."""
    measure: Literal["accuracy", "exact", "loss"] | None = None
    """Metric to compare; null takes loss if every token is a target, else accuracy."""
    to: str | None = None
    """Output folder; null takes comparisons/<recipe>-<hash>."""
    hypotheses: tuple[str, ...] = ()
    """Claims to judge: [rope > none, rope > none by 0.01 on accuracy at 256]."""
    jobs: Count | Literal["auto"] = "auto"
    """Cells that run at the same time; auto takes as many as there are CPU cores or GPUs."""
    engine: str = "local"
    """What runs the cells: local (this machine), slurm or ray."""
    rebuild: str | None = None
    """Output folder of a comparison whose table, page and figures are written again.

    Nothing is trained; `measure` is the only other option."""
    rank: tuple[str, ...] | None = None
    """Output folders of comparisons over which the variants of all are ranked.

    Nothing is trained; `to` is the only other option."""


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """The options of `zoo compare` that go with `rank`."""

    rank: tuple[str, ...]
    to: str | None = None


@dataclass(frozen=True, kw_only=True)
class RebuildOptions:
    """The options of `zoo compare` that go with `rebuild`."""

    rebuild: str
    measure: Measure | None = None


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """What is to be compared, as the command line says."""

    recipe: str
    overrides: Sequence[str]
    keys: Sequence[VariedKey]
    seeds: int | tuple[int, ...]
    measure: Measure | None
    command: str
    tuning: TuningRequest | None = None


@dataclass(frozen=True, kw_only=True)
class ParsedRequest:
    """The command line of `zoo compare`, with a checked recipe for each cell and trial."""

    options: CompareOptions
    request: CompareRequest
    recipes: Mapping[Combination, Recipe]
    trials: Mapping[Combination, Recipe]
    executor: Executor
    make_executor: Callable[[], Executor]
    """Makes another one for each round of trials: they are of no use once their work is done."""


def parse_request(recipe: str, words: Sequence[str], plugins: Sequence[str]) -> ParsedRequest:
    """Read the command line, and load the recipe of each variant and of each trial.

    Raises:
        RecipeError: Something is wrong with the words or with a recipe; all issues are reported
            together.
    """
    issues: list[ConfigIssue] = []
    grid_words, rest = split_grid_words(words)
    tuning_words, rest = split_tuning_words(rest)
    options, executor, make_executor, overrides = _parse_options(rest, issues)
    keys: list[VariedKey] = []
    with collect_issues(issues):
        keys = parse_varied_keys(grid_words, overrides)
    tuned: tuple[TunedKey, ...] = ()
    with collect_issues(issues):
        tuned = parse_tuned_keys(tuning_words, keys)
    with collect_issues(issues):
        _check_tuning_options(options, tuned, has_words=bool(tuning_words))
    with collect_issues(issues):
        _check_sampling(options, tuned)

    flags = [word for plugin in plugins for word in ("--plugin", plugin)]
    request = CompareRequest(
        recipe=recipe,
        overrides=overrides,
        keys=keys,
        seeds=options.seeds,
        measure=options.measure,
        command=shlex.join(["zoo", "compare", recipe, *words, *flags]),
    )
    recipes: dict[Combination, Recipe] = {}
    trials: dict[Combination, Recipe] = {}
    is_local = executor is None or executor.is_local
    with collect_issues(issues):
        if keys:
            recipes = resolve_recipes(request, is_local=is_local)
        else:
            config.load(recipe, parse_overrides(overrides))
    with collect_issues(issues):
        if recipes and options.hypotheses:
            names = [one.name for one in recipes]
            check_hypotheses(options.hypotheses, names, next(iter(recipes.values())))
    with collect_issues(issues):
        if recipes and tuned and options.budget is not None:
            tuning = _build_tuning(options, tuned, next(iter(recipes.values())))
            request = replace(request, tuning=tuning)
            trials = _resolve_trials(request, recipes, is_local=is_local)
    if issues or executor is None or make_executor is None:
        raise RecipeError(*dict.fromkeys(issues))
    return ParsedRequest(
        options=options,
        request=request,
        recipes=recipes,
        trials=trials,
        executor=executor,
        make_executor=make_executor,
    )


def _check_tuning_options(
    options: CompareOptions, tuned: Sequence[TunedKey], *, has_words: bool
) -> None:
    """Raise RecipeError if there is a budget without tuned keys or the other way around."""
    if options.budget is None and has_words:
        remedy = "write budget=8, the number of trials of each variant"
        raise RecipeError(ConfigIssue(ARGUMENT, "budget", "tuning needs a budget", remedy))
    for key in ("budget", "tuning_seed"):
        if getattr(options, key) is not None and not has_words:
            remedy = "write tune.optim.lr=[3e-4,1e-2,log], or leave it out"
            raise RecipeError(ConfigIssue(ARGUMENT, key, "nothing is tuned", remedy))
    if options.budget is not None and tuned:
        check_budget(tuned, options.budget)


def _build_tuning(
    options: CompareOptions, tuned: Sequence[TunedKey], recipe: Recipe
) -> TuningRequest:
    assert options.budget is not None
    return TuningRequest(
        keys=tuple(tuned),
        budget=options.budget,
        seed=_choose_tuning_seed(options, recipe),
        sampler=options.sampler or "design",
        halving=options.halving,
    )


def _resolve_trials(
    request: CompareRequest, recipes: Mapping[Combination, Recipe], *, is_local: bool
) -> dict[Combination, Recipe]:
    """Check all trials that are known, and return those that come first."""
    assert request.tuning is not None
    check_lengths(request.tuning, (one.plain()["trainer"] for one in recipes.values()))
    possible = list_possible_trials(request, recipes)
    checked = resolve_recipes(request, is_local=is_local, combinations=possible)
    first = {one.name for one in list_trials(request, recipes, {}, "high")}
    return {one: found for one, found in checked.items() if one.name in first}


def _choose_tuning_seed(options: CompareOptions, recipe: Recipe) -> int:
    """Return the seed of the trials. Raises RecipeError if results would use it too."""
    seed = options.tuning_seed
    if seed is None:
        seed = recipe.seed + TUNING_SEED_OFFSET
    remedy = "write tuning_seed=SEED with another seed"
    if seed > SEEDS.high:
        problem = f"the seed of trials, {seed}, is past {SEEDS.high}"
        raise RecipeError(ConfigIssue(ARGUMENT, "tuning_seed", problem, remedy))
    if seed in list_seeds(options.seeds, recipe):
        problem = f"seed {seed} of the trials is also a seed of the results"
        raise RecipeError(ConfigIssue(ARGUMENT, "tuning_seed", problem, remedy))
    return seed


def _check_sampling(options: CompareOptions, tuned: Sequence[TunedKey]) -> None:
    """Raise RecipeError if sampler or halving has nothing to choose, or they contradict."""
    issues = []

    def refuse(key: str, problem: str, remedy: str) -> None:
        issues.append(ConfigIssue(ARGUMENT, key, problem, remedy))

    for key in ("sampler", "halving"):
        if getattr(options, key) is not None and options.budget is None:
            remedy = "write tune.optim.lr=[3e-4,1e-2,log] budget=8, or leave it out"
            refuse(key, "nothing is tuned", remedy)
    budget = options.budget or SMALLEST_BUDGET
    if options.sampler == "tpe" and options.halving is not None:
        refuse("halving", "tpe needs trials of one length", "leave out halving or sampler=tpe")
    if options.sampler == "tpe" and budget < SMALLEST_BUDGET:
        problem = f"tpe learns nothing from {budget} trials"
        refuse("budget", problem, f"write budget={SMALLEST_BUDGET} or more")
    if options.sampler == "tpe":
        require("optuna")
    if options.halving is not None:
        if budget < options.halving:
            problem = f"{budget} trials cannot be divided by halving={options.halving}"
            refuse("budget", problem, f"write budget={options.halving} or more")
        for one in tuned:
            if one.key in LENGTHS:
                refuse(
                    f"tune.{one.key}", "halving sets the length of trials", "leave one of them out"
                )
    if issues:
        raise RecipeError(*issues)


def list_possible_trials(
    request: CompareRequest, recipes: Mapping[Combination, Recipe]
) -> list[Combination]:
    """Return the trials of a design and one of each length, to check them before the first runs."""
    tuning = request.tuning
    assert tuning is not None
    found = []
    for variant, recipe in recipes.items():
        points = tuning.list_points(_find_own_settings(tuning, recipe))
        trials = [Trial(number, 0, point) for number, point in enumerate(points)]
        trials += [Trial(0, rung, {}) for rung in range(1, len(tuning.rungs))]
        found += [build_trial(request, variant, recipe, one) for one in trials]
    return found


def list_trials(
    request: CompareRequest,
    recipes: Mapping[Combination, Recipe],
    values: Mapping[str, Mapping[tuple[int, int], float | None]],
    better: str,
) -> list[Combination]:
    """Return the trials of each variant, as far as those that have ended decide them.

    Args:
        request: What is tuned.
        recipes: The recipe of each variant.
        values: {variant: {trial: its validation metric}} of those that have ended.
        better: Whether high or low values are better.
    """
    tuning = request.tuning
    assert tuning is not None
    found = []
    for variant, recipe in recipes.items():
        own = _find_own_settings(tuning, recipe)
        trials = tuning.list_trials(values.get(variant.name, {}), own, better)
        found += [build_trial(request, variant, recipe, one) for one in trials]
    return found


def _find_own_settings(tuning: TuningRequest, recipe: Recipe) -> dict[str, Any]:
    """Return {key: value} of the tuned keys, as the recipe has them."""
    plain = recipe.plain()
    return {one.key: find_setting(plain, one.key) for one in tuning.keys}


def build_trial(
    request: CompareRequest, variant: Combination, recipe: Recipe, trial: Trial
) -> Combination:
    """Return a trial of a variant, whose training is as long as its rung says."""
    assert request.tuning is not None
    divisor = request.tuning.rungs[trial.rung][1]
    length = shorten_training(recipe.plain()["trainer"], divisor)
    settings = (f"{key}={text}" for key, text in trial.setting.items())
    rung = f" rung {trial.rung}" if trial.rung else ""
    return Combination(
        name=f"{variant.name} trial {trial.number}{rung}",
        values=variant.values,
        overrides=(*variant.overrides, *settings, *length),
        trial_of=variant.name,
        trial=trial,
    )


def _parse_options(
    words: Sequence[str], issues: list[ConfigIssue]
) -> tuple[CompareOptions, Executor | None, Callable[[], Executor] | None, list[str]]:
    """Return options, an executor and what makes another, and overrides.

    Options that have issues are defaults; there is no executor then.
    """
    engines = [word.partition("=")[2] for word in words if word.startswith("engine=")]
    cls: Any = None
    with collect_issues(issues):
        cls = _find_executor(engines[0] if engines else CompareOptions.engine)

    # a guess for as long as options are wrong
    overrides = [word for word in words if "." in word.partition("=")[0]]
    options = CompareOptions()
    executor: Executor | None = None
    make: Callable[[], Executor] | None = None
    classes = (CompareOptions, *([cls] if cls else []))
    with collect_issues(issues):
        own, overrides = split_words(words, classes, (ENCODINGS,))
        common, *special = parse_options(own, classes)
        options = CompareOptions(**common)
        if cls:
            make = partial(_build_executor, cls, special[0])
            executor = make()
    return options, executor, make, overrides


def _find_executor(name: str) -> Any:
    known = registry.names("executors")
    if name not in known:
        remedy = nearest(name, known)
        raise RecipeError(ConfigIssue(ARGUMENT, "engine", f"there is no engine {name!r}", remedy))
    return registry.find("executors", name)


def _build_executor(cls: Any, options: dict[str, Any]) -> Executor:
    try:
        return cast(Executor, cls(**options))
    except OptionError as error:
        raise RecipeError(ConfigIssue(ARGUMENT, error.key, str(error))) from None


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
    combinations = combinations or [*list_combinations(request.keys)]
    recipes: dict[Combination, Recipe] = {}
    issues: dict[ConfigIssue, list[str]] = {}
    missing: list[str] = []
    for combination in combinations:
        own: list[ConfigIssue] = []
        try:
            with collect_issues(own):
                recipes[combination] = _load_recipe(request, combination, is_local)
        except DataError as error:
            missing.append(str(error))
        for issue in own:
            issues.setdefault(issue, []).append(combination.trial_of or combination.name)

    if issues:
        reported = []
        count = len({one.trial_of or one.name for one in combinations})
        for issue, found in issues.items():
            names = dict.fromkeys(found)
            is_common = len(names) == count > 1
            subject = "" if is_common else ", ".join(names)
            reported.append(replace(issue, subject=subject))
        raise RecipeError(*reported)
    if missing:
        raise DataError("\n".join(dict.fromkeys(missing)))
    return recipes


def load_variant(request: CompareRequest, combination: Combination) -> Recipe:
    """Return the recipe of a combination, resolved but not checked."""
    words = [*request.overrides, *combination.overrides]
    return config.load(request.recipe, parse_overrides(words))


def _load_recipe(request: CompareRequest, combination: Combination, is_local: bool) -> Recipe:
    words = [*request.overrides, *combination.overrides]
    recipe = load_variant(request, combination)
    _check_single_process(recipe)
    if is_local:
        build_experiment(recipe)
    else:
        load_recipe(request.recipe, parse_overrides([*words, *LOCAL_TRAINER]))

    data = build_data(recipe)
    try:
        data.check_source()
    except OptionError as error:
        raise RecipeError(recipe.make_issue(f"data.{error.key}", str(error))) from None

    has_answers = isinstance(data.spec, TextSpec) and data.spec.targets == "answers"
    if request.measure == "exact" and not has_answers:
        problem = f"data {recipe.data.name} has no single answer in each window, so none is exact"
        raise RecipeError(ConfigIssue(ARGUMENT, "measure", problem, "write measure=accuracy"))
    return recipe


def _check_single_process(recipe: Recipe) -> None:
    """Raise RecipeError if a cell would be several processes; only the first has its lock."""
    issues = []
    for key, allowed in (("devices", ("auto", 1)), ("num_nodes", (1,))):
        if getattr(recipe.trainer, key) not in allowed:
            remedy = "leave it out; several cells run at the same time"
            issues.append(recipe.make_issue(f"trainer.{key}", "a cell is one process", remedy))
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
            problem = f"{count} seeds from {recipe.seed} on end past {SEEDS.high}"
            raise RecipeError(ConfigIssue(ARGUMENT, "seeds", problem, "start at a smaller seed"))
    if not seeds or len(set(seeds)) < len(seeds):
        problem = "the list names a seed twice" if seeds else "the list is empty"
        raise RecipeError(ConfigIssue(ARGUMENT, "seeds", problem, "write seeds=3 or seeds=[0,7]"))
    return seeds
