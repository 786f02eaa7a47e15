"""Cells on this machine: isolation, exit codes, and what happens when something is killed."""

import logging
import multiprocessing.forkserver
import os
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM

import pytest
import torch

from zoo.comparison.cell import WORK
from zoo.launch import local
from zoo.launch.executor import LOST, CellProcess, Resources
from zoo.launch.local import LocalExecutor
from zoo.run import checkpoint, loggers, run_dir

RECIPE = """\
extends: vit_comrope
seed: 3
model:
  dim: 16
  depth: 1
  heads: 2
  patch_size: 4
  encoding: {encoding}
  block: {{dropout: 0.1}}
data: {{test: 0.4, val: 0.4, batch_size: 64}}
trainer: {{max_epochs: {epochs}, accelerator: cpu, num_threads: {threads}}}
diagnostics: {{every_n_steps: null}}
evaluate: {{resolutions: null}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    (folder / "recipes").mkdir()
    return folder


def find_server():
    """Return the process id of the server that forks cells of this test process."""
    return multiprocessing.forkserver._forkserver._forkserver_pid


@pytest.fixture(scope="module", autouse=True)
def single_thread():
    """Start a server whose libraries have no threads of their own, and end it afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        yield
        multiprocessing.forkserver._forkserver._stop()


@pytest.fixture
def make_cell(folder):
    """make_cell(name, ...) -> the process of a cell, not started"""

    def make(name, encoding="rope_mixed", epochs=1, threads=1):
        text = RECIPE.format(encoding=encoding, epochs=epochs, threads=threads)
        (folder / "recipes" / f"{name}.yaml").write_text(text)
        return CellProcess(Path("cells", name), folder, WORK)

    return make


def wait_for(condition):
    ends = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def read_results(cell):
    """Return metrics without speeds, and all weights."""
    run = cell.folder / cell.run
    _, rows = loggers.read(run / "metrics.csv")
    metrics = [{k: v for k, v in row.items() if not k.startswith("perf/")} for row in rows]
    return metrics, checkpoint.read(run / "checkpoints" / "last.ckpt")["state_dict"]


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_a_cell_gives_equal_bits_first_after_another_and_in_a_process_of_its_own(method, make_cell):
    forked = [make_cell("first"), make_cell("other", "learned", threads=2), make_cell("after")]
    for cell in forked:
        code = cell.start("forkserver").wait()
        assert code == 0, (cell.folder / cell.run / "output.log").read_text()
    fresh = make_cell("fresh")
    assert fresh.start(method).wait() == 0

    metrics, weights = read_results(fresh)
    for cell in (forked[0], forked[2]):
        found = read_results(cell)
        assert found[0] == metrics
        assert found[1].keys() == weights.keys()
        assert all(torch.equal(found[1][key], weights[key]) for key in weights)
    output = (fresh.folder / forked[0].run / "output.log").read_text()
    assert "Recipe: first" in output
    assert "other" not in output


def test_the_server_runs_no_thread_that_a_fork_would_lose(make_cell):
    assert make_cell("unknown", "rop").start("forkserver").wait() == 2
    assert len(os.listdir(f"/proc/{find_server()}/task")) == 1


def test_a_cell_has_the_variables_of_its_parent_at_its_start(make_cell, monkeypatch):
    """A plug-in that is named after the server has started is found, or refused as here."""
    make_cell("before", "rop").start("forkserver").wait()
    cell = make_cell("variables")
    monkeypatch.setenv("ZOO_PLUGINS", "first_package")
    assert cell.start("forkserver", {"ZOO_PLUGINS": "own_package"}).wait() == 2
    assert "own_package: no such package" in (cell.folder / cell.run / "output.log").read_text()


