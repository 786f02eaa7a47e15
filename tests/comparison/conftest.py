"""Comparisons of tiny recipes, whose cells are forked off the test, which has imported everything."""

import os
import signal
import sys
import traceback
import warnings

import kornia.augmentation
import pytest
import torch
import torch.utils.tensorboard

from zoo.cli import main
from zoo.comparison import runner
from zoo.launch import local
from zoo.launch.executor import OUTPUT, CellProcess, make_run_dir
from zoo.reporting import render

IMPORTED = (kornia.augmentation, torch.utils.tensorboard, runner)


def _render_nothing():
    """Write empty pictures: threads of the renderer do not survive a fork."""
    render.to_png = lambda *_, **__: b""


class Forked:
    """Of subprocess.Popen, what an engine asks for."""

    stdin = None

    def __init__(self, task):
        reading, self.writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # of threads, of which the child has none
            self.pid = os.fork()
        if self.pid:
            os.close(reading)
            return
        code = 1
        try:
            os.dup2(reading, 0)
            with (make_run_dir(task.folder / task.run) / OUTPUT).open("ab") as message:
                os.dup2(message.fileno(), 1)
                os.dup2(message.fileno(), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.closerange(3, 512)  # as Popen does: pipes of other cells, and the lock of the folder
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(
                    number,
                    signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL,
                )
            os.setsid()
            torch.set_num_threads(1)
            _render_nothing()
            code = main(["compare", "--cell", str(task.run), "--tied"])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def poll(self):
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        if not ended:
            return None
        os.close(self.writing)
        return os.waitstatus_to_exitcode(status)

    def send_signal(self, number):
        os.kill(self.pid, number)


@pytest.fixture
def forked(monkeypatch, tmp_path):
    """Cells take a second, not ten; runs go to a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_PLUGINS", "")
    monkeypatch.setattr(CellProcess, "start", lambda self, more=None: Forked(self))
    monkeypatch.setattr(local, "find_obstacle", lambda resources: "the test forks them itself")


@pytest.fixture
def compared(forked, capfd, caplog):
    """compared(*words) -> (exit code, standard output, all that is told beside it)"""

    def run(*words):
        caplog.clear()
        code = main(["compare", *map(str, words)])
        message = capfd.readouterr()
        return code, message.out, "\n".join([*caplog.messages, message.err])

    return run


@pytest.fixture
def driver(forked):
    """Starts `zoo compare` in a process of its own, forked too; its exit code is that of `several.codes`."""
    from several import alone, start

    def compare(*words):
        _render_nothing()
        return main(["compare", *map(str, words)])

    def begin(*words):
        (process,) = start(1, lambda rank: compare(*words), alone)
        return process

    return begin
