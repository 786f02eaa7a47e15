"""Speed, utilization and memory in the log of a training, and the trace of some of its steps."""

import gzip
import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny import TINY, language
from training import fit

from zoo.config import load
from zoo.config.command_line import parse_overrides
from zoo.errors import RecipeError, ZooError
from zoo.run import loggers
from zoo.run.callbacks import progress
from zoo.run.callbacks.profile import StepProfile
from zoo.run.callbacks.progress import TrainingProgress
from zoo.run.load import load_experiment
from zoo.run.machine import find_peak_flops
from zoo.run.requirements import count_training_flops
from zoo.utils import Ticker

EVERY = ["trainer.log_every_n_steps=2", "trainer.max_epochs=null", "trainer.max_steps=4"]


def measure(monkeypatch, tracker, device, processes=1, unit="images"):
    """Measure a device after 100 samples and 800 tokens in 10 seconds."""
    tracker.mark, tracker.waiting, tracker.samples, tracker.tokens = 5.0, 1.0, 100, 800
    tracker.operations = 6e11
    monkeypatch.setattr(progress.time, "monotonic", lambda: 15.0)
    strategy = SimpleNamespace(root_device=torch.device(device))
    trainer = SimpleNamespace(strategy=strategy, world_size=processes)
    return tracker._measure(trainer, SimpleNamespace(spec=SimpleNamespace(unit=unit)))


def test_speed_utilization_and_memory_of_a_gpu_are_logged(monkeypatch):
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 3e9)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 4e9)
    found = measure(monkeypatch, TrainingProgress(lambda step: 6e9, 1e12), "cuda:0", processes=2)
    assert found == {
        "samples_per_second": 10,
        "data_share": 0.1,
        # 6e10 operations per second of two devices with 1e12 each
        "mfu": pytest.approx(0.03),
        "memory_allocated_gb": 3,
        "memory_peak_gb": 4,
    }
    assert TrainingProgress._format(found, "images") == {
        "images/s": "10",
        "MFU": "3.0%",
        "allocated": "3.00 GB",
        "peak": "4.00 GB",
    }


def test_what_is_unknown_is_absent(monkeypatch):
    monkeypatch.setattr(progress, "measure_resident_memory", lambda: None)
    for tracker in (
        TrainingProgress(),
        TrainingProgress(lambda step: 6e9),
        TrainingProgress(None, 1e12),
    ):
        found = measure(monkeypatch, tracker, "cpu", unit="tokens")
        assert found == {"samples_per_second": 10, "tokens_per_second": 80, "data_share": 0.1}


@pytest.mark.parametrize(
    ("gpu", "precision", "matmul", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16-mixed", "highest", 312e12),
        ("NVIDIA A100-SXM4-80GB", "32-true", "high", 156e12),
        ("NVIDIA A100-SXM4-80GB", "32-true", "highest", 19.5e12),
        ("Tesla T4", "32-true", "high", 8.1e12),
        ("Tesla T4", "16-mixed", "highest", 65e12),
        ("Tesla T4", "bf16-mixed", "highest", None),
        ("NVIDIA H100 80GB HBM3", "transformer-engine", "highest", None),
        # a part of a GPU, and one that is not listed
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16-mixed", "highest", None),
        ("NVIDIA H100 NVL", "bf16-mixed", "highest", None),
    ],
)
def test_a_peak_is_that_of_the_type_of_numbers_or_unknown(gpu, precision, matmul, peak):
    assert find_peak_flops(gpu, precision, matmul) == peak


def test_operations_are_unknown_where_samples_or_weights_vary():
    experiment = load_experiment("vit_none", {"trainer.accelerator": "cpu", "model.depth": 1})
    task = experiment.build_task()
    assert count_training_flops(experiment, task.model) == 3 * experiment.flops
    next(task.model.parameters()).requires_grad_(False)
    assert count_training_flops(experiment, task.model) is None
    points = load_experiment("points_first_rope", {"trainer.accelerator": "cpu"})
    assert count_training_flops(points, points.build_task().model) is None


@pytest.mark.parametrize("unit", ["images", "tokens"])
def test_a_training_on_a_cpu_logs_its_speed_and_memory(unit, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, "zoo")
    monkeypatch.setattr(Ticker, "is_due", lambda self: True)
    recipe, options = "vit_comrope", TINY
    if unit == "tokens":
        recipe, options = "lm_rope", language(tmp_path / "letters.txt")
    fit(recipe, [*options, *EVERY], Path("run"))
    _, rows = loggers.read(Path("run", "metrics.csv"))
    logged = [row for row in rows if row["perf/samples_per_second"]]
    assert [row["step"] for row in logged] == ["1", "3"]
    for row in logged:
        assert 0 < float(row["perf/memory_resident_gb"]) < 100
        assert "perf/mfu" not in row
        if unit == "tokens":
            rate = 16 * float(row["perf/samples_per_second"])
            assert float(row["perf/tokens_per_second"]) == pytest.approx(rate)
    line = next(text for text in caplog.messages if text.startswith("step 4/4"))
    assert f" {unit}/s " in line
    assert line.endswith(" GB")


PROFILED = [*TINY, "data.batch_size=16", "trainer.max_steps=8", "trainer.max_epochs=null"]
PROFILED += ["trainer.save_every_n_steps=1", "trainer.accumulate_grad_batches=2"]


def test_a_trace_has_the_steps_that_were_named(tmp_path, monkeypatch, caplog):
    """Once: a resumed run keeps it, and one that begins too late has none."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, "zoo")
    options = [*PROFILED, "trainer.profile={steps: [3, 4]}"]

    def stop(self, trainer, task, *rest, original=StepProfile.on_train_batch_end):
        original(self, trainer, task, *rest)
        if trainer.global_step == 5:
            raise ZooError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(StepProfile, "on_train_batch_end", stop)
        with pytest.raises(ZooError, match="stopped"):
            fit("vit_comrope", options, Path("run"))
    path = Path("run", "trace-3-4.json.gz")
    assert f"Profile of steps 3 to 4: {path}, to open in " in caplog.text
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = [str(event.get("name")) for event in events]
    # the optimizer steps once for each, whatever the batches
    assert sum(name.startswith("Optimizer.step#") for name in names) == 2
    before = path.read_bytes()
    fit("vit_comrope", options, Path("run"), "auto")
    assert path.read_bytes() == before
    assert f"Profile of steps 3 to 4: written before, {path}" in caplog.messages
    path.unlink()
    fit("vit_comrope", [*options, "trainer.max_steps=9"], Path("run"), "auto")
    assert "No profile of steps 3 to 4: training goes on at step 9" in caplog.messages
    assert not [*Path("run").glob("*trace*")]


def test_a_trial_run_profiles_its_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = ["trainer.profile.steps=[10, 13]", "trainer.fast_dev_run=true"]
    fit("vit_comrope", [*TINY, *more], Path("run"))
    assert Path("run", "trace-1-1.json.gz").stat().st_size


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("[3]", r"\[3\] is no first and last step; write two numbers"),
        ("[4, 3]", r"\[4, 3\] is no first and last step"),
        ("[0, 3]", "must be at least 1, got 0"),
        ("[1, 101]", "101 steps are too many for one trace; choose at most 100"),
        ("[8, 9]", "step 9 comes after training, max_steps 8"),
    ],
)
def test_steps_that_cannot_be_profiled_are_refused(steps, words):
    with pytest.raises(RecipeError, match=f"trainer.profile.steps(.0)?: {words}"):
        load("vit_comrope", parse_overrides([*PROFILED, f"trainer.profile.steps={steps}"]))
