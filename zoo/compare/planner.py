"""The plan of a comparison: every variant resolved and found right before anything is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from zoo import __version__, config
from zoo.bench.result import describe_machine
from zoo.compare.executors.base import Resources
from zoo.compare.grid import Combination, VariedKey, build_axes, list_combinations, name_folders
from zoo.compare.plan import ComparisonPlan, PlannedCell
from zoo.config import Recipe
from zoo.config.schema import SEEDS
from zoo.config.tree import COMMAND_LINE, collect_issues
from zoo.data.spec import ImageSpec, TextSpec
from zoo.errors import ConfigIssue, DataError, OptionError, RecipeError
from zoo.run.build import build_data
from zoo.run.conditions import list_lengths
from zoo.run.load import load_recipe
from zoo.run.preflight import check
from zoo.utils.dates import format_now

ELSEWHERE = ("accelerator=cpu", "precision=32-true")  # to check what another machine will do
Measure = Literal["accuracy", "exact", "loss"]


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """What is to be compared, from the command line."""

    recipe: str
    overrides: Sequence[str]
    keys: Sequence[VariedKey]
    seeds: int | tuple[int, ...]
    measure: Measure | None
    command: str


def resolve_recipes(request: CompareRequest, *, is_local: bool) -> dict[Combination, Recipe]:
    """The recipe of each combination, checked for this machine, or for one that is not `here`.

    Raises RecipeError with all faults of all of them, those of each with its name, those that all have once; else
    DataError with all data that is not there.
    """
    chosen = [*list_combinations(request.keys)]
    found: dict[Combination, Recipe] = {}
    faults: dict[ConfigIssue, list[str]] = {}
    missing: list[str] = []
    for one in chosen:
        told: list[ConfigIssue] = []
        try:
            with collect_issues(told):
                found[one] = _loaded(request, one, here=is_local)
        except DataError as error:
            missing.append(str(error))
        for fault in told:
            faults.setdefault(fault, []).append(one.name)
    if faults:
        raise RecipeError(
            *(
                fault
                if len(names) == len(chosen) > 1
                else replace(fault, location=f"{', '.join(names)}: {fault.location}")
                for fault, names in faults.items()
            )
        )
    if missing:
        raise DataError("\n".join(dict.fromkeys(missing)))
    return found


def _loaded(asked: CompareRequest, one: Combination, *, here: bool) -> Recipe:
    words = [*asked.overrides, *one.overrides]
    made = config.load(asked.recipe, words)
    _alone(made)
    if here:
        check(made)
    else:
        load_recipe(asked.recipe, [*words, *(f"trainer.{word}" for word in ELSEWHERE)])
    data = build_data(made)
    try:
        data.check_source()
    except OptionError as error:
        raise RecipeError(made.make_issue(f"data.{error.key}", str(error))) from None
    if asked.measure == "exact" and not (
        isinstance(data.spec, TextSpec) and data.spec.targets == "answers"
    ):
        told = f"data {made.data.name} does not ask for one answer in each window, so that none is exact"
        raise RecipeError(ConfigIssue(COMMAND_LINE, "measure", told, "write measure=accuracy"))
    return made


def _alone(made: Recipe) -> None:
    """Raises RecipeError where a cell would be several processes: of these only the one that starts the others has its lock."""
    faults = [
        made.make_issue(
            f"trainer.{key}", "a cell is one process", "leave it out; cells run beside each other"
        )
        for key, known in (("devices", ("auto", 1)), ("num_nodes", (1,)))
        if getattr(made.trainer, key) not in known
    ]
    if faults:
        raise RecipeError(*faults)


def count_gpus(made: Recipe, *, is_local: bool) -> int:
    """Whether a cell asks for one."""
    import torch

    options = made.trainer
    wanted = options.accelerator in ("gpu", "cuda") or (
        is_local and options.accelerator == "auto" and torch.cuda.is_available()
    )
    return int(wanted)


def build_plan(
    request: CompareRequest,
    found: dict[Combination, Recipe],
    resources: Resources,
    *,
    is_local: bool,
) -> ComparisonPlan:
    """All cells, with the threads that each of them has, where the recipe does not say how many."""
    first = next(iter(found.values()))
    numbers = list_seeds(request.seeds, first)
    files = dict(zip(found, name_folders([one.name for one in found]), strict=True))
    chosen = all(made.trainer.num_threads is None for made in found.values())
    measure, direction = _measure(request, first)
    sizes = {_size(made) for made in found.values()}
    windows = dict.fromkeys(words for made in found.values() for words in _windows(made))
    return ComparisonPlan(
        zoo_version=__version__,
        created=format_now(),
        command=request.command,
        recipe=first.name,
        base=config.load(request.recipe, request.overrides).plain(),
        machine={
            **describe_machine("cuda" if resources.gpus and is_local else "cpu"),
            "threads": resources.threads,
            "jobs": resources.jobs,
        },
        axes=build_axes(request.keys),
        seeds=numbers,
        measure=measure,
        better=direction,
        training_size=sizes.pop() if len(sizes) == 1 else "",
        windows=" or ".join(windows),
        automatic_threads=chosen,
        variants={one.name: one.values for one in found},
        cells=tuple(
            PlannedCell(
                name=f"{files[one]}-{seed}",
                variant=one.name,
                seed=seed,
                recipe=_planned(made, seed, resources),
            )
            for one, made in found.items()
            for seed in numbers
        ),
    )


def list_seeds(asked: int | tuple[int, ...], base: Recipe) -> tuple[int, ...]:
    """Those that are listed, or so many from that of the recipe on. Raises RecipeError."""
    if isinstance(asked, int):
        asked = tuple(range(base.seed, base.seed + asked))
        if asked[-1] > SEEDS.high:
            told = f"{len(asked)} seeds from {base.seed} on end past {SEEDS.high}"
            raise RecipeError(ConfigIssue(COMMAND_LINE, "seeds", told, "begin with a smaller seed"))
    if not asked or len(set(asked)) < len(asked):
        problem = "a list of none" if not asked else "a seed stands twice"
        raise RecipeError(
            ConfigIssue(COMMAND_LINE, "seeds", problem, "write seeds=3 or seeds=[0,7]")
        )
    return asked


def _planned(made: Recipe, seed: int, needs: Resources) -> dict[str, Any]:
    threads = made.trainer.num_threads or needs.threads
    return replace(made, seed=seed, trainer=replace(made.trainer, num_threads=threads)).plain()


def _measure(asked: CompareRequest, made: Recipe) -> tuple[str, Literal["high", "low"]]:
    """What the answer is given in: by default the loss of texts of which every token is asked, else the accuracy."""
    samples = build_data(made).spec
    name = asked.measure or (
        "loss" if isinstance(samples, TextSpec) and samples.targets == "every" else "accuracy"
    )
    return f"test/{name}", find_direction(name)


def find_direction(measure: str) -> Literal["high", "low"]:
    return "low" if measure == "loss" else "high"


def _size(made: Recipe) -> str:
    samples = build_data(made).spec
    if not isinstance(samples, ImageSpec):
        return f"{samples.length} tokens"
    same = samples.height == samples.width
    return f"{samples.height} pixels" if same else f"{samples.height} x {samples.width} pixels"


def _windows(made: Recipe) -> Iterator[str]:
    """How texts are cut at other lengths than that of training, where they are."""
    for sized in list_lengths(made, build_data(made).spec).values():
        if words := build_data(made, **sized.options).windowing:
            yield f"windows {words}"
