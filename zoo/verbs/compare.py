"""`zoo compare`: one recipe with an encoding, or anything else, that varies, over seeds, as a controlled experiment."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import Annotated, Any, Literal, cast

from zoo import recipe, registry
from zoo.compare import files, state
from zoo.compare.engines.task import Engine, Task
from zoo.compare.gathering import gathered
from zoo.compare.grid import Combination, Varied, varied
from zoo.compare.grid import parted as by_axes
from zoo.compare.making import Asked, Measure, better, gpus, plan, resolved, seeds
from zoo.compare.plan import CELLS, PLAN, RECIPES, Plan, differences
from zoo.compare.result import TRAINED, Comparison
from zoo.errors import DataError, Fault, Invalid, RecipeError, Stopped, ZooError
from zoo.recipe import Recipe, from_plain
from zoo.recipe import tree as trees
from zoo.recipe.tree import COMMAND_LINE
from zoo.registry import Between
from zoo.run import storage
from zoo.verbs.cells import Cells
from zoo.verbs.options import parted, typed

log = logging.getLogger("zoo")

TRIAL = ".compare-"  # how a file begins that tries whether a folder can be written
Count = Annotated[int, Between(1)]
Seed = Annotated[int, Between(0, 2**32 - 1)]


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `zoo compare`, whatever the engine."""

    seeds: Annotated[int, Between(1, 1000)] | tuple[Seed, ...] = 3  # so many from that of the recipe on, or which ones
    to: str | None = None  # the folder; None: comparisons/<recipe>-<hash>
    jobs: Count | Literal["auto"] = "auto"  # cells at the same time
    engine: str = "local"
    measure: Measure | None = None  # that the answer is given in; None: loss where every token is asked, else accuracy


@dataclass(frozen=True, kw_only=True)
class RebuildOptions:
    """Options of `zoo compare --from`."""

    measure: Measure | None = None


def compare(name: str | None, words: Sequence[str], plugins: Sequence[str]) -> tuple[Comparison, ZooError | None]:
    """The result as far as it has come, and why it has come no further.

    Raises RecipeError with all that is wrong with any cell before anything is started.
    """
    if name is None:
        raise RecipeError(
            Fault(COMMAND_LINE, "", "no recipe", "write zoo compare RECIPE encodings=[...], or --from DIR")
        )
    options, engine, asked, found = _asked(name, words, plugins)
    first = next(iter(found.values()))
    wanted = len(found) * len(seeds(options.seeds, first))
    needs = engine.needs(wanted, None if options.jobs == "auto" else options.jobs, gpus(first, here=engine.here))
    made = plan(asked, found, needs, here=engine.here)
    folder = Path(options.to or f"comparisons/{made.recipe}-{made.hash}")
    _place(folder)
    with state.locked(folder, "another zoo compare is working in this folder"):
        made = _settled(made, folder)
        cells = Cells(folder, made, engine, needs)
        stopped = cells.run([Task(folder / CELLS / cell.name, Path.cwd()) for cell in made.cells])
        comparison = gathered(made, folder)
        written = files.write(comparison, folder)
    log.info("written: %s", ", ".join(str(path) for path in written))
    return comparison, _outcome(comparison, folder, made.command, stopped)


def rebuild(folder: Path, words: Sequence[str]) -> Comparison:
    """Table, page and figures anew from what is there. Raises DataError where there is no comparison."""
    (options,) = typed(words, [RebuildOptions])
    made = Plan.read(folder)
    if options["measure"] is not None:
        made = replace(made, measure=f"test/{options['measure']}", better=better(options["measure"]))
    comparison = gathered(made, folder)
    known = [
        cell.metrics[TRAINED] for variant in comparison.variants for cell in variant.cells if TRAINED in cell.metrics
    ]
    if known and not any(made.measure in one for one in known):
        told = f"no cell has {made.measure}, but {', '.join(known[0])}"
        raise RecipeError(Fault(COMMAND_LINE, "measure", told, "name one of these"))
    written = files.write(comparison, folder)
    log.info("written: %s", ", ".join(str(path) for path in written))
    return comparison


