"""Run the cells of a comparison: start them, report on them, stop them, write what they reached."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIG_IGN, SIGINT, SIGKILL, SIGTERM, SIGUSR2, Signals, signal
from typing import Any

from zoo import config, files
from zoo.comparison.cell_files import (
    MEASURED,
    TRIAL,
    CellFiles,
    build_cell,
    collect_tuning,
    list_known_trials,
    read_trial,
)
from zoo.comparison.grid import Combination
from zoo.comparison.hypotheses import record_hypotheses
from zoo.comparison.outputs import collect_results, write_results
from zoo.comparison.plan import (
    CELLS,
    RECIPES,
    TRIALS,
    TUNING,
    ComparisonPlan,
    PlannedCell,
    build_plan,
    combine_hashes,
    describe_costs,
    plan_trials,
    prepare_folder,
    write_plan,
)
from zoo.comparison.request import (
    ParsedRequest,
    RebuildOptions,
    build_trial,
    count_gpus,
    list_seeds,
    load_variant,
    parse_request,
)
from zoo.comparison.results import TRAINED, Comparison, find_direction
from zoo.config import Recipe
from zoo.config.command_line import parse_options
from zoo.errors import ARGUMENT, ConfigIssue, NonFiniteError, RecipeError, Stopped, ZooError
from zoo.evaluation.evaluate import evaluate
from zoo.launch.executor import (
    PATIENCE,
    POLL_SECONDS,
    STATE,
    CellHandle,
    CellProcess,
    Executor,
    Resources,
    State,
    describe_failure,
    make_run_dir,
    read_state,
    write_state,
)
from zoo.packages import require
from zoo.run import loggers, run_dir
from zoo.run.callbacks.manifest import END
from zoo.run.fit import fit
from zoo.run.load import load_recipe
from zoo.utils import Ticker, format_duration, stop_on_signal

log = logging.getLogger("zoo")

# share of a cell that is done when it has trained and is still being evaluated
TRAINED_SHARE = 0.95
# exit codes of a process that SIGINT or SIGTERM ended
STOPPED_CODES = {128 + SIGINT, 128 + SIGTERM, -SIGINT, -SIGTERM}
PROGRESS_SECONDS = 2.0


def run_cell(run: Path) -> None:
    """Do what is not done yet of a cell, as `zoo fit` and `zoo eval` would.

    Args:
        run: The run directory, in the folder of the comparison.
    """
    # SLURM sends it to all processes of a job whose time is over; its executor asks a cell to save
    signal(SIGUSR2, SIG_IGN)
    path = run.parent.parent / RECIPES / f"{run.name}.yaml"
    message = "another process is working on this cell"
    with run_dir.lock(make_run_dir(run), message, PATIENCE):
        (run / STATE).unlink(missing_ok=True)
        if run.parent.name == TRIALS:
            _run_trial(path, run)
            return
        if not (run / END).exists():
            fit(config.load(path), run, "auto")
        recipe = load_recipe(path)
        conditions = recipe.evaluate
        if conditions.resolutions or conditions.lengths or conditions.data_variants:
            measured = evaluate(run, {"trainer.accelerator": recipe.trainer.accelerator})
            files.write_json(measured.to_dict() if measured else {}, run / MEASURED)
        write_state(run, "done")


def _run_trial(path: Path, run: Path) -> None:
    """Train a trial without testing it, and write what it came to on validation data."""
    if not (run / TRIAL).exists():
        found: dict[str, Any] = {"monitor": "", "mode": "", "best": None}
        try:
            result = fit(config.load(path), run, "auto", is_tested=False)
        except NonFiniteError as error:
            # a setting that cannot be trained with is a finding too
            log.info("non-finite: %s", error)
        else:
            found = {key: getattr(result, key) for key in found}
        files.write_json(found, run / TRIAL)
    write_state(run, "done")


class CellRunner:
    """Gives the cells that are not done to an executor, and waits for them.

    Args:
        folder: The output folder, or that of its trials.
        plan: The cells.
        executor: What runs them.
        resources: How many run at the same time, and what each has.
        following: How many cells will follow these, for the estimate of the time that is left.
    """

    def __init__(
        self,
        folder: Path,
        plan: ComparisonPlan,
        executor: Executor,
        resources: Resources,
        following: int = 0,
    ) -> None:
        self.folder, self.plan = folder, plan
        self.executor, self.resources = executor, resources
        self.pending: list[tuple[PlannedCell, CellHandle]] = []
        self.done = 0
        self.stopped: Signals | None = None
        self.start_time, self.start_share = 0.0, 0.0
        self.following = following

    def run(self, processes: Sequence[CellProcess]) -> Signals | None:
        """Run the cells.

        Returns:
            The signal that stopped it, if one did. Cells save their state then; a second signal
            kills them.
        """
        pairs = zip(self.plan.cells, processes, strict=True)
        given = [(cell, process) for cell, process in pairs if self._read_state(cell) != "done"]
        self.done = len(processes) - len(given)
        log.info(
            "%s: %d of %d cells are done, %d run at the same time",
            self.folder,
            self.done,
            len(processes),
            min(self.resources.jobs, len(given)),
        )
        if not given:
            return None

        ticker = Ticker()
        self.start_time, self.start_share = time.monotonic(), self._sum_progress()
        try:
            with stop_on_signal() as received:
                try:
                    self.executor.start([process for _, process in given], self.resources)
                finally:
                    # also of those that were given before a signal came
                    cells = [cell for cell, _ in given]
                    self.pending = list(zip(cells, self.executor.handles, strict=False))
                self._follow(ticker)
            ticker("")
            if received:
                self._stop(received[0])
        except BaseException:
            # no cell runs on unseen
            self.executor.stop(SIGTERM)
            raise
        return self.stopped

    def _follow(self, ticker: Ticker) -> None:
        last_report = 0.0
        while self.pending:
            self._conclude()
            if time.monotonic() - last_report > PROGRESS_SECONDS:
                last_report = time.monotonic()
                ticker(self._describe_progress())
            time.sleep(POLL_SECONDS)

    def _stop(self, signal: Signals) -> None:
        self.stopped = signal
        running = sum(handle.running() for _, handle in self.pending)
        log.info("%s: %d cells save their state; a second signal kills them", signal.name, running)
        self.executor.stop(signal)
        with stop_on_signal() as again:
            self._wait()
        if again:
            self.executor.stop(SIGKILL)
            self._wait()

    def _wait(self) -> None:
        while self.pending:
            self._conclude()
            time.sleep(POLL_SECONDS)

    def _conclude(self) -> None:
        """Write the state of cells whose process has ended, and log it."""
        for pair in [*self.pending]:
            cell, handle = pair
            if handle.cancelled():
                self.pending.remove(pair)
            elif handle.done():
                self.pending.remove(pair)
                self._conclude_cell(cell, handle)

    def _conclude_cell(self, cell: PlannedCell, handle: CellHandle) -> None:
        run = self.folder / self.plan.runs / cell.name
        try:
            code, lost = handle.result(), ""
        except Exception as error:
            # an executor has lost it, in a way of its own
            code, lost = 1, (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

        title = f"{cell.variant}, seed {cell.seed}"
        if self._read_state(cell) == "done":
            self.done += 1
            log.info("done: %s: %s", title, self._describe_cell(cell))
        elif run_dir.is_locked(run):
            log.info("not started: %s: another process is working on it", title)
        elif self.stopped or code in STOPPED_CODES:
            self._write_state(run, "stopped")
        else:
            error_text = lost or describe_failure(run, code)
            log.info("failed: %s: %s", title, error_text)
            self._write_state(run, "failed", error_text)

    def _write_state(self, run: Path, state: State, error: str = "") -> None:
        """Write a state; if that fails, as on a full disk, the other cells are still followed."""
        try:
            write_state(make_run_dir(run), state, error)
        except (ZooError, OSError) as problem:
            log.info("%s: its state, %s, cannot be written: %s", run, state, problem)

    def _describe_cell(self, planned: PlannedCell) -> str:
        if self.plan.runs == TRIALS:
            found = read_trial(self.folder / TRIALS / planned.name)
            text = (
                "non-finite" if found["best"] is None else f"{found['monitor']} {found['best']:.4f}"
            )
            return f"{text}; {self.done} of {len(self.plan.cells)} trials"
        files = CellFiles.read(self.folder / self.plan.runs / planned.name)
        cell = build_cell(self.plan, self.folder, planned, files)
        value = cell.metrics.get(TRAINED, {}).get(self.plan.measure)
        reached = "" if value is None else f"{self.plan.measure} {value:.4f}, "
        duration = format_duration(60 * (cell.minutes or 0))
        return f"{reached}trained in {duration}; {self.done} of {len(self.plan.cells)} cells"

    def _describe_progress(self) -> str:
        share, count = self._sum_progress(), len(self.plan.cells)
        running = sum(handle.running() for _, handle in self.pending)
        text = f"{count - len(self.pending)} of {count} cells ended, {running} running"
        gained = share - self.start_share
        if gained <= 0:
            return text
        seconds = (time.monotonic() - self.start_time) * (count + self.following - share) / gained
        return f"{text}, {format_duration(seconds)} left"

    def _sum_progress(self) -> float:
        """Return how many cells' worth of training is done."""
        return sum(self._measure_progress(cell) for cell in self.plan.cells)

    def _measure_progress(self, cell: PlannedCell) -> float:
        if self._read_state(cell) in ("done", "failed"):
            return 1.0
        run = self.folder / self.plan.runs / cell.name
        planned = CellFiles.read(run).start.get("planned_steps")
        try:
            _, rows = loggers.read(run / "metrics.csv")
            step = float(rows[-1]["step"])
        except (OSError, ValueError, KeyError, IndexError):
            # nothing is logged yet, or a row is just being written
            return 0.0
        return min(TRAINED_SHARE, step / planned) if planned else 0.0

    def _read_state(self, cell: PlannedCell) -> State:
        return read_state(self.folder / self.plan.runs / cell.name)[0]


