"""Run the cells of a comparison: start them, report their progress, stop them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals

from zoo.comparison.cell import is_time_over
from zoo.comparison.cell_files import DAMAGED, find_cell, is_done, keep_finished
from zoo.comparison.plan import CELLS, ComparisonPlan, PlannedCell
from zoo.comparison.record import CellRecord
from zoo.comparison.record_file import read_cells
from zoo.errors import DataError, ZooError
from zoo.launch.executor import (
    POLL_SECONDS,
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
from zoo.run import loggers, run_dir
from zoo.run.callbacks.manifest import START
from zoo.utils import Ticker, format_duration, read_object, stop_on_signal

log = logging.getLogger("zoo")

# share of a cell that is done when it has trained and is still being evaluated
TRAINED_SHARE = 0.95
# exit codes of a process that SIGINT or SIGTERM ended
STOPPED_CODES = {128 + SIGINT, 128 + SIGTERM, -SIGINT, -SIGTERM}
PROGRESS_SECONDS = 2.0
ESTIMATE_SECONDS = 60.0
"""Seconds before the first estimate of the time left: a process that starts shows no speed."""


class CellRunner:
    """Gives the cells that are not done to an executor, and waits for them.

    Args:
        folder: The output folder.
        plan: The cells.
        executor: What runs them.
        resources: How many run at the same time, and what each has.
        following: How many cells will follow these, for the estimate of the time that is left.
        keeps_weights: Whether the checkpoints of finished cells are kept.
    """

    def __init__(
        self,
        folder: Path,
        plan: ComparisonPlan,
        executor: Executor,
        resources: Resources,
        following: int = 0,
        *,
        keeps_weights: bool = False,
    ) -> None:
        self.keeps_weights = keeps_weights
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
        # a driver that was killed may have left cells that are done without their records
        remaining = [
            (cell, process)
            for cell, process in pairs
            if self._keep(cell) is None and self._read_state(cell) != "done"
        ]
        self.done = len(processes) - len(remaining)
        log.info(
            "%s: %d of %d cells are done, %d run at the same time",
            self.folder,
            self.done,
            len(processes),
            min(self.resources.jobs, len(remaining)),
        )
        if not remaining:
            return None

        ticker = Ticker()
        self.start_time, self.start_share = time.monotonic(), self._sum_progress()
        try:
            with stop_on_signal() as received:
                try:
                    self.executor.start([process for _, process in remaining], self.resources)
                finally:
                    # also of those that were given before a signal came
                    cells = [cell for cell, _ in remaining]
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
        with stop_on_signal() as second_signal:
            self._wait()
        if second_signal:
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
        run = self.folder / CELLS / cell.name
        try:
            code, lost = handle.result(), ""
        except Exception as error:
            # an executor has lost it, in a way of its own
            code, lost = 1, (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

        title = f"{cell.variant}, seed {cell.seed}"
        record = self._keep(cell)
        if record is not None:
            self.done += 1
            log.info("done: %s: %s", title, self._describe_cell(cell, record))
        elif code == 0 and is_time_over(self.folder):
            log.info("not started: %s: the minutes are over", title)
        elif run_dir.is_locked(run):
            log.info("not started: %s: another process is working on it", title)
        elif self.stopped or code in STOPPED_CODES:
            self._write_state(run, "stopped")
        else:
            record = find_cell(self.plan, self.folder, cell)
            # what is damaged says more than the code, and needs no record
            error_text = record.error if record.is_refused else lost or describe_failure(run, code)
            log.info("failed: %s: %s", title, error_text)
            if not record.is_refused:
                self._write_state(run, "failed", error_text)

    def _keep(self, cell: PlannedCell) -> CellRecord | None:
        """Write the record of a cell if it is done, and return it; None if it is not done."""
        return keep_finished(self.plan, self.folder, cell, keeps_weights=self.keeps_weights)

    def _write_state(self, run: Path, state: State, reason: str = "") -> None:
        """Write a state; if that fails, as on a full disk, the other cells are still followed."""
        try:
            write_state(make_run_dir(run), state, reason)
        except (ZooError, OSError) as error:
            log.info("%s: its state, %s, cannot be written: %s", run, state, error)

    def _describe_cell(self, planned: PlannedCell, record: CellRecord) -> str:
        if planned.trial is not None and not record.is_tested:
            value, criterion = record.value, record.criterion
            outcome = "non-finite" if value is None else f"{criterion} {value:.4f}"
            return f"{outcome}; {self.done} of {len(self.plan.cells)} trials"
        value = record.test.get(self.plan.measure)
        reached = "" if value is None else f"{self.plan.measure} {value:.4f}, "
        duration = format_duration(60 * (record.minutes or 0))
        return f"{reached}trained in {duration}; {self.done} of {len(self.plan.cells)} cells"

    def _describe_progress(self) -> str:
        share, count = self._sum_progress(), len(self.plan.cells)
        running = sum(handle.running() for _, handle in self.pending)
        summary = f"{count - len(self.pending)} of {count} cells ended, {running} running"
        gained, elapsed = share - self.start_share, time.monotonic() - self.start_time
        if gained <= 0 or elapsed < ESTIMATE_SECONDS:
            return summary
        total_cells = count + self.following
        # by the speed of this call: cells that were done before it tell nothing of this machine
        seconds = elapsed * (total_cells - share) / gained
        whole = f" for all {total_cells}" if self.following else ""
        return f"{summary}, {format_duration(seconds)} left{whole}"

    def _sum_progress(self) -> float:
        """Return how many cells' worth of training is done."""
        finished = read_cells(self.folder)
        left = [cell for cell in self.plan.cells if cell.name not in finished]
        return len(self.plan.cells) - len(left) + sum(map(self._measure_progress, left))

    def _measure_progress(self, cell: PlannedCell) -> float:
        run = self.folder / CELLS / cell.name
        try:
            if read_state(run)[0] in ("done", "failed"):
                return 1.0
            planned = read_object(run / START, DAMAGED).get("planned_steps")
            _, rows = loggers.read(run / "metrics.csv")
            step = float(rows[-1]["step"])
        except (DataError, IndexError):
            # nothing is logged yet; what is damaged is told where its result is read
            return 0.0
        if not isinstance(planned, int) or planned <= 0:
            return 0.0
        return min(TRAINED_SHARE, step / planned)

    def _read_state(self, cell: PlannedCell) -> State:
        if is_done(self.plan, self.folder, cell):
            return "done"
        try:
            return read_state(self.folder / CELLS / cell.name)[0]
        except DataError:
            # its process goes on from what it has saved
            return "stopped"
