"""Attention is looked at while a model trains, which trains as if nobody looked."""

import csv
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from several import run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch import nn
from training import fit

from zoo.cli import main
from zoo.diagnostics import callback, capture
from zoo.errors import Stopped

OFTEN = ["diagnostics.every_n_steps=5", "diagnostics.max_overhead=1", "diagnostics.queries=3"]
# random numbers are drawn
RESTLESS = [
    "model.position_augmentation.jitter=0.3",
    "model.block.dropout=0.1",
    "trainer.max_epochs=2",
]


def train_with_looks(place, given, *more):
    fit("vit_comrope", [*given, *RESTLESS, *more], Path(place), "never")
    return weights(place)


def weights(place):
    return torch.load(Path(place, "checkpoints", "last.ckpt"), weights_only=True)["state_dict"]


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def events(place):
    found = EventAccumulator(
        str(Path(place, "tensorboard")), size_guidance={"histograms": 0, "images": 0}
    )
    return found.Reload()


def rows(place):
    return list(csv.DictReader(Path(place, "metrics.csv").read_text().splitlines()))


def test_a_run_that_is_looked_at_ends_with_the_same_weights(tiny):
    looked = train_with_looks("looked", tiny, *OFTEN)
    assert same(looked, train_with_looks("alone", tiny, "diagnostics.every_n_steps=null"))
    assert not [name for name in rows("alone")[0] if name.startswith("attention")]
    found = events("looked")
    assert_logged(found)
    assert_grouped(found)
    assert_told(found)


def assert_logged(found):
    """Scalars, histograms and pictures of both layers, at the same steps."""
    steps = [row["step"] for row in rows("looked") if row["attention/0/entropy"]]
    last = max(int(row["step"]) for row in rows("looked") if row["val/loss"])
    assert steps == [*map(str, dict.fromkeys([*range(4, last + 1, 5), last]))]
    assert len(steps) > 1
    for layer in (0, 1):
        for tag, kept in (
            ("distance_row", found.Scalars),
            ("weights", found.Histograms),
            ("maps", found.Images),
        ):
            assert [str(one.step) for one in kept(f"attention/{layer}/{tag}")] == steps
    assert (
        0
        < float(
            rows("looked")[-1]["perf/diagnostics_share"]
            or found.Scalars("perf/diagnostics_share")[-1].value
        )
        < 1
    )


def assert_grouped(found):
    """Custom Scalars has one chart of each measure, whose patterns find all layers."""
    (event,) = found.Tensors("custom_scalars__config__")
    layout = Layout.FromString(event.tensor_proto.string_val[0])
    charts = {chart.title: [*chart.multiline.tag] for chart in layout.category[0].chart}
    logged = [tag for tag in found.Tags()["scalars"] if tag.startswith("attention/")]
    assert {
        tag for tags in charts.values() for one in tags for tag in logged if re.match(one, tag)
    } == {*logged}
    entropy = charts["attention/entropy"]
    assert [tag for one in entropy for tag in logged if re.match(one, tag)] == [
        "attention/0/entropy",
        "attention/1/entropy",
    ]


def assert_told(found):
    """What the table of hyperparameters says: the recipe, and what came of it."""
    message = {
        tag: found.summary_metadata[tag]
        for tag in found.summary_metadata
        if tag.startswith("_hparams_")
    }
    start = HParamsPluginData.FromString(
        message["_hparams_/session_start_info"].plugin_data.content
    ).session_start_info
    experiment = HParamsPluginData.FromString(
        message["_hparams_/experiment"].plugin_data.content
    ).experiment
    assert start.hparams["model/dim"].number_value == 16
    assert {info.name.tag for info in experiment.metric_infos} == {
        "test/accuracy",
        "test/ece",
        "test/f1",
        "test/loss",
        "test/top5",
    }
    assert found.Scalars("test/accuracy")[-1].value == pytest.approx(
        float(rows("looked")[-1]["test/accuracy"])
    )


@pytest.mark.nightly
def test_two_processes_that_look_end_with_the_same_weights(tiny):
    given = [*tiny, *RESTLESS, "data.batch_size=16"]

    def work(rank):
        for place, more in (
            ("looked", [*OFTEN, "diagnostics.every_n_steps=3"]),
            ("alone", ["diagnostics.every_n_steps=null"]),
        ):
            fit("vit_comrope", [*given, *more, "trainer.max_epochs=1"], Path(place), "never")

    assert run(2, work) == [0, 0], Path("rank-0.log").read_text() + Path("rank-1.log").read_text()
    assert same(weights("looked"), weights("alone"))
    assert len([row for row in rows("looked") if row["attention/1/entropy"]]) > 1


def list_records(place):
    return [int(row["step"]) + 1 for row in rows(place) if row.get("attention/0/entropy")]


