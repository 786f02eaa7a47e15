"""The driver of cells, with an engine that does as it is told."""

import json
import logging
from signal import SIG_DFL, SIG_IGN, SIGTERM, SIGUSR2, getsignal, raise_signal, signal

import pytest

from zoo.comparison import runner
from zoo.comparison.cell import WORK, run_cell
from zoo.comparison.plan import CELLS, ComparisonPlan, PlannedCell
from zoo.comparison.runner import CellRunner
from zoo.errors import ZooError
from zoo.launch.executor import CellProcess, Resources, make_run_dir, read_state, write_state
from zoo.run.callbacks.manifest import END, START
from zoo.run.load import load_recipe


class Handle:
    """A cell that has ended, or runs until it is stopped."""

    def __init__(self, code):
        self.code = code

    def running(self):
        return self.code is None

    def done(self):
        return self.code is not None

    def cancelled(self):
        return False

    def result(self):
        return self.code


class Engine:
    is_local = True

    def __init__(self, codes, signalled=None):
        self.codes, self.signalled = codes, signalled
        self.handles, self.stops = [], []

    def start(self, tasks, needs):
        for number, _ in enumerate(tasks):
            self.handles.append(Handle(self.codes[number]))
            if self.signalled == number:
                raise_signal(SIGTERM)

    def stop(self, signal):
        self.stops.append(signal)
        for handle in self.handles:
            handle.code = 128 + SIGTERM if handle.code is None else handle.code


def make_runner(folder, engine):
    """Return a runner of as many cells as the engine has."""
    recipe = {"trainer": {"max_epochs": 1, "max_steps": None}}
    cells = tuple(
        PlannedCell(name=f"c-{seed}", variant="c", seed=seed, recipe=recipe)
        for seed in range(len(engine.codes))
    )
    plan = ComparisonPlan(
        zoo_version="",
        created="",
        command="",
        recipe="",
        base={},
        machine={},
        axes=(),
        seeds=(0,),
        measure="",
        better="low",
        training_size=None,
        windows="",
        automatic_threads=True,
        variants={},
        cells=cells,
    )
    return CellRunner(folder, plan, engine, Resources(2, 1, 0))


@pytest.fixture
def driven(tmp_path, caplog):
    """driven(engine) -> what stopped it, and what it told of its cells"""

    def run(engine):
        caplog.set_level(logging.INFO, "zoo")
        driver = make_runner(tmp_path, engine)
        stopped = driver.run(
            [CellProcess(tmp_path / c.name, tmp_path, WORK) for c in driver.plan.cells]
        )
        return stopped, caplog.text

    return run


def test_progress_counts_the_steps_within_an_epoch(tmp_path):
    driver = make_runner(tmp_path, Engine([None, None, None]))
    assert driver._sum_progress() == 0
    for number, step in enumerate((300, 1200)):
        run = make_run_dir(tmp_path / CELLS / f"c-{number}")
        (run / START).write_text(json.dumps({"planned_steps": 1200}))
        (run / "metrics.csv").write_text(f"step,epoch\n0,0\n{step},0\n")
    # the second has trained and is still evaluated, the third has not begun
    assert driver._sum_progress() == pytest.approx(0.25 + runner.TRAINED_SHARE)
    write_state(run, "done")
    assert driver._sum_progress() == pytest.approx(1.25)


def test_the_time_left_is_told_once_it_says_something(tmp_path, monkeypatch):
    driver = make_runner(tmp_path, Engine([None, None]))
    run = make_run_dir(tmp_path / CELLS / "c-0")
    (run / START).write_text(json.dumps({"planned_steps": 100}))
    (run / "metrics.csv").write_text("step,epoch\n25,0\n")
    now = runner.ESTIMATE_SECONDS - 1
    monkeypatch.setattr(runner.time, "monotonic", lambda: now)
    assert "left" not in driver._describe_progress()
    now += 61
    # a quarter of a cell took two minutes
    assert driver._describe_progress().endswith(", 14:00 left")
    driver.following = 6
    assert driver._describe_progress().endswith(", 1:02:00 left for all 8")


def test_a_disk_that_is_full_does_not_end_the_driver(driven, monkeypatch):
    def full(run, now, error=""):
        raise ZooError("no space left on device")

    monkeypatch.setattr(runner, "write_state", full)
    stopped, message = driven(Engine([3, 3]))
    assert stopped is None
    assert message.count("cannot be written: no space left on device") == 2
    assert message.count("failed: c, seed") == 2


def test_whatever_ends_the_driver_ends_its_cells(driven, monkeypatch):
    engine = Engine([None, 0])
    monkeypatch.setattr(CellRunner, "_conclude_cell", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        driven(engine)
    assert engine.stops == [SIGTERM]


def test_a_signal_while_cells_are_given_stops_those_that_were(driven, tmp_path):
    engine = Engine([None, None, None], signalled=1)
    stopped, _ = driven(engine)
    assert stopped == SIGTERM
    assert len(engine.handles) == 2
    now = [read_state(tmp_path / CELLS / f"c-{seed}")[0] for seed in range(3)]
    assert now == ["stopped", "stopped", "waiting"]


@pytest.mark.parametrize(
    ("code", "expected"), [(-SIGTERM, "stopped"), (128 + SIGTERM, "stopped"), (-9, "failed")]
)
def test_a_cell_that_a_signal_ended_is_stopped(code, expected, driven, tmp_path):
    driven(Engine([code]))
    assert read_state(tmp_path / CELLS / "c-0")[0] == expected


def test_cells_that_end_at_once_are_counted_one_after_another(driven, tmp_path):
    class Quick(Engine):
        def start(self, tasks, needs):
            for seed in range(2):
                run = make_run_dir(tmp_path / CELLS / f"c-{seed}")
                for name in (START, END):
                    (run / name).write_text("{}")
                write_state(run, "done")
            super().start(tasks, needs)

    _, message = driven(Quick([0, 0]))
    assert "; 1 of 2 cells" in message
    assert "; 2 of 2 cells" in message


def test_a_cell_does_not_end_by_the_signal_that_slurm_sends_to_all(tmp_path, monkeypatch):
    before = signal(SIGUSR2, SIG_DFL)
    seen = []
    recipe = load_recipe("vit_none")
    monkeypatch.setattr("zoo.comparison.cell.config.load", lambda _: recipe)
    monkeypatch.setattr("zoo.comparison.cell.fit", lambda *_: seen.append(getsignal(SIGUSR2)))
    monkeypatch.setattr("zoo.comparison.cell.load_recipe", lambda _: recipe)
    monkeypatch.setattr("zoo.comparison.cell.evaluate", lambda *_: None)
    try:
        run_cell(tmp_path / CELLS / "c-0")
    finally:
        signal(SIGUSR2, before)
    assert seen == [SIG_IGN]
