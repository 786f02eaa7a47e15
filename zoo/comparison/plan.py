"""The plan of a comparison: all its cells, as plain data, written before anything is trained."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from zoo import config
from zoo.comparison.design import Range
from zoo.comparison.digests import EDITED, HASH, is_unchanged, seal
from zoo.comparison.grid import Combination, name_folders
from zoo.comparison.hypotheses import HYPOTHESES
from zoo.comparison.looks import plan_looks
from zoo.comparison.request import CompareRequest, list_seeds
from zoo.comparison.results import ComparisonSubject, SearchedKey, find_direction
from zoo.comparison.statistics import FEWEST, LEVEL
from zoo.config import Recipe, from_plain
from zoo.data.spec import DataSpec
from zoo.errors import ARGUMENT, ConfigIssue, DataError, RecipeError
from zoo.launch.executor import Resources
from zoo.options.plain import to_plain, walk
from zoo.options.stored import build_stored
from zoo.reporting.numbers import format_number
from zoo.run import resume, run_dir
from zoo.run.build import build_data
from zoo.run.conditions import TRAINED, Condition, choose_data_options, list_conditions
from zoo.run.machine import describe_machine
from zoo.suggestions import join_words
from zoo.utils import (
    WRITE_TEST,
    WRITING,
    check_writable,
    create_file,
    describe_absence,
    format_now,
    read_json,
    read_text,
    write_file,
)
from zoo.version import __version__

log = logging.getLogger("zoo")

PLAN, CELLS, RECIPES = "plan.json", "cells", "recipes"
MAX_DIFFERENCES = 10
UNCOMPARED = (*resume.UNCOMPARED, "trainer.logger", "diagnostics")
"""Keys that change no result, and what is below them."""
UNCOMPARED_PREFIXES = tuple(f"{key}." for key in UNCOMPARED)
IGNORE = ".gitignore"
IGNORED = """\
# what is committed: plan.json, hypotheses.json, cells.jsonl; all else follows from these
/cells/
/recipes/
/results.json
/comparison.md
/*.html
/*.png
/*.svg
/*.pdf
/table.*
/values.csv
/.*
!/.gitignore
!/.gitattributes
"""
ATTRIBUTES = ".gitattributes"
MERGED = "cells.jsonl merge=union\n"
"""Cells that two branches added are both kept."""


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """A cell: the names of its folder and of its variant, and its recipe as plain data.

    Attributes:
        name: The name of its folder.
        variant: The name of its variant.
        seed: Its seed.
        recipe: Its recipe as plain data.
        study: The number of its study, if the comparison has studies.
        trial: The number of the trial in the study.
    """

    name: str
    variant: str
    seed: int
    recipe: Mapping[str, Any]
    study: int | None = None
    trial: int | None = None

    @property
    def block(self) -> int:
        """The study or the seed that cells share if they are compared with each other."""
        return self.seed if self.study is None else self.study


@dataclass(frozen=True, kw_only=True)
class StudyDesign:
    """The keys that the studies of a comparison tune.

    Attributes:
        budget: Trials of each variant in each study.
        keys: The tuned keys.
        ranges: Those that are ranges.
        effective: {variant: the keys that have an effect on it}.
        is_raced: Whether looks stop variants, by the measure of the plan.
    """

    budget: int
    keys: tuple[SearchedKey, ...]
    ranges: tuple[Range, ...] = ()
    effective: Mapping[str, tuple[str, ...]]
    is_raced: bool = False


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan(ComparisonSubject):
    """The cells of a comparison and the metadata of its report.

    Attributes:
        training_size: Tokens, or height and width in pixels; None if variants differ in it.
        windows: How texts are cut.
        automatic_threads: Whether zoo chose the number of threads, which is then no part of what
            is compared.
        variants: {name: {key: label of its value}}.
        cells: The cells.
        has_answers: Whether some tokens answer others, as in synthetic tasks, which can be solved.
        design: What studies tune, if the comparison has studies; its cells are their trials.
    """

    training_size: tuple[int, ...] | None
    windows: str
    automatic_threads: bool
    variants: Mapping[str, Mapping[str, str]]
    cells: tuple[PlannedCell, ...]
    has_answers: bool = False
    design: StudyDesign | None = None

    @property
    def trained(self) -> Condition:
        """The first condition: the test data of the recipe."""
        return Condition(TRAINED, "trained", self.training_size)

    @property
    def hash(self) -> str:
        """Eight hexadecimal digits that differ between plans with different cells."""
        settings = {cell.name: self.list_settings(cell) for cell in self.cells}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks of cells, each once and in order."""
        return tuple(dict.fromkeys(cell.block for cell in self.cells))

    def list_settings(self, cell: PlannedCell) -> dict[str, Any]:
        """Return {full key: value} of a cell's recipe."""
        settings = _list_leaves(cell.recipe)
        if self.automatic_threads:
            settings.pop("trainer.num_threads", None)
        return settings

    def list_compared(self, cell: PlannedCell) -> dict[str, Any]:
        """Return {full key: value} of a cell's recipe as far as its results depend on it.

        Options that zoo has gained since the plan was written have their defaults, which compute
        what was computed without them.
        """
        completed = replace(cell, recipe=complete_recipe(cell.recipe, cell.name))
        settings = self.list_settings(completed)
        return {key: value for key, value in settings.items() if not is_uncompared(key)}

    def contains(self, other: ComparisonPlan) -> bool:
        """Return whether all cells of another plan are among these."""
        cells = {cell.name: cell for cell in self.cells}
        return all(
            cell.name in cells and self.agrees(cells[cell.name], other, cell)
            for cell in other.cells
        )

    def agrees(self, cell: PlannedCell, other: ComparisonPlan, its_cell: PlannedCell) -> bool:
        """Return whether a cell of this plan and one of another have the same settings."""
        # most are equal as they are; to complete a recipe takes a hundred times longer
        return self.list_settings(cell) == other.list_settings(its_cell) or (
            self.list_compared(cell) == other.list_compared(its_cell)
        )

    def write(self, folder: Path) -> None:
        """Write the plan into the output folder; of each recipe, how it differs from the base."""
        plain = to_plain(self)
        for cell in plain["cells"]:
            cell["settings"] = list_changes(self.base, cell.pop("recipe"))
        content = json.dumps(seal(plain), indent=1, ensure_ascii=False) + "\n"
        write_file(io.BytesIO(content.encode()), folder / PLAN)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the plan of a folder. Raises DataError if it has none, or an edited one."""
        path, message = folder / PLAN, "holds no plan of a comparison"
        if not path.exists():
            absent = describe_absence(folder, "folder")
            cause = f"{PLAN} is not there" if folder.is_dir() else absent
            hint = "name the output folder of a comparison"
            raise DataError(f"{folder}: holds no comparison, {cause}; {hint}")
        plain = read_json(path, message)
        # plans of older versions have no digest
        if isinstance(plain, dict) and HASH in plain:
            if not is_unchanged(plain):
                raise DataError(f"{EDITED}; restore it", place=path)
            del plain[HASH]
        try:
            for cell in plain["cells"]:
                _check_cell_name(cell["name"], path)
                cell["recipe"] = apply_changes(plain["base"], cell.pop("settings"))
        except (KeyError, TypeError, AttributeError):
            raise DataError(f"{path}: {message}") from None
        return build_stored(cls, plain, path, message)


def _check_cell_name(name: Any, path: Path) -> None:
    """Raise DataError unless a name is that of a folder within the comparison."""
    if not isinstance(name, str) or Path(name).name != name or name in ("", "..") or "\0" in name:
        raise DataError(f"{path}: holds no plan of a comparison: {name!r} is no name of a cell")


def list_changes(base: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return {full key: value} that turns the base recipe into another one.

    A section that lacks entries of the base is listed as a whole, since no value means "no entry".
    """
    changes: dict[str, Any] = {}
    for key, value in recipe.items():
        before = base.get(key)
        # types too: to Python 1, 1.0 and True are equal, and to a recipe they are not
        if key in base and before == value and type(before) is type(value):
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping) and {*before} <= {*value}:
            changes |= {
                f"{key}.{part}": change for part, change in list_changes(before, value).items()
            }
        else:
            changes[key] = value
    return changes


def is_uncompared(key: str) -> bool:
    """Return whether a full key changes no result."""
    return f"{key}.".startswith(UNCOMPARED_PREFIXES)


def complete_recipe(recipe: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a planned recipe with defaults for the options that zoo has gained since."""
    try:
        return from_plain(recipe, origin=PLAN, name=name).plain()
    except RecipeError:
        # with an encoding of a plug-in that is not there, or an option that is no more
        return dict(recipe)


def apply_changes(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe that differs from the base as `list_changes` lists it."""
    recipe = deepcopy(dict(base))
    for key, value in changes.items():
        *parents, leaf = key.split(".")
        section = recipe
        for parent in parents:
            section = section[parent]
        section[leaf] = value
    return recipe


def build_plan(
    request: CompareRequest,
    recipes: Mapping[Combination, Recipe],
    resources: Resources,
    *,
    is_local: bool,
) -> ComparisonPlan:
    """Plan all cells: each recipe with each seed, and threads unless the recipe sets them."""
    first_recipe = next(iter(recipes.values()))
    specs = [build_data(recipe).spec for recipe in recipes.values()]
    sizes = {spec.size for spec in specs}
    windows: dict[str, None] = {}
    for recipe, data_spec in zip(recipes.values(), specs, strict=True):
        windows |= dict.fromkeys(_describe_windows(recipe, data_spec))

    measure = request.options.measure or specs[0].default_measure
    seeds = list_seeds(request.options.seeds, first_recipe)
    machine = {
        **describe_machine("cuda" if resources.gpus and is_local else "cpu"),
        "threads": resources.threads,
        "jobs": resources.jobs,
    }
    cells: list[PlannedCell] = []
    names = iter(name_cells([variant.name for variant in recipes], seeds))
    for combination, recipe in recipes.items():
        for seed in seeds:
            plain = set_seed(recipe, seed, resources).plain()
            name = next(names)
            cells.append(PlannedCell(name=name, variant=combination.name, seed=seed, recipe=plain))

    return ComparisonPlan(
        zoo_version=__version__,
        created=format_now(),
        command=request.command,
        recipe=first_recipe.name,
        base=config.load(request.recipe, request.overrides).plain(),
        machine=machine,
        axes=request.axes,
        seeds=seeds,
        measure=f"test/{measure}",
        question=request.options.question,
        looks=tuple(plan_looks((len(seeds),)).items()),
        better=find_direction(measure),
        training_size=sizes.pop() if len(sizes) == 1 else None,
        windows=join_words(windows, "or"),
        # of texts in which every token is a target, no model predicts all
        has_answers=all(
            spec.target_unit == "token" and spec.default_measure == "accuracy" for spec in specs
        ),
        automatic_threads=not any(_fixes_threads(loaded) for loaded in recipes.values()),
        variants={variant.name: variant.values for variant in recipes},
        cells=tuple(cells),
    )


def name_cells(names: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """Return the names of the cells of combinations, each with all seeds."""
    return [f"{folder}-{seed}" for folder in name_folders(names) for seed in seeds]


def describe_costs(plan: ComparisonPlan) -> str:
    """Return how many trials the studies have, and their training steps or epochs."""
    assert plan.design is not None
    lengths = [count_length(cell.recipe["trainer"]) for cell in plan.cells]
    units = {key for key, _ in lengths}
    total = sum(length for _, length in lengths)
    if units == {"max_steps"}:
        sums = f"at most {total:,} training steps"
    elif units == {"max_epochs"}:
        sums = f"at most {total:,} epochs of training"
    else:
        sums = "some of them by steps and some by epochs"
    return (
        f"{len(plan.seeds)} studies of {len(plan.variants)} variants: {len(plan.cells)} trials, "
        f"of which the best of each study and variant is tested; {sums}"
    )


def count_length(trainer: Mapping[str, Any]) -> tuple[str, int]:
    """Return what ends training by the recipe's section `trainer`: its steps, or its epochs."""
    key = "max_steps" if trainer["max_steps"] else "max_epochs"
    return key, trainer[key]


def _fixes_threads(recipe: Recipe) -> bool:
    return isinstance(recipe.trainer.num_threads, int)


def set_seed(recipe: Recipe, seed: int, resources: Resources) -> Recipe:
    """Return a recipe with a seed, and with threads unless it sets them."""
    threads = recipe.trainer.num_threads if _fixes_threads(recipe) else resources.threads
    return replace(recipe, seed=seed, trainer=replace(recipe.trainer, num_threads=threads))


def _describe_windows(recipe: Recipe, spec: DataSpec) -> Iterator[str]:
    """Yield how texts are cut at each length of evaluation."""
    for condition in list_conditions(recipe, spec):
        options = choose_data_options(recipe, condition)
        if condition.kind == "size" and (windows := build_data(recipe, **options).windowing):
            yield f"windows {windows}"


def prepare_folder(folder: Path) -> None:
    """Make the output folder. Raises RecipeError if it is not writable or holds something else."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder)
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        message = f"{folder} cannot be written, {error.strerror or error}"
        raise _refuse_folder(message, "name another folder") from None

    _check_names(folder, names)


def _check_names(folder: Path, names: Sequence[str]) -> None:
    """Raise RecipeError where a folder holds files of something else."""
    other_names = [name for name in names if not name.startswith((run_dir.LOCK, WRITE_TEST))]
    # a comparison that was stopped before its first cell has no more
    early = {HYPOTHESES, IGNORE, ATTRIBUTES, *(f".{file}{WRITING}" for file in (PLAN, HYPOTHESES))}
    is_known = PLAN in other_names or {*other_names} <= early
    if other_names and not is_known:
        message = f"{folder} holds other files, {other_names[0]} among them"
        raise _refuse_folder(message, "name a folder of its own")


def write_plan(plan: ComparisonPlan, folder: Path) -> ComparisonPlan:
    """Write a plan and the recipes of its cells, with the cells that the folder has already.

    Returns:
        The plan as it was written.

    Raises:
        RecipeError: The folder has a cell that is not in the plan.
    """
    folder.mkdir(exist_ok=True)
    if (folder / PLAN).exists():
        plan = _extend_existing(plan, folder)
    plan.write(folder)
    ignore, lines = folder / IGNORE, {*IGNORED.encode().splitlines()}
    # one that an older zoo wrote lacks lines; one with lines of its owner stays
    if not ignore.exists() or {*ignore.read_bytes().splitlines()} < lines:
        write_file(io.BytesIO(IGNORED.encode()), ignore)
    if not (folder / ATTRIBUTES).exists():
        write_file(io.BytesIO(MERGED.encode()), folder / ATTRIBUTES)
    (folder / RECIPES).mkdir(exist_ok=True)
    for cell in plan.cells:
        path = folder / RECIPES / f"{cell.name}.yaml"
        content = config.dump(cell.recipe)
        if not _holds(path, content):
            # those of hundreds of cells, which follow from the plan, need not wait for the disk
            with create_file(path) as file:
                file.write(content.encode())
    return plan


def _holds(path: Path, content: str) -> bool:
    try:
        return read_text(path) == content
    except (OSError, ValueError):
        return False


def join_existing(plan: ComparisonPlan, folder: Path) -> ComparisonPlan:
    """Return a plan with the cells that a folder has already, and write nothing.

    Raises:
        RecipeError: The folder holds something else, or a cell that is not in the plan.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        message = f"{folder} cannot be read, {error.strerror or error}"
        raise _refuse_folder(message, "name another folder") from None
    _check_names(folder, names)
    return _extend_existing(plan, folder) if (folder / PLAN).exists() else plan


def _extend_existing(plan: ComparisonPlan, folder: Path) -> ComparisonPlan:
    try:
        old = ComparisonPlan.read(folder)
    except DataError as error:
        raise _refuse_folder(str(error), "name another folder") from None
    obstacles = [*list_plan_differences(old, plan)]
    is_same = [axis.key for axis in old.axes] == [axis.key for axis in plan.axes]
    if not is_same or not plan.contains(old) or obstacles:
        differences = "; ".join([*obstacles, *list_differences(old, plan)]) or "of other cells"
        message = f"{folder} holds another comparison: {differences}"
        raise _refuse_folder(message, "name another folder, or ask for those and more")

    plan = extend_plan(old, plan)
    added = len(plan.cells) - len(old.cells)
    if added:
        log.info("%s: %d cells are added to its %d", folder, added, len(old.cells))
    if plan.earlier != old.earlier:
        # each earlier look has taken half of the level that was left
        share = format_number(100 * (1 - LEVEL) / 2 ** len(plan.earlier), 2)
        log.info(
            "%s: %d seeds were looked at before; verdicts on %d have %s %% of false alarms left",
            folder,
            len(old.seeds),
            len(plan.seeds),
            share,
        )
    return plan


def extend_plan(old: ComparisonPlan, new: ComparisonPlan) -> ComparisonPlan:
    """Return the new plan with the cells of the old one; further cells get as many threads."""
    old_cells = {cell.name: cell for cell in old.cells}
    threads = {"num_threads": old.machine["threads"]} if new.automatic_threads else {}
    cells = []
    for cell in new.cells:
        recipe = {**cell.recipe, "trainer": {**cell.recipe["trainer"], **threads}}
        cells.append(old_cells.get(cell.name) or replace(cell, recipe=recipe))
    earlier = old.earlier
    if len(new.seeds) > len(old.seeds) >= FEWEST:
        earlier = (*earlier, len(old.seeds))
    looks = tuple(plan_looks((*earlier, len(new.seeds))).items())
    return replace(
        new,
        earlier=earlier,
        # looks that were taken by the rule of their time stay as they are
        looks=None if old.looks is None else looks,
        zoo_version=old.zoo_version,
        created=old.created,
        # settings of recorded cells are relative to it
        base=old.base,
        machine=old.machine,
        cells=tuple(cells),
    )


def list_plan_differences(old: ComparisonPlan, new: ComparisonPlan) -> Iterator[str]:
    """Yield in what two plans differ that holds for all their cells, as text."""
    there, here = (plan.design for plan in (old, new))
    if old.measure != new.measure:
        # it chooses what is tested, and hypotheses are about it
        yield f"measure is {old.measure} there, {new.measure} here"
    if old.question != new.question:
        # it is declared before results are seen
        before, after = (plan.question or "none" for plan in (old, new))
        yield f"question is {before} there, {after} here"
    if there is None or here is None:
        return
    if there.keys != here.keys:
        before, after = (_format_tuned(design) for design in (there, here))
        yield f"tuned is {before} there, {after} here"
    if there.is_raced != here.is_raced:
        before, after = (json.dumps(design.is_raced) for design in (there, here))
        yield f"racing is {before} there, {after} here"
    elif here.is_raced and {*old.variants} != {*new.variants}:
        # looks that were taken without a variant would have decided otherwise
        names = ", ".join(sorted({*old.variants} ^ {*new.variants}))
        yield f"a race keeps its variants, and {names} would be another"


def _format_tuned(design: StudyDesign) -> str:
    return ", ".join(
        f"{searched_key.key} over {searched_key.searched}" for searched_key in design.keys
    )


def list_differences(old: ComparisonPlan, new: ComparisonPlan) -> Iterator[str]:
    """Yield the differences of a new plan from an old one, as text."""
    for key in dict.fromkeys(axis.key for axis in (*old.axes, *new.axes)):
        there, here = (",".join(_find_values(plan, key)) for plan in (old, new))
        if there != here:
            yield f"{key} varies over [{there}] there, over [{here}] here"
    if old.seeds != new.seeds:
        there, here = (", ".join(map(str, plan.seeds)) for plan in (old, new))
        yield f"seeds are {there} there, {here} here"

    new_cells = {cell.name: cell for cell in new.cells}
    differences: dict[str, None] = {}
    for cell in old.cells:
        if cell.name not in new_cells:
            continue
        before = old.list_compared(cell)
        after = new.list_compared(new_cells[cell.name])
        for key in dict.fromkeys((*before, *after)):
            if before.get(key) != after.get(key):
                there, here = json.dumps(before.get(key)), json.dumps(after.get(key))
                differences[f"{key} is {there} there, {here} here"] = None
    yield from list(differences)[:MAX_DIFFERENCES]


def _find_values(plan: ComparisonPlan, key: str) -> Sequence[str]:
    return next((axis.values for axis in plan.axes if axis.key == key), ())


def _refuse_folder(message: str, hint: str) -> RecipeError:
    return RecipeError(ConfigIssue(ARGUMENT, "to", message, hint))


def _list_leaves(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return {full key: value} of everything that is not a list or mapping, or an empty one."""
    containers = (Mapping, list, tuple)
    return {
        key: value for key, value in walk(recipe) if not value or not isinstance(value, containers)
    }
