"""`zoo compare`: one recipe with an encoding, or anything else, that varies, over seeds, as a controlled experiment."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals

from zoo.compare import files, state
from zoo.compare.engines.task import Task
from zoo.compare.folder import place, settled
from zoo.compare.gathering import gathered
from zoo.compare.making import Measure, better, gpus, plan, seeds
from zoo.compare.plan import CELLS, Plan
from zoo.compare.result import TRAINED, Comparison
from zoo.errors import Fault, RecipeError, Stopped, ZooError
from zoo.recipe.tree import COMMAND_LINE
from zoo.verbs.asked_for import asked_for
from zoo.verbs.cells import Cells
from zoo.verbs.options import typed

log = logging.getLogger("zoo")


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
    options, engine, asked, found = asked_for(name, words, plugins)
    wanted = len(found) * len(seeds(options.seeds, next(iter(found.values()))))
    needed = max(gpus(one, here=engine.here) for one in found.values())
    needs = engine.needs(wanted, None if options.jobs == "auto" else options.jobs, needed)
    made = plan(asked, found, needs, here=engine.here)
    folder = Path(options.to or f"comparisons/{made.recipe}-{made.hash}")
    place(folder)
    with state.locked(folder, "another zoo compare is working in this folder"):
        made = settled(made, folder)
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
        made = _remeasured(made, options["measure"])
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


def _remeasured(made: Plan, measure: Measure) -> Plan:
    """The plan with its answer given in another measure, and the command that would."""
    words = [word for word in shlex.split(made.command) if not word.startswith("measure=")]
    command = shlex.join([*words, f"measure={measure}"])
    return replace(made, measure=f"test/{measure}", better=better(measure), command=command)


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
