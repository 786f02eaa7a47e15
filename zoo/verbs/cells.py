"""The cells of a comparison while they run: what is told of them, and how they are stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals

from zoo.compare import state
from zoo.compare.cells import cell, files
from zoo.compare.engines.task import Engine, Handle, Needs, Task
from zoo.compare.plan import CELLS, Plan, Planned
from zoo.compare.result import TRAINED, State
from zoo.errors import ZooError
from zoo.run import metrics
from zoo.run.progress import clock
from zoo.verbs.stops import stopping
from zoo.verbs.ticker import Ticker

log = logging.getLogger("zoo")

NEARLY = 0.95  # of a cell, when it has trained and is still measured
STOPPED = {sign * number + base for number in (SIGINT, SIGTERM) for sign, base in ((1, 128), (-1, 0))}  # exit codes
PAUSE, LOOK = 0.1, 2.0  # seconds between looks at processes, and at how far they are


class Cells:
    """Gives the cells that are not done to an engine, and waits for them."""

    def __init__(self, folder: Path, plan: Plan, engine: Engine, needs: Needs) -> None:
        self.folder, self.plan, self.engine, self.needs = folder, plan, engine, needs
        self.left: list[tuple[Planned, Handle]] = []
        self.done = 0
        self.stopped: Signals | None = None

    def run(self, tasks: Sequence[Task]) -> Signals | None:
        """Returns the signal that stopped it, if one did: cells save what they have then. A second one ends them at once."""
        given = [pair for pair in zip(self.plan.cells, tasks, strict=True) if self._state(pair[0]) != "done"]
        self.done, jobs = len(tasks) - len(given), min(self.needs.jobs, len(given))
        log.info("%s: %d of %d cells are done, %d run at the same time", self.folder, self.done, len(tasks), jobs)
        if not given:
            return None
        ticker, self.began, self.before = Ticker(), time.monotonic(), self._share()
        try:
            with stopping() as received:
                try:
                    self.engine.start([task for _, task in given], self.needs)
                finally:  # also of those that were given before a signal came
                    self.left = [(one, handle) for (one, _), handle in zip(given, self.engine.handles, strict=False)]
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
        log.info("%s: %d cells save their state; once more, and they end at once", signal.name, running)
        self.engine.stop(signal)
        with stopping() as again:
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
        for planned, handle in [pair for pair in self.left if pair[1].cancelled() or pair[1].done()]:
            self.left.remove((planned, handle))
            if not handle.cancelled():
                self._ended(planned, handle)

    def _ended(self, planned: Planned, handle: Handle) -> None:
        run = self.folder / CELLS / planned.name
        try:
            code, lost = handle.result(), ""
        except Exception as error:  # an engine has lost it, in a way of its own
            code, lost = 1, (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        title = f"{planned.variant}, seed {planned.seed}"
        if self._state(planned) == "done":
            self.done += 1
            log.info("done: %s: %s", title, self._reached(planned))
        elif state.busy(run):
            log.info("not begun: %s: another process is working at it", title)
        elif self.stopped or code in STOPPED:
            self._write(run, "stopped")
        else:
            fault = lost or state.fault(run, code)
            log.info("failed: %s: %s", title, fault)
            self._write(run, "failed", fault)

    def _write(self, run: Path, now: State, fault: str = "") -> None:
        """Where that fails, as on a full disk, the other cells are still followed."""
        try:
            state.write(state.made(run), now, fault)
        except (ZooError, OSError) as error:
            log.info("%s: its state, %s, cannot be written: %s", run, now, error)

    def _reached(self, planned: Planned) -> str:
        found = cell(self.plan, self.folder, planned, files(self.folder / CELLS / planned.name))
        value = found.metrics.get(TRAINED, {}).get(self.plan.measure)
        told = "" if value is None else f"{self.plan.measure} {value:.4f}, "
        return f"{told}trained in {clock(60 * (found.minutes or 0))}; {self.done} of {len(self.plan.cells)} cells"

    def _told(self) -> str:
        share, cells = self._share(), len(self.plan.cells)
        running = sum(handle.running() for _, handle in self.left)
        told = f"{cells - len(self.left)} of {cells} cells ended, {running} running"
        spent, gone = time.monotonic() - self.began, share - self.before
        return f"{told}, {clock(spent * (cells - share) / gone)} left" if gone > 0 else told

    def _share(self) -> float:
        """How many cells' worth of training is done."""
        return sum(self._progress(planned) for planned in self.plan.cells)

    def _progress(self, planned: Planned) -> float:
        now = self._state(planned)
        if now in ("done", "failed"):
            return 1.0
        trainer = planned.recipe["trainer"]
        try:
            _, rows = metrics.read(self.folder / CELLS / planned.name / "metrics.csv")
            shares = [
                float(rows[-1][key]) / trainer[most]
                for key, most in (("epoch", "max_epochs"), ("step", "max_steps"))
                if trainer[most]
            ]
        except (OSError, ValueError, KeyError, IndexError):
            return 0.0
        return min(NEARLY, max(shares, default=0.0))  # whichever comes first ends it

    def _state(self, planned: Planned) -> str:
        return state.read(self.folder / CELLS / planned.name)[0]
