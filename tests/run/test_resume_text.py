"""Runs on text: a checkpoint carries its vocabulary, and memory goes on where it was."""

import signal
from pathlib import Path

import pytest
import torch
from tables import corpus
from training import fit

import zoo
from zoo.data.corpus.tokenizer import Characters, Words
from zoo.data.spec import ImageSpec, SegmentationSpec, TextClassificationSpec, TextSpec, VideoSpec
from zoo.errors import CheckpointError, Stopped
from zoo.run import checkpoint
from zoo.run.callbacks.stop_on_signal import StopOnSignal

RECIPE = """
extends: [model/lm_tiny, data/text, optim/adamw, trainer/default]
model: {dim: 16, depth: 1, heads: 2, encoding: rope}
data: {files: [song.txt], length: 16, batch_size: 4}
task: causal_lm
trainer: {max_epochs: 1, accelerator: cpu}
"""


@pytest.fixture
def song(tmp_path, monkeypatch):
    """A recipe of a text of a few lines, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    Path("song.txt").write_text("row, row, row your boat\n" * 50)
    Path("song.yaml").write_text(RECIPE)
    return "song.yaml"


def test_a_checkpoint_needs_no_corpus(song):
    fit(song, [], Path("run"), "never")
    Path("song.txt").unlink()
    task = zoo.load("run")
    assert task.spec.length == 16
    assert task.spec.vocabulary.decode(task.spec.vocabulary.encode("your boat")) == "your boat"
    assert task(torch.zeros(1, 16, dtype=torch.long)).shape == (1, 16, len(task.spec.vocabulary))


def test_a_length_to_evaluate_at_leaves_the_model_as_it_was_trained(song):
    fit(song, ["model.encoding=learned"], Path("run"), "never")
    task = zoo.load("run", {"data.length": 64})
    assert task.model.encoding["learned"].table.shape == (16, 16)


def test_classes_of_texts_are_remembered(tmp_path):
    known = TextClassificationSpec(8, Characters("abc"), 2, ("calm", "wild"))
    assert (
        checkpoint.read_spec({"zoo": {"samples": checkpoint._spec_to_plain(known)}}, tmp_path)
        == known
    )


def test_that_windows_ask_for_answers_is_remembered(tmp_path):
    for known in (
        TextSpec(8, Words(("a", "b")), targets="answers"),
        TextSpec(8, Characters("ab"), "some"),
        TextSpec(8, Characters("ab")),
    ):
        assert (
            checkpoint.read_spec({"zoo": {"samples": checkpoint._spec_to_plain(known)}}, tmp_path)
            == known
        )


def test_images_are_remembered(tmp_path):
    for known in (
        ImageSpec(1, 8, 16, 2, names=("a", "b")),
        ImageSpec(1, 8, 8, 10),
        VideoSpec(1, 8, 8, 10, frames=4),
        SegmentationSpec(3, 8, 16, 2, names=("a", "b")),
    ):
        assert (
            checkpoint.read_spec({"zoo": {"samples": checkpoint._spec_to_plain(known)}}, tmp_path)
            == known
        )


def test_a_vocabulary_that_cannot_be_read_is_told(tmp_path):
    content = {"zoo": {"samples": {"length": 8, "vocabulary": {"kind": "runes"}}}}
    with pytest.raises(
        CheckpointError, match=r"its description of the data cannot be read, .*runes"
    ):
        checkpoint.read_spec(content, tmp_path / "one.ckpt")


FILLS = [
    "model.name=encoder",
    "model.dim=16",
    "model.depth=1",
    "model.heads=2",
    "model.encoding=rope",
    "model.block.dropout=0.1",
]
WAYS = {
    "predict": ["model.memory_length=16", "data.streams=true"],
    "fill": ["task.name=masked_lm", *FILLS],
    "stream": [
        "data.name=text_stream",
        "data.path=made",
        "data.length=16",
        "data.batch_size=4",
        "data.samples=24",
        "model.block.dropout=0.1",
    ],
    "classify": [
        "task.name=classification",
        *FILLS,
        "data.name=text_classification",
        "data.path=made",
        "data.val=validation",
        "data.batch_size=8",
    ],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_run_ends_as_if_it_had_not_been(way, song, weights, monkeypatch):
    given = ["trainer.max_epochs=2", *WAYS[way]]
    corpus(Path("made"))
    fit(song, given, Path("whole"), "never")

    def stop(self, trainer, *_):
        if trainer.global_step == 3:
            self._note(signal.SIGTERM, None)

    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_train_batch_start", stop)
        with pytest.raises(Stopped):
            fit(song, given, Path("broken"), "never")
    fit(song, given, Path("broken"), "auto")
    whole, broken = (weights(f"{run}/checkpoints/last.ckpt") for run in ("whole", "broken"))
    assert all(torch.equal(whole[name], broken[name]) for name in whole)
