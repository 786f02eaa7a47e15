"""The cells of a comparison while they run: what is told of them, and how they are stopped."""

from __future__ import annotations

import logging
import os
import shlex
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIG_IGN, SIGINT, SIGKILL, SIGTERM, SIGUSR2, Signals, signal

from zoo.compare import outputs, status
from zoo.compare.collect import gathered
from zoo.compare.executors.base import CellHandle, CellProcess, Executor, Resources
from zoo.compare.plan import CELLS, RECIPES, ComparisonPlan, PlannedCell
from zoo.compare.planner import Measure, build_plan, count_gpus, find_direction, list_seeds
from zoo.compare.request import parse_request
from zoo.compare.results import TRAINED, Comparison, State
from zoo.compare.run_files import MEASURED, cell, files
from zoo.compare.workspace import prepare_folder, write_plan
from zoo.config.command_line import parse_options
from zoo.config.tree import COMMAND_LINE
from zoo.errors import ConfigIssue, RecipeError, Stopped, ZooError
from zoo.evaluation.evaluate import evaluate
from zoo.run import atomic_io, loggers
from zoo.run.callbacks.manifest import END
from zoo.run.fit import fit
from zoo.run.load import load_recipe
from zoo.utils.dates import format_duration
from zoo.utils.signals import stop_on_signal
from zoo.utils.ticker import Ticker


def run_cell(run: Path, tied: bool) -> None:
    """Does what is not done yet, as `zoo fit` and `zoo eval` would. `tied`: it ends with whoever started it."""
    signal(
        SIGUSR2, SIG_IGN
    )  # by which SLURM tells all of a job that its time is over; its engine asks a cell to save
    if tied:
        _follow()
    recipe = run.parent.parent / RECIPES / f"{run.name}.yaml"
    with status.lock(
        status.make_run_dir(run), "another process is working at this cell", status.PATIENCE
    ):
        (run / status.STATE).unlink(missing_ok=True)
        if not (run / END).exists():
            fit(str(recipe), [], run, "auto")
        known = load_recipe(recipe)
        if known.evaluate.resolutions or known.evaluate.lengths or known.evaluate.data_variants:
            found = evaluate(str(run), [f"trainer.accelerator={known.trainer.accelerator}"])
            atomic_io.write_json(found or {}, run / MEASURED)
        status.write(run, "done")


