"""Comparisons of tiny recipes, whose cells are forked off the test, which has imported everything."""

import multiprocessing
import os
import signal
import sys
import traceback
from io import BytesIO

import kornia.augmentation
import pytest
import torch
import torch.utils.tensorboard
from PIL import Image

from zoo.cli import main, worker
from zoo.comparison import cell, runner
from zoo.launch import executor
from zoo.reporting import charts

PICTURE = BytesIO()
Image.new("RGB", (1, 1)).save(PICTURE, "PNG")
RENDERED = {
    "vegalite_to_svg": '<svg viewBox="0 0 1 1"></svg>',
    "svg_to_png": PICTURE.getvalue(),
    "svg_to_pdf": b"%PDF",
}
"""Names of functions of the renderer, and what each returns in place of a drawing."""

IMPORTED = (kornia.augmentation, torch.utils.tensorboard, runner)


def _render_nothing():
    """Write empty pictures: threads of the renderer do not survive a fork."""
    charts.render_formats = lambda chart: dict.fromkeys((".png", ".svg", ".pdf"), b"")


def _close_inherited():
    """Close what a new process would not have: pipes of other cells, and the lock of the folder."""
    kept = multiprocessing.parent_process().sentinel
    os.closerange(3, kept)
    os.closerange(kept + 1, 512)


def _run_cell(run, work):
    """Run a cell in a process that was forked off the test."""
    _close_inherited()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    torch.set_num_threads(1)
    _render_nothing()
    code = 1
    try:
        code = main(work=lambda: cell.run_cell(run))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # the threads and exit functions of the test are none of its own
        os._exit(code)


@pytest.fixture
def forked(monkeypatch, tmp_path):
    """Cells take a second, not ten; runs go to a folder of the test's own.

    Charts are built and not rendered.
    """
    for name, drawing in RENDERED.items():
        monkeypatch.setattr(charts.vl_convert, name, lambda *_, drawing=drawing, **__: drawing)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_PLUGINS", "")
    # the test itself is the process that has imported everything
    monkeypatch.setattr(executor, "get_context", lambda _: multiprocessing.get_context("fork"))
    monkeypatch.setattr(worker, "run_cell", _run_cell)


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
