"""The driver of a comparison reads what it wrote once, and checks each file and recipe once."""

import shutil
import sys
import threading
from pathlib import Path

from tiny import TINY

import zoo
from zoo.config.command_line import parse_overrides
from zoo.launch.executor import write_state
from zoo.launch.local import LocalExecutor
from zoo.reporting import charts
from zoo.run.callbacks.manifest import END
from zoo.utils import write_json

PACKAGE = str(Path(zoo.__file__).parent)
UNTESTED = "untested"
SMALL = [
    *(word for word in TINY if "encoding" not in word),
    "diagnostics.every_n_steps=null",
    "trainer.max_steps=2",
]


class Ended:
    """A cell that has ended."""

    def running(self):
        return False

    def done(self):
        return True

    def cancelled(self):
        return False

    def result(self):
        return 0


def test_a_comparison_of_12_trials_makes_few_calls(forked, monkeypatch, tmp_path):
    """Cells are copies of one run; a real run is to make 100,000 with polling and progress."""
    changes = parse_overrides([*SMALL, "evaluate.resolutions=[]"])
    shutil.rmtree(zoo.fit("vit_comrope", changes, run_dir=tmp_path / "run").path / "checkpoints")

    def copy_runs(self, processes, resources):
        for process in processes:
            run = process.folder / process.run
            shutil.copytree(tmp_path / "run", run, dirs_exist_ok=True)
            if (run / UNTESTED).exists():
                (run / END).unlink()
            trial = {"monitor": "val/accuracy", "mode": "max", "best": 0.1 * int(run.name[-1])}
            write_json({**trial, "minutes": 0.1, "processor_minutes": 0.1}, run / "trial.json")
            write_state(run, "done")
            self.handles.append(Ended())

    monkeypatch.setattr(LocalExecutor, "start", copy_runs)
    monkeypatch.setattr(charts, "render_formats", lambda chart: {".svg": b""})
    calls = 0

    def count_call(frame, event, argument):
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    threading.setprofile(count_call)
    sys.setprofile(count_call)
    try:
        result = zoo.compare(
            "vit_comrope",
            changes,
            encodings=["none", "learned", "rope_axial"],
            tune={"optim.lr": [1e-3, 1e-1, "log"]},
            studies=2,
            budget=2,
            to=tmp_path / "compared",
            verbose=False,
        )
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert [cell.state for cell in result.comparison.cells] == ["done"] * 6
    assert calls <= 73_000, calls