def _follow() -> None:
    """Save and end, as SIGTERM has it, once nobody holds the other end of standard input: a kill is not passed on."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


log = logging.getLogger("zoo")

NEARLY = 0.95  # of a cell, when it has trained and is still measured
STOPPED = {
    sign * number + base for number in (SIGINT, SIGTERM) for sign, base in ((1, 128), (-1, 0))
}  # exit codes
PAUSE, LOOK = 0.1, 2.0  # seconds between looks at processes, and at how far they are


class CellRunner:
    """Gives the cells that are not done to an engine, and waits for them."""

    def __init__(
        self, folder: Path, plan: ComparisonPlan, engine: Executor, needs: Resources
    ) -> None:
        self.folder, self.plan, self.engine, self.needs = folder, plan, engine, needs
        self.left: list[tuple[PlannedCell, CellHandle]] = []
        self.done = 0
        self.stopped: Signals | None = None

    def run(self, tasks: Sequence[CellProcess]) -> Signals | None:
        """Returns the signal that stopped it, if one did: cells save what they have then. A second one ends them at once."""
        given = [
            pair
            for pair in zip(self.plan.cells, tasks, strict=True)
            if self._state(pair[0]) != "done"
        ]
        self.done, jobs = len(tasks) - len(given), min(self.needs.jobs, len(given))
        log.info(
            "%s: %d of %d cells are done, %d run at the same time",
            self.folder,
            self.done,
            len(tasks),
            jobs,
        )
        if not given:
            return None
        ticker, self.began, self.before = Ticker(), time.monotonic(), self._share()
        try:
            with stop_on_signal() as received:
                try:
                    self.engine.start([task for _, task in given], self.needs)
                finally:  # also of those that were given before a signal came
                    self.left = [
                        (one, handle)
                        for (one, _), handle in zip(given, self.engine.handles, strict=False)
                    ]
                self._follow(ticker)
            ticker("")
            if received:
                self._stop(received[0])
        except BaseException:  # no cell goes on unseen
            self.engine.stop(SIGTERM)
            raise
        return self.stopped

    def _follow(self, ticker: Ticker) -> None:
        looked = 0.0
        while self.left:
            self._conclude()
            if time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                ticker(self._told())
            time.sleep(PAUSE)

    def _stop(self, signal: Signals) -> None:
        self.stopped = signal
        running = sum(handle.running() for _, handle in self.left)
        log.info(
            "%s: %d cells save their state; once more, and they end at once", signal.name, running
        )
        self.engine.stop(signal)
        with stop_on_signal() as again:
            self._drain()
        if again:
            self.engine.stop(SIGKILL)
            self._drain()

    def _drain(self) -> None:
        while self.left:
            self._conclude()
            time.sleep(PAUSE)

    def _conclude(self) -> None:
        """Write down the state of cells whose process has ended, and tell it."""
        for planned, handle in [
            pair for pair in self.left if pair[1].cancelled() or pair[1].done()
        ]:
            self.left.remove((planned, handle))
            if not handle.cancelled():
                self._ended(planned, handle)

    def _ended(self, planned: PlannedCell, handle: CellHandle) -> None:
        run = self.folder / CELLS / planned.name
        try:
            code, lost = handle.result(), ""
        except Exception as error:  # an engine has lost it, in a way of its own
            code, lost = 1, (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        title = f"{planned.variant}, seed {planned.seed}"
        if self._state(planned) == "done":
            self.done += 1
            log.info("done: %s: %s", title, self._reached(planned))
        elif status.is_locked(run):
            log.info("not begun: %s: another process is working at it", title)
        elif self.stopped or code in STOPPED:
            self._write(run, "stopped")
        else:
            fault = lost or status.describe_failure(run, code)
            log.info("failed: %s: %s", title, fault)
            self._write(run, "failed", fault)

    def _write(self, run: Path, now: State, fault: str = "") -> None:
        """Where that fails, as on a full disk, the other cells are still followed."""
        try:
            status.write(status.make_run_dir(run), now, fault)
        except (ZooError, OSError) as error:
            log.info("%s: its state, %s, cannot be written: %s", run, now, error)

    def _reached(self, planned: PlannedCell) -> str:
        found = cell(self.plan, self.folder, planned, files(self.folder / CELLS / planned.name))
        value = found.metrics.get(TRAINED, {}).get(self.plan.measure)
        told = "" if value is None else f"{self.plan.measure} {value:.4f}, "
        return f"{told}trained in {format_duration(60 * (found.minutes or 0))}; {self.done} of {len(self.plan.cells)} cells"

    def _told(self) -> str:
        share, cells = self._share(), len(self.plan.cells)
        running = sum(handle.running() for _, handle in self.left)
        told = f"{cells - len(self.left)} of {cells} cells ended, {running} running"
        spent, gone = time.monotonic() - self.began, share - self.before
        return (
            f"{told}, {format_duration(spent * (cells - share) / gone)} left" if gone > 0 else told
        )

    def _share(self) -> float:
        """How many cells' worth of training is done."""
        return sum(self._progress(planned) for planned in self.plan.cells)

    def _progress(self, planned: PlannedCell) -> float:
        now = self._state(planned)
        if now in ("done", "failed"):
            return 1.0
        trainer = planned.recipe["trainer"]
        try:
            _, rows = loggers.read(self.folder / CELLS / planned.name / "metrics.csv")
            shares = [
                float(rows[-1][key]) / trainer[most]
                for key, most in (("epoch", "max_epochs"), ("step", "max_steps"))
                if trainer[most]
            ]
        except (OSError, ValueError, KeyError, IndexError):
            return 0.0
        return min(NEARLY, max(shares, default=0.0))  # whichever comes first ends it

    def _state(self, planned: PlannedCell) -> str:
        return status.read(self.folder / CELLS / planned.name)[0]


