"""Compare: plan the cells, run them, and write the files of the output folder."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals

from zoo.comparison.cell import WORK, is_time_over, write_deadline
from zoo.comparison.cell_files import TRIAL, UNTESTED, find_cells, is_done
from zoo.comparison.hypotheses import record_hypotheses
from zoo.comparison.outputs import collect_results, is_trained, write_results
from zoo.comparison.pilot import PilotRoom, ask_pilot
from zoo.comparison.plan import (
    CELLS,
    ComparisonPlan,
    PlannedCell,
    build_plan,
    describe_costs,
    join_existing,
    prepare_folder,
    set_seed,
    write_plan,
)
from zoo.comparison.race_text import describe_stopped
from zoo.comparison.record_file import check_cells, drop_cell, read_cells
from zoo.comparison.records import read_records, take_recorded
from zoo.comparison.request import CheckedRequest, CompareRequest, count_gpus, list_seeds, read_part
from zoo.comparison.results import Comparison, Measure, RaceResult, find_direction
from zoo.comparison.runner import CellRunner
from zoo.comparison.statistics import MANY, MANY_NEED
from zoo.comparison.studies import choose_result, group_trials, plan_studies
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError, Stopped, ZooError
from zoo.launch.executor import STATE, CellProcess, Executor, Resources, make_run_dir
from zoo.packages import EXTRAS, list_missing, require_extra
from zoo.run import run_dir
from zoo.run.callbacks.manifest import END

log = logging.getLogger("zoo")


@dataclass(frozen=True, kw_only=True)
class RebuildOptions:
    """Options of rebuilding the files of a comparison."""

    measure: Measure | None = None
    """Metric to compare; null keeps that of the comparison."""
    intervals: bool = False
    """Whether table.tex has the 95 % intervals; table.csv always has them."""
    target: float | None = None
    """Rank variants by the time to this value of the monitored validation metric."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A comparison as far as it has come.

    Attributes:
        comparison: Its results.
        folder: Its output folder.
        problem: Why it is not complete; None if it is.
    """

    comparison: Comparison
    folder: Path
    problem: ZooError | None = None


def run_comparison(checked: CheckedRequest, until: float | None = None) -> Outcome:
    """Train and evaluate all variants of a recipe, and write the files of the output folder.

    Args:
        checked: The request.
        until: The time, in seconds since 1970, after which no cell begins; None leaves it to the
            minutes of the request.

    Raises:
        RecipeError: The output folder cannot be used; nothing was started.
        PackageError: A package is missing that draws the page; nothing was started.
    """
    request = checked.request
    records = read_records(request.options.records)
    minutes = request.options.minutes
    if until is None and minutes is not None:
        until = time.time() + 60 * minutes
    plan, resources = plan_comparison(checked)
    if plan.design is not None:
        log.info("%s", describe_costs(plan))
    if len(plan.variants) >= MANY and len(plan.seeds) < MANY_NEED:
        unit = "seeds" if plan.design is None else "studies"
        log.warning(
            "%d variants with %d %s have no verdict: of %d or more, each needs %d",
            len(plan.variants),
            len(plan.seeds),
            unit,
            MANY,
            MANY_NEED,
        )
    folder = choose_folder(request, plan)
    rooms = ask_pilot(request.options.pilot, request.options.hypotheses, plan)
    if list_missing(EXTRAS["compare"]) and folder.exists():
        # a folder of something else is named before a missing package
        join_existing(plan, folder)
    require_extra("compare")  # for the page, after hours of training
    prepare_folder(folder)
    with run_dir.lock(folder, "another zoo compare is working in this folder"):
        plan = write_plan(plan, folder)
        check_cells(plan, folder)
        # before any cell runs: the time of writing is what makes a hypothesis a prediction
        _record_hypotheses(checked, folder, plan.measure, rooms)
        take_recorded(plan, folder, records)
        write_deadline(folder, until)
        chosen = choose_part(plan, request.options.part)
        if plan.design is not None:
            stopped = run_studies(checked, chosen, folder, resources)
        else:
            stopped = _run_cells(checked, chosen, folder, checked.executor, resources)
        comparison = collect_results(plan, folder, request.options.target)
        _write(comparison, folder, intervals=request.options.intervals)
        is_over = is_time_over(folder)
        write_deadline(folder, None)
    error = _find_problem(comparison, chosen, folder, stopped, is_over=is_over)
    return Outcome(comparison=comparison, folder=folder, problem=error)


def plan_comparison(checked: CheckedRequest) -> tuple[ComparisonPlan, Resources]:
    """Return the plan of all cells and trials, and how many run at the same time."""
    request, executor = checked.request, checked.executor
    first_recipe = next(iter(checked.recipes.values()))
    count = len(checked.recipes) * len(list_seeds(request.options.seeds, first_recipe))
    resources = _plan_resources(checked, executor, count)
    plan = build_plan(request, checked.recipes, resources, is_local=executor.is_local)
    if checked.trials:
        plan = _plan_studies(checked, plan, resources)
    return plan, resources


def choose_folder(request: CompareRequest, plan: ComparisonPlan) -> Path:
    """Return the output folder of a comparison."""
    return Path(request.options.to or f"comparisons/{plan.recipe}-{plan.hash}")


def _run_cells(
    checked: CheckedRequest,
    plan: ComparisonPlan,
    folder: Path,
    executor: Executor,
    resources: Resources,
    *,
    following: int = 0,
    keeps_weights: bool = False,
) -> Signals | None:
    keeps_weights = keeps_weights or checked.request.options.keep == "weights"
    runner = CellRunner(folder, plan, executor, resources, following, keeps_weights=keeps_weights)
    return runner.run(
        [CellProcess(folder / CELLS / cell.name, Path.cwd(), WORK) for cell in plan.cells]
    )


def _plan_studies(
    checked: CheckedRequest, plan: ComparisonPlan, resources: Resources
) -> ComparisonPlan:
    """Return the plan of all trials of all studies."""
    tuning = checked.request.tuning
    assert tuning is not None
    trials = [
        (trial, set_seed(recipe, plan.seeds[trial.study], resources).plain())
        for trial, recipe in checked.trials
    ]
    return plan_studies(
        plan,
        tuning.keys,
        checked.effective,
        tuning.budget,
        trials,
        is_raced=checked.request.options.racing,
    )


def run_studies(
    checked: CheckedRequest, plan: ComparisonPlan, folder: Path, resources: Resources
) -> Signals | None:
    """Run studies one after another: their trials, then the test of those that were chosen.

    Returns:
        The signal that stopped it, if one did.
    """
    race: RaceResult | None = None
    for study in plan.blocks:
        if study in plan.look_levels:
            race = collect_results(plan, folder).race
            if race is not None and not _tell_look(plan, race, study):
                return None
        block = replace(
            plan,
            cells=tuple(
                planned
                for planned in plan.cells
                if planned.block == study and (race is None or is_trained(race, planned))
            ),
        )
        if not block.cells:
            continue
        left = len(plan.cells) - len(block.cells)
        for cell in block.cells:
            run = folder / CELLS / cell.name
            # one with a result but without the mark was chosen: its test was interrupted
            if not is_done(block, folder, cell) and not (run / TRIAL).exists():
                (make_run_dir(run) / UNTESTED).touch()
        stopped = _run_cells(
            checked,
            block,
            folder,
            checked.make_executor(),
            resources,
            following=left,
            # the chosen trial goes on to its test from its weights
            keeps_weights=True,
        )
        if stopped is None and not is_time_over(folder):
            stopped = _test_chosen(checked, block, folder, resources)
        if stopped is not None or is_time_over(folder):
            return stopped
    return None


def _tell_look(plan: ComparisonPlan, race: RaceResult, study: int) -> bool:
    """Log what a look decided before a study; return whether it was taken, or none is left."""
    taken = [look for look in race.looks if look.studies == study]
    if not taken:
        if not race.is_over:
            log.info("the look after %d studies waits for cells that are not done", study)
        return race.is_over
    for stopped_variant in race.stopped:
        if stopped_variant.look == study:
            log.info("%s", describe_stopped(stopped_variant))
    left = f"{len(taken[0].running)} of {len(plan.variants)} variants run on"
    log.info("look after %d studies: %s", study, "the race is over" if race.is_over else left)
    return True


def _test_chosen(
    checked: CheckedRequest, block: ComparisonPlan, folder: Path, resources: Resources
) -> Signals | None:
    """Test what validation chose in a study: its training goes on at its end, with the test.

    One that another machine trained left no weights here; it is trained again first, as a trial.
    """
    while elsewhere := [
        planned
        for planned in _list_chosen(block, folder)
        if not (folder / CELLS / planned.name / TRIAL).exists()
    ]:
        for cell in elsewhere:
            (_reopen(folder, cell) / UNTESTED).touch()
        trials = replace(block, cells=tuple(elsewhere))
        executor = checked.make_executor()
        stopped = _run_cells(checked, trials, folder, executor, resources, keeps_weights=True)
        if stopped is not None or is_time_over(folder):
            return stopped
    chosen = _list_chosen(block, folder)
    for cell in chosen:
        (_reopen(folder, cell) / UNTESTED).unlink(missing_ok=True)
    stopped = None
    if chosen:
        tested = replace(block, cells=tuple(chosen))
        stopped = _run_cells(checked, tested, folder, checked.make_executor(), resources)
    if stopped is None and checked.request.options.keep != "weights":
        for cell in block.cells:
            if is_done(block, folder, cell):
                shutil.rmtree(folder / CELLS / cell.name / "checkpoints", ignore_errors=True)
    return stopped


def _list_chosen(block: ComparisonPlan, folder: Path) -> list[PlannedCell]:
    """List the trials that validation chose and that are to be tested."""
    records = find_cells(block, folder)
    results = [choose_result(trials) for trials in group_trials(block, records).values()]
    # not one that failed, nor one that is tested already
    return [planned for planned, record in results if record.recipe and record.state == "stopped"]


def _reopen(folder: Path, cell: PlannedCell) -> Path:
    """Reopen a cell that is done, so that it runs on; return its run directory."""
    run = make_run_dir(folder / CELLS / cell.name)
    (run / STATE).unlink(missing_ok=True)
    drop_cell(folder, cell.name)
    return run


def choose_part(plan: ComparisonPlan, part: str | None) -> ComparisonPlan:
    """Return the plan with the blocks of one part: 2/5 keeps block 2 of every five."""
    number, count = read_part(part)
    blocks = plan.blocks[number - 1 :: count]
    return replace(plan, cells=tuple(cell for cell in plan.cells if cell.block in blocks))


def _record_hypotheses(
    checked: CheckedRequest, folder: Path, measure: str, rooms: Sequence[PilotRoom]
) -> None:
    """Write the hypotheses as soon as the folder is known to be theirs."""
    ended = [path for name in (END, TRIAL) for path in folder.glob(f"{CELLS}/*/{name}")]
    names = {path.parent.name for path in ended} | {*read_cells(folder)}
    cannot_ask = {" ".join(room.text.split()): room.missing for room in rooms if room.missing}
    record_hypotheses(checked.request.options.hypotheses, folder, len(names), measure, cannot_ask)


def _plan_resources(checked: CheckedRequest, executor: Executor, count: int) -> Resources:
    jobs = checked.request.options.jobs
    recipes = checked.recipes.values()
    gpus = max(count_gpus(recipe, is_local=executor.is_local) for recipe in recipes)
    return executor.plan_resources(count, None if jobs == "auto" else jobs, gpus)


def rebuild(folder: Path, options: RebuildOptions, command: str = "") -> Comparison:
    """Write table, page and figures of an output folder again, from the files of its cells.

    Args:
        folder: The output folder.
        options: The options.
        command: What repeats the rebuilding, to be recorded if it changes anything.

    Raises:
        RecipeError: No cell has the measure.
        DataError: The folder holds no comparison.
        PackageError: A package is missing that computes the intervals or draws the figures.
    """
    plan = ComparisonPlan.read(folder)
    require_extra("compare")
    comparison = collect_results(plan, folder, options.target)
    if options.measure is not None:
        # only what is reported: trials were chosen, and variants raced, by the metric of the plan
        comparison = replace(
            comparison,
            measure=f"test/{options.measure}",
            better=find_direction(options.measure),
            command=", then ".join(filter(None, (comparison.command, command))),
        )
    measured = [cell.find(comparison.trained).metrics for cell in comparison.cells]
    metrics = [entry for entry in measured if entry]
    if metrics and not any(comparison.measure in entry for entry in metrics):
        message = f"no cell has {comparison.measure}, but {', '.join(metrics[0])}"
        raise RecipeError(ConfigIssue(ARGUMENT, "measure", message, "name one of these"))
    _write(comparison, folder, intervals=options.intervals)
    return comparison


def _write(comparison: Comparison, folder: Path, *, intervals: bool) -> None:
    written = write_results(comparison, folder, intervals=intervals)
    log.info("written: %s", ", ".join(map(str, written)))


def _find_problem(
    comparison: Comparison,
    chosen: ComparisonPlan,
    folder: Path,
    stopped: Signals | None,
    *,
    is_over: bool,
) -> ZooError | None:
    """Return why the chosen cells are not complete, and how to continue.

    Cells that were not begun since the minutes are over are no problem.
    """
    names = {f"{CELLS}/{cell.name}" for cell in chosen.cells}
    unfinished = []
    count = waiting = 0
    for variant in comparison.variants:
        for cell in variant.cells:
            if cell.run_dir not in names:
                continue
            count += 1
            if is_over and stopped is None and cell.state in ("waiting", "stopped"):
                waiting += 1
            elif cell.state != "done":
                reason = cell.error or cell.state
                unfinished.append(f"  {variant.name}, seed {cell.seed}: {reason}")

    if stopped is not None:
        done = count - len(unfinished)
        summary = f"stopped by {stopped.name} with {done} of {count} cells done"
        return Stopped(stopped, f"{summary}; {_continue(comparison.command)}")
    if waiting:
        log.info(
            "the minutes are over with %d of %d cells left; %s",
            waiting + len(unfinished),
            count,
            _continue(comparison.command),
        )
    if not unfinished:
        return None
    summary = f"{len(unfinished)} of {count} cells are not done; the same command tries them again"
    return ZooError("\n".join([f"{summary} ({folder / CELLS})", *unfinished]))


def _continue(command: str) -> str:
    return f"the same command continues: {command}" if command else "the same command continues"
