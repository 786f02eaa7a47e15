"""Read the command line of `zoo compare`, and load and check the recipe of every variant."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

import torch

from zoo import config, registry
from zoo.compare.executors.base import Executor
from zoo.compare.grid import (
    ENCODINGS,
    Combination,
    VariedKey,
    list_combinations,
    parse_varied_keys,
    split_grid_words,
)
from zoo.config import Recipe
from zoo.config.command_line import parse_options, split_words
from zoo.config.schema import SEEDS, Seed
from zoo.config.tree import COMMAND_LINE, collect_issues
from zoo.data.spec import TextSpec
from zoo.errors import ConfigIssue, DataError, OptionError, RecipeError
from zoo.registry import Between, Count
from zoo.run.build import build_data
from zoo.run.load import load_recipe
from zoo.run.preflight import check

Measure = Literal["accuracy", "exact", "loss"]

# a trainer that this machine has, for checking a recipe that will run on another one
LOCAL_TRAINER = ("trainer.accelerator=cpu", "trainer.precision=32-true")


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `zoo compare`, whatever the executor."""

    seeds: Annotated[int, Between(1, 1000)] | tuple[Seed, ...] = 3
    """How many seeds, from the recipe's own on, or a list of them."""
    measure: Literal["accuracy", "exact", "loss"] | None = None
    """Metric to compare; null takes loss if every token is a target, else accuracy."""
    to: str | None = None
    """Output folder; null takes comparisons/<recipe>-<hash>."""
    jobs: Count | Literal["auto"] = "auto"
    """Cells that run at the same time; auto takes as many as there are CPU cores or GPUs."""
    engine: str = "local"
    """What runs the cells: local (this machine), slurm or ray."""
    rebuild: str | None = None
    """Output folder of a comparison whose table, page and figures are written again.

    Nothing is trained; `measure` is the only other option."""


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


def parse_request(
    recipe: str, words: Sequence[str], plugins: Sequence[str]
) -> tuple[CompareOptions, Executor, CompareRequest, dict[Combination, Recipe]]:
    """Read the command line, and load the recipe of each variant.

    Raises:
        RecipeError: Something is wrong with the words or with a recipe; all issues are reported
            together.
    """
    issues: list[ConfigIssue] = []
    grid_words, rest = split_grid_words(words)
    options, executor, overrides = _parse_options(rest, issues)
    keys: list[VariedKey] = []
    with collect_issues(issues):
        keys = parse_varied_keys(grid_words, overrides)

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
    with collect_issues(issues):
        if keys:
            recipes = resolve_recipes(request, is_local=executor is None or executor.is_local)
        else:
            config.load(recipe, overrides)
    if issues or executor is None:
        raise RecipeError(*dict.fromkeys(issues))
    return options, executor, request, recipes


def _parse_options(
    words: Sequence[str], issues: list[ConfigIssue]
) -> tuple[CompareOptions, Executor | None, list[str]]:
    """Return options, executor and overrides; defaults and None if they have issues."""
    engines = [word.partition("=")[2] for word in words if word.startswith("engine=")]
    cls: Any = None
    with collect_issues(issues):
        cls = _find_executor(engines[0] if engines else CompareOptions.engine)

    # a guess for as long as options are wrong
    overrides = [word for word in words if "." in word.partition("=")[0]]
    options, executor = CompareOptions(), None
    classes = (CompareOptions, *([cls] if cls else []))
    with collect_issues(issues):
        own, overrides = split_words(words, classes, (ENCODINGS,))
        common, *special = parse_options(own, classes)
        options = CompareOptions(**common)
        executor = _build_executor(cls, special[0]) if cls else None
    return options, executor, overrides


def _find_executor(name: str) -> Any:
    known = registry.names("executors")
    if name not in known:
        remedy = registry.nearest(name, known)
        raise RecipeError(
            ConfigIssue(COMMAND_LINE, "engine", f"there is no engine {name!r}", remedy)
        )
    return registry.find("executors", name)


def _build_executor(cls: Any, options: dict[str, Any]) -> Executor:
    try:
        return cast(Executor, cls(**options))
    except OptionError as error:
        raise RecipeError(ConfigIssue(COMMAND_LINE, error.key, str(error))) from None


def resolve_recipes(request: CompareRequest, *, is_local: bool) -> dict[Combination, Recipe]:
    """Load and check the recipe of each combination.

    Args:
        request: What varies.
        is_local: Whether the recipes are to run on this machine.

    Raises:
        RecipeError: Some recipes are wrong. Each issue names its variants, or none if all have it.
        DataError: Data are missing; all of them are named.
    """
    combinations = [*list_combinations(request.keys)]
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
            issues.setdefault(issue, []).append(combination.name)

    if issues:
        reported = []
        for issue, names in issues.items():
            is_common = len(names) == len(combinations) > 1
            location = f"{', '.join(names)}: {issue.location}"
            reported.append(issue if is_common else replace(issue, location=location))
        raise RecipeError(*reported)
    if missing:
        raise DataError("\n".join(dict.fromkeys(missing)))
    return recipes


def _load_recipe(request: CompareRequest, combination: Combination, is_local: bool) -> Recipe:
    words = [*request.overrides, *combination.overrides]
    recipe = config.load(request.recipe, words)
    _check_single_process(recipe)
    if is_local:
        check(recipe)
    else:
        load_recipe(request.recipe, [*words, *LOCAL_TRAINER])

    data = build_data(recipe)
    try:
        data.check_source()
    except OptionError as error:
        raise RecipeError(recipe.make_issue(f"data.{error.key}", str(error))) from None

    has_answers = isinstance(data.spec, TextSpec) and data.spec.targets == "answers"
    if request.measure == "exact" and not has_answers:
        problem = f"data {recipe.data.name} has no single answer in each window, so none is exact"
        raise RecipeError(ConfigIssue(COMMAND_LINE, "measure", problem, "write measure=accuracy"))
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
            raise RecipeError(
                ConfigIssue(COMMAND_LINE, "seeds", problem, "start at a smaller seed")
            )
    if not seeds or len(set(seeds)) < len(seeds):
        problem = "the list names a seed twice" if seeds else "the list is empty"
        raise RecipeError(
            ConfigIssue(COMMAND_LINE, "seeds", problem, "write seeds=3 or seeds=[0,7]")
        )
    return seeds
