"""Training on the same few batches, to see that a model can learn at all."""

import csv
from pathlib import Path

from training import fit


def test_a_batch_is_learned_by_heart(tiny):
    given = [
        "trainer.overfit_batches=1",
        "trainer.max_epochs=60",
        "trainer.log_every_n_steps=1",
        "model.dim=32",
    ]
    given += ["data.batch_size=16", "data.val=0.02", "model.block.drop_path=0"]
    still = [
        "model.block.drop_path=0",
        "data.rotation=0",
        "data.shift=0",
        "data.scale=0",
        "model.position_augmentation.jitter=0",
        "task.label_smoothing=0",
    ]
    fit(
        "vit_comrope",
        [*tiny, *given, *still, "model.block.dropout=0", "optim.lr=0.01"],
        Path("run"),
        "never",
    )
    rows = [
        row
        for row in csv.DictReader(Path("run/metrics.csv").read_text().splitlines())
        if row["train/loss"]
    ]
    assert len(rows) == 60
    assert float(rows[0]["train/loss"]) > 2
    assert float(rows[-1]["train/loss"]) < 0.1