def test_a_cell_has_a_session_and_a_folder_of_its_own(make_cell):
    running = make_cell("session", epochs=1000).start("forkserver")
    wait_for(lambda: run_dir.is_locked(running.run))
    pid = running.process.pid
    assert os.getsid(pid) == pid
    assert Path(f"/proc/{pid}/cwd").readlink() == running.run.parent.parent
    running.send_signal(SIGKILL)
    assert running.wait() == -SIGKILL


def test_a_cell_that_is_killed_fails_alone(make_cell):
    server = find_server()
    running = make_cell("killed", epochs=1000).start("forkserver")
    running.send_signal(SIGKILL)
    assert running.wait() == -SIGKILL
    running.send_signal(SIGKILL)  # it is over: nothing happens
    assert find_server() == server


def test_a_cell_that_is_interrupted_saves_its_state(make_cell, folder):
    running = make_cell("interrupted", epochs=1000).start("forkserver")
    wait_for(lambda: (folder / "cells/interrupted/checkpoints/last.ckpt").exists())
    running.send_signal(SIGINT)
    assert running.wait() == 128 + SIGINT
    assert "stopped by SIGINT at step" in (folder / "cells/interrupted/output.log").read_text()


SCRIPT = """\
from pathlib import Path
from zoo.comparison.cell import WORK
from zoo.launch.executor import CellProcess

print("begins", flush=True)
CellProcess(Path("cells/tied"), Path({folder!r}), WORK).start("forkserver").wait()
"""


def test_a_cell_whose_parent_is_killed_saves_and_ends(make_cell, folder):
    """The parent is a script that starts its cell without asking whether it is the main module."""
    make_cell("tied", epochs=1000)
    (folder / "script.py").write_text(SCRIPT.format(folder=str(folder)))
    parent = subprocess.Popen(
        [sys.executable, "script.py"], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    wait_for(lambda: (folder / "cells/tied/checkpoints/last.ckpt").exists())
    parent.kill()
    began = time.monotonic()
    output = folder / "cells/tied/output.log"
    wait_for(lambda: "stopped by SIGTERM at step" in output.read_text())
    assert time.monotonic() - began < 7
    # it was not run a second time in the process of the cell
    assert parent.communicate()[0] == "begins\n"


@pytest.mark.nightly  # another server imports everything again
def test_a_server_that_is_killed_leaves_its_cells_alone_and_is_replaced(make_cell, folder):
    running = make_cell("waits", epochs=1000).start("forkserver")
    wait_for(lambda: (folder / "cells/waits/checkpoints/last.ckpt").exists())
    server = find_server()
    os.kill(server, SIGKILL)
    engine = LocalExecutor()
    engine.start([make_cell("next", "rop")], Resources(1, 1, 0))
    assert engine.handles[0].result() == 2
    assert find_server() != server
    assert running.poll() is None
    running.send_signal(SIGTERM)
    assert running.wait() == LOST
    output = folder / "cells/waits/output.log"
    wait_for(lambda: "stopped by SIGTERM at step" in output.read_text())


def test_a_signal_reaches_a_cell_that_is_just_being_started(make_cell, monkeypatch):
    engine = LocalExecutor()
    start = CellProcess.start

    def signalled(*given):
        running = start(*given)
        engine.stop(SIGTERM)
        return running

    monkeypatch.setattr(CellProcess, "start", signalled)
    engine.start([make_cell("withdrawn", epochs=1000)], Resources(1, 1, 0))
    assert engine.handles[0].result() in (-SIGTERM, 128 + SIGTERM)


@pytest.mark.nightly
def test_cells_on_a_gpu_and_other_systems_start_anew(monkeypatch, caplog):
    assert local.find_obstacle(Resources(1, 1, 0)) is None
    assert "GPU" in local.find_obstacle(Resources(1, 1, 1))
    monkeypatch.setattr(local.sys, "platform", "darwin")
    caplog.set_level(logging.INFO, "zoo")
    LocalExecutor().start([], Resources(1, 1, 0))
    assert "each cell starts anew, which takes seconds: a fork is not safe on darwin" in caplog.text
