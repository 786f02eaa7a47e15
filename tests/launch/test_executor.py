"""Engines that run cells elsewhere, tried with the least that their libraries are asked for."""

import contextlib
import multiprocessing
import os
import sys
import time
import types
from pathlib import Path
from signal import SIGTERM

import pytest

from zoo.cli import worker
from zoo.comparison.cell import WORK
from zoo.errors import OptionError, RecipeError, ZooError
from zoo.launch import executor
from zoo.launch import slurm_executor as slurm
from zoo.launch.executor import (
    OUTPUT,
    CellProcess,
    Resources,
    describe_failure,
    make_run_dir,
    read_state,
    write_state,
)
from zoo.launch.local import LocalExecutor
from zoo.run import run_dir

SLEEP = "import os, time; time.sleep({}); os.system('echo $CUDA_VISIBLE_DEVICES'); os._exit({})"


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """tasks(*programs): each runs a line of Python in place of a cell."""

    def made(*programs):
        lines = {f"cell-{number}": program for number, program in enumerate(programs)}
        # forked off this test, so that they have the line
        monkeypatch.setattr(executor, "get_context", lambda _: multiprocessing.get_context("fork"))
        monkeypatch.setattr(worker, "run_cell", lambda run, work: exec(lines[run.name], {}))
        return [CellProcess(Path(name), tmp_path, WORK) for name in lines]

    return made


def ended(handles):
    ends = time.monotonic() + 60
    while not all(handle.done() or handle.cancelled() for handle in handles):
        assert time.monotonic() < ends
        time.sleep(0.02)
    return [None if handle.cancelled() else handle.result() for handle in handles]


def test_cells_run_beside_each_other_and_each_tells_its_end(tasks):
    engine = LocalExecutor()
    engine.start(
        tasks(SLEEP.format(0, 0), SLEEP.format(0, 3), SLEEP.format(0, 5)), Resources(2, 1, 0)
    )
    assert ended(engine.handles) == [0, 3, 5]


def test_each_cell_sees_gpus_of_its_own(tasks, tmp_path, monkeypatch):
    monkeypatch.setattr("zoo.launch.local._list_devices", lambda: ["4", "5", "6", "7"])
    engine = LocalExecutor()
    assert engine.plan_resources(24, None, 1).jobs == 4
    engine.start(tasks(SLEEP.format(0.2, 0), SLEEP.format(0.2, 0)), Resources(2, 1, 1))
    assert ended(engine.handles) == [0, 0]
    seen = {path.read_text().strip() for path in tmp_path.glob("*/output.log")}
    assert seen == {"4", "5"}


def test_those_that_run_are_stopped_and_those_that_wait_never_begin(tasks):
    engine = LocalExecutor()
    engine.start(tasks(SLEEP.format(60, 0), SLEEP.format(60, 0)), Resources(1, 1, 0))
    while not engine.running:
        time.sleep(0.01)
    engine.stop(SIGTERM)
    assert ended(engine.handles) == [-SIGTERM, None]


def test_threads_are_shared_out():
    cores = len(os.sched_getaffinity(0))
    assert LocalExecutor().plan_resources(100, None, 0) == Resources(cores, 1, 0)
    assert LocalExecutor().plan_resources(100, 1, 0) == Resources(1, cores, 0)
    assert LocalExecutor().plan_resources(1, None, 0).jobs == 1


class Executor:
    """Of submitit's executor, what is asked for; its jobs are done at once."""

    def __init__(self):
        self.parameters, self.submitted, self.batched = {}, [], 0

    def update_parameters(self, **parameters):
        self.parameters = parameters

    @contextlib.contextmanager
    def batch(self):
        self.batched += 1
        yield

    def submit(self, call):
        self.submitted.append(call)
        return Job(call)


class Job:
    def __init__(self, call):
        self.call, self.state, self.job_id = call, "RUNNING", "1_0"

    def done(self):
        return self.state != "RUNNING"

    def result(self):
        return self.call()

    def cancel(self):
        self.state = "CANCELLED by 0"