def compare(
    recipe: str, words: Sequence[str], plugins: Sequence[str]
) -> tuple[Comparison, Path, ZooError | None]:
    """Train and evaluate all variants of a recipe, and write the files of the output folder.

    Args:
        recipe: A recipe file or a registered name.
        words: What varies, options and overrides, from the command line.
        plugins: Plug-in packages, for the command that repeats it.

    Returns:
        The comparison as far as it has come, its folder, and why it has come no further.

    Raises:
        RecipeError: Something is wrong with the options or with any cell; nothing was started.
    """
    require("altair", "vl-convert-python", "scipy")  # for the page, after hours of training
    parsed = parse_request(recipe, words, plugins)
    request = parsed.request
    first = next(iter(parsed.recipes.values()))
    count = len(parsed.recipes) * len(list_seeds(parsed.options.seeds, first))
    resources = _plan_resources(parsed, parsed.executor, count)
    is_local = parsed.executor.is_local
    plan = build_plan(request, parsed.recipes, resources, is_local=is_local)
    trials = None
    if parsed.trials:
        own = _plan_resources(parsed, parsed.executor, len(parsed.trials))
        # sums round by the number of threads: trials have as many as cells
        own = replace(own, threads=resources.threads)
        trials = plan_trials(request, parsed.trials, own, is_local=is_local)
        assert request.tuning is not None
        log.info("%s", describe_costs(plan, request.tuning))
        name = combine_hashes(request.tuning, plan, trials)
    else:
        name = plan.hash

    folder = Path(parsed.options.to or f"comparisons/{plan.recipe}-{name}")
    prepare_folder(folder)
    with run_dir.lock(folder, "another zoo compare is working in this folder"):
        if trials is not None:
            tuned, tuning, problem = _tune(parsed, own, folder, len(plan.cells))
            if problem is not None:
                return collect_results(plan, folder), folder, problem
            plan = build_plan(request, tuned, resources, is_local=is_local)
            plan = replace(plan, tuning=tuning)
        plan = write_plan(plan, folder)
        if trials is None:
            _record_hypotheses(parsed, folder, plan.measure)
        runner = CellRunner(folder, plan, parsed.executor, resources)
        processes = [CellProcess(folder / CELLS / cell.name, Path.cwd()) for cell in plan.cells]
        stopped = runner.run(processes)
        comparison = collect_results(plan, folder)
        _write(comparison, folder)
    return comparison, folder, _find_outcome(comparison, folder, stopped)