def _asked(
    name: str, words: Sequence[str], plugins: Sequence[str]
) -> tuple[CompareOptions, Engine, Asked, dict[Combination, Recipe]]:
    """What the command line says, and the recipes that it makes. Raises RecipeError with all that is wrong with either."""
    faults: list[Fault] = []
    told, rest = by_axes(words)
    chosen = next((word.partition("=")[2] for word in rest if word.startswith("engine=")), CompareOptions.engine)
    cls: Any = None
    with trees.gathered(faults):
        cls = _engine(chosen)
    classes = (CompareOptions, *([cls] if cls else []))
    overrides = [word for word in rest if "." in word.partition("=")[0]]  # at least, where options are wrong
    options, engine = CompareOptions(), cast(Engine, None)
    with trees.gathered(faults):
        own, overrides = parted(rest, classes)
        common, *mine = typed(own, classes)
        options, engine = CompareOptions(**common), _made(cls, *mine)
    keys: list[Varied] = []
    with trees.gathered(faults):
        keys = varied(told, overrides)
    flags = [word for plugin in plugins for word in ("--plugin", plugin)]
    command = shlex.join(["zoo", "compare", name, *words, *flags])
    asked = Asked(
        recipe=name, overrides=overrides, keys=keys, seeds=options.seeds, measure=options.measure, command=command
    )
    found: dict[Combination, Recipe] = {}
    with trees.gathered(faults):
        if keys:
            found = resolved(asked, here=engine is None or engine.here)
        else:
            recipe.load(name, overrides)
    if faults:
        raise RecipeError(*dict.fromkeys(faults))
    return options, engine, asked, found


def _made(cls: Any, options: Mapping[str, Any] | None = None) -> Any:
    """The engine; nothing where there is no such engine, which is told already."""
    try:
        return cls and cls(**(options or {}))
    except Invalid as error:
        raise RecipeError(Fault(COMMAND_LINE, error.key, str(error))) from None


def _engine(name: str) -> Any:
    known = registry.names("comparing")
    if name not in known:
        raise RecipeError(Fault(COMMAND_LINE, "engine", f"there is no engine {name!r}", registry.nearest(name, known)))
    return registry.find("comparing", name)


def _place(folder: Path) -> None:
    """Raises RecipeError where the folder cannot be written, or holds something else."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial = folder / f"{TRIAL}{os.getpid()}"
        trial.touch()
        trial.unlink()
        others = sorted(path.name for path in folder.iterdir() if not path.name.startswith((state.LOCK, TRIAL)))
    except OSError as error:
        told = f"{folder} cannot be written, {error.strerror or error}"
        raise RecipeError(Fault(COMMAND_LINE, "to", told, "name another folder")) from None
    if others and PLAN not in others and others != [f".{PLAN}{storage.WRITING}"]:
        told = f"{folder} holds other files, {others[0]} among them"
        raise RecipeError(Fault(COMMAND_LINE, "to", told, "name a folder of its own"))


def _settled(made: Plan, folder: Path) -> Plan:
    """The plan that the folder has, or this one, and the recipes of its cells. Raises RecipeError where it has another."""
    if (folder / PLAN).exists():
        old = _read(folder)
        if old.hash != made.hash or old.seeds != made.seeds:
            told = f"{folder} holds another comparison: {'; '.join(differences(old, made)) or 'of other cells'}"
            raise RecipeError(Fault(COMMAND_LINE, "to", told, "name another folder"))
        made = replace(old, measure=made.measure, better=made.better)
    else:
        made.write(folder)
    (folder / RECIPES).mkdir(exist_ok=True)
    for cell in made.cells:
        path = folder / RECIPES / f"{cell.name}.yaml"
        text = from_plain(cell.recipe, origin=str(path), name=cell.name).yaml()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    return made


def _read(folder: Path) -> Plan:
    try:
        return Plan.read(folder)
    except DataError as error:
        raise RecipeError(Fault(COMMAND_LINE, "to", str(error), "name another folder")) from None


def _outcome(comparison: Comparison, folder: Path, command: str, stopped: Signals | None) -> ZooError | None:
    """Why the comparison is not complete, and how to go on."""
    cells = [(variant.name, cell) for variant in comparison.variants for cell in variant.cells]
    done = sum(cell.state == "done" for _, cell in cells)
    if stopped is not None:
        told = f"stopped by {stopped.name} with {done} of {len(cells)} cells done; the same command goes on: {command}"
        return Stopped(stopped, told)
    failed = [f"  {name}, seed {cell.seed}: {cell.fault or cell.state}" for name, cell in cells if cell.state != "done"]
    if not failed:
        return None
    head = f"{len(failed)} of {len(cells)} cells are not done; the same command tries them again ({folder / CELLS})"
    return ZooError("\n".join([head, *failed]))