def test_slurm_is_given_one_array_of_all_cells(tasks, monkeypatch):
    executor = Executor()
    engine = slurm.SlurmExecutor(time="1-2", partition="long", cpus=3, gpus=1)
    monkeypatch.setattr(engine, "_build_executor", lambda logs: executor)
    engine.start(tasks(SLEEP.format(0, 0), SLEEP.format(0, 3)), Resources(2, 3, 1))
    assert executor.batched == 1
    assert executor.parameters == {
        "name": "zoo-compare",
        "timeout_min": 26 * 60,
        "cpus_per_task": 3,
        "gpus_per_node": 1,
        "slurm_partition": "long",
        "slurm_array_parallelism": 2,
    }
    assert [handle.result() for handle in engine.handles] == [0, 3]
    engine.stop(SIGTERM)
    assert all(handle.cancelled() for handle in engine.handles)


def test_what_slurm_did_not_take_before_a_signal_was_never_begun(tasks, monkeypatch):
    class Unsubmitted:
        def __getattr__(self, name):  # as submitit has it until a batch ends
            raise AttributeError(name)

    class Interrupted(Executor):
        @contextlib.contextmanager
        def batch(self):
            yield
            raise KeyboardInterrupt

        def submit(self, call):
            return Unsubmitted()

    engine = slurm.SlurmExecutor()
    monkeypatch.setattr(engine, "_build_executor", lambda logs: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        engine.start(tasks(SLEEP.format(0, 0)), Resources(1, 1, 0))
    engine.stop(SIGTERM)
    assert ended(engine.handles) == [None]


def test_slurm_is_named_and_asked_for_as_many_tries_as_it_takes(monkeypatch, tmp_path):
    asked = {}
    library = types.SimpleNamespace(AutoExecutor=lambda **words: asked.update(words))
    monkeypatch.setitem(sys.modules, "submitit", library)
    slurm.SlurmExecutor()._build_executor(tmp_path)
    assert asked == {
        "folder": tmp_path,
        "cluster": "slurm",
        "slurm_max_num_timeout": slurm.MAX_TIMEOUTS,
    }


def test_where_there_is_no_slurm_it_is_told(monkeypatch):
    monkeypatch.setattr(slurm, "find_spec", lambda name: name)
    monkeypatch.setattr(slurm.shutil, "which", lambda name: None)
    with pytest.raises(RecipeError, match="there is no srun on this machine"):
        slurm.SlurmExecutor().plan_resources(4, None, 0)


def test_what_slurm_would_refuse_is_told():
    with pytest.raises(OptionError, match="leaves no time"):
        slurm.SlurmExecutor(time="1")


def test_an_engine_that_is_not_installed_says_what_to_install(monkeypatch):
    engine = slurm.SlurmExecutor()
    monkeypatch.setattr(f"{type(engine).__module__}.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"pip install -e .*\[slurm\]"):
        engine.plan_resources(4, None, 0)


@pytest.mark.nightly  # two processes import everything
def test_submitit_runs_a_cell(tmp_path):
    submitit = pytest.importorskip("submitit")
    task = CellProcess(Path("cells/none-0"), tmp_path, WORK)
    job = submitit.LocalExecutor(folder=tmp_path / "logs").submit(slurm.RequeuedCell(task))
    assert job.result() == 2  # of a cell whose recipe is not there
    assert describe_failure(tmp_path / "cells/none-0", 2).startswith("exit code 2: ")


def test_a_cell_is_worked_at_by_one_process(tmp_path):
    assert read_state(tmp_path / "cell") == ("waiting", "")
    run = make_run_dir(tmp_path / "cell")
    assert read_state(run) == ("stopped", "")
    with run_dir.lock(run, "taken"):
        assert read_state(run) == ("running", "")
        with pytest.raises(ZooError, match="taken"), run_dir.lock(run, "taken"):
            pass
    write_state(run, "failed", "exit code 3")
    assert read_state(run) == ("failed", "exit code 3")


def test_a_fault_is_what_a_cell_told_last(tmp_path):
    (tmp_path / OUTPUT).write_text(
        "step 1\nzoo: an older fault\nstep 2\nzoo: the loss is nan\n  more of it\n"
    )
    assert describe_failure(tmp_path, 3) == "exit code 3: the loss is nan more of it"
    (tmp_path / OUTPUT).write_text("Traceback\nMemoryError\n")
    assert describe_failure(tmp_path, -9) == "ended by signal 9: Traceback MemoryError"