def _record_hypotheses(parsed: ParsedRequest, folder: Path, measure: str) -> None:
    """Write the hypotheses as soon as the folder is known to be theirs."""
    ended = [*folder.glob(f"{CELLS}/*/{END}"), *folder.glob(f"{TUNING}/{TRIALS}/*/{TRIAL}")]
    record_hypotheses(parsed.options.hypotheses, folder, len(ended), measure)


def _plan_resources(parsed: ParsedRequest, executor: Executor, count: int) -> Resources:
    jobs = None if parsed.options.jobs == "auto" else parsed.options.jobs
    recipes = parsed.recipes.values()
    gpus = max(count_gpus(one, is_local=executor.is_local) for one in recipes)
    return executor.plan_resources(count, jobs, gpus)


def _tune(
    parsed: ParsedRequest, resources: Resources, folder: Path, following: int
) -> tuple[dict[Combination, Recipe], dict[str, Any], ZooError | None]:
    """Run all trials, those too that the ended ones decide.

    Returns:
        The recipe of each variant with its best settings, what was found, and why trials are
        still not done, in which case the others are empty.
    """
    request, own = parsed.request, folder / TUNING
    known: list[str] = []
    while True:
        recipes, plan = list_known_trials(parsed, resources, own)
        names = [cell.name for cell in plan.cells]
        if names == known:
            break
        plan = write_plan(plan, own)
        if not known:
            _record_hypotheses(parsed, folder, plan.measure)
        known = names
        problem = _run_trials(parsed, plan, resources, own, following)
        if problem is not None:
            return {}, {}, problem

    tuning, best = collect_tuning(request, recipes, plan, own)
    assert request.tuning is not None
    last = len(request.tuning.rungs) - 1
    tuned = {}
    for variant, recipe in parsed.recipes.items():
        trial = replace(best[variant.name], rung=last)
        tuned[variant] = load_variant(request, build_trial(request, variant, recipe, trial))
    return tuned, tuning, None


