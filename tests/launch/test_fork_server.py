"""The server that forks cells: isolation, exit codes, and what happens when something is killed."""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest
import torch

from zoo.launch import fork_server
from zoo.launch.executor import CellProcess, Resources, wait_for_exit
from zoo.launch.fork_server import ForkServer
from zoo.launch.local import LocalExecutor
from zoo.run import checkpoint, loggers

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


@pytest.fixture(scope="module")
def server(folder):
    """A server whose process has a single thread where none is started that a fork would lose."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        server = ForkServer(folder)
        yield server
        server.close()


@pytest.fixture
def make_cell(folder):
    """make_cell(name, ...) -> the process of a cell, not started"""

    def make(name, encoding="rope_mixed", epochs=1, threads=1):
        text = RECIPE.format(encoding=encoding, epochs=epochs, threads=threads)
        (folder / "recipes" / f"{name}.yaml").write_text(text)
        return CellProcess(Path("cells", name), folder)

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


def test_a_cell_gives_equal_bits_first_after_another_and_in_a_process_of_its_own(server, make_cell):
    forked = [make_cell("first"), make_cell("other", "learned", threads=2), make_cell("after")]
    for cell in forked:
        assert wait_for_exit(server.start(cell)) == 0, (
            cell.folder / cell.run / "output.log"
        ).read_text()
    fresh = make_cell("fresh")
    assert wait_for_exit(fresh.start({"OPENBLAS_NUM_THREADS": "1"})) == 0

    metrics, weights = read_results(fresh)
    for cell in (forked[0], forked[2]):
        found = read_results(cell)
        assert found[0] == metrics
        assert found[1].keys() == weights.keys()
        assert all(torch.equal(found[1][key], weights[key]) for key in weights)
    output = (fresh.folder / forked[0].run / "output.log").read_text()
    assert "Recipe: first" in output
    assert "other" not in output


def test_the_server_runs_no_thread_that_a_fork_would_lose(server, make_cell):
    assert wait_for_exit(server.start(make_cell("unknown", "rop"))) == 2
    assert len(os.listdir(f"/proc/{server.process.pid}/task")) == 1


def test_a_cell_that_is_killed_fails_alone(server, make_cell):
    process = server.start(make_cell("killed", epochs=1000))
    wait_for(lambda: process.poll() is None and process.pid is not None)
    process.send_signal(SIGKILL)
    assert wait_for_exit(process) == -SIGKILL
    process.send_signal(SIGKILL)  # it is over: nothing happens
    assert server.is_alive()


def test_a_cell_whose_parent_is_gone_saves_and_ends(server, make_cell, folder):
    process = server.start(make_cell("tied", epochs=1000))
    wait_for(lambda: (folder / "cells/tied/checkpoints/last.ckpt").exists())
    process.stdin.close()
    began = time.monotonic()
    assert wait_for_exit(process) == 128 + SIGTERM
    assert time.monotonic() - began < 7
    assert "stopped by SIGTERM at step" in (folder / "cells/tied/output.log").read_text()


def test_a_server_that_is_killed_leaves_its_cells_alone_and_is_replaced(
    make_cell, folder, monkeypatch, caplog
):
    caplog.set_level(logging.INFO, "zoo")
    fresh = []
    monkeypatch.setattr(CellProcess, "start", lambda self, more=None: fresh.append(self) or Ended())
    engine = LocalExecutor()
    engine.start([make_cell("waits"), make_cell("next", "rop")], Resources(1, 1, 0))
    engine.server.process.kill()
    first, second = (handle.result() for handle in engine.handles)
    # the kill may come after the first cell was forked, which then runs on to its end
    assert (first, [cell.run.name for cell in fresh]) in [(7, ["waits"]), (0, [])]
    assert second == 2
    assert ("the fork server has ended, so this cell starts anew" in caplog.text) == (first == 7)
    assert engine.server is None


class Ended:
    """A process that has ended with exit code 7."""

    stdin = None

    def poll(self):
        return 7


def test_a_signal_withdraws_a_cell_that_has_not_begun(folder, make_cell):
    server = ForkServer(folder)
    process = server.start(make_cell("withdrawn"))
    process.send_signal(SIGTERM)
    assert wait_for_exit(process) == -SIGTERM
    server.process.kill()
    server.close()
    with contextlib.suppress(FileNotFoundError):
        assert not (folder / "cells/withdrawn/train.log").read_text()


def test_cells_on_a_gpu_and_other_systems_start_anew(monkeypatch):
    assert fork_server.find_obstacle(Resources(1, 1, 0)) is None
    assert "GPU" in fork_server.find_obstacle(Resources(1, 1, 1))
    monkeypatch.setattr(fork_server.sys, "platform", "darwin")
    assert "darwin" in fork_server.find_obstacle(Resources(1, 1, 0))


def test_a_server_without_a_parent_ends_before_it_imports_torch(folder):
    """It is started while its parent is killed: the other end of its standard input is closed."""
    code = (
        "import sys; from zoo.cli import main; code = main(['compare', '--fork-server']); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.close()
    with other:
        done = subprocess.run([sys.executable, "-c", code], stdin=other, cwd=folder, check=False)
    assert done.returncode == 0