@dataclass(frozen=True, kw_only=True)
class RebuildOptions:
    """Options of `zoo compare --from`."""

    measure: Measure | None = None


def compare(
    name: str | None, words: Sequence[str], plugins: Sequence[str]
) -> tuple[Comparison, ZooError | None]:
    """The result as far as it has come, and why it has come no further.

    Raises RecipeError with all that is wrong with any cell before anything is started.
    """
    if name is None:
        raise RecipeError(
            ConfigIssue(
                COMMAND_LINE,
                "",
                "no recipe",
                "write zoo compare RECIPE encodings=[...], or --from DIR",
            )
        )
    options, engine, asked, found = parse_request(name, words, plugins)
    wanted = len(found) * len(list_seeds(options.seeds, next(iter(found.values()))))
    needed = max(count_gpus(one, is_local=engine.is_local) for one in found.values())
    needs = engine.plan_resources(wanted, None if options.jobs == "auto" else options.jobs, needed)
    made = build_plan(asked, found, needs, is_local=engine.is_local)
    folder = Path(options.to or f"comparisons/{made.recipe}-{made.hash}")
    prepare_folder(folder)
    with status.lock(folder, "another zoo compare is working in this folder"):
        made = write_plan(made, folder)
        cells = CellRunner(folder, made, engine, needs)
        stopped = cells.run(
            [CellProcess(folder / CELLS / cell.name, Path.cwd()) for cell in made.cells]
        )
        comparison = gathered(made, folder)
        written = outputs.write(comparison, folder)
    log.info("written: %s", ", ".join(str(path) for path in written))
    return comparison, _outcome(comparison, folder, made.command, stopped)


def rebuild(folder: Path, words: Sequence[str]) -> Comparison:
    """Table, page and figures anew from what is there. Raises DataError where there is no comparison."""
    (options,) = parse_options(words, [RebuildOptions])
    made = ComparisonPlan.read(folder)
    if options["measure"] is not None:
        made = _remeasured(made, options["measure"])
    comparison = gathered(made, folder)
    known = [
        cell.metrics[TRAINED]
        for variant in comparison.variants
        for cell in variant.cells
        if TRAINED in cell.metrics
    ]
    if known and not any(made.measure in one for one in known):
        told = f"no cell has {made.measure}, but {', '.join(known[0])}"
        raise RecipeError(ConfigIssue(COMMAND_LINE, "measure", told, "name one of these"))
    written = outputs.write(comparison, folder)
    log.info("written: %s", ", ".join(str(path) for path in written))
    return comparison


def _remeasured(made: ComparisonPlan, measure: Measure) -> ComparisonPlan:
    """The plan with its answer given in another measure, and the command that would."""
    words = [word for word in shlex.split(made.command) if not word.startswith("measure=")]
    command = shlex.join([*words, f"measure={measure}"])
    return replace(made, measure=f"test/{measure}", better=find_direction(measure), command=command)


def _outcome(
    comparison: Comparison, folder: Path, command: str, stopped: Signals | None
) -> ZooError | None:
    """Why the comparison is not complete, and how to go on."""
    cells = [(variant.name, cell) for variant in comparison.variants for cell in variant.cells]
    done = sum(cell.state == "done" for _, cell in cells)
    if stopped is not None:
        told = f"stopped by {stopped.name} with {done} of {len(cells)} cells done; the same command goes on: {command}"
        return Stopped(stopped, told)
    failed = [
        f"  {name}, seed {cell.seed}: {cell.fault or cell.state}"
        for name, cell in cells
        if cell.state != "done"
    ]
    if not failed:
        return None
    head = f"{len(failed)} of {len(cells)} cells are not done; the same command tries them again ({folder / CELLS})"
    return ZooError("\n".join([head, *failed]))
