"""`zoo compare` as a user meets it: cells, results, what is unfair, and what stops it."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from several import codes
from tiny import TINY
from training import evaluate, fit

from zoo.comparison.plan import PLAN, ComparisonPlan, prepare_folder
from zoo.comparison.results import Comparison, Flag
from zoo.run.callbacks.manifest import START
from zoo.tasks.classification import Classification

BASE = [
    "vit_comrope",
    *(word for word in TINY if "encoding" not in word),
    "trainer.num_threads=1",
    "diagnostics.every_n_steps=null",
]
TOLD = {
    "results.json",
    "comparison.md",
    "table.tex",
    "table.csv",
    "values.csv",
    "index.html",
    *(
        f"{name}.{suffix}"
        for name in ("ranking", "sizes", "training", "costs")
        for suffix in ("png", "svg", "pdf")
    ),
}
FILES = {".gitattributes", ".gitignore", "cells.jsonl", "plan.json", "cells", "recipes", *TOLD}


def states(folder):
    found = Comparison.read(Path(folder) / "results.json")
    return {
        (variant.name, cell.seed): cell.state
        for variant in found.variants
        for cell in variant.cells
    }


def values(folder):
    return {
        path.parent.name: json.loads(path.read_text())["metrics"]
        for path in Path(folder).glob("cells/*/end.json")
    }


def test_a_comparison_is_made_gone_on_with_and_told_anew(compared):
    words = (
        "encodings=[none,learned]",
        "seeds=2",
        "jobs=2",
        "to=c",
        "evaluate.resolutions=[16,24]",
        "keep=weights",
    )
    code, out, message = compared(*BASE, *words)
    assert code == 0, message
    assert {path.name for path in Path("c").iterdir()} == FILES
    assert message.count("done: ") == 4
    found = Comparison.read(Path("c/results.json"))
    assert [one.describe() for one in found.conditions] == ["16 pixels", "24 pixels"]
    assert (found.measure, found.better, found.seeds) == ("test/accuracy", "high", (0, 1))
    none, learned = found.variants
    assert none.flags == ()
    assert learned.flags == (Flag("parameters", "256 more parameters than none"),)
    cell = learned.cells[1]
    metrics = {one.condition.name: one.metrics for one in cell.measurements}
    end = json.loads(Path("c/cells/learned-1/end.json").read_text())
    assert metrics["trained"] == end["metrics"]
    measured = json.loads(Path("c/cells/learned-1/measured.json").read_text())["conditions"]
    found_metrics = {one["name"]: one["metrics"] for one in measured}
    # 16 pixels are the training size, so a comparison shows them once
    assert found_metrics.pop("16") == found_metrics["trained"]
    assert metrics == found_metrics
    assert cell.steps == 6
    assert cell.backends == ("sdpa",)
    assert cell.flops
    assert "forward MFLOPs" in Path("c/comparison.md").read_text()
    assert len(cell.curve) == 1
    assert min(cell.peak_memory, cell.minutes, cell.step_seconds or 1) > 0
    assert not any(cell.different_start for variant in found.variants for cell in variant.cells)
    assert found.shared_weights == len(
        json.loads(Path("c/cells/none-0/start.json").read_text())["weights"]
    )
    assert "256 more parameters than none" in out
    assert "At 24 pixels" in out
    assert out == Path("c/comparison.md").read_text()

    before, stamps = (
        Path("c/results.json").read_bytes(),
        {path: path.stat().st_mtime_ns for path in Path("c").rglob("*.ckpt")},
    )
    code, _, message = compared(*BASE, *words)  # nothing is left to do
    assert (code, "done: " in message) == (0, False)
    code, out, _ = compared("rebuild", "c", "--json")
    assert code == 0
    assert Path("c/results.json").read_bytes() == before
    assert json.loads(out) == json.loads(before)
    assert {path: path.stat().st_mtime_ns for path in Path("c").rglob("*.ckpt")} == stamps
    out = compared("rebuild", "c", "measure=loss")[1]
    assert out.startswith("# Which encoding, on vit_comrope?\n\n")
    assert "\n\nAt 16 pixels" in out
    assert Comparison.read(Path("c/results.json")).command.endswith(
        "evaluate.resolutions=[16,24]' keep=weights, then zoo compare rebuild c measure=loss"
    )

    # what somebody asks of a cell later is not what it was compared by
    evaluate("c/cells/learned-1", ["data.test=0.1", "evaluate.resolutions=[24,32]"])
    assert compared("rebuild", "c")[0] == 0
    assert Path("c/results.json").read_bytes() == before

    # a cell rerun from its recipe gives equal numbers
    fit("c/cells/learned-1/recipe.yaml", [], Path("again"), "never")
    assert json.loads(Path("again/end.json").read_text())["metrics"] == metrics["trained"]
    assert json.loads(Path("again", START).read_text()) == json.loads(
        Path("c/cells/learned-1", START).read_text()
    )

    code, _, message = compared(*BASE, *words, "model.dim=32")
    assert code == 2
    assert "c holds another comparison: model.dim is 16 there, 32 here" in message
    assert "seeds are 0, 1 there, 0 here" in compared(*BASE, *words, "seeds=1")[2]


def test_a_comparison_grows_by_encodings_and_seeds(compared):
    base = [word for word in BASE if "threads" not in word]
    # cells of one job take all cores as threads, two jobs share them
    assert compared(*base, "encodings=[none,learned]", "seeds=1", "jobs=2", "to=c")[0] == 0
    before = Path("c/cells.jsonl").read_bytes()
    assert before.count(b"\n") == 2
    threads = ComparisonPlan.read(Path("c")).machine["threads"]

    code, out, message = compared(
        *base, "encodings=[rope_axial,none,learned]", "seeds=2", "jobs=1", "to=c"
    )
    assert code == 0, message
    assert "c: 4 cells are added to its 2" in message
    assert message.count("done: ") == 4
    assert list(states("c")) == [
        (name, seed) for name in ("rope_axial", "none", "learned") for seed in (0, 1)
    ]
    assert set(states("c").values()) == {"done"}
    assert Path("c/cells.jsonl").read_bytes().startswith(before)
    assert {
        cell.recipe["trainer"]["num_threads"] for cell in ComparisonPlan.read(Path("c")).cells
    } == {threads}
    assert "num_threads:" not in out

    code, _, message = compared(*base, "encodings=[none,rope_mixed]", "seeds=2", "to=c")
    assert code == 2
    assert (
        "model.encoding varies over [rope_axial,none,learned] there, over [none,rope_mixed] here"
        in message
    )


def test_a_cell_that_fails_does_not_stop_the_rest_and_is_tried_again(compared, monkeypatch):
    step = Classification.training_step

    def broken(self, batch, batch_idx):
        return step(self, batch, batch_idx) * (
            float("nan") if "rope_mixed" in self.model.encoding else 1.0
        )

    words = (*BASE, "encodings=[none,rope_mixed]", "seeds=1", "jobs=1", "to=c")
    with monkeypatch.context() as patch:
        patch.setattr(Classification, "training_step", broken)
        code, out, message = compared(*words)
    assert code == 1
    assert states("c") == {("none", 0): "done", ("rope_mixed", 0): "failed"}
    assert "1 of 2 cells are not done" in message
    assert "rope_mixed, seed 0: exit code 3: step 0: the loss is nan" in message
    assert "seed 0 failed" in out
    code, _, message = compared(*words)
    assert code == 0, message
    assert set(states("c").values()) == {"done"}
    assert "done: none" not in message


def test_faults_of_all_cells_are_told_together_before_anything_is_started(compared):
    words = (
        "encodings=[rope_axial,rop,fox,{name: liere, blok: 4}]",
        "vary.task.label_smoothing=[0,0.5]",
        "optim.lr=fast",
        "jobs=0",
    )
    code, out, message = compared(*BASE, *words)
    assert (code, out) == (2, "")
    assert message.count("optim.lr: expected a finite number") == 1
    assert message.count("jobs: must be at least 1") == 1
    code, _, message = compared(*BASE, *words[:2])
    assert code == 2
    # names and options of encodings are known without torch
    absent = "command line: model.encoding.0.name: there is no 'rop' among encodings"
    assert f"rop: {absent}" in message
    assert "model.encoding.0.blok: unknown key; did you mean model.encoding.0.block?" in message
    code, _, message = compared(*BASE, "encodings=[rope_axial,fox]", words[1])
    assert code == 2
    assert "fox label_smoothing=0, fox label_smoothing=0.5: " in message
    assert "fox takes 1 axis, not 2" in message
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "no recipe; write zoo compare RECIPE"),
        (("vit_comrope",), "nothing varies"),
        (
            ("vit_comrope", "encodings=[none]", "engine=slrm"),
            "there is no engine 'slrm'; did you mean slurm?",
        ),
        (("vit_comrope", "encodings=[none]", "partition=a"), "partition: unknown key"),
        (("vit_comrope", "encoding=[none]"), "encoding: unknown key; did you mean encodings?"),
        (
            ("vit_comrope", "encodings=[none]", "seeds=0", "jobs=0", "measure=top5"),
            "zoo: 3 config errors",
        ),
        (("vit_comrope", "encodings=[none]", "seeds=[1,1]"), "the list names a seed twice"),
        (("rebuild", "nowhere"), "nowhere: holds no comparison"),
        (("vit_comrope", "encodings=[none]", "engine=slurm", "cpus=0"), "cpus: must be at least 1"),
    ],
)
def test_a_mistake_is_told(words, expected, compared):
    code, out, message = compared(*words)
    assert code in (2, 4)
    assert out == ""
    assert expected in message


def test_a_folder_of_something_else_is_refused(compared):
    Path("mine").mkdir()
    Path("mine/notes.txt").touch()
    code, _, message = compared(*BASE, "encodings=[none]", "to=mine")
    assert code == 2
    assert "mine holds other files, notes.txt among them" in message


def test_what_a_kill_left_of_a_trial_does_not_have_a_folder_refused(tmp_path):
    (tmp_path / ".zoo-write-test-17").touch()
    prepare_folder(tmp_path)
    assert not (tmp_path / PLAN).exists()


def wait_for(pattern):
    ends = time.monotonic() + 90
    while not (found := list(Path().glob(pattern))):
        assert time.monotonic() < ends, f"there is no {pattern}"
        time.sleep(0.02)
    return found


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.nightly)],
    ids=lambda number: number.name,
)
def test_it_goes_on_where_it_was_stopped(number, compared, driver):
    words = (
        *BASE,
        "encodings=[none,rope_axial]",
        "seeds=1",
        "jobs=2",
        "trainer.max_epochs=6",
        "to=c",
    )
    running = driver(*words)
    wait_for("c/cells/*/checkpoints/last.ckpt")
    os.kill(running, number)
    message = codes([running]), Path("rank-0.log").read_text()
    assert message[0] == [-number if number == signal.SIGKILL else 128 + number], message[1]
    assert "Traceback" not in message[1]
    if number != signal.SIGKILL:
        assert set(states("c").values()) <= {"stopped", "done"}
        assert f"stopped by {signal.Signals(number).name} with" in message[1]
        assert "the same command continues: zoo compare vit_comrope" in message[1]
    code, _, message = compared(
        *words
    )  # where the driver was killed, cells that it has left may still be saving
    assert code == 0, message
    logs = [path.read_text() for path in Path("c/cells").glob("*/train.log")]
    assert any("Resuming from c/cells" in log for log in logs)
    for name, found in values("c").items():  # as if nobody had stopped it
        assert fit(f"c/recipes/{name}.yaml", [], Path(name), "never")["metrics"] == found
