"""A command builds each object once, and hands it down."""

from collections import Counter
from pathlib import Path

import lightning as L
import pytest
from training import evaluate, fit

from zoo.data.base import DataModule


@pytest.fixture
def build_counts(monkeypatch):
    """Counts the trainers and data modules that are built."""
    counts = Counter()
    for cls in (L.Trainer, DataModule):

        def count(self, *args, cls=cls, original=cls.__init__, **kwargs):
            counts[cls] += 1
            original(self, *args, **kwargs)

        monkeypatch.setattr(cls, "__init__", count)
    return counts


PLAIN = ["trainer.max_epochs=1", "evaluate.resolutions=null"]


def test_fit_builds_one_trainer_and_one_data_module(build_counts, tiny):
    fit("vit_comrope", [*tiny, *PLAIN], Path("run"), "never")
    assert build_counts == {L.Trainer: 1, DataModule: 1}


def test_fit_checks_each_variant_that_will_be_evaluated_once(build_counts, tiny):
    fit("vit_comrope", [*tiny, *PLAIN, "evaluate.resolutions=[2x,24]"], Path("run"), "never")
    assert build_counts == {L.Trainer: 1, DataModule: 3}


def test_fit_from_other_weights_and_a_resumed_fit_build_no_more(build_counts, tiny):
    fit("vit_comrope", [*tiny, *PLAIN], Path("first"), "never")
    more = [*tiny, *PLAIN, "init_from=first", "trainer.ema_decay=0.9"]
    build_counts.clear()
    fit("vit_comrope", more, Path("second"), "never")
    assert build_counts == {L.Trainer: 1, DataModule: 1}
    build_counts.clear()
    fit("vit_comrope", [*more, "trainer.max_epochs=2"], Path("second"), "auto")
    assert build_counts == {L.Trainer: 1, DataModule: 1}


def test_eval_builds_one_data_module_for_each_evaluated_variant(build_counts, tiny):
    fit("vit_comrope", [*tiny, *PLAIN], Path("run"), "never")
    given = ["trainer.accelerator=cpu", "evaluate.resolutions=[2x,24]"]
    given += ["evaluate.data_variants={turned: {rotation: 90}}"]
    build_counts.clear()
    found = evaluate("run", given)
    assert len(found.conditions) == 4
    assert build_counts == {L.Trainer: 1, DataModule: 4}