def _run_trials(
    parsed: ParsedRequest, plan: ComparisonPlan, resources: Resources, folder: Path, following: int
) -> ZooError | None:
    """Run the trials that are not done; return why some are still not."""
    runner = CellRunner(folder, plan, parsed.make_executor(), resources, following)
    runs = [folder / TRIALS / cell.name for cell in plan.cells]
    stopped = runner.run([CellProcess(run, Path.cwd()) for run in runs])
    states = [read_state(run) for run in runs]
    done = sum(state == "done" for state, _ in states)
    if stopped is not None:
        text = f"stopped by {stopped.name} with {done} of {len(runs)} trials done"
        return Stopped(stopped, f"{text}; the same command continues: {plan.command}")
    if done == len(runs):
        return None
    text = (
        f"{len(runs) - done} of {len(runs)} trials are not done; the same command tries them again"
    )
    unfinished = [
        f"  {cell.variant}: {error or state}"
        for cell, (state, error) in zip(plan.cells, states, strict=True)
        if state != "done"
    ]
    return ZooError("\n".join([f"{text} ({folder / TRIALS})", *unfinished]))


def rebuild(words: Sequence[str]) -> Comparison:
    """Write table, page and figures of an output folder again, from what its cells reached.

    Args:
        words: `rebuild=FOLDER` and other options of `RebuildOptions`.

    Raises:
        RecipeError: An option is wrong, or no cell has the measure.
        DataError: The folder holds no comparison.
    """
    options = RebuildOptions(**parse_options(words, [RebuildOptions])[0])
    folder = Path(options.rebuild)
    plan = ComparisonPlan.read(folder)
    if options.measure is not None:
        # and the command that would give the same
        kept = [word for word in shlex.split(plan.command) if not word.startswith("measure=")]
        plan = replace(
            plan,
            measure=f"test/{options.measure}",
            better=find_direction(options.measure),
            command=shlex.join([*kept, f"measure={options.measure}"]),
        )

    comparison = collect_results(plan, folder)
    cells = comparison.cells
    metrics = [cell.metrics[TRAINED] for cell in cells if TRAINED in cell.metrics]
    if metrics and not any(plan.measure in one for one in metrics):
        problem = f"no cell has {plan.measure}, but {', '.join(metrics[0])}"
        raise RecipeError(ConfigIssue(ARGUMENT, "measure", problem, "name one of these"))
    _write(comparison, folder)
    return comparison


def _write(comparison: Comparison, folder: Path) -> None:
    written = write_results(comparison, folder)
    log.info("written: %s", ", ".join(map(str, written)))


def _find_outcome(comparison: Comparison, folder: Path, stopped: Signals | None) -> ZooError | None:
    """Return why the comparison is not complete, and how to continue it."""
    unfinished = []
    count = 0
    for variant in comparison.variants:
        count += len(variant.cells)
        for cell in variant.cells:
            if cell.state != "done":
                reason = cell.error or cell.state
                unfinished.append(f"  {variant.name}, seed {cell.seed}: {reason}")

    if stopped is not None:
        done = count - len(unfinished)
        text = f"stopped by {stopped.name} with {done} of {count} cells done"
        return Stopped(stopped, f"{text}; the same command continues: {comparison.command}")
    if not unfinished:
        return None
    text = f"{len(unfinished)} of {count} cells are not done; the same command tries them again"
    return ZooError("\n".join([f"{text} ({folder / CELLS})", *unfinished]))