ENDS = {
    "max_steps": (["trainer.max_steps=3"], [3]),
    "max_epochs": (["trainer.max_epochs=2"], [6]),
    "an average of weights": (["trainer.max_steps=3", "trainer.ema_decay=0.9"], [3]),
    "the last step is due": (["trainer.max_steps=4", "diagnostics.every_n_steps=2"], [2, 4]),
    "not due": (["trainer.max_steps=5", "diagnostics.every_n_steps=2"], [2, 4, 5]),
    "over the budget": (["trainer.max_steps=3", "diagnostics.max_overhead=0.0001"], [3]),
    "off": (["trainer.max_steps=3", "diagnostics.every_n_steps=null"], []),
    "early stopping": (
        ["trainer.max_epochs=9", "trainer.early_stopping={patience: 1, min_delta: 100}"],
        [6],
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_training_that_ends_is_recorded_once_at_its_end(case, tiny):
    given, steps = ENDS[case]
    fast = [] if "every_n_steps" in str(given) else ["diagnostics.every_n_steps=100"]
    often = [] if "overhead" in str(given) else ["diagnostics.max_overhead=1"]
    words = [*tiny, "data.batch_size=120", *fast, *often, *given]
    fit("vit_comrope", words, Path("run"), "never")
    assert list_records("run") == steps
    if steps:
        found = events("run")
        assert [one.step + 1 for one in found.Images("attention/0/maps")] == steps
        assert [one.step + 1 for one in found.Scalars("attention/1/entropy")] == steps


@pytest.mark.parametrize("step", [1, 3], ids=["within training", "after the last step"])
def test_a_training_that_a_signal_stops_is_recorded_when_it_ends(step, tiny, monkeypatch):
    def stop(self, trainer, *given):
        if trainer.global_step == step and not Path("resumed").exists():
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(callback.AttentionDiagnostics, "on_train_batch_end", stop)
    words = [*tiny, "trainer.max_steps=3"]
    with pytest.raises(Stopped):
        fit("vit_comrope", words, Path("run"), "never")
    assert not Path("run/metrics.csv").exists() or list_records("run") == []
    Path("resumed").touch()
    # a training that is complete has its record already
    for _ in range(2):
        fit("vit_comrope", words, Path("run"), "auto")
        assert list_records("run") == [3]
        assert len(events("run").Images("attention/0/maps")) == 1


def test_the_last_lines_say_how_to_look_at_the_records(tiny, caplog, monkeypatch):
    caplog.set_level("INFO", "zoo")
    words = ["fit", "vit_comrope", *tiny, "trainer.max_steps=2", "--run-dir", "a run"]
    assert main(words) == 0
    *_, command, explanation = caplog.messages
    program, *given = shlex.split(command.removeprefix("next: "))
    assert given == ["--logdir", "a run"]
    assert Path(shutil.which(program)).samefile(Path(sys.executable).with_name("tensorboard"))
    assert "tab Custom Scalars" in explanation
    # each chart of the tab is over the layers, as the line says
    assert_grouped(events("a run"))


@pytest.mark.parametrize(
    "given",
    [[], ["trainer.precision=bf16-true"], ["model.pool=class", "model.cls_position=centre"]],
    ids=["plain", "rounded", "centred"],
)
def test_a_trial_of_one_batch_looks_too(given, tiny):
    fit("vit_comrope", [*tiny, *given, "trainer.fast_dev_run=true"], Path("trial"), "never")
    assert [row["step"] for row in rows("trial") if row["attention/1/self"]] == ["0"]


def test_a_model_that_cannot_be_looked_at_is_trained_all_the_same(tiny, monkeypatch, caplog):
    monkeypatch.setattr(
        callback,
        "number_layers",
        lambda model, layers: capture.number_layers(nn.Linear(1, 1), layers),
    )
    assert main(["fit", "vit_comrope", *tiny, "trainer.fast_dev_run=true", "--run-dir", "run"]) == 0
    assert "Diagnostics are skipped: the model has no attention layer of zoo" in caplog.text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("diagnostics.layers=[0,5]", "there is no layer 5; the model has layers 0 to 1"),
        ("diagnostics.layers=[-1]", "diagnostics.layers.0: must be at least 0, got -1"),
        ("diagnostics.every_n_steps=0", "diagnostics.every_n_steps: must be at least 1, got 0"),
        ("diagnostics.max_overhead=2", "diagnostics.max_overhead: must be from 0.0001 to 1, got 2"),
        ("diagnostics.every_n_step=5", "did you mean diagnostics.every_n_steps?"),
    ],
)
def test_diagnostics_that_cannot_be_are_refused(given, message, tiny, capfd):
    assert main(["fit", "vit_comrope", *tiny, given]) == 2
    assert message in capfd.readouterr().err
