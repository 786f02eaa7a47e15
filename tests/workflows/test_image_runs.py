"""Runs on images: augmentation and loading go on where they were, and waiting is measured."""

import csv
import signal
from pathlib import Path

import pytest
import torch
from pictures import parquet
from training import fit

from zoo.data.images import Images
from zoo.errors import DataError, Stopped
from zoo.run.callbacks.stop_on_signal import StopOnSignal

RECIPE = """
extends: [model/vit_tiny, data/images, optim/adamw, trainer/default]
model: {dim: 16, depth: 1, heads: 2, patch_size: 4, encoding: rope_axial}
data: {path: made, size: 8, batch_size: 4, val: 0.2, test: 0.2}
task: classification
trainer: {max_epochs: 2, accelerator: cpu, log_every_n_steps: 1}
"""
AUGMENTED = [
    "data.augment.crop=2",
    "data.augment.flip=0.5",
    "data.augment.randaugment=1",
    "data.augment.mixup=0.5",
    "data.augment.cutmix=1.0",
    "data.augment.erasing=0.3",
]
SHAPED = ["data.aspect=keep", "data.pack=8", "data.augment.flip=0.5", "data.augment.area=0.5"]
STREAMED = [
    "data.val=test",
    "data.test=test",
    "data.stream.samples=20",
    "data.stream.buffer=8",
    "data.keep=0",
]


@pytest.fixture
def album(tmp_path, monkeypatch):
    """A recipe of made-up images, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    parquet(Path("made/train-0.parquet"), 30)
    parquet(Path("made/test-0.parquet"), 6)
    Path("album.yaml").write_text(RECIPE)
    return "album.yaml"


@pytest.mark.parametrize(
    "options",
    [
        AUGMENTED,
        pytest.param([*AUGMENTED, "data.keep=0", "data.workers=1"], marks=pytest.mark.nightly),
        pytest.param(STREAMED, marks=pytest.mark.nightly),
        [*STREAMED, *SHAPED],
    ],
)
def test_a_stopped_run_ends_as_if_it_had_not_been(options, album, weights, monkeypatch):
    fit(album, options, Path("whole"), "never")

    def stop(self, trainer, *_):
        if trainer.global_step == 2:
            self._note(signal.SIGTERM, None)

    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_train_batch_start", stop)
        with pytest.raises(Stopped):
            fit(album, options, Path("broken"), "never")
    fit(album, options, Path("broken"), "auto")
    whole, broken = (weights(f"{run}/checkpoints/last.ckpt") for run in ("whole", "broken"))
    assert all(torch.equal(whole[name], broken[name]) for name in whole)


def test_what_an_encoding_draws_changes_no_picture(album, monkeypatch):
    seen = {}

    def look(self, trainer, pl_module, batch, batch_idx):
        seen.setdefault(trainer.datamodule.run, []).append(batch[0].clone())

    monkeypatch.setattr(StopOnSignal, "on_train_batch_start", look, raising=False)
    for encoding in ("cape", "rope_axial"):
        monkeypatch.setattr(Images, "run", encoding, raising=False)
        fit(album, [*AUGMENTED, f"model.encoding={encoding}"], Path(encoding), "never")
    assert len(seen["cape"]) > 2
    assert all(
        torch.equal(one, other) for one, other in zip(seen["cape"], seen["rope_axial"], strict=True)
    )
    assert not torch.equal(seen["cape"][0], seen["cape"][1])


def test_the_share_of_waiting_is_logged(album):
    fit(album, [], Path("run"), "never")
    with Path("run/metrics.csv").open() as file:
        shares = [
            float(row["perf/data_share"]) for row in csv.DictReader(file) if row["perf/data_share"]
        ]
    assert shares
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize("options", [[], ["data.classes=4"]])
def test_missing_images_are_told_before_anything_is_written(album, options):
    with pytest.raises(DataError, match="elsewhere: no such file or folder"):
        fit(album, ["data.path=elsewhere", *options], Path("run"), "never")
    assert DataError.code == 4
    assert not Path("run").exists()
